"""The cosine schedule's noise levels, shifted or not (simple diffusion: Hoogeboom et al., 2023, arXiv 2301.11093)."""

from __future__ import annotations

import math
from typing import Unpack

import torch
from torch import Tensor

from ..checks import number
from ..processes import Process
from .base import Common
from .table import FixedSampler

_STEEPEST = 2 * math.pi  # -2 ln tan(pi v / 2) falls at least this fast along v


class Cosine(FixedSampler):
    """ln SNR = -2 ln tan(pi v / 2) + shift(v) with v uniform, on any process: train elsewhere as on that schedule.

    Without a shift it is the cosine schedule of continuous time (k-diffusion's "v-diffusion" for data of standard
    deviation 1, else ``log_snr_shift = -2 ln sigma_data``; on unshifted ``Flow`` it is "cosmap"). Images of d x d
    pixels need more noise to be drowned: simple diffusion's shifted schedule is ``log_snr_shift = 2 ln(64 / d)``. Its
    interpolated one (k-diffusion's "cosine-interpolated") keeps fine detail in view: ``log_snr_shift = 2 ln(256 / d)``
    at the clean end and ``log_snr_shift_noise = 2 ln(32 / d)`` at the noisy one. *Lower* is more noise: it is added to
    ln SNR. Published without correction, so it re-targets the objective.

    Args:
        log_snr_shift: added to ln SNR.
        log_snr_shift_noise: the same at the noisy end, at most 2 pi more; None is ``log_snr_shift`` throughout.
    """

    def __init__(
        self,
        process: Process,
        *,
        log_snr_shift: float = 0.0,
        log_snr_shift_noise: float | None = None,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(process, **common)
        self.log_snr_shift = number("log_snr_shift", log_snr_shift)
        self.log_snr_shift_noise = self.log_snr_shift
        if log_snr_shift_noise is not None:
            highest = self.log_snr_shift + _STEEPEST  # beyond it ln SNR would rise somewhere along v
            self.log_snr_shift_noise = number("log_snr_shift_noise", log_snr_shift_noise, high=highest)
        self._build()

    def cumulative(self, u: Tensor, log_snr: Tensor) -> Tensor:
        # v at which the schedule has fallen to the edge's ln SNR. It has no closed form where the shift varies, so
        # halve intervals (64 times: to the last bit).
        low, high = torch.zeros_like(log_snr), torch.ones_like(log_snr)
        for _ in range(64):
            v = (low + high) / 2
            shift = self.log_snr_shift + v * (self.log_snr_shift_noise - self.log_snr_shift)
            above = -2 * torch.log(torch.tan(math.pi / 2 * v)) + shift > log_snr
            low, high = torch.where(above, v, low), torch.where(above, high, v)
        return (low + high) / 2
