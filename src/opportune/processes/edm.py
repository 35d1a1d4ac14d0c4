"""EDM: x = x0 + sigma n with a log-normal reference and a preconditioned network (Karras et al., 2022, 2206.00364)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..checks import number
from .base import Process, check_times, expand

_EDGE = 2.0**-25  # u is kept this far from 0 and 1, where a log-normal sigma would be 0 or infinite


class EDM(Process):
    """``ln sigma = p_mean + p_std * Phi^-1(u)``: uniform u *is* EDM's log-normal; own time is sigma.

    Args:
        p_mean, p_std: of ln sigma. (-1.2, 1.2) is EDM; EDM2 used (-0.4, 1.0) for 512x512 latents.
        sigma_data: standard deviation of the data.
        prediction: "F" (the preconditioned network: input ``c_in x``, output F with ``D = c_skip x + c_out F``),
            "x0" (the denoiser itself) or "eps".
    """

    predictions = ("F", "x0", "eps")

    def __init__(
        self, *, p_mean: float = -1.2, p_std: float = 1.2, sigma_data: float = 0.5, prediction: str = "F"
    ) -> None:
        super().__init__(prediction=prediction)
        self.p_mean = number("p_mean", p_mean)
        self.p_std = number("p_std", p_std, low=0, open_low=True)
        self.sigma_data = number("sigma_data", sigma_data, low=0, open_low=True)

    def _log_sigma(self, u: Tensor) -> Tensor:
        normal: Tensor = torch.special.ndtri(u.double().clamp(_EDGE, 1 - _EDGE))
        return self.p_mean + self.p_std * normal

    def log_snr(self, u: Tensor) -> Tensor:
        return -2 * self._log_sigma(u)

    def edge_log_snr(self) -> Tensor:
        """As in the base class, with the outer edges at sigma = 0 and infinity, which the log-normal reaches."""
        edges = super().edge_log_snr()
        edges[0], edges[-1] = math.inf, -math.inf
        return edges

    def time(self, u: Tensor) -> Tensor:
        return torch.exp(self._log_sigma(u)).to(u.dtype)

    def axis(self, t: Tensor) -> Tensor:
        u: Tensor = torch.special.ndtr((t.double().log() - self.p_mean) / self.p_std)
        return u.to(t.dtype)

    def coefficients(self, t: Tensor) -> tuple[Tensor, Tensor]:
        check_times(t, 0, math.inf)
        return torch.ones_like(t), t

    def sigma(self, t: Tensor) -> Tensor:
        return t

    def skip_and_out(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """``(c_skip [B], c_out [B])`` of ``D = c_skip x + c_out F``."""
        total = t**2 + self.sigma_data**2
        return self.sigma_data**2 / total, t * self.sigma_data / total.sqrt()

    def network_input(self, x_t: Tensor, t: Tensor) -> Tensor:
        if self.prediction != "F":
            return x_t
        return x_t * expand((t**2 + self.sigma_data**2).rsqrt(), x_t)

    def network_time(self, t: Tensor) -> Tensor:
        """``c_noise = ln(sigma) / 4``."""
        return torch.log(t) / 4

    def target(self, x0: Tensor, noise: Tensor, t: Tensor) -> Tensor:
        if self.prediction != "F":
            return super().target(x0, noise, t)
        # (x0 - c_skip x) / c_out with x = x0 + sigma n, multiplied out: that difference would lose x0's digits.
        norm = (t**2 + self.sigma_data**2).rsqrt()
        return expand(t / self.sigma_data * norm, x0) * x0 - expand(self.sigma_data * norm, x0) * noise.to(x0.dtype)

    def split(self, output: Tensor, x_t: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        if self.prediction != "F":
            return super().split(output, x_t, t)
        skip, out = (expand(c, x_t) for c in self.skip_and_out(t))
        x0 = skip * x_t + out * output
        return x0, (x_t - x0) / expand(t, x_t)
