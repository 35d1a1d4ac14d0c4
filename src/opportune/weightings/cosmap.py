"""CosMap as a loss weight, as the Stable Diffusion 3 training scripts in diffusers use it (2403.03206)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..checks import one_of
from ..processes import Process
from .base import Weighting, log_conversion


class CosMapWeight(Weighting):
    """2 / (pi (1 - 2 t + 2 t^2)) on the velocity-MSE, with t = 1 / (sqrt(SNR) + 1) the flow's noise level.

    The sampler "cosmap" draws from this density; weighting uniform draws by it has the same mean. Use one,
    not both.

    Args:
        target: the loss the numbers multiply: "velocity", or "x0" for the scripts' ``precondition_outputs``.
    """

    def __init__(self, process: Process, *, target: str = "velocity") -> None:
        super().__init__(process)
        self.target = one_of("target", target, ("velocity", "x0"))

    def log_weight(self, u: Tensor, log_snr: Tensor) -> Tensor:
        t = torch.sigmoid(-log_snr / 2)
        density = 2 / (math.pi * (1 - 2 * t + 2 * t**2))
        return density.log() - log_conversion(log_snr, self.target)
