"""One sampler after another: the density switches at given optimizer steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Unpack, cast

import torch
from torch import Tensor, nn

from ..checks import whole
from ..measure import Measurement
from ..processes import Process
from ..random_streams import generator
from ..types import Draw, Probe
from .base import Common, Needs, Sampler
from .wrapper import Delegating, make_inner, take_over

Phase = tuple[int, Sampler | str] | tuple[int, str, Mapping[str, Any]]
"""``(start_step, sampler)``, ``(start_step, name)`` or ``(start_step, name, settings)``; lists do as well (TOML)."""


class PhasedSampler(Delegating):
    """One sampler after another; :class:`Phases` is the one to use."""

    def __init__(self, process: Process, phases: Sequence[Phase], **common: Unpack[Common]) -> None:
        made = [make_inner(process, phase[1], _settings(phase), common) for phase in phases]
        if "accumulation" not in common and len({sampler.accumulation for sampler in made}) > 1:
            raise ValueError(
                f"the phases have accumulation={sorted(sampler.accumulation for sampler in made)}; give accumulation= "
                "here and it holds for all of them."
            )
        super().__init__(process, **take_over(made, common))
        self.starts = [phase[0] for phase in phases]
        self.all = nn.ModuleList(made)
        self._index = self._watched = 0
        for index, sampler in enumerate(made):
            self._give_stream(index, sampler)
            self._warned |= sampler._warned
            if common.get("unbiased"):
                sampler._warn_uncovered()

    @property
    def inner(self) -> Sampler:
        """The sampler in force."""
        return cast(Sampler, self.all[self._index])

    @property
    def needs(self) -> Needs:  # type: ignore[override]
        """The most that any phase needs to be handed."""
        order: tuple[Needs, ...] = ("nothing", "losses", "probe", "gradient")
        return max((cast(Sampler, phase).needs for phase in self.all), key=order.index)

    def _give_stream(self, index: int, sampler: Sampler) -> None:
        # Each phase counts draws from its own start; with one seed for all they would repeat each other's numbers.
        stream = generator(self.seed, "phase", index)
        seed = int(torch.randint(2**31, (1,), generator=stream, device="cpu"))
        for each in sampler.modules():
            if isinstance(each, Sampler):
                each.seed = seed

    def _enter(self, step: int) -> None:
        self._index = max(index for index, start in enumerate(self.starts) if start <= step)

    def _align(self) -> None:
        self.inner.draws_made = self.draws_made - self.starts[self._index] * self.accumulation

    def _prepare(self) -> None:
        self._enter(self.step)
        super()._prepare()

    def set_extra_state(self, state: Mapping[str, Any]) -> None:
        super().set_extra_state(state)
        self._enter(self.step)

    def begin_step(
        self,
        draw: Draw | Sequence[Draw],
        losses: Tensor | Sequence[Tensor] | None = None,
        probe: Probe | None = None,
        *,
        model: nn.Module | None = None,
    ) -> Measurement | None:
        self._enter(max(self.draws_made - 1, 0) // self.accumulation)  # the phase the step was drawn in
        self._watched = self._index
        return super().begin_step(draw, losses, probe, model=model)

    def end_step(self, measurement: Measurement | None) -> None:
        self._index = self._watched  # asking for the coming density in between may have moved on
        super().end_step(measurement)

    def check_run(self, steps: int) -> None:
        """As in the base class; each phase is asked about its own share of the run."""
        for start, end, phase in zip(self.starts, [*self.starts[1:], steps], self.all, strict=True):
            if start >= steps:
                self.warn_once(f"the phase that starts at step {start} never begins in a run of {steps} steps.")
            else:
                cast(Sampler, phase).check_run(min(end, steps) - start)


class Phases(PhasedSampler):
    """From each start step on, the sampler given with it.

    Each phase lives as if training began at its start: its ramps and warm-ups count from there, and only the phase in
    force learns. ``seed`` and ``accumulation`` are those of the whole; each phase has a stream of its own derived
    from the seed. ``unbiased``, where it is not given, is up to each phase, and so is whether the objective is
    re-targeted.

    Args:
        phases: in rising order of start steps, the first 0, e.g. ``[(0, "logit_normal"), (50_000, "uniform")]``.
            Steps are optimizer steps.
    """

    def __init__(self, process: Process, *, phases: Sequence[Phase] | None = None, **common: Unpack[Common]) -> None:
        super().__init__(process, _checked(phases), **common)


def _checked(phases: Sequence[Phase] | None) -> list[Phase]:
    example = 'e.g. phases=[(0, "logit_normal"), (50_000, "uniform")]'
    if not isinstance(phases, (list, tuple)) or len(phases) == 0:
        raise ValueError(f"phases={phases!r}; give a list of (start_step, sampler), {example}.")
    last = -1
    for phase in phases:
        if not isinstance(phase, (list, tuple)) or len(phase) not in (2, 3):
            raise ValueError(f"phases holds {phase!r}, which is not (start_step, sampler), {example}.")
        start = whole("start_step", phase[0], low=0)
        if start <= last or (last < 0 and start != 0):
            wanted = "0" if last < 0 else f"more than {last}"
            raise ValueError(
                f"phases holds start_step={start} where {wanted} is needed; phases start at 0 and rise, {example}."
            )
        last = start
    return list(phases)


def _settings(phase: Phase) -> Mapping[str, Any] | None:
    return phase[2] if len(phase) == 3 else None
