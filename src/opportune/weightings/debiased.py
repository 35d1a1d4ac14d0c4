"""Debiased estimation: more weight on the noisy end (Yu et al., 2023, 2310.08442)."""

from __future__ import annotations

from torch import Tensor

from .base import Weighting


class Debiased(Weighting):
    """W = sqrt(SNR), i.e. 1 / sqrt(SNR) on the eps-MSE; t (1 - t) on the flow velocity."""

    def log_weight(self, u: Tensor, log_snr: Tensor) -> Tensor:
        return log_snr / 2
