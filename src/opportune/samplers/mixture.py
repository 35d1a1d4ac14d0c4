"""A floor of uniform under any density."""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor

from ..checks import number
from ..processes import Process
from .uniform import Uniform
from .wrapper import Wrapper, Wrapping


class Mixture(Wrapper):
    """p(u) = floor + (1 - floor) p_inner(u): no noise level is ever starved.

    With a floor the importance weights of ``unbiased=True`` never exceed 1 / floor. Otherwise the objective is
    re-targeted, ``floor`` of the way back towards the process's own.

    Args:
        floor: share of draws that are uniform, between 0 and 1.
    """

    def __init__(self, process: Process, *, floor: float = 0.1, **wrapping: Unpack[Wrapping]) -> None:
        # Known before the base class asks whether all noise levels are covered; nn.Module allows plain numbers early.
        self.floor = number("floor", floor, low=0, high=1)
        super().__init__(process, **wrapping)
        if self.floor in (0.0, 1.0):
            what = "uniform alone" if self.floor else f"{type(self.inner).__name__} alone, with nothing mixed in"
            self.warn_once(f"floor={self.floor:g} makes this mixture {what}. Give a floor between 0 and 1.")
        elif isinstance(self.inner, Uniform):
            self.warn_once('a floor of uniform under uniform has no effect. Name another density: of="logit_normal".')

    def _place(self, v: Tensor, context: Tensor | None) -> Tensor:
        # Within the first `floor` of [0, 1) uniform, in the rest the sampler within: strata of v stay strata of each.
        if self.floor == 0.0:
            return super()._place(v, context)
        if self.floor == 1.0:
            return v
        within = ((v - self.floor) / (1 - self.floor)).clamp(0, 1 - 2.0**-53)
        return torch.where(v < self.floor, v / self.floor, super()._place(within, context).to(v.dtype))

    def _density(self, u: Tensor, context: Tensor | None) -> Tensor:
        return self.floor + (1 - self.floor) * super()._density(u, context)

    def _target(self, u: Tensor, context: Tensor | None) -> Tensor | None:
        target = super()._target(u, context)
        return None if target is None else self.floor + (1 - self.floor) * target

    def _public_density(self, u: Tensor) -> Tensor:
        return self.floor + (1 - self.floor) * super()._public_density(u)

    def _masses(self, cells: int) -> Tensor:
        masses = super()._masses(cells)
        return self.floor / cells + (1 - self.floor) * masses / masses.sum()

    def _warn_uncovered(self) -> None:
        if self.floor == 0.0:
            super()._warn_uncovered()
