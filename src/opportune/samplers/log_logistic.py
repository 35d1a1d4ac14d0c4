"""Log-logistic noise levels (k-diffusion, Crowson, 2022): a log-normal with heavier tails."""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor

from ..checks import number
from ..processes import Process
from .base import Common
from .table import FixedSampler


class LogLogistic(FixedSampler):
    """ln sigma ~ Logistic(mean, scale) with sigma = 1/sqrt(SNR): very low and very high noise is not forgotten.

    Larger ``mean`` is more noise. On unshifted ``Flow`` mean = 0 and scale = 1 is uniform. On discrete processes each
    timestep has the mass nearest to it in ln sigma, truncated to the noise levels the schedule covers. Published
    without correction, so it re-targets the objective.

    Args:
        mean: of ln sigma; k-diffusion's default is ln sigma_data, which is -0.69 for images of standard deviation 0.5.
        scale: of ln sigma.
    """

    def __init__(self, process: Process, *, mean: float = -0.69, scale: float = 0.5, **common: Unpack[Common]) -> None:
        super().__init__(process, **common)
        self.mean = number("mean", mean)
        self.scale = number("scale", scale, low=0, open_low=True)
        self._build()

    def cumulative(self, u: Tensor, log_snr: Tensor) -> Tensor:
        return torch.sigmoid((-log_snr / 2 - self.mean) / self.scale)
