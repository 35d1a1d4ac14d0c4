"""Low-discrepancy uniforms under any density (VDM: Kingma et al., 2021, arXiv 2107.00630, appendix I)."""

from __future__ import annotations

import torch
from torch import Tensor

from ..random_streams import generator
from .wrapper import Wrapper, places_of_step


class LowDiscrepancy(Wrapper):
    """v_j = (u0 + j / N) mod 1: one random number per optimizer step, shared by all its examples, evenly spaced.

    N counts the examples of a whole optimizer step: batch x ranks x accumulation (the published code spaces the
    examples of each device separately). The j are dealt out by a seeded permutation. Each example on its own keeps
    exactly the density of the sampler within; together they cover it with the least possible variance of counts.
    Whether the objective is re-targeted is up to the sampler within.
    """

    def _uniforms(self, count: int) -> Tensor:
        turn = torch.rand(1, dtype=torch.float64, generator=generator(self.seed, "turn", self.step), device="cpu")
        position, total = places_of_step(self, count)
        return (turn + position.double() / total) % 1.0
