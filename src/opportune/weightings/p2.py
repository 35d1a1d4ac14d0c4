"""P2: less weight where only imperceptible detail is left to learn (Choi et al., 2022, 2204.00227)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..checks import number
from ..processes import Process
from .base import Weighting


class P2(Weighting):
    """W = SNR / (k + SNR)^gamma, i.e. 1 / (k + SNR)^gamma on the eps-MSE.

    The paper uses k = 1 with gamma 0.5 or 1. Its weight multiplies the MSE alone, not a learned-variance
    term.

    Args:
        gamma: strength, above 0. With 0 the weight is 1 on the eps-MSE: that is no weighting, see "constant".
        k: keeps the weight finite at zero SNR.
    """

    def __init__(self, process: Process, *, gamma: float = 1.0, k: float = 1.0) -> None:
        super().__init__(process)
        if gamma == 0:
            raise ValueError(
                "gamma=0 makes P2 the unweighted eps loss, which is no weighting; give a number in (0, inf), "
                "in the paper 0.5 or 1, or use the weighting 'constant' with target='eps'."
            )
        self.gamma = number("gamma", gamma, low=0, open_low=True)
        self.k = number("k", k, low=0, open_low=True)

    def log_weight(self, u: Tensor, log_snr: Tensor) -> Tensor:
        return log_snr - self.gamma * torch.logaddexp(log_snr, log_snr.new_tensor(math.log(self.k)))
