"""Logit-normal timesteps (Esser et al., 2024, arXiv 2403.03206, section 3.1; Stable Diffusion 3)."""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor

from ..checks import number
from ..processes import Process
from .base import Common
from .table import FixedSampler


class LogitNormal(FixedSampler):
    """u = sigmoid(n), n ~ N(mean, std^2): the middle of the noise axis more often than its ends.

    Larger ``mean`` is more noise, on every process. On ``Flow`` u is the time before the process's shift, so
    ``LogitNormal`` with ``Flow(shift=3.0)`` is Stable Diffusion 3's recipe and the shift is applied once. To aim at
    the same noise levels on another process use ``log_normal`` with the same mean and std: on unshifted flow
    ln sigma = logit(u) = n. Published without correction, so it re-targets the objective.

    Args:
        mean: of logit(u); 0 is symmetric, +1 centres on u = 0.73.
        std: of logit(u).
    """

    def __init__(self, process: Process, *, mean: float = 0.0, std: float = 1.0, **common: Unpack[Common]) -> None:
        super().__init__(process, **common)
        self.mean = number("mean", mean)
        self.std = number("std", std, low=0, open_low=True)
        self._build()

    def cumulative(self, u: Tensor, log_snr: Tensor) -> Tensor:
        cumulative: Tensor = torch.special.ndtr((torch.logit(u) - self.mean) / self.std)
        return cumulative
