"""Any density, kept to a stretch of the noise axis."""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor

from ..checks import number
from ..processes import Process
from .base import Sampler
from .table import cell_of, place_in_cells
from .wrapper import Delegating, Wrapper, Wrapping


class Within(Wrapper):
    """p(u) of the sampler within, cut off outside [low, high) and scaled up inside: its shape there is kept.

    What other trainers call the smallest and largest timestep (or noising strength), e.g. to fine-tune a style on high
    noise or detail on low noise, or to train an expert per range. Timesteps 200 to 799 of 1000 are ``low=0.2,
    high=0.8``. It is a cut, not a squeeze: ``beta`` or ``logit_normal`` keep their peak where it was.

    The objective is that of the sampler within on the stretch alone. ``unbiased=True`` gives 1 / density as everywhere,
    the process's own objective on the stretch; that the rest of the axis is never drawn is warned of. A learning
    method within sees, and so learns, nothing outside. Policies that give each example a density of its own are
    refused. If the density within changes until nothing of it is left on the stretch, the stretch is drawn uniformly.

    Args:
        low, high: ends of the stretch on the noise axis, 0 clean and 1 noise; rounded to whole timesteps (in continuous
            time to 1/4096).
    """

    def __init__(self, process: Process, *, low: float = 0.0, high: float = 1.0, **wrapping: Unpack[Wrapping]) -> None:
        self.low = number("low", low, low=0, high=1, open_high=True)
        self.high = number("high", high, low=self.low, high=1, open_low=True)
        super().__init__(process, **wrapping)
        self.cells = process.cells
        self._first, self._end = round(self.low * self.cells), round(self.high * self.cells)
        if self._first == self._end:
            raise ValueError(
                f"low={self.low:g} and high={self.high:g} leave none of the {self.cells} timesteps of {process!r}; "
                f"give a stretch of {1 / self.cells:g} or more."
            )
        for part in self.inner.modules():
            if isinstance(part, Sampler) and type(part)._look not in (Sampler._look, Delegating._look):
                raise ValueError(
                    f"of={type(part).__name__} gives each example a density of its own, which cannot be cut; use "
                    "another sampler within."
                )
        if self._end - self._first == self.cells:
            self.warn_once(f"low={self.low:g} and high={self.high:g} have no effect: that is the whole noise axis.")
        self._prepare()
        if not bool(self.inner._masses(self.cells)[self._first : self._end].sum() > 0):
            raise ValueError(
                f"low={self.low:g} and high={self.high:g} leave nothing to draw: {type(self.inner).__name__} has no "
                "probability there. Give a stretch it covers, or mix in uniform."
            )

    def _prepare(self) -> None:
        super()._prepare()
        masses = self.inner._masses(self.cells).double()
        stretch = torch.zeros_like(masses)
        stretch[self._first : self._end] = 1 / (self._end - self._first)
        inside = masses * (stretch > 0)
        total = inside.sum()
        # A density that comes to leave the stretch altogether says nothing about it; asking would stop an accelerator.
        self._inside = torch.where(total > 0, inside / total, stretch)

    def _place(self, v: Tensor, context: Tensor | None) -> Tensor:
        return place_in_cells(v, self._inside, torch.cumsum(self._inside, dim=0))

    def _density(self, u: Tensor, context: Tensor | None) -> Tensor:
        return self._inside[cell_of(u, self.cells)] * self.cells

    def _public_density(self, u: Tensor) -> Tensor:
        return self._density(u, None)

    def _masses(self, cells: int) -> Tensor:
        return self._inside if cells == self.cells else Sampler._masses(self, cells)

    def _target(self, u: Tensor, context: Tensor | None) -> Tensor | None:
        target = super()._target(u, context)
        if target is None or self.unbiased:
            return target
        middles = (torch.arange(self._first, self._end, dtype=torch.float64, device=u.device) + 0.5) / self.cells
        share = super()._target(middles, context)
        return target if share is None else target / (share.double().sum() / self.cells)

    def _warn_uncovered(self) -> None:
        self.warn_once(
            f"unbiased=True cannot hold for Within outside its stretch: noise levels below {self.low:g} and from "
            f"{self.high:g} are never drawn. It is unbiased for the objective on the stretch."
        )
