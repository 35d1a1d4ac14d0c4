"""What a comparison found so far: each metric at each point, and where equal time ends, over seeds.

A seed counts in a setting once all methods of the plan have finished it, so that every row is over the same seeds;
where none is whole yet, each method stands with the seeds it has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev

from opportune.report.arrange import Setting, arrange
from opportune.report.comparable import check_held_out, check_scores
from opportune.report.estimate import interpolated
from opportune.report.metrics import Curve, Metric, metrics_of
from opportune.report.overhead import measured_cost
from opportune.report.runs import read_runs

from .cells import Cell
from .folder import is_finished


@dataclass(frozen=True, kw_only=True)
class Value:
    """A mean over seeds; ``std`` is the sample standard deviation over them, None for one seed."""

    mean: float
    std: float | None
    by_seed: dict[int, float]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One method: ``at`` its values at the points, ``equal_time`` where the baseline's last step ends by the clock.

    ``cost``: of a step beside the baseline's, None where it was not measured. At equal time a method has made
    ``steps / cost`` steps; its curve is straight between its points. None where that lies before the first.
    """

    label: str
    baseline: bool
    cost: float | None
    at: dict[int, Value]
    equal_time: Value | None


@dataclass(frozen=True, kw_only=True)
class Table:
    """One metric in one setting; less is better in all. ``seeds``: those that count; ``partial``: none is whole."""

    setting: str
    metric: str
    title: str
    note: str
    seeds: tuple[int, ...]
    partial: bool
    points: tuple[int, ...]
    rows: tuple[Row, ...]


def summarise(cells: Sequence[Cell], output: Path) -> list[Table]:
    """The tables of what the cells' folders in ``output`` hold; an error where scores were made differently."""
    names = {cell.name for cell in cells}
    runs = [run for run in read_runs([output]) if run.path.name in names and run.started]
    tables = []
    for setting in arrange(runs, next(cell.label for cell in cells if cell.baseline)) if runs else []:
        check_held_out(setting)
        check_scores(setting)
        own = [cell for cell in cells if cell.setting == setting.name]
        tables += [_table(setting, metric, own) for metric in metrics_of(setting)]
    return tables


def _table(setting: Setting, metric: Metric, cells: Sequence[Cell]) -> Table:
    points, whole = cells[0].points, whole_seeds(cells)
    rows = []
    for method in setting.methods:
        curves = {run.seed: metric.curves[str(run.path)] for run in method.runs if str(run.path) in metric.curves}
        counted = {seed: curve for seed, curve in curves.items() if not whole or seed in whole}
        measured = measured_cost(method)
        rows.append(row(method.label, method.baseline, counted, points, measured.cost if measured else None))
    return Table(
        setting=setting.name,
        metric=metric.key,
        title=metric.title,
        note=metric.note,
        seeds=whole or tuple(sorted({run.seed for run in setting.runs})),
        partial=not whole,
        points=points,
        rows=tuple(each for each in rows if each.at),
    )


def whole_seeds(cells: Sequence[Cell]) -> tuple[int, ...]:
    """The seeds all of whose cells are finished."""
    seeds = sorted({cell.seed for cell in cells})
    return tuple(seed for seed in seeds if all(is_finished(cell) for cell in cells if cell.seed == seed))


def row(label: str, baseline: bool, curves: dict[int, Curve], points: Sequence[int], cost: float | None) -> Row:
    """One method's row, from its curves by seed."""
    at = {}
    for point in points:
        found = {seed: dict(zip(curve.steps, curve.values, strict=True)).get(point) for seed, curve in curves.items()}
        value = _value(found)
        if value is not None:
            at[point] = value
    equal_time = None
    if cost is not None:
        reached = points[-1] / max(cost, 1.0)  # a step below 1 is noise of the clock: nothing lies beyond the last step
        equal_time = _value({seed: interpolated(curve.steps, curve.values, reached) for seed, curve in curves.items()})
    return Row(label=label, baseline=baseline, cost=cost, at=at, equal_time=equal_time)


def _value(by_seed: dict[int, float | None]) -> Value | None:
    """Mean and spread of the seeds that have a value."""
    found = {seed: value for seed, value in by_seed.items() if value is not None}
    if not found:
        return None
    values = list(found.values())
    return Value(mean=fmean(values), std=stdev(values) if len(values) > 1 else None, by_seed=found)
