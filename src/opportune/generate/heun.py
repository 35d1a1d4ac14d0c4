"""Heun's second-order steps (Karras et al. 2022, "Elucidating the Design Space of Diffusion-Based Generative Models",
Algorithm 1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from ..processes import DDPM, EDM, VE, VP, Flow
from .levels import CLEAN, Level, moves
from .method import Denoise, Noise, OnSigmaAxis


@dataclass(frozen=True)
class Heun(OnSigmaAxis):
    """An Euler step, then the same step again with the average of the estimates at both its ends.

    Every process is ``dx = x0 d(alpha) + eps d(sigma)`` along its probability flow. Where alpha is constant (EDM, VE)
    averaging is the paper's step; for a flow it averages the velocity; for DDPM and VP it stays finite where the
    paper's ``x / alpha`` would grow without bound. The network runs ``2 * steps - 1`` times: the last move, where
    the slope at the clean end is unknown, is Euler's.
    """

    fits = (EDM, VE, DDPM, VP, Flow)

    def run(self, x: Tensor, levels: Sequence[Level], denoise: Denoise, noise: Noise) -> Tensor:
        """See :class:`Method`."""
        for here, there in moves(levels):
            x0, eps = denoise(x, here)
            euler = there.alpha * x0 + there.sigma * eps
            if there is CLEAN:
                return euler
            x0_there, eps_there = denoise(euler, there)
            d_alpha, d_sigma = there.alpha - here.alpha, there.sigma - here.sigma
            x = x + 0.5 * d_alpha * (x0 + x0_there) + 0.5 * d_sigma * (eps + eps_there)
        return x
