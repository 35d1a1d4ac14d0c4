"""Laplace-distributed log-SNR (Hang et al., 2024, arXiv 2407.03297)."""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor

from ..checks import number
from ..processes import Process
from .base import Common
from .table import FixedSampler


class Laplace(FixedSampler):
    """p(ln SNR) = exp(-|ln SNR - mean| / scale) / (2 scale): a sharp peak around one noise level.

    The paper words it as a noise schedule; sampling the same density of ln SNR on any process is the same objective.
    Larger ``mean`` is *less* noise (it is a mean of ln SNR). On discrete processes each timestep has the mass nearest
    to it in ln SNR, truncated to the noise levels the schedule covers. Published without correction, so it re-targets
    the objective.

    Args:
        mean: of ln SNR; 0 is as much noise as data.
        scale: of ln SNR.
    """

    def __init__(self, process: Process, *, mean: float = 0.0, scale: float = 0.5, **common: Unpack[Common]) -> None:
        super().__init__(process, **common)
        self.mean = number("mean", mean)
        self.scale = number("scale", scale, low=0, open_low=True)
        self._build()

    def cumulative(self, u: Tensor, log_snr: Tensor) -> Tensor:
        # Rising along u means falling along ln SNR: the probability of everything cleaner than the edge.
        distance = (log_snr - self.mean) / self.scale
        tail = 0.5 * torch.exp(-distance.abs())
        return torch.where(distance > 0, tail, 1 - tail)
