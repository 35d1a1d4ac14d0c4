"""Soft-Min-SNR: Min-SNR without its corner (Crowson et al., 2024, 2401.11605)."""

from __future__ import annotations

import math

from torch import Tensor
from torch.nn.functional import softplus

from ..checks import number
from ..processes import Process
from .base import Weighting, sigma_data_of


class SoftMinSNR(Weighting):
    """W = gamma SNR / (SNR + gamma), which is 1 / (sigma^2 + sigma_data^2) with gamma = 1 / sigma_data^2.

    Args:
        gamma: where the weight levels off.
        sigma_data: standard deviation of the data, the same setting in other words; give one of the two. With
            neither, the process's own, or 0.5 (gamma = 4).
    """

    def __init__(self, process: Process, *, gamma: float | None = None, sigma_data: float | None = None) -> None:
        super().__init__(process)
        if gamma is not None and sigma_data is not None:
            raise ValueError(
                f"gamma={gamma!r} and sigma_data={sigma_data!r} are one setting, gamma = 1/sigma_data^2; "
                "give one of them."
            )
        if gamma is None:
            sigma_data = sigma_data_of(process) if sigma_data is None else sigma_data
            gamma = number("sigma_data", sigma_data, low=0, open_low=True) ** -2
        self.gamma = number("gamma", gamma, low=0, open_low=True)

    def log_weight(self, u: Tensor, log_snr: Tensor) -> Tensor:
        return math.log(self.gamma) - softplus(math.log(self.gamma) - log_snr)
