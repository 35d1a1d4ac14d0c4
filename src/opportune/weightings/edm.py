"""EDM's weight: a constant on the preconditioned network's own target (Karras et al., 2022, 2206.00364)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..checks import number
from ..processes import Process
from .base import Weighting, sigma_data_of


class EDMWeight(Weighting):
    """W = (sigma^2 + sigma_data^2)/(sigma sigma_data)^2 = SNR + 1/sigma_data^2; exactly 1 on EDM's F-target.

    Args:
        sigma_data: standard deviation of the data; the process's own if it has one, else 0.5.
    """

    def __init__(self, process: Process, *, sigma_data: float | None = None) -> None:
        super().__init__(process)
        sigma_data = sigma_data_of(process) if sigma_data is None else sigma_data
        self.sigma_data = number("sigma_data", sigma_data, low=0, open_low=True)

    def log_weight(self, u: Tensor, log_snr: Tensor) -> Tensor:
        return torch.logaddexp(log_snr, log_snr.new_tensor(-2 * math.log(self.sigma_data)))
