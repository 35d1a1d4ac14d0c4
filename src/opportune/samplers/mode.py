"""Mode sampling with heavy tails (Esser et al., 2024, arXiv 2403.03206, section 3.1)."""

from __future__ import annotations

import math
from typing import Unpack

import torch
from torch import Tensor

from ..checks import number
from ..processes import Process
from .base import Common
from .table import FixedSampler

LARGEST_SCALE = 2 / (math.pi - 2)
"""Beyond it the map from uniforms to u would no longer be one to one."""


class Mode(FixedSampler):
    """u = 1 - v - scale (cos^2(pi v / 2) - 1 + v) with v uniform: a hump whose tails stay above zero.

    Positive ``scale`` favours the middle, negative the two ends, 0 is uniform; noise and data ends are treated alike,
    so there is no direction to get wrong. Never returns u = 1, which the formula itself can. Published without
    correction, so it re-targets the objective.

    Args:
        scale: between -1 and 2 / (pi - 2) = 1.75; 1.29 is the published best.
    """

    def __init__(self, process: Process, *, scale: float = 1.29, **common: Unpack[Common]) -> None:
        super().__init__(process, **common)
        self.scale = number("scale", scale, low=-1.0, high=LARGEST_SCALE)
        self._build()

    def cumulative(self, u: Tensor, log_snr: Tensor) -> Tensor:
        # With w = 1 - v the formula rises: u = w - scale (sin^2(pi w / 2) - w). Its inverse has no closed form, and
        # its slope is 0 at some point for the extreme scales, so halve intervals (64 times: to the last bit).
        low, high = torch.zeros_like(u), torch.ones_like(u)
        for _ in range(64):
            middle = (low + high) / 2
            below = middle - self.scale * (torch.sin(math.pi / 2 * middle).square() - middle) < u
            low, high = torch.where(below, middle, low), torch.where(below, high, middle)
        return (low + high) / 2
