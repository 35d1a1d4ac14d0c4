"""DDIM (Song, Meng & Ermon 2021, "Denoising Diffusion Implicit Models", eq. 12)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from ..checks import number
from ..processes import DDPM, VP
from .levels import Level, moves
from .method import Denoise, Method, Noise


@dataclass(frozen=True)
class DDIM(Method):
    """Put the estimated image and the estimated noise together again at the next level.

    ``eta``: share of fresh noise, 0 (none: the same noise always gives the same image) to 1 (as much as the
    ancestral method with the small variance).
    """

    eta: float = 0.0
    fits = (DDPM, VP)

    def __post_init__(self) -> None:
        number("eta", self.eta, low=0, high=1)

    def run(self, x: Tensor, levels: Sequence[Level], denoise: Denoise, noise: Noise) -> Tensor:
        """See :class:`Method`."""
        for here, there in moves(levels):
            x0, eps = denoise(x, here)
            fresh = self.eta * there.sigma * math.sqrt(1 - here.snr_ratio(there))
            x = there.alpha * x0 + math.sqrt(there.sigma**2 - fresh**2) * eps
            if fresh > 0:
                x = x + fresh * noise()
        return x
