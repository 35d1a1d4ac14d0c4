"""How far a network is from the best any network could do, per noise level.

A denoising loss is mostly irreducible: even the optimal output ``out* = E[target | x_t]`` leaves the spread of the
target around it. Because ``out*`` is a conditional mean, ``E|out - target|^2 = E|out - out*|^2 + E|out* - target|^2``,
so the excess is measured directly as ``|out - out*|^2``, without the noise of the irreducible part.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ...checks import number, whole
from ...processes import DDPM, Process
from ...random_streams import generator
from ...weightings import log_conversion
from .data import GaussianMixture

_LARGEST_LOG_SNR = 80.0


@dataclass(frozen=True)
class Excess:
    """Excess over the optimum, per dimension.

    Attributes:
        own: MSE of the process's own target, averaged over u: what plain training descends.
        eps: the same error expressed as an error of eps, averaged over u.
        vlb: its share of the variational bound in nats per dimension, coefficients capped (:func:`vlb_coefficients`).
        profile: ``[bins]`` the eps-MSE in equal bins of u, clean to noise.
    """

    own: float
    eps: float
    vlb: float
    profile: Tensor


class HeldOut:
    """Fixed examples, timesteps and noise with the optimal output at each; the same for every network compared.

    Args:
        process: what noise does to the data, and the target.
        data: with a known posterior mean.
        pairs: number N of (example, u, noise); u is spread evenly, so every timestep is met when N >= T.
        vlb_cap: quantile the VLB coefficients are capped at.
        seed: of the examples and the noise.
    """

    def __init__(
        self,
        process: Process,
        data: GaussianMixture,
        *,
        pairs: int = 16_384,
        vlb_cap: float = 0.99,
        seed: int = 0,
    ) -> None:
        self.process = process
        self.u = (torch.arange(whole("pairs", pairs, low=1), dtype=torch.float64) + 0.5) / pairs
        self.t = process.time(self.u if process.steps is not None else self.u.float())
        x0 = data.sample(pairs, seed)
        noise = torch.randn(x0.shape, generator=generator(seed, "held-out noise"))
        self.x_t = process.corrupt(x0, noise, self.t)
        """``[N, D]``."""
        alpha, sigma = (c.double()[:, None] for c in process.coefficients(self.t))
        best_x0 = data.posterior_mean(self.x_t.double(), alpha, sigma)
        # Every target is affine in (x0, eps) at a given x_t, so the mean target is the target of the means.
        best_eps = (self.x_t.double() - alpha * best_x0) / sigma
        self.optimum = process.target(best_x0, best_eps, self.t).float()
        """``[N, D]`` the best possible output."""
        self._target = process.target(x0.double(), noise.double(), self.t).float()
        self._eps = eps_per_target(process, self.u)
        cell = (self.u * process.cells).long().clamp(max=process.cells - 1)
        self._vlb = vlb_coefficients(process, cap=vlb_cap)[cell]

    @torch.no_grad()
    def excess(self, network: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """``[N]`` float64: mean over dimensions of ``|out - out*|^2`` in the process's own target."""
        output = network(self.process.network_input(self.x_t, self.t), self.process.network_time(self.t))
        return (output.double() - self.optimum.double()).square().mean(dim=1)

    def bayes(self) -> Tensor:
        """``[N]`` loss of the optimal output: its average in a bin of u estimates the irreducible loss there."""
        return (self._target.double() - self.optimum.double()).square().mean(dim=1)

    def measure(self, network: Callable[[Tensor, Tensor], Tensor], *, bins: int = 32) -> Excess:
        """Summaries of :meth:`excess`."""
        own = self.excess(network)
        eps = own * self._eps
        bin_of = (self.u * whole("bins", bins, low=1)).long()
        counts = torch.bincount(bin_of, minlength=bins).clamp_min(1)
        return Excess(
            own=float(own.mean()),
            eps=float(eps.mean()),
            vlb=float((self._vlb * eps).mean()),
            profile=torch.bincount(bin_of, weights=eps, minlength=bins) / counts,
        )


def eps_per_target(process: Process, u: Tensor) -> Tensor:
    """``[N]`` float64: the factor from an MSE of the process's own target to an MSE of eps, at ``u`` ``[N]``."""
    log_snr = process.log_snr(u).double().clamp(-_LARGEST_LOG_SNR, _LARGEST_LOG_SNR)
    sigma_data = float(getattr(process, "sigma_data", 0.5))
    return (log_snr + log_conversion(log_snr, process.prediction, sigma_data)).exp()


def vlb_coefficients(process: Process, *, cap: float = 0.99) -> Tensor:
    """``[cells]`` float64: what the eps-MSE counts in the variational bound, so that the mean over u is in nats.

    DDPM: ``T beta / (2 alpha (1 - alpha_bar))``, that is sigma_t^2 = beta_t (Ho et al., 2020, eq. 12). Continuous
    time: ``|d log_snr / du| / 2`` (Kingma et al., 2021). Capped at the ``cap`` quantile: on the cosine schedule one
    timestep would otherwise decide everything (its last coefficient is 499.5 T; the next is 1.5 T).
    """
    cells = process.cells
    if isinstance(process, DDPM):
        betas = process.betas
        coefficients = cells * betas / (2 * (1 - betas) * (1 - process.alphas_cumprod))
    else:
        middle = (torch.arange(cells, dtype=torch.float64) + 0.5) / cells
        quarter = 0.25 / cells
        coefficients = (process.log_snr(middle - quarter) - process.log_snr(middle + quarter)) / (4 * quarter)
    limit = torch.quantile(coefficients, number("cap", cap, low=0, high=1))
    return coefficients.clamp(max=float(limit))
