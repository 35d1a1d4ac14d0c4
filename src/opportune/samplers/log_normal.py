"""Log-normal noise levels (Karras et al., 2022, arXiv 2206.00364, section 5)."""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor

from ..checks import number
from ..processes import Process
from .base import Common
from .table import FixedSampler


class LogNormal(FixedSampler):
    """ln sigma ~ N(mean, std^2) with sigma = 1/sqrt(SNR), on any process.

    On discrete processes each timestep has the mass nearest to it in ln sigma, truncated (not clamped) to the noise
    levels the schedule covers. Published without correction, so it re-targets the objective.

    Args:
        mean: of ln sigma; larger is more noise.
        std: of ln sigma.
    """

    def __init__(self, process: Process, *, mean: float = -1.2, std: float = 1.2, **common: Unpack[Common]) -> None:
        super().__init__(process, **common)
        self.mean = number("mean", mean)
        self.std = number("std", std, low=0, open_low=True)
        self._build()

    def cumulative(self, u: Tensor, log_snr: Tensor) -> Tensor:
        log_sigma = -log_snr / 2
        cumulative: Tensor = torch.special.ndtr((log_sigma - self.mean) / self.std)
        return cumulative
