"""Log-uniform noise levels: the reference of the VE process (Song et al., 2021, arXiv 2011.13456), on any process."""

from __future__ import annotations

import math
from typing import Unpack

from torch import Tensor

from ..checks import number
from ..processes import Process
from .base import Common
from .table import FixedSampler


class LogUniform(FixedSampler):
    """ln sigma uniform between ln sigma_low and ln sigma_high, with sigma = 1/sqrt(SNR), and nothing outside.

    Every octave of noise equally often. ``op.VE`` draws like this already ("uniform" there). On discrete processes each
    timestep has the mass nearest to it in ln sigma. Published without correction, so it re-targets the objective.

    Args:
        sigma_low, sigma_high: noise levels covered; the defaults are the range EDM generates on.
    """

    def __init__(
        self, process: Process, *, sigma_low: float = 0.002, sigma_high: float = 80.0, **common: Unpack[Common]
    ) -> None:
        super().__init__(process, **common)
        self.sigma_low = number("sigma_low", sigma_low, low=0, open_low=True)
        self.sigma_high = number("sigma_high", sigma_high, low=self.sigma_low, open_low=True)
        self._build()

    def cumulative(self, u: Tensor, log_snr: Tensor) -> Tensor:
        return (-log_snr / 2).clamp(math.log(self.sigma_low), math.log(self.sigma_high))
