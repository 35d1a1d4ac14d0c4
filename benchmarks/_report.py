"""Results as JSON, as a table and as a figure."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from benchmarks._regret import METRICS, Interval, Table, Where, interval

TITLES = {
    "own": "excess MSE of the process's own target, × 1000",
    "eps": "excess eps-MSE, × 1000",
    "vlb": "excess VLB, capped, nats per dimension",
    "sw": "sliced-Wasserstein distance of generated samples, in standard deviations",
}
FACTOR = {"own": 1000.0, "eps": 1000.0, "vlb": 1.0, "sw": 1.0}


def summary(table: Table) -> dict[str, Any]:
    """Everything the tables show, as plain numbers."""
    methods = table.methods()
    return {
        "values": {_at(w): {m: _values(table, w, m) for m in methods if table.cells[w].get(m)} for w in table.places()},
        "fixed": sorted(table.fixed),
        "best_fixed": {_at(w): {k: table.best_fixed(w, k) for k in METRICS} for w in table.places()},
        "regret": {m: {k: table.overall(m, k) for k in METRICS} for m in methods},
        "speed": {
            _at(w): {m: {k: table.speed(w, m, k) for k in METRICS if k != "sw"} for m in methods}
            for w in table.places()
        },
    }


def _values(table: Table, where: Where, label: str) -> dict[str, Any]:
    runs = table.cells[where][label]
    answer: dict[str, Any] = {"seeds": sorted(runs)}
    for metric in METRICS:
        found = interval(list(table.values(where, label, metric).values()))
        answer[metric] = [_finite(found.mean), found.half]
    answer["by_seed"] = {
        metric: {str(seed): _finite(value) for seed, value in sorted(table.values(where, label, metric).items())}
        for metric in METRICS
    }
    answer["late"] = {
        metric: {str(seed): _finite(worst) for seed, worst in sorted(table.late(where, label, metric).items())}
        for metric in METRICS
        if metric != "sw"  # measured at the end alone
    }
    answer["ms_per_step"] = round(min(run["ms_per_step"] for run in runs.values()), 3)
    return answer


def markdown(table: Table, title: str) -> str:
    """One table of values and one of regrets per metric, then steps to uniform's final value."""
    lines = [f"# {title}", "", "Mean ± 95 % t-interval over seeds. Bold: the best fixed density in hindsight.", ""]
    places, methods = table.places(), table.methods()
    head = [_at(w) for w in places]
    for metric in METRICS:
        lines += [f"## {TITLES[metric]}", "", *_header(["method", *head])]
        best = {w: (table.best_fixed(w, metric) or ("",))[0] for w in places}
        lines += [_row([m, *(_shown(table, w, m, metric, bold=best[w] == m) for w in places)]) for m in methods]
        lines += ["", f"### Regret on {metric}: above the best fixed density, in %", ""]
        lines += _header(["method", "worst", "mean", *head])
        for label in sorted(methods, key=lambda m: table.overall(m, metric).get("worst", math.inf)):
            overall = table.overall(label, metric)
            cells = [_percent(table.regret(w, label, metric)) for w in places]
            missed = "" if overall.get("places", 0) == len(places) else f" ({overall.get('places', 0)}/{len(places)})"
            lines.append(_row([label, _hundred(overall.get("worst")) + missed, _hundred(overall.get("mean")), *cells]))
        lines += ["", f"### Against uniform on {metric}, in %", "", *_header(["method", *head])]
        for label in methods:
            lines.append(_row([label, *(_percent(table.against(w, label, metric)) for w in places)]))
        lines.append("")
    for metric in ("eps", "vlb"):
        lines += [f"## Steps to uniform's final {metric}, share of uniform's (time in brackets)", ""]
        lines += _header(["method", *head])
        lines += [_row([m, *(_speed(table.speed(w, m, metric)) for w in places)]) for m in methods]
        lines.append("")
    return "\n".join(lines)


def figure(table: Table, path: Path, title: str) -> None:
    """Regret of every method at every place, one panel per metric."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    methods, places = table.methods(), table.places()
    same_data = len({data for _, data in places}) == 1
    columns = [setting if same_data else _at((setting, data)) for setting, data in places]
    size = (4 + 1.1 * len(places) * len(METRICS) / 2, 2.5 + 0.28 * len(methods))
    shape, axes = pyplot.subplots(1, len(METRICS), figsize=size, sharey=True, constrained_layout=True)
    for axis, metric in zip(axes, METRICS, strict=True):
        grid = [[_mean(table.regret(w, m, metric)) for w in places] for m in methods]
        image = axis.imshow(grid, aspect="auto", cmap="RdBu_r", vmin=-0.5, vmax=0.5)
        axis.set_title(metric)
        axis.set_xticks(range(len(places)), columns, rotation=90, fontsize=8)
        axis.set_yticks(range(len(methods)), methods, fontsize=7)
        for y, row in enumerate(grid):
            for x, value in enumerate(row):
                shown = f"{100 * value:.0f}" if math.isfinite(value) else "–"
                colour = "white" if abs(value) > 0.35 else "black"
                axis.text(x, y, shown, ha="center", va="center", fontsize=6, color=colour)
    shape.colorbar(image, ax=axes, label="regret: 0.1 is 10 % above the best fixed density, blue below it")
    shape.suptitle(title)
    shape.savefig(path, dpi=110)
    pyplot.close(shape)


def _at(where: Where) -> str:
    return f"{where[0]}/{where[1]}"


def _header(names: list[str]) -> list[str]:
    return [_row(names), "|" + "---|" * len(names)]


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _shown(table: Table, where: Where, label: str, metric: str, *, bold: bool) -> str:
    values = [FACTOR[metric] * v for v in table.values(where, label, metric).values()]
    if not values:
        return ""
    return f"**{interval(values)}**" if bold else str(interval(values))


def _percent(found: Interval | None) -> str:
    if found is None:
        return ""
    half = "" if found.half is None else f" ± {100 * found.half:.0f}"
    return f"{_hundred(found.mean)}{half}"


def _hundred(value: float | None) -> str:
    return "" if value is None else f"{100 * value:+.1f}" if math.isfinite(value) else "diverged"


def _mean(found: Interval | None) -> float:
    return math.nan if found is None else found.mean


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _speed(found: dict[str, Any]) -> str:
    if not found:
        return ""
    if "steps" not in found:
        return f"never (0/{found['of']})"
    half = "" if found["steps_half"] is None else f" ± {found['steps_half']:.2f}"
    missed = "" if found["reached"] == found["of"] else f" {found['reached']}/{found['of']}"
    return f"{found['steps']:.2f}{half} [{found['time']:.2f}]{missed}"
