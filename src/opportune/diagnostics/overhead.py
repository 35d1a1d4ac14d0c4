"""What a sampler costs: training steps with it beside the same steps with uniform draws, taking turns in one run.

A method that measures does so every so many steps. Steps where it does and steps where it does not are timed apart and
put together by how often each occurs, so that a cadence of 40 needs no 40 steps per repetition.
"""

from __future__ import annotations

import copy
import math
import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from opportune.checks import number, whole
from opportune.names import sampler as by_name
from opportune.objective import Objective
from opportune.samplers import Sampler

from .timed_steps import Times, TrainingBench, moved_to

STEP_FORWARDS = 3
"""Forward passes a training step is worth: one forward, and a backward pass counted as two."""


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """A median over rounds and its 95 % interval (order statistics, distribution-free)."""

    median: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Overhead:
    """Cost of a step with a sampler over a step with uniform draws; 1.02 is 2 % more.

    Attributes:
        wall: of whole steps by the clock on the wall; every round pairs neighbouring blocks of both.
        cpu: of whole steps by this process's CPU time, which a busy machine disturbs less. On an accelerator it
            says little: the work is done elsewhere.
        added_wall: 1 plus the time spent in draw and watch over the time of a step: the same quantity with the noise
            of forward and backward left out, blind to what measuring does to caches.
        added_cpu: as before by CPU time.
        forwards_per_step: forward passes of the batch that the sampler adds per step, averaged over its cadence,
            counted at the model; a backward pass counts as two, a part of the batch as that part.
        forwards_when_due: the same for a step on which it measures; 0 if it never does.
        due_share: share of steps on which it measures.
    """

    wall: Ratio
    cpu: Ratio
    added_wall: Ratio
    added_cpu: Ratio
    forwards_per_step: float
    forwards_when_due: float
    due_share: float

    @property
    def in_forwards(self) -> float:
        """The ratio in forward passes, with a step of :data:`STEP_FORWARDS`."""
        return 1 + self.forwards_per_step / STEP_FORWARDS


def overhead(
    samplers: Mapping[str, Sampler],
    objective: Objective,
    x0: Tensor,
    *,
    conditions: Mapping[str, Any] | None = None,
    rounds: int = 12,
    steps_per_round: int = 2,
    horizon_steps: int = 400,
    learning_rate: float = 1e-4,
    seed: int = 0,
) -> dict[str, Overhead]:
    """Time every sampler's training steps against uniform draws, on copies: nothing that is handed in changes.

    All train one model with AdamW on one batch, in blocks that alternate in an order shuffled per round. In a
    distributed run every rank calls it alike and gradients are averaged over ranks (DDP); hand in the bare model.

    Args:
        samplers: by label, made for the objective's process.
        objective: its model must be an ``nn.Module``.
        x0: ``[B, ...]`` the batch, on the model's device.
        conditions: keyword arguments of the model.
        rounds: repetitions; each gives one ratio per sampler.
        steps_per_round: steps without a measurement per sampler and round; one with a measurement comes on top.
        horizon_steps: steps from where the sampler stands over which it is counted how often it measures.
        learning_rate: of AdamW.
        seed: of the order of the blocks.
    """
    whole("rounds", rounds, low=1)
    whole("steps_per_round", steps_per_round, low=1)
    whole("horizon_steps", horizon_steps, low=1)
    number("learning_rate", learning_rate, low=0)
    if not isinstance(objective.model, nn.Module):
        raise ValueError(f"objective.model={objective.model!r} is not an nn.Module, so its steps cannot be timed.")
    for label, sampler in samplers.items():
        if sampler.process is not objective.process:
            raise ValueError(
                f"samplers[{label!r}] was made for another process than the objective's; use one for both."
            )
        if sampler.accumulation != 1:
            raise ValueError(f"samplers[{label!r}] has accumulation={sampler.accumulation}; only 1 can be timed.")
    objective, own = copy.deepcopy((objective, dict(samplers)))  # in one go: both keep sharing one process
    bench = TrainingBench(objective, x0, dict(conditions or {}), learning_rate)
    baseline = _Turns(bench, by_name("uniform", objective.process), horizon_steps)
    runners = {label: _Turns(bench, sampler, horizon_steps) for label, sampler in own.items()}
    order = random.Random(seed)
    for _ in range(rounds):
        turns = [baseline, *runners.values()]
        for runner in order.sample(turns, len(turns)):
            runner.round(steps_per_round)
    return {label: runner.against(baseline) for label, runner in runners.items()}


class _Turns:
    """One sampler's turns at the bench.

    A sampler that measures is moved to a step on which it does and to one on which it does not; any other lives on
    from step to step, so that what it does now and then without a measurement (a density rebuilt) is in its times too.
    """

    def __init__(self, bench: TrainingBench, sampler: Sampler, horizon_steps: int) -> None:
        self._bench, self._sampler = bench, sampler
        self._due: int | None = None
        self._idle: int | None = None
        self._share = 0.0
        if sampler.needs in ("probe", "gradient"):
            self._look_ahead(horizon_steps)
        self.rounds: list[Times] = []
        self._forwards: list[float] = []
        self.round(1)  # lets caches, allocators and the optimizer's state settle
        self.rounds.clear()

    def _look_ahead(self, horizon_steps: int) -> None:
        start = self._sampler.steps_watched
        draw = self._sampler.draw(self._bench.x0)
        due = []
        for step in range(start, start + horizon_steps):
            moved_to(self._sampler, step)
            if self._sampler.request(draw) is not None:
                due.append(step)
        moved_to(self._sampler, start)
        self._share = len(due) / horizon_steps
        self._due = due[0] if due else None
        self._idle = next((step for step in range(start, start + horizon_steps) if step not in set(due)), None)

    def round(self, steps: int) -> None:
        """``steps`` steps without a measurement and one with, as far as the sampler has such."""
        parts = []
        if self._share < 1:
            parts.append((1 - self._share, Times.mean([self._step(self._idle) for _ in range(steps)])))
        if self._due is not None:
            before = self._bench.forwards
            parts.append((self._share, self._step(self._due)))
            self._forwards.append(self._bench.forwards - before - STEP_FORWARDS)
        self.rounds.append(Times.mixed(parts))

    def _step(self, at: int | None) -> Times:
        if at is not None:
            moved_to(self._sampler, at)
        return self._bench.step(self._sampler)

    def against(self, baseline: _Turns) -> Overhead:
        """Ratios to the baseline's rounds."""
        pairs = list(zip(self.rounds, baseline.rounds, strict=True))
        due = statistics.fmean(self._forwards) if self._forwards else 0.0
        return Overhead(
            wall=_ratio([mine.wall / other.wall for mine, other in pairs]),
            cpu=_ratio([mine.cpu / other.cpu for mine, other in pairs]),
            added_wall=_ratio([1 + (mine.added_wall - other.added_wall) / other.wall for mine, other in pairs]),
            added_cpu=_ratio([1 + (mine.added_cpu - other.added_cpu) / other.cpu for mine, other in pairs]),
            forwards_per_step=self._share * due,
            forwards_when_due=due,
            due_share=self._share,
        )


def _ratio(values: Sequence[float]) -> Ratio:
    """Median, and the order statistics that hold it 19 times in 20 (all there are, below six values)."""
    ordered = sorted(values)
    left_out = max(0, int((len(ordered) - 1.96 * math.sqrt(len(ordered))) / 2))
    return Ratio(median=statistics.median(ordered), low=ordered[left_out], high=ordered[-1 - left_out])
