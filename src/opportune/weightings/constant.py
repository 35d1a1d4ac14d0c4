"""Constant weight on the loss of a chosen target."""

from __future__ import annotations

from torch import Tensor

from ..checks import one_of
from ..processes import Process
from .base import Weighting, log_conversion, sigma_data_of


class Constant(Weighting):
    """Weight 1 on the MSE of ``target``: the process's own by default, or of another ("eps" is L_simple).

    In x0 space: W = 1 (x0), SNR (eps), SNR + 1 (v), (sqrt(SNR) + 1)^2 (velocity), SNR + 1/sigma_data^2 (F).
    """

    def __init__(self, process: Process, *, target: str | None = None) -> None:
        super().__init__(process)
        self.target = one_of(
            "target", process.prediction if target is None else target, ("x0", "eps", "v", "velocity", "F")
        )

    def log_weight(self, u: Tensor, log_snr: Tensor) -> Tensor:
        return -log_conversion(log_snr, self.target, sigma_data_of(self.process))
