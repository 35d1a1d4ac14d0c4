"""The page's section on data with a known optimum: from the tables that analytic.py wrote."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
METRICS = {"own": "own loss", "eps": "eps-MSE", "vlb": "bound", "sw": "generated samples"}

HEAD = """## Distance to the optimum, on data whose best denoiser is known

Mixtures of Gaussians; the excess over the best possible network is measured per noise level, without a feature
extractor ([how](research/proving_ground.md), [what the adaptive sampler rests on](research/adaptive.md)). Settings of
our methods were chosen on other mixtures and seeds than these. 3,000 steps of AdamW at 2e-3, batch 128, a residual MLP
of width 128, EMA 0.995. Processor time per step is in the JSON. A *regret* is how far a method ends above the fixed
density that turned out best for that process, data and measure, in percent; below zero it beats every fixed density.
"""


def section() -> str:
    """Every part whose results are there."""
    parts = [_report(), _grid(), _wide(), _fine_tune(), _long()]
    found = [part for part in parts if part]
    return "\n".join([HEAD, *found]) if found else ""


def _report() -> str:
    if not (RESULTS / "analytic-report.json").exists():
        return ""
    return f"""### Sixteen dimensions, every method, five seeds

{_command("report")}

`adaptive` serves the process's own loss, `adaptive[vlb]` the variational bound (one setting). "uniform, adaptive's
correction" draws uniformly and multiplies the loss by `adaptive`'s correction: what the correction does without the
draws. All cells are of one run, on a machine with other work to do: times (in brackets in the last tables)
are rough. What a step costs was measured side by side [below](#what-a-method-costs-per-training-step).

{_summary("report")}

{_chapters("report")}"""


def _grid() -> str:
    if not (RESULTS / "analytic-report-grid.json").exists():
        return ""
    return f"""### A finer grid of fixed densities

{_command("report-grid")}

The same mixture, seventeen Beta densities instead of seven, one seed: whether the best fixed density above was only the
best of a coarse grid.

{_summary("report-grid")}

{_chapters("report-grid", only="Regret on (own|vlb)")}"""


def _wide() -> str:
    if not (RESULTS / "analytic-report-wide.json").exists():
        return ""
    return f"""### Three other mixtures

{_command("report-wide")}

A circle of 48 modes in 64 dimensions, 12 modes in 2, 40 modes in 64. One seed.

{_summary("report-wide")}

{_chapters("report-wide", only="Regret")}"""


def _fine_tune() -> str:
    if not (RESULTS / "analytic-fine-tune.json").exists():
        return ""
    return f"""### A fine-tune of 2,000 steps

{_command("fine-tune")}

The network was trained on another mixture for 3,000 steps before, with uniform draws; the sampler starts afresh.
Seeds: {_seeds("fine-tune")}.

{_summary("fine-tune")}

{_chapters("fine-tune", only="Regret|Against|Steps to")}"""


def _long() -> str:
    found = _read("long")
    if not found:
        return ""
    rows = []
    for where, methods in found["values"].items():
        ours, uniform = methods.get("adaptive", {}), methods.get("uniform", {})
        cells = [where, f"{len(ours.get('seeds', []))} and {len(uniform.get('seeds', []))}"]
        for metric, factor in (("own", 1000), ("vlb", 1), ("sw", 1)):
            cells += [_value(uniform.get(metric), factor), _value(ours.get(metric), factor)]
        rows.append([*cells, *(_worst(ours.get("late", {}).get(metric, {})) for metric in ("own", "vlb"))])
    head = [
        "where",
        "seeds: adaptive's and uniform's",
        "own × 1000: uniform",
        "adaptive",
        "bound: uniform",
        "adaptive",
        "sw: uniform",
        "adaptive",
        "worst of any seed, own",
        "worst, bound",
    ]
    return f"""### 50,000 steps: does anything collapse?

{_command("long")}

Batches of 32, a constant learning rate. *Worst*: how far above the mean of uniform any run of `adaptive` was at any
evaluation from step 25,000 on; a collapse would show there. [What was seen](research/adaptive.md#where-it-stands).

{_table(head, rows)}
"""


def _command(plan: str) -> str:
    return f"Reproduce: `python benchmarks/analytic.py --plan benchmarks/plans/{plan}.toml --workers 2`"


def _summary(plan: str) -> str:
    """Worst and mean regret of each method over all settings, best first."""
    regrets = _read(plan)["regret"]
    order = sorted(regrets, key=lambda m: regrets[m].get("own", {}).get("worst", 9e9))
    head = ["regret in %, worst (mean)", *METRICS.values()]
    rows = []
    for label in order:
        cells = [regrets[label].get(metric) or {} for metric in METRICS]
        rows.append([label, *(f"{100 * c['worst']:+.1f} ({100 * c['mean']:+.1f})" if c else "" for c in cells)])
    return _table(head, rows)


def _chapters(plan: str, *, only: str = "") -> str:
    """The tables of a report, one heading level further in; ``only`` keeps headings that match it."""
    text = (RESULTS / f"analytic-{plan}.md").read_text()
    found = re.split(r"^(##+ .*)$", text, flags=re.MULTILINE)[1:]
    pairs = list(zip(found[::2], found[1::2], strict=True))
    kept = [f"##{head}{body.rstrip()}" for head, body in pairs if re.search(only, head)]
    return "\n\n".join(kept) + "\n"


def _seeds(plan: str) -> str:
    """Those that were run, of all methods and places."""
    values = _read(plan)["values"].values()
    return ", ".join(
        map(str, sorted({seed for methods in values for found in methods.values() for seed in found["seeds"]}))
    )


def _value(found: list[Any] | None, factor: float) -> str:
    if not found:
        return ""
    mean, half = found
    if mean is None:
        return "diverged"
    return f"{factor * mean:.3g}" + ("" if half is None else f" ± {factor * half:.2g}")


def _worst(by_seed: dict[str, float | None]) -> str:
    if not by_seed:
        return ""
    values = [value for value in by_seed.values() if value is not None]
    return f"{100 * max(values):+.0f} %" if len(values) == len(by_seed) else "diverged"


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def _read(plan: str) -> dict[str, Any]:
    path = RESULTS / f"analytic-{plan}.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found
