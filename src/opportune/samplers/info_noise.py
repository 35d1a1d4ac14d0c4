"""InfoNoise: sampling where the denoiser's error tells the data apart (arXiv 2602.18647)."""

from __future__ import annotations

import math
from typing import Unpack

import torch
from torch import Tensor

from ..checks import number
from ..processes import EDM, Process
from ..types import StepRecord
from .base import Common
from .histogram import Histogram, HistogramSampler
from .objective_weight import Weighting, objective_weight

_LIMIT = 80.0  # ln SNR is held within +-80, as in the weightings
_PIVOT_GRID = 2000
_PIVOT_SHARE = 0.002


class InfoNoise(HistogramSampler):
    """pi proportional to rho / w, where rho is the gated information rate per ln sigma and w the objective's weight.

    With m(sigma) the unweighted x0-MSE, converted here from whatever the network predicts::

        q(sigma) = m(sigma) / sigma^2             per d ln sigma   (per d sigma it is m / sigma^3)
        g(sigma) = sigma^n / (sigma^n + c^n)      gate that switches off noise levels below the pivot c
        rho = q g                                 the share of the objective each noise level should get
        pi  = rho / w                             what is drawn; w is the weight on the x0-MSE in training

    The pivot c is the largest sigma at which m / sigma^3 is still ``pivot_share`` of its maximum. The objective's
    weight stays what it is, so the product pi * w is re-targeted to rho; there is no correction by default.

    Departures from the paper, which is about EDM on sigma in [0.002, 80]: bins are equal in u instead of ln sigma;
    the running mean is ``decay`` per step (public ports disagree on its direction); the warm-up is a number of steps
    and ends even if bins are empty; m is held below ``data_std**2``, which no useful denoiser exceeds, because a small
    error in eps is an unbounded error in x0 where there is almost only noise; the floor of uniform is ours.

    Args:
        gate_power: n.
        pivot_share: p.
        pivot_sigma: c itself, instead of the search (published: 0.15 for CIFAR-10, 0.2 for discrete data).
        sigma_low, sigma_high: noise levels (1/sqrt(SNR)) the density covers; the floor alone goes beyond.
        data_std: standard deviation of the data; None is the process's sigma_data, or 1.
        weighting: of the objective that is trained; None is weight 1 on the process's own target.
        bins, decay, warmup_steps, refresh_steps, floor, minimum_count: see :class:`HistogramSampler`.
    """

    def __init__(
        self,
        process: Process,
        *,
        gate_power: float = 3.0,
        pivot_share: float = _PIVOT_SHARE,
        pivot_sigma: float | None = None,
        sigma_low: float = 0.002,
        sigma_high: float = 80.0,
        data_std: float | None = None,
        bins: int = 128,
        decay: float = 0.99,
        warmup_steps: int = 500,
        refresh_steps: int = 100,
        floor: float = 0.05,
        minimum_count: float = 4.0,
        weighting: Weighting | str | None = None,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(
            process,
            bins=bins,
            warmup_steps=warmup_steps,
            refresh_steps=refresh_steps,
            floor=floor,
            minimum_count=minimum_count,
            weighting=weighting,
            **common,
        )
        self.gate_power = number("gate_power", gate_power, low=0)
        self.pivot_share = number("pivot_share", pivot_share, low=0, high=1, open_low=True)
        self.pivot_sigma = None if pivot_sigma is None else number("pivot_sigma", pivot_sigma, low=0, open_low=True)
        if pivot_sigma is not None and pivot_share != _PIVOT_SHARE:
            self.warn_once(f"pivot_share={pivot_share:g} has no effect: pivot_sigma={pivot_sigma:g} names the pivot.")
        self.sigma_low = number("sigma_low", sigma_low, low=0, open_low=True)
        self.sigma_high = number("sigma_high", sigma_high, low=self.sigma_low, open_low=True)
        if data_std is None:
            data_std = process.sigma_data if isinstance(process, EDM) else 1.0
        self.data_std = number("data_std", data_std, low=0, open_low=True)
        if float(self._log_sigma_edges().diff().sum()) <= 0:
            raise ValueError(
                f"sigma_low={self.sigma_low:g} and sigma_high={self.sigma_high:g} leave none of the noise levels of "
                f"{process!r}; give a range that overlaps with its 1/sqrt(SNR)."
            )
        # Weights that turn a loss of the process's own target into the x0-MSE m and the eps-MSE m / sigma^2.
        self._to_x0 = objective_weight(process, "constant", target="x0")
        self._to_eps = objective_weight(process, "constant", target="eps")
        self.history = Histogram(self.bins, decay=decay)

    def _take(self, record: StepRecord) -> None:
        if record.losses is None:
            return
        u = record.draw.u.to(self._device()).double()
        losses = record.losses.to(u.device).double()
        rate = torch.minimum(self._to_eps(u) * losses, self.data_std**2 * self._log_snr(u).exp())
        self.history.add(u, torch.where(torch.isfinite(losses), rate, torch.nan))

    def _profile(self) -> tuple[Tensor, Tensor]:
        return self.history.mean, self.history.count

    def _masses_of(self, profile: Tensor) -> Tensor:
        middles = (torch.arange(self.cells, dtype=torch.float64, device=profile.device) + 0.5) / self.cells
        log_snr = self._log_snr(middles)
        rate = torch.minimum(profile[(middles * self.bins).long()], self.data_std**2 * log_snr.exp())
        edges = self._log_sigma_edges().to(profile.device)
        gate = 1 / (1 + (self._pivot(rate, edges) * torch.exp(log_snr / 2)) ** self.gate_power)
        weight = self.weight_at(middles) / self._to_x0(middles)
        width = edges.diff()
        wanted = (width > 0) & (weight > 0)  # where the objective has no weight there is nothing to allocate
        return torch.where(wanted, rate * gate * width / weight, 0.0)

    def _pivot(self, rate: Tensor, edges: Tensor) -> Tensor:
        """c, from the rate ``[cells]``, on a grid even in ln sigma: cells of u are too coarse for it at the ends."""
        if self.pivot_sigma is not None:
            return rate.new_tensor(self.pivot_sigma)
        log_sigma = torch.linspace(float(edges[0]), float(edges[-1]), _PIVOT_GRID, dtype=torch.float64)
        log_sigma = log_sigma.to(rate.device)
        cell = (torch.searchsorted(edges, log_sigma, right=True) - 1).clamp_(0, self.cells - 1)
        per_sigma = rate[cell] * torch.exp(-log_sigma)
        return log_sigma[per_sigma >= self.pivot_share * per_sigma.max()].max().exp()

    def _log_sigma_edges(self) -> Tensor:
        """``[cells + 1]`` ln sigma at the edges of the cells, held within [sigma_low, sigma_high]."""
        edges = -self.process.edge_log_snr().double() / 2
        return edges.clamp(math.log(self.sigma_low), math.log(self.sigma_high))

    def _log_snr(self, u: Tensor) -> Tensor:
        return self.process.log_snr(u).double().clamp(-_LIMIT, _LIMIT)
