"""``sigma_sqrt`` of diffusers' Stable Diffusion 3 training scripts: 1/sigma^2, with no square root."""

from __future__ import annotations

import math

from torch import Tensor
from torch.nn.functional import softplus

from ..checks import number, one_of
from ..processes import Process
from .base import Weighting, log_conversion


class SigmaSqrt(Weighting):
    """1 / t^2 on the velocity-MSE, so W = 1 / t^4, with t = 1 / (sqrt(SNR) + 1) the flow's noise level.

    The scripts apply the same numbers to whatever loss they compute. With their ``precondition_outputs`` that
    is the x0-MSE (``target="x0"``), and the weight is then the plain velocity loss.

    Args:
        target: the loss the numbers multiply, "velocity" or "x0".
        smallest_sigma: the weight stops growing below this noise level; a scheduler of 1,000 steps ends at
            1/1000, while continuous time would let the weight grow without bound.
    """

    def __init__(self, process: Process, *, target: str = "velocity", smallest_sigma: float = 1e-3) -> None:
        super().__init__(process)
        self.target = one_of("target", target, ("velocity", "x0"))
        self.smallest_sigma = number("smallest_sigma", smallest_sigma, low=0, high=1, open_low=True)

    def log_weight(self, u: Tensor, log_snr: Tensor) -> Tensor:
        log_sigma = (-softplus(log_snr / 2)).clamp(min=math.log(self.smallest_sigma))
        return -2 * log_sigma - log_conversion(log_snr, self.target)
