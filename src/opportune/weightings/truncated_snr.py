"""Truncated SNR: the eps loss where SNR > 1, the x0 loss below (Salimans & Ho, 2022, 2202.00512)."""

from __future__ import annotations

from torch import Tensor

from .base import Weighting


class TruncatedSNR(Weighting):
    """W = max(SNR, 1), i.e. max(1, 1/SNR) on the eps-MSE."""

    def log_weight(self, u: Tensor, log_snr: Tensor) -> Tensor:
        return log_snr.clamp(min=0)
