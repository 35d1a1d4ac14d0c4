"""The U-shaped density of straightened flows (2-rectified flow++: Lee et al., 2024, arXiv 2405.20320)."""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor

from ..checks import number
from ..processes import Process
from .base import Common
from .table import FixedSampler


class UShaped(FixedSampler):
    """p(u) proportional to e^(steepness u) + e^(steepness (1 - u)): both ends often, the middle seldom.

    Made for a second training of a flow on its own pairs (reflow), where the middle has little left to learn; for data
    and fresh noise the densities with a hump in the middle were published. Noise and data ends are treated alike, as in
    the released code (the paper's text has e^(a u) + e^(-a u), which is no U on [0, 1]). Published without correction,
    so it re-targets the objective.

    Args:
        steepness: above 0 and at most 100; 4 is published.
    """

    def __init__(self, process: Process, *, steepness: float = 4.0, **common: Unpack[Common]) -> None:
        super().__init__(process, **common)
        self.steepness = number("steepness", steepness, low=0, high=100, open_low=True)
        self._build()

    def cumulative(self, u: Tensor, log_snr: Tensor) -> Tensor:
        # Of e^(a u): (e^(a u) - 1) / (e^a - 1); that of its mirror image is 1 less the same at 1 - u.
        rising = torch.expm1(self.steepness * u)
        return rising - rising.flip(0)
