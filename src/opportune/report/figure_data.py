"""What the figures show, computed apart from drawing it: plain numbers and lists, as JSON would hold them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from ..diagnostics.density_map import ratio_scale
from .arrange import Method, Setting
from .clock import seconds_at
from .estimate import estimate
from .metrics import Metric, weights_of
from .profiles import diagnosed, gain_profile, held_out_profile, trained_share
from .runs import Run

MAX_POINTS = 400
"""Of a line: a picture shows no more, and a long run must not make a large file."""
_UNITS = (("hours", 3600.0), ("minutes", 60.0), ("seconds", 1.0))
U_AXIS = "← clean  ·  u  ·  more noise →"
U_UPWARDS = "u (more noise →)"  # beside a low picture there is no room for more


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One figure. ``kind`` says how it is drawn, ``data`` what; ``number``: of the method it is about, if of one."""

    key: str
    kind: str
    title: str
    caption: str
    data: Mapping[str, Any]
    number: int | None = None


def figures_of(setting: Setting, metrics: Sequence[Metric]) -> dict[str, list[Figure]]:
    """The figures of a setting by the part of the report they belong to."""
    curves = [figure for metric in metrics for figure in _metric_figures(setting, metric)]
    return {
        "steps": [figure for figure in curves if figure.key.endswith("-steps")],
        "time": [figure for figure in curves if figure.key.endswith("-time")],
        "density": _maps(setting),
        "profiles": [figure for figure in _profiles(setting) if figure.data["series"]],
    }


def _metric_figures(setting: Setting, metric: Metric) -> list[Figure]:
    """The metric against steps and against time; nothing to draw where each run was measured once."""
    if not any(len(curve.steps) > 1 for curve in metric.curves.values()):
        return []
    unit, seconds = _unit([seconds_at(run, run.reached) for run in setting.runs])
    by_steps = [_series(method, metric, None) for method in setting.methods]
    by_time = [_series(method, metric, seconds) for method in setting.methods]
    base = [method for method in by_steps if method["baseline"] and method["mean"]]
    shared = {"y_label": f"{metric.title} (lower is better)", "target": base[0]["mean"]["y"][-1] if base else None}
    explained = metric.note + (" Dotted: where the baseline ended." if base else "")
    made = [("steps", "steps", by_steps), ("time", f"{unit} of training", by_time)]
    return [
        Figure(
            key=f"{metric.key}-{key}",
            kind="curves",
            title=f"{metric.title} against {'steps' if key == 'steps' else 'time'}",
            caption=explained if key == "steps" else "Time as it passed, validation and checkpoints apart.",
            data={
                **shared,
                "x_label": label,
                "y_log": metric.key != "kid",
                "series": [s for s in series if s["seeds"]],
            },
        )
        for key, label, series in made
        if any(len(seed["x"]) > 1 for method in series for seed in method["seeds"])
    ]


def _series(method: Method, metric: Metric, unit_seconds: float | None) -> dict[str, Any]:
    """One method's curve per seed, and their mean at the steps all finished seeds have."""
    rows: list[tuple[Run, list[tuple[float, float, float]]]] = []
    for run in method.runs:
        curve = metric.curves.get(str(run.path))
        points = []
        for step, value in zip(curve.steps, curve.values, strict=True) if curve else []:
            if step == 0 and curve and len(curve.steps) > 2:
                continue  # before training: far above all that came after, which it would press flat
            x = step if unit_seconds is None else seconds_at(run, step)
            if x is not None:
                points.append((step, x / (unit_seconds or 1.0), value))
        if points:
            rows.append((run, points))
    finished = [{step: (x, value) for step, x, value in points} for run, points in rows if run.finished]
    common = sorted(set.intersection(*(set(points) for points in finished))) if finished else []
    return {
        **_of(method),
        "seeds": [
            {"seed": run.seed, "finished": run.finished, **_columns(("x", "y"), [(x, value) for _, x, value in points])}
            for run, points in rows
        ],
        "mean": _mean([[points[step] for step in common] for points in finished]),
    }


def _mean(seeds: list[list[tuple[float, float]]]) -> dict[str, list[float | None]] | None:
    """Mean x, mean y and its interval, point by point."""
    rows = []
    for points in zip(*seeds, strict=True):
        x, y = estimate([point[0] for point in points]), estimate([point[1] for point in points])
        if x is not None and y is not None:
            rows.append((x.mean, y.mean, y.low, y.high))
    return _columns(("x", "y", "low", "high"), rows) if rows else None


def _maps(setting: Setting) -> list[Figure]:
    """Where on the noise axis each method trained, over training."""
    shares = {method.number: trained_share(method.runs) for method in setting.methods}
    values = [value for found in shares.values() if found for column in found["values"] for value in column or []]
    scale = ratio_scale(value for value in values if value is not None)
    return [
        Figure(
            key=f"density-{method.number}",
            kind="map",
            title=f"Where {method.label} trained",
            caption="",
            data={**_of(method), "x_label": "steps", "y_label": U_UPWARDS, "scale": scale, **found},
            number=method.number,
        )
        for method in setting.methods
        if (found := shares[method.number])
    ]


def _profiles(setting: Setting) -> list[Figure]:
    weights = weights_of(setting.runs)
    final = {method.number: held_out_profile(method.finished, weights) for method in setting.methods}
    base = final.get(setting.baseline.number, {}) if setting.baseline else {}
    losses = {number: [_placed(row) for row in found.values()] for number, found in final.items()}
    ratios = {number: [_placed(row) for row in _ratios(found, base)] for number, found in final.items()}
    gains = {method.number: [_placed(row) for row in gain_profile(method.runs)] for method in setting.methods}
    scatter = {method.number: _diagnosed(method, "gradient", "variance") for method in setting.methods}
    return [
        _profile(
            "profile",
            "Held-out loss along the noise axis, at the end",
            f"Loss on the network's own target, not weighted, {weights} weights, in equal parts of u.",
            setting, losses, "held-out loss", log=True,
        ),
        _profile(
            "profile-ratio",
            "The same, relative to the baseline",
            "Below 1: better than the baseline at this noise level. Seed by seed.",
            setting, ratios, "loss / baseline's loss", target=1.0,
        ),
        _profile(
            "gradient-variance",
            "Scatter of the gradient along the noise axis",
            "Variance of the gradient of one example's loss, at the last stage that opportune diagnose looked at.",
            setting, scatter, "gradient variance", log=True,
        ),
        _profile(
            "gain",
            "What a step gained, where the method probes",
            "By how much a step lowered the loss of the method's own probes; second half of training.",
            setting, gains, "loss before − after the step", target=0.0,
        ),
        Figure(
            key="gradient",
            kind="curves",
            title="Gradient length over training",
            caption="Norm of the gradient before clipping, averaged between two records.",
            data={
                "x_label": "steps",
                "y_label": "gradient norm",
                "y_log": True,
                "target": None,
                "series": [found for method in setting.methods if (found := _lengths(method))["seeds"]],
            },
        ),
    ]  # fmt: skip


def _profile(
    key: str,
    title: str,
    caption: str,
    setting: Setting,
    found: Mapping[int, list[list[tuple[float, float]]]],
    y_label: str,
    *,
    log: bool = False,
    target: float | None = None,
) -> Figure:
    """Curves over the noise axis, one per seed; their mean where every seed has the same places."""
    series = []
    for method in setting.methods:
        rows = [row for row in found[method.number] if row]
        seeds = [{"seed": None, "finished": True, **_columns(("x", "y"), row)} for row in rows]
        if rows:
            series.append({**_of(method), "seeds": seeds, "mean": _mean(rows) if _same_places(rows) else None})
    data = {"x_label": U_AXIS, "y_label": y_label, "y_log": log, "target": target, "series": series}
    return Figure(key=key, kind="curves", title=title, caption=caption, data=data)


def _placed(values: Sequence[float | None]) -> list[tuple[float, float]]:
    """Values of equal bins at their middles; a bin nothing fell into is left out."""
    return [((index + 0.5) / len(values), value) for index, value in enumerate(values) if value is not None]


def _diagnosed(method: Method, kind: str, field: str) -> list[list[tuple[float, float]]]:
    rows = []
    for edges, values in filter(None, (diagnosed(run, kind, field) for run in method.runs)):
        middles = [(low + high) / 2 for low, high in pairwise(edges)]
        rows.append([(u, value) for u, value in zip(middles, values, strict=True) if value is not None])
    return rows


def _ratios(
    found: Mapping[int, list[float | None]], base: Mapping[int, list[float | None]]
) -> list[list[float | None]]:
    return [
        [a / b if a is not None and b else None for a, b in zip(values, base[seed], strict=True)]
        for seed, values in found.items()
        if len(base.get(seed, [])) == len(values)
    ]


def _same_places(rows: Sequence[Sequence[tuple[float, float]]]) -> bool:
    return all([x for x, _ in row] == [x for x, _ in rows[0]] for row in rows)


def _lengths(method: Method) -> dict[str, Any]:
    seeds, points = [], []
    for run in method.runs:
        row = [(record["step"], record["gradient_norm"]) for record in run.train if record.get("gradient_norm")]
        seeds += [{"seed": run.seed, "finished": run.finished, **_columns(("x", "y"), row)}] if row else []
        points += [row] if row and run.finished else []
    return {**_of(method), "seeds": seeds, "mean": _mean(points) if points and _same_places(points) else None}


def _of(method: Method) -> dict[str, Any]:
    return {"label": method.label, "number": method.number, "baseline": method.baseline}


def _columns(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> dict[str, list[Any]]:
    """Rows, at most MAX_POINTS with the last among them, as one list per name."""
    every = -(-len(rows) // MAX_POINTS) or 1
    kept = list(rows[::-1][::every])[::-1]
    return {name: [row[index] for row in kept] for index, name in enumerate(names)}


def _unit(seconds: Sequence[float | None]) -> tuple[str, float]:
    longest = max((each for each in seconds if each is not None), default=0.0)
    return next(((name, size) for name, size in _UNITS if longest >= 2 * size), _UNITS[-1])
