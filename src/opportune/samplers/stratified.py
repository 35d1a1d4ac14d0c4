"""Stratified uniforms under any density (as in k-diffusion, Crowson, 2022)."""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor

from ..checks import whole
from ..distributed import place
from ..processes import Process
from ..random_streams import generator, uniforms
from .wrapper import Wrapper, Wrapping, places_of_step


class Stratified(Wrapper):
    """v_j = (stratum_j + rand) / N: one draw in each of N equally likely parts of the density within.

    N counts the examples of a whole optimizer step: batch x ranks x accumulation. Strata are dealt out by a seeded
    permutation, so no position in the batch and no rank is tied to a noise band. Every example keeps exactly the
    density of the sampler within; only the spread of a batch changes: less variance, for nothing. Whether the
    objective is re-targeted is up to the sampler within.

    Args:
        strata: fewer parts than examples (each then gets several); None is one per example.
    """

    def __init__(self, process: Process, *, strata: int | None = None, **wrapping: Unpack[Wrapping]) -> None:
        super().__init__(process, **wrapping)
        self.strata = None if strata is None else whole("strata", strata, low=1)
        if self.strata == 1:
            self.warn_once(
                "strata=1 has no effect: one stratum is the whole density. Leave strata out: one per example."
            )

    def _uniforms(self, count: int) -> Tensor:
        rank, world = place()
        stratum, strata = places_of_step(self, count)
        if self.strata is not None and self.strata < strata:
            # Turned by a random offset: if strata does not divide N some get one example more, at random which.
            turn = generator(self.seed, "turn", self.step)
            offset = torch.randint(self.strata, (1,), generator=turn, device="cpu")
            stratum, strata = (stratum + offset) % self.strata, self.strata
        elif self.strata is not None and self.strata > strata:
            self.warn_once(
                f"strata={self.strata} is more than the {strata} examples of an optimizer step (batch x ranks x "
                f"accumulation), so {strata} strata are used. Leave strata out, or make the batch larger."
            )
        jitter = uniforms(self.seed, "jitter", self.draws_made, count=count, rank=rank, world=world)
        return ((stratum + jitter) / strata).clamp_(max=1 - 2.0**-53)
