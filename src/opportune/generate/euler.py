"""Euler steps along the probability flow: the standard for flow matching (Lipman et al. 2023; Esser et al. 2024)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from ..processes import EDM, VE, Flow
from .levels import Level, moves
from .method import Denoise, Noise, OnSigmaAxis


@dataclass(frozen=True)
class Euler(OnSigmaAxis):
    """``x += (change of alpha) x0 + (change of sigma) eps``; for a flow this is ``x += (change of t) velocity``.

    First order. For DDPM and VP the same step is called "ddim".
    """

    fits = (Flow, EDM, VE)

    def run(self, x: Tensor, levels: Sequence[Level], denoise: Denoise, noise: Noise) -> Tensor:
        """See :class:`Method`."""
        for here, there in moves(levels):
            x0, eps = denoise(x, here)
            x = there.alpha * x0 + there.sigma * eps
        return x
