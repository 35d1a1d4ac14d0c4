"""Ancestral generation (Ho et al. 2020, "Denoising Diffusion Probabilistic Models", Algorithm 2)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from ..checks import one_of
from ..processes import DDPM, VP
from .levels import CLEAN, Level, moves
from .method import Denoise, Method, Noise


@dataclass(frozen=True)
class Ancestral(Method):
    """Draw each cleaner level from ``N(posterior mean at the estimated x0, variance)``.

    ``variance``: "small" is the posterior's own, right where the data is a single point; "large" is beta, right
    where the data is unit normal (their §3.2). With fewer steps than T the beta between the levels visited is used
    (Nichol & Dhariwal 2021, §4). The last move adds no noise.
    """

    variance: str = "small"
    fits = (DDPM, VP)

    def __post_init__(self) -> None:
        one_of("variance", self.variance, ("small", "large"))

    def run(self, x: Tensor, levels: Sequence[Level], denoise: Denoise, noise: Noise) -> Tensor:
        """See :class:`Method`."""
        for here, there in moves(levels):
            x0, eps = denoise(x, here)
            ratio = here.snr_ratio(there)
            # The posterior mean: what is left of the noise at `there` that x already tells of.
            x = there.alpha * x0 + there.sigma * math.sqrt(ratio) * eps
            if there is not CLEAN:
                x = x + math.sqrt(self._variance(here, there, ratio)) * noise()
        return x

    def _variance(self, here: Level, there: Level, ratio: float) -> float:
        if self.variance == "small":
            return there.sigma**2 * (1 - ratio)
        return here.sigma**2 - (here.alpha / there.alpha * there.sigma) ** 2
