"""What came of each method: its final value, and when it reached the baseline's; over seeds, pair by pair.

A seed of a method is compared with the same seed of the baseline, which began with the same weights and saw the same
images. Where no seed matches, it is compared with the baseline's mean, and ``paired`` is False.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from .arrange import Method, Setting
from .clock import seconds_at
from .estimate import Estimate, estimate, first_at_or_below
from .metrics import Curve, Metric
from .overhead import measured_cost
from .runs import Run


@dataclass(frozen=True, kw_only=True)
class Reach:
    """When one seed came to the baseline's final value ``target``: steps and seconds, None for never, and both as
    shares of what the baseline needed."""

    seed: int
    target: float
    steps: float | None
    seconds: float | None
    steps_share: float | None
    time_share: float | None


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One method by one metric, over its finished runs.

    ``final``: the last value; ``difference``: to the baseline's, at the same number of steps. ``steps_share`` and
    ``time_share``: what it took to reach the baseline's final value, in shares of what the baseline took; None where
    ``never`` > 0 of the ``reaches`` did not, as a mean over the others would flatter. ``cost_share``: the time
    again, as steps times the cost of a step, where that was measured apart from training.
    """

    label: str
    number: int
    baseline: bool
    seeds: tuple[int, ...]
    final: Estimate | None
    difference: Estimate | None
    reaches: tuple[Reach, ...]
    paired: bool
    never: int
    steps: Estimate | None
    steps_share: Estimate | None
    time_share: Estimate | None
    cost_share: Estimate | None


def outcomes(setting: Setting, metric: Metric) -> list[Outcome]:
    """One per method that has finished runs with this metric."""
    base = _measured(setting.baseline, metric) if setting.baseline else {}
    return [
        _outcome(method, _measured(method, metric), base) for method in setting.methods if _measured(method, metric)
    ]


def _measured(method: Method, metric: Metric) -> dict[int, tuple[Run, Curve]]:
    """Finished runs and their curves, by seed."""
    curves = metric.curves
    return {run.seed: (run, curves[str(run.path)]) for run in method.finished if str(run.path) in curves}


def _outcome(method: Method, own: dict[int, tuple[Run, Curve]], base: dict[int, tuple[Run, Curve]]) -> Outcome:
    finals = [curve.final for _, curve in own.values()]
    paired = any(seed in base for seed in own)
    reaches = _paired(own, base) if paired else _unpaired(own, base)
    never = sum(reach.steps is None for reach in reaches)
    differences = [
        own[seed][1].final - base[seed][1].final
        for seed in own
        if seed in base and own[seed][1].steps[-1] == base[seed][1].steps[-1]
    ]
    shares, cost = [reach.steps_share for reach in reaches], measured_cost(method)
    return Outcome(
        label=method.label,
        number=method.number,
        baseline=method.baseline,
        seeds=tuple(own),
        final=_finite(finals),
        difference=None if method.baseline else _finite(differences),
        reaches=tuple(reaches),
        paired=paired,
        never=never,
        steps=_all([reach.steps for reach in reaches]),
        steps_share=_all(shares),
        time_share=_all([reach.time_share for reach in reaches]),
        cost_share=_all([share and share * cost.cost for share in shares]) if cost else None,
    )


def _paired(own: dict[int, tuple[Run, Curve]], base: dict[int, tuple[Run, Curve]]) -> list[Reach]:
    made = []
    for seed in (seed for seed in own if seed in base):
        target = base[seed][1].final
        made.append(_reach(seed, own[seed], target, *_when(base[seed], target)))
    return [each for each in made if each is not None]


def _unpaired(own: dict[int, tuple[Run, Curve]], base: dict[int, tuple[Run, Curve]]) -> list[Reach]:
    if not base:
        return []
    target = math.fsum(curve.final for _, curve in base.values()) / len(base)
    times = [_when(each, each[1].final) for each in base.values()]
    steps, seconds = (_mean_of_present(column) for column in zip(*times, strict=True))
    made = [_reach(seed, own[seed], target, steps, seconds) for seed in own]
    return [each for each in made if each is not None]


def _mean_of_present(values: Sequence[float | None]) -> float | None:
    found = estimate([value for value in values if value is not None])
    return None if found is None else found.mean


def _reach(
    seed: int, own: tuple[Run, Curve], target: float, base_steps: float | None, base_seconds: float | None
) -> Reach | None:
    """None where there is nothing to say: a metric measured once has no first step at which it was good enough."""
    if len(own[1].steps) < 2 or base_steps is None:
        return None
    steps, seconds = _when(own, target)
    return Reach(
        seed=seed,
        target=target,
        steps=steps,
        seconds=seconds,
        steps_share=steps / base_steps if steps is not None and base_steps else None,
        time_share=seconds / base_seconds if seconds is not None and base_seconds else None,
    )


def _when(measured: tuple[Run, Curve], target: float) -> tuple[float | None, float | None]:
    """Step and second at which a curve first came to ``target``; by the same rule for the baseline as for all."""
    run, curve = measured
    steps = first_at_or_below(curve.steps, curve.values, target) if len(curve.steps) > 1 else None
    return steps, None if steps is None else seconds_at(run, steps)


def _finite(values: list[float]) -> Estimate | None:
    """The mean, unless a run diverged: then there is none."""
    return estimate(values) if values and all(map(math.isfinite, values)) else None


def _all(values: list[float | None]) -> Estimate | None:
    present = [value for value in values if value is not None]
    return estimate(present) if len(present) == len(values) else None
