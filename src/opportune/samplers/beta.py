"""Beta-distributed timesteps (B-TTDM: Zheng et al., ECCV 2024; pi0: Black et al., 2024, arXiv 2410.24164)."""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor

from ..checks import number
from ..processes import Process
from .base import Common
from .table import FixedSampler

_SMALLEST, _LARGEST = 0.01, 1000.0
_TINY = 1e-300


class Beta(FixedSampler):
    """u ~ Beta(a, b).

    Larger ``a`` is more noise, larger ``b`` more data; a = b = 1 is uniform, both below 1 favour the two ends, both
    above 1 the middle (a = b = 2 is the parabola 6 u (1 - u)). ``Beta(a, b=1)`` is u = v^(1/a), the form of B-TTDM,
    which takes a < 1: more data. pi0 takes a = 1.5, b = 1: more noise; its own time runs the other way, and it leaves
    out the last thousandth. Published without correction, so it re-targets the objective.

    Args:
        a, b: between 0.01 and 1000.
    """

    def __init__(self, process: Process, *, a: float = 2.0, b: float = 2.0, **common: Unpack[Common]) -> None:
        super().__init__(process, **common)
        self.a = number("a", a, low=_SMALLEST, high=_LARGEST)
        self.b = number("b", b, low=_SMALLEST, high=_LARGEST)
        self._build()

    def cumulative(self, u: Tensor, log_snr: Tensor) -> Tensor:
        return incomplete_beta(u, u.new_tensor(self.a), u.new_tensor(self.b))


def incomplete_beta(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Regularised incomplete beta function I_x(a, b), the cumulative probability of Beta(a, b), in float64.

    Args:
        x: in [0, 1]; ``x``, ``a`` and ``b`` broadcast.
        a, b: positive.
    """
    x, a, b = torch.broadcast_tensors(x.double(), a.double(), b.double())
    # The fraction converges fast only left of the mean; right of it I_x(a, b) = 1 - I_{1-x}(b, a).
    flip = x > (a + 1) / (a + b + 2)
    x, a, b = torch.where(flip, 1 - x, x), torch.where(flip, b, a), torch.where(flip, a, b)
    log_front = (
        a * torch.log(x) + b * torch.log1p(-x) + torch.lgamma(a + b) - torch.lgamma(a) - torch.lgamma(b) - torch.log(a)
    )
    value = torch.exp(log_front) * _continued_fraction(x, a, b)
    return torch.where(flip, 1 - value, value).clamp(0, 1)


def _continued_fraction(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """The fraction of I_x(a, b), DLMF 8.17.22, by the modified Lentz method."""
    c = torch.ones_like(x)
    d = _nonzero(1 - (a + b) * x / (a + 1)).reciprocal()
    value = d
    for m in range(1, 400):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        before = value
        for term in (even, odd):
            d = _nonzero(1 + term * d).reciprocal()
            c = _nonzero(1 + term / c)
            value = value * d * c
        if bool((value - before).abs().max() <= 1e-15 * value.abs().max()):
            break
    return value


def _nonzero(value: Tensor) -> Tensor:
    return torch.where(value.abs() < _TINY, _TINY, value)
