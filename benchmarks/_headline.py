"""The picture of the README: how far each method ends from the best fixed density, one dot per noise process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
PANELS = {"own": ("the process's own loss", "adaptive"), "vlb": ("the variational bound", "adaptive[vlb]")}
"""Measure: what it is, and the form of ``adaptive`` that is told to serve it."""
LEFT_OUT = ("adaptive[", "uniform, ", "kim, ", "uniform+")
"""Variants and controls: in the tables, not in the picture. So are methods that train another loss."""
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#444444")  # Okabe and Ito's, told apart by colour-blind eyes
REACH = 1.0  # dots further out lie on the edge


def regrets(found: dict[str, Any], metric: str, ours: str) -> dict[str, list[float]]:
    """Share above the best fixed density at every place by method, worst last; ``ours`` is called adaptive."""
    rows = {}
    for label in next(iter(found["values"].values())):
        if label == ours or (label != "adaptive" and not label.startswith(LEFT_OUT)):
            rows["adaptive" if label == ours else label] = [
                methods[label][metric][0] / found["best_fixed"][where][metric][1] - 1
                for where, methods in found["values"].items()
            ]
    return dict(sorted(rows.items(), key=lambda row: max(row[1])))


def draw(path: Path = RESULTS / "headline.png") -> None:
    """Write the picture from ``analytic-report.json``."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    found = json.loads((RESULTS / "analytic-report.json").read_text())
    places = [where.split("/")[0] for where in found["values"]]
    shape, panels = pyplot.subplots(1, len(PANELS), figsize=(11, 4.6), constrained_layout=True)
    for axes, (metric, (title, ours)) in zip(panels, PANELS.items(), strict=True):
        rows = regrets(found, metric, ours)
        for height, (label, values) in enumerate(rows.items()):
            if label == "adaptive":
                axes.axhspan(height - 0.5, height + 0.5, color="#fff2cc", zorder=0)
            axes.plot([min(min(values), REACH), min(max(values), REACH)], [height] * 2, color="#bbbbbb", lw=2, zorder=1)
            for place, value, colour in zip(places, values, COLOURS, strict=True):
                marker = ">" if value > REACH else "o"
                told = place if height == 0 else None
                axes.scatter(min(value, REACH), height, color=colour, s=34, marker=marker, zorder=2, label=told)
        axes.axvline(0, color="black", lw=1)
        axes.set_yticks(range(len(rows)), rows)
        axes.invert_yaxis()
        axes.set_xlim(-0.3, REACH + 0.05)
        axes.xaxis.set_major_formatter(lambda value, _: f"{100 * value:+.0f} %" if value else "best\nfixed")
        axes.set_title(f"excess of {title}", fontsize=11)
        axes.grid(axis="x", color="#eeeeee")
        axes.spines[["top", "right", "left"]].set_visible(False)
    panels[0].legend(title="noise process", fontsize=8, title_fontsize=8, loc="upper right")
    shape.supxlabel("above the fixed density that turned out best (left is better; ▸ further out)", fontsize=9)
    shape.savefig(path, dpi=110)
    pyplot.close(shape)
