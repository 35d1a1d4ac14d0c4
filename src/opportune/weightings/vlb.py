"""The weights of the variational bound (Ho et al., 2020, 2006.11239, eq. 12; Kingma et al., 2021, 2107.00630)."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from ..checks import number, one_of
from ..processes import Process
from .base import Weighting

_INSET = 2.0**-24  # |d ln SNR / du| is taken at u this far from the ends, where it may be infinite


class VLB(Weighting):
    """W = SNR c_t, c_t = beta_t^2/(2 s_t^2 alpha_t (1 - alpha_bar_t)); in continuous time SNR |d ln SNR/du|/2.

    ``s_t^2`` is the variance of the generating step. Both forms are written without a division by alpha:
    W = (SNR_{t-1} - SNR_t) / 2 with the small variance, times (1 - alpha_bar_{t-1}) / (1 - alpha_bar_t) with
    the large one, so x0- and v-losses stay finite at zero terminal SNR.

    The ends. At index 0 the bound has a decoder term and the small variance is 0, so c_0 would be infinite;
    it is taken with the variance of index 1, as DDPM codes clip it. Towards the noisy end c_t explodes on
    some schedules (cosine: 0.117 at t=990, 499.5 at t=999, where beta is clipped), so that one timestep
    carries the whole loss: see ``cap_quantile``.

    Args:
        variance: "small" (the posterior's, beta-tilde) or "large" (beta); discrete processes only.
        cap_quantile: c_t is held below this quantile of itself over timesteps, e.g. 0.99; None is the exact
            bound.
    """

    def __init__(self, process: Process, *, variance: str = "small", cap_quantile: float | None = None) -> None:
        super().__init__(process)
        self.variance = one_of("variance", variance, ("small", "large"))
        if self.variance == "large" and process.steps is None:
            warnings.warn(
                f"variance='large' has no effect on {process!r}: in continuous time the two variances are the same.",
                UserWarning,
                stacklevel=2,
            )
        self.cap_quantile = cap_quantile
        self._log_w = None if process.steps is None else self._discrete()
        self._log_cap: float | None = None
        if cap_quantile is not None:
            number("cap_quantile", cap_quantile, low=0, high=1, open_low=True, open_high=True)
            u = self._middles()
            log_c = self._uncapped(u, self._log_snr(u)) - self._log_snr(u)
            self._log_cap = float(torch.quantile(log_c.exp(), cap_quantile).log())

    def log_weight(self, u: Tensor, log_snr: Tensor) -> Tensor:
        log_w = self._uncapped(u, log_snr)
        return log_w if self._log_cap is None else torch.minimum(log_w, log_snr + self._log_cap)

    def _uncapped(self, u: Tensor, log_snr: Tensor) -> Tensor:
        if self._log_w is not None:
            return self._log_w.to(u.device)[self.process.time(u)]
        u = u.double().clamp(_INSET, 1 - _INSET)
        # A central difference that shrinks with the distance to the ends: off by 1e-8 even where ln SNR ~ ln u.
        reach = 1e-4 * torch.minimum(u, 1 - u)
        slope = (self.process.log_snr(u + reach) - self.process.log_snr(u - reach)).abs() / (2 * reach)
        return log_snr + (slope / 2).log()

    def _discrete(self) -> Tensor:
        """ln W of each timestep, ``[T]`` float64."""
        log_snr = self._log_snr(self._middles())
        noise = torch.sigmoid(-log_snr)  # 1 - alpha_bar
        first = torch.reciprocal(2 * noise[:1])  # c_0 = 1 / (2 alpha_0): s_0^2 = beta_0
        if len(log_snr) == 1:
            return first.log()
        snr = log_snr.exp()
        small = (snr[:-1] - snr[1:]) / 2
        if self.variance == "large":
            return torch.cat([first, small * noise[:-1] / noise[1:]]).log()
        beta_1 = 1 - torch.sigmoid(log_snr[1]) / torch.sigmoid(log_snr[0])
        return torch.cat([first * noise[1] / beta_1, small]).log()
