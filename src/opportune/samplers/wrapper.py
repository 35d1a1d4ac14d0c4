"""Samplers around samplers: the base of stratified, low_discrepancy, mixture and phases.

A wrapper changes where the uniforms come from, or mixes densities, and hands everything else to the sampler within:
what it looks at, asks for, learns and saves. So any wrapper goes around any sampler, and around another wrapper.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from ..distributed import place
from ..measure import Measurement
from ..processes import Process
from ..random_streams import generator
from ..types import Draw, Probe, Request, StepRecord
from .base import Common, Needs, Sampler


class Wrapping(Common, total=False):
    """Settings every wrapper takes; see :class:`Wrapper`."""

    of: Sampler | str
    of_settings: Mapping[str, Any] | None


class Delegating(Sampler):
    """A sampler that hands on to :attr:`inner` everything it does not change itself."""

    @property
    @abstractmethod
    def inner(self) -> Sampler:
        """The sampler within."""

    @property
    def needs(self) -> Needs:  # type: ignore[override]
        """What the sampler within needs to be handed."""
        return self.inner.needs

    def _align(self) -> None:
        """Give the sampler within the wrapper's clock."""
        self.inner.draws_made = self.draws_made

    def _prepare(self) -> None:
        self._align()
        self.inner._prepare()

    def _uniforms(self, count: int) -> Tensor:
        return self.inner._uniforms(count)

    def _place(self, v: Tensor, context: Tensor | None) -> Tensor:
        return self.inner._place(v, context)

    def _density(self, u: Tensor, context: Tensor | None) -> Tensor:
        return self.inner._density(u, context)

    def _public_density(self, u: Tensor) -> Tensor:
        return self.inner._public_density(u)

    def _masses(self, cells: int) -> Tensor:
        return self.inner._masses(cells)

    def _look(self, x: Tensor) -> Tensor | None:
        return self.inner._look(x)

    def _context(self, x: Tensor | int) -> Tensor | None:
        return self.inner._context(x)

    def _target(self, u: Tensor, context: Tensor | None) -> Tensor | None:
        return self.inner._target(u, context)

    def _device(self) -> torch.device:
        return self.inner._device()

    def _warn_uncovered(self) -> None:
        self.inner._warn_uncovered()

    def request(self, draw: Draw) -> Request | None:
        return self.inner.request(draw)

    def learn(self, record: StepRecord) -> None:
        self.inner.learn(record)

    def begin_step(
        self,
        draw: Draw | Sequence[Draw],
        losses: Tensor | Sequence[Tensor] | None = None,
        probe: Probe | None = None,
        *,
        model: nn.Module | None = None,
    ) -> Measurement | None:
        self._align()
        return self.inner.begin_step(draw, losses, probe, model=model)

    def end_step(self, measurement: Measurement | None) -> None:
        self.inner.end_step(measurement)
        self.steps_watched += 1

    def warm_up_steps(self) -> int:
        return self.inner.warm_up_steps()

    def check_run(self, steps: int) -> None:
        self.inner.check_run(steps)


class Wrapper(Delegating):
    """Around one sampler.

    ``seed``, ``unbiased`` and ``accumulation`` given here hold for the sampler within too; where they are not given,
    its own hold here. The sampler within belongs to the wrapper from then on: draw from the wrapper only.

    Args:
        of: the sampler within, or its name.
        of_settings: settings of the sampler within, when it is given by name.
    """

    def __init__(
        self,
        process: Process,
        *,
        of: Sampler | str = "uniform",
        of_settings: Mapping[str, Any] | None = None,
        **common: Unpack[Common],
    ) -> None:
        inner = make_inner(process, of, of_settings, common)
        super().__init__(process, **take_over([inner], common))
        self.of = inner
        self._warned = inner._warned  # what one has said the other need not repeat
        if self.unbiased:
            self._warn_uncovered()

    @property
    def inner(self) -> Sampler:
        return self.of


def make_inner(process: Process, of: Sampler | str, settings: Mapping[str, Any] | None, common: Common) -> Sampler:
    """The sampler within, checked; made here if it is given by name."""
    if not isinstance(settings, Mapping | None):
        raise ValueError(f'of_settings={settings!r} is not settings; give names and values, e.g. {{"std": 0.5}}.')
    if isinstance(of, str):
        from ..names import sampler as by_name

        # `unbiased` is handed down once made (take_over): on its own a method may be unable to be what a floor allows.
        shared = {name: value for name, value in common.items() if name != "unbiased"}
        return by_name(of, process, **{**shared, **(settings or {})})
    if not isinstance(of, Sampler):
        raise ValueError(f"of={of!r} is not a sampler; give one made for the same process, or a name of op.samplers().")
    if settings:
        raise ValueError(
            f"of_settings={dict(settings)!r} has no effect on a sampler that is already made; give the settings to "
            f"{type(of).__name__}, or give of= as a name."
        )
    if of.process is not process:
        raise ValueError(
            f"of={type(of).__name__} was made for {of.process!r}, this wrapper for {process!r}; use one process "
            "object for both."
        )
    return of


def take_over(inner: Sequence[Sampler], common: Common) -> Common:
    """Let common settings given to the wrapper hold for all within; returns them, completed from the first within."""
    for sampler in (s for one in inner for s in one.modules() if isinstance(s, Sampler)):
        sampler.seed = common.get("seed", sampler.seed)
        sampler.accumulation = common.get("accumulation", sampler.accumulation)
        unbiased = common.get("unbiased")
        sampler.unbiased = sampler.unbiased if unbiased is None else unbiased
    first = inner[0]
    given = common.get("unbiased")
    return Common(
        seed=first.seed,
        accumulation=first.accumulation,
        unbiased=first.unbiased if given is None else given,
    )


def places_of_step(sampler: Sampler, count: int) -> tuple[Tensor, int]:
    """This rank's places ``[count]`` int64 in a shuffle of all N examples of the coming optimizer step, and N.

    N = batch x ranks x accumulation. Every place 0 .. N-1 is given out once per step, by one seeded permutation, so
    the position of an example in its batch says nothing about its place.
    """
    rank, world = place()
    step, micro = divmod(sampler.draws_made, sampler.accumulation)
    per_draw = count * world
    total = per_draw * sampler.accumulation
    if total == 1 and step == 0:
        sampler.warn_once(
            f"{type(sampler).__name__} has no effect where an optimizer step has one example (batch x ranks x "
            "accumulation): there is nothing to spread. Make the batch larger."
        )
    shuffled = torch.randperm(total, generator=generator(sampler.seed, "places", step), device="cpu")
    return shuffled[micro * per_draw : (micro + 1) * per_draw][rank::world], total
