"""Uniform: the process's own reference distribution, and the baseline of every comparison."""

from __future__ import annotations

from typing import Unpack

from torch import Tensor

from ..processes import Process
from .base import Common
from .table import FixedSampler


class Uniform(FixedSampler):
    """p(u) = 1: every timestep equally often (Ho et al., 2020). On EDM this is the process's own log-normal."""

    def __init__(self, process: Process, **common: Unpack[Common]) -> None:
        super().__init__(process, **common)
        self._build()

    def cumulative(self, u: Tensor, log_snr: Tensor) -> Tensor:
        return u
