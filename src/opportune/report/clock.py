"""How long a run took: seconds of training at a step, validation and checkpoints apart, and what a step costs."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from .estimate import interpolated
from .lines import is_number
from .runs import Run


@dataclass(frozen=True, kw_only=True)
class StepCost:
    """``seconds`` per step: the median over the run's records, so that a start or a pause counts little. ``sampler``
    and ``data``: the shares spent in the sampler and waiting for data; None where they were not recorded."""

    seconds: float
    sampler: float | None
    data: float | None


def seconds_at(run: Run, step: float) -> float | None:
    """Seconds of training until ``step``; None where the run did not record them."""
    steps, seconds = cumulated(run)
    return interpolated(steps, seconds, step)


def cumulated(run: Run) -> tuple[list[float], list[float]]:
    """Steps, from 0, and the seconds of training until then."""
    steps, seconds = [0.0], [0.0]
    for record in run.timing:
        if record["step"] <= steps[-1]:
            continue
        seconds.append(seconds[-1] + record["seconds_per_step"] * (record["step"] - steps[-1]))
        steps.append(float(record["step"]))
    return steps, seconds


def step_cost(run: Run) -> StepCost | None:
    """What a step of ``run`` costs; the first record, in which caches are cold, is left out where there are more."""
    records = run.timing[1:] or run.timing
    if not records:
        return None
    return StepCost(
        seconds=median(record["seconds_per_step"] for record in records),
        sampler=_share(run, "overhead_share"),
        data=_share(run, "data_share"),
    )


def _share(run: Run, name: str) -> float | None:
    found = [record[name] for record in run.timing[1:] or run.timing if is_number(record.get(name))]
    return median(found) if found else None
