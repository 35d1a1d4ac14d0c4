"""Score-based processes in continuous time: VP and VE (Song et al., 2021, arXiv 2011.13456)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..checks import number
from .base import Process, check_times


class VP(Process):
    """Variance preserving SDE: alpha^2 = exp(-(beta_d t^2 / 2 + beta_min t)), own time t in [t_min, 1].

    The reference is uniform in t: ``t = t_min + u (1 - t_min)``. Defaults are those of the VP-SDE
    (beta from 0.1 to 20, so beta_d = 19.9, t_min = 1e-5).
    """

    predictions = ("eps", "x0", "v")

    def __init__(
        self, *, beta_min: float = 0.1, beta_max: float = 20.0, t_min: float = 1e-5, prediction: str = "eps"
    ) -> None:
        super().__init__(prediction=prediction)
        self.beta_min = number("beta_min", beta_min, low=0, open_low=True)
        self.beta_max = number("beta_max", beta_max, low=beta_min)
        self.t_min = number("t_min", t_min, low=0, high=1, open_low=True, open_high=True)

    def _log_alpha_squared(self, t: Tensor) -> Tensor:
        return -(0.5 * (self.beta_max - self.beta_min) * t**2 + self.beta_min * t)

    def log_snr(self, u: Tensor) -> Tensor:
        t = self.t_min + u.double() * (1 - self.t_min)
        log_alpha2 = self._log_alpha_squared(t)
        return log_alpha2 - torch.log(-torch.expm1(log_alpha2))

    def time(self, u: Tensor) -> Tensor:
        return self.t_min + u * (1 - self.t_min)

    def axis(self, t: Tensor) -> Tensor:
        return (t - self.t_min) / (1 - self.t_min)

    def coefficients(self, t: Tensor) -> tuple[Tensor, Tensor]:
        check_times(t, 0, 1)
        log_alpha2 = self._log_alpha_squared(t)
        return torch.exp(0.5 * log_alpha2), torch.sqrt(-torch.expm1(log_alpha2))

    def network_time(self, t: Tensor) -> Tensor:
        """``999 t``: the range sinusoidal embeddings are built for, as in the VP-SDE code."""
        return 999 * t


class VE(Process):
    """Variance exploding SDE: x = x0 + sigma eps, ln sigma uniform between sigma_min and sigma_max.

    Own time is sigma itself. Defaults are EDM's training range for VE (0.02 to 100).
    """

    predictions = ("eps", "x0")

    def __init__(self, *, sigma_min: float = 0.02, sigma_max: float = 100.0, prediction: str = "eps") -> None:
        super().__init__(prediction=prediction)
        self.sigma_min = number("sigma_min", sigma_min, low=0, open_low=True)
        self.sigma_max = number("sigma_max", sigma_max, low=sigma_min, open_low=True)
        self._span = math.log(self.sigma_max / self.sigma_min)

    def log_snr(self, u: Tensor) -> Tensor:
        return -2 * (math.log(self.sigma_min) + u.double() * self._span)

    def time(self, u: Tensor) -> Tensor:
        return self.sigma_min * torch.exp(u * self._span)

    def axis(self, t: Tensor) -> Tensor:
        return torch.log(t / self.sigma_min) / self._span

    def coefficients(self, t: Tensor) -> tuple[Tensor, Tensor]:
        check_times(t, 0, math.inf)
        return torch.ones_like(t), t

    def sigma(self, t: Tensor) -> Tensor:
        return t

    def network_time(self, t: Tensor) -> Tensor:
        """``ln(sigma / 2)``, as in the VE-SDE code."""
        return torch.log(0.5 * t)
