"""Quantities per part of the noise axis (equal bins of u: 0 clean, 1 noise), read from the records of runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..train.errors import RunFolderError
from .lines import is_number, read_object
from .runs import Run

MAX_COLUMNS = 60
"""Of a map over training; records beyond are pooled, which also averages the noise of counting."""


def trained_share(runs: Sequence[Run]) -> dict[str, Any] | None:
    """How often each bin was drawn between two steps, relative to uniform (1 is as often), over all seeds.

    ``{"edges": [steps], "values": [column][bin]}``: column k is what was drawn from step edges[k] to edges[k + 1].
    """
    bins = next((len(record["bins"]["count"]) for run in runs for record in run.train), 0)
    by_step: dict[int, list[float]] = {}
    for run in runs:
        for record in run.train:
            counts = record["bins"]["count"]
            if len(counts) == bins:
                known = by_step.setdefault(record["step"], [0.0] * bins)
                by_step[record["step"]] = [a + (b or 0) for a, b in zip(known, counts, strict=True)]
    steps = sorted(by_step)
    if not bins or not steps:
        return None
    pooled = -(-len(steps) // MAX_COLUMNS)
    edges, values = [0], []
    for start in range(0, len(steps), pooled):
        group = steps[start : start + pooled]
        counts = [sum(column) for column in zip(*(by_step[step] for step in group), strict=True)]
        total = sum(counts)
        values.append([count * bins / total if total else None for count in counts])
        edges.append(group[-1])
    return {"edges": edges, "values": values}


def held_out_profile(runs: Sequence[Run], weights: str) -> dict[int, list[float | None]]:
    """The last held-out loss per bin, by seed."""
    return {run.seed: list(run.validation[-1][weights]["bins"]) for run in runs if run.validation}


def gain_profile(runs: Sequence[Run]) -> list[list[float | None]]:
    """The mean gain per bin over the second half of each run; nothing for runs whose sampler does not probe."""
    found = []
    for run in runs:
        rows = [record["bins"].get("gain") for record in run.train[len(run.train) // 2 :]]
        rows = [row for row in rows if row]
        columns = [[value for value in column if value is not None] for column in zip(*rows, strict=False)]
        means = [sum(column) / len(column) if column else None for column in columns]
        if any(mean is not None for mean in means):
            found.append(means)
    return found


def diagnosed(run: Run, kind: str, field: str) -> tuple[list[float], list[float | None]] | None:
    """Bin edges and ``field`` of the last stage in ``diagnostics/<kind>.json``, as ``opportune diagnose`` wrote it."""
    path = run.path / "diagnostics" / f"{kind}.json"
    if not path.is_file():
        return None
    found = read_object(path).get("found")
    last = found[-1] if isinstance(found, list) and found else None
    edges, values = (_numbers(last.get(name)) if isinstance(last, dict) else [] for name in ("edges", field))
    places = [edge for edge in edges if edge is not None]
    if len(places) < len(edges) or len(edges) != len(values) + 1:
        raise RunFolderError(f"{path} has no edges and {field} per bin; make it again with `opportune diagnose`.")
    return places, values


def _numbers(values: Any) -> list[float | None]:
    """``values``, if they are a list of numbers and nulls; else nothing."""
    numbers = isinstance(values, list) and all(value is None or is_number(value) for value in values)
    return list(values) if numbers else []
