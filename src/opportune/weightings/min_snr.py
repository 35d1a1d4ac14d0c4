"""Min-SNR: the weight on the x0-MSE is SNR, clipped from above (Hang et al., 2023, 2303.09556)."""

from __future__ import annotations

import math

from torch import Tensor

from ..checks import number
from ..processes import Process
from .base import Weighting


class MinSNR(Weighting):
    """W = min(SNR, gamma).

    On other targets: min(1, gamma/SNR) on eps, min(SNR, gamma)/(SNR + 1) on v, min((1-t)^2, gamma t^2) on the
    flow velocity. At zero SNR these are 1 on eps and 0 on v: under zero terminal SNR a v-model is not trained
    at the last timestep.

    Args:
        gamma: the clip; 5 in the paper.
    """

    def __init__(self, process: Process, *, gamma: float = 5.0) -> None:
        super().__init__(process)
        self.gamma = number("gamma", gamma, low=0, open_low=True)

    def log_weight(self, u: Tensor, log_snr: Tensor) -> Tensor:
        return log_snr.clamp(max=math.log(self.gamma))
