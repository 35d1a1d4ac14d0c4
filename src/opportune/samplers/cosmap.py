"""CosMap timesteps (Esser et al., 2024, arXiv 2403.03206, section 3.1): the cosine schedule seen from flow matching."""

from __future__ import annotations

import math
from typing import Unpack

import torch
from torch import Tensor

from ..processes import Process
from .base import Common
from .table import FixedSampler


class CosMap(FixedSampler):
    """p(u) = 2 / (pi - 2 pi u + 2 pi u^2), drawn as u = 1 - 1 / (tan(pi v / 2) + 1) with v uniform.

    Symmetric about u = 0.5, where it is twice as dense as at the ends: no direction to get wrong. Published without
    correction, so it re-targets the objective. (diffusers' "cosmap" uses the same curve as a loss *weight* on uniform
    timesteps; that is the weighting "cosmap" here.)
    """

    def __init__(self, process: Process, **common: Unpack[Common]) -> None:
        super().__init__(process, **common)
        self._build()

    def cumulative(self, u: Tensor, log_snr: Tensor) -> Tensor:
        return torch.atan2(u, 1 - u) * (2 / math.pi)
