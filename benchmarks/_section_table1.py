"""The small Table 1 on the page of benchmarks, and its raw values from the folder of the comparison.

opportune compare table1-small --output-dir runs/table1-small
python benchmarks/_section_table1.py runs/table1-small      # writes benchmarks/results/table1-small.json
python benchmarks/_section_table1.py runs/again --update    # a method run again: only its cells are replaced
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from opportune.compare.summary import Row, Table, row
from opportune.compare.tables import one_table
from opportune.report.metrics import Curve
from opportune.report.runs import Run, read_runs

RESULT = Path(__file__).parent / "results" / "table1-small.json"
METRICS = {"kid": "KID", "held_out": "Held-out loss"}


def section() -> str:
    """Markdown, or nothing before there are results."""
    if not RESULT.exists():
        return ""
    result = json.loads(RESULT.read_text())
    made = result["cells"]
    settings = list(dict.fromkeys(cell["setting"] for cell in made))
    tables = {(setting, metric): _table(result, setting, metric) for setting in settings for metric in METRICS}
    bodies = [
        f"### {METRICS[metric]}, {setting} schedule\n\n{_over(table)}\n\n{one_table(table)}"
        for (setting, metric), table in tables.items()
    ]
    return f"""## Methods side by side on small images (Table 1 of Kim et al., scaled down)

{_how(result)}

Reproduce: `{result["command"]}`, then `python benchmarks/_section_table1.py runs/table1-small`

{(chr(10) * 2).join(bodies)}

### What this shows, and what it cannot

{_findings(tables, result)}
"""


def _how(result: dict[str, Any]) -> str:
    score, config = result["scores"], result["config"]
    return f"""CIFAR-10 shrunken to {config["size"]}x{config["size"]}, a UNet of {result["parameters"] / 1e6:.2f} M
parameters, batch {config["batch_size"]}, {config["steps"]:,} steps, learning rate {config["learning_rate"]:g} for all
(chosen on uniform draws). KID of {score["n_generated"]} images of the averaged weights, made in
{result["generate_steps"]} DDIM steps, against {score["n_real"]} real ones ({score["label"]}). The real images were
decoded from JPEG and shrunken, and the features are not Inception's: **no score here is a CIFAR-10 FID or KID**, and
none may be set beside a published one. Held-out loss: the unweighted loss at fixed noise levels. Less is better in
both. *Equal time* is the value where uniform's last step ends by the clock, each step at the cost in the last column,
which was measured in turns in one process."""


def _over(table: Table) -> str:
    seeds = ", ".join(map(str, table.seeds))
    if table.partial:
        return f"Not all methods were finished: each stands with what it has of seeds {seeds}."
    return f"Mean ± standard deviation over seeds {seeds}." if len(table.seeds) > 1 else f"One seed ({seeds})."


def _table(result: dict[str, Any], setting: str, metric: str) -> Table:
    """The table of one metric, over the seeds that all methods have finished."""
    cells = [cell for cell in result["cells"] if cell["setting"] == setting]
    labels = list(dict.fromkeys(cell["label"] for cell in cells))
    finished = {seed: {c["label"] for c in cells if c["seed"] == seed} for seed in {c["seed"] for c in cells}}
    whole = tuple(sorted(seed for seed, done in finished.items() if len(done) == len(result["methods"])))
    rows = []
    for label in labels:
        own = [cell for cell in cells if cell["label"] == label and (not whole or cell["seed"] in whole)]
        curves = {cell["seed"]: _curve(cell, metric) for cell in own}
        cost = result["costs"].get(label, {}).get(setting, {}).get("cost")
        rows.append(row(label, own[0]["baseline"], curves, result["points"], cost))
    return Table(
        setting=setting,
        metric=metric,
        title=METRICS[metric],
        note="",
        seeds=whole or tuple(sorted(finished)),
        partial=not whole,
        points=tuple(result["points"]),
        rows=tuple(rows),
    )


def _curve(cell: dict[str, Any], metric: str) -> Curve:
    points = [(point["step"], point[metric]) for point in cell["points"]]
    return Curve(steps=tuple(float(step) for step, _ in points), values=tuple(value for _, value in points))


def _findings(tables: dict[tuple[str, str], Table], result: dict[str, Any]) -> str:
    lines = []
    for (setting, metric), table in tables.items():
        lines.append(
            f"- {METRICS[metric]}, {setting}: {_against(table, 'at')}; at equal time {_against(table, 'time')}."
        )
    widths = [(p["kid_high"] - p["kid_low"]) / 2 for cell in result["cells"] for p in cell["points"][-1:]]
    most = max(len(table.seeds) for table in tables.values())
    luck = (
        f"by luck alone a method is below uniform in all {most} seeds once in {2**most} times"
        if most > 1
        else ("with one seed nothing is known of the spread between runs")
    )
    lines.append(
        f"- A single KID at the last step carries a 95 % interval of ± {fmean(widths):.2g} from the images alone, and "
        f"{luck}: differences of that size say nothing."
    )
    lines.append(
        "- The cells of `adaptive` were run later than the others, after a change to it "
        "([which](research/adaptive.md)); uniform, run again then (linear, seed 0), came out the same to the last "
        "digit."
    )
    steps = result["config"]["steps"]
    lines.append(
        f"- {steps:,} steps are the beginning of a training run. What holds after them need not hold after the 0.2 to "
        "1 million steps of the paper, and methods that learn have spent a good part of this run on learning. The "
        "order of the methods at full scale is not tested here; `opportune compare table1` is the plan for that."
    )
    lines.append(
        "- The held-out loss weighs all noise levels alike, as uniform draws do. A method that moves its effort to "
        "some levels gives up others, so this column favours uniform; KID looks at images alone."
    )
    return "\n".join(lines)


def _against(table: Table, where: str) -> str:
    """Which methods are below, or above, the baseline in every seed."""
    base = next(each for each in table.rows if each.baseline)
    signs: dict[str, list[str]] = {"below": [], "above": [], "mixed": []}
    for each in table.rows:
        if not each.baseline:
            signs[_sign(_values(each, table, where), _values(base, table, "at"))].append(each.label)
    told = [f"{', '.join(labels)} {_IN[sign]}" for sign, labels in signs.items() if labels]
    return "; ".join(told)


_IN = {"below": "below uniform in every seed", "above": "above it in every seed", "mixed": "not the same in all seeds"}


def _values(each: Row, table: Table, where: str) -> dict[int, float]:
    value = each.at.get(table.points[-1]) if where == "at" else each.equal_time
    return value.by_seed if value else {}


def _sign(own: dict[int, float], base: dict[int, float]) -> str:
    shared = [own[seed] - base[seed] for seed in own if seed in base]
    if shared and all(each < 0 for each in shared):
        return "below"
    return "above" if shared and all(each > 0 for each in shared) else "mixed"


def collect(folder: Path, command: str) -> dict[str, Any]:
    """The raw values of every finished cell in ``folder``."""
    runs = [run for run in read_runs([folder]) if _is_finished(run)]
    cells = [_cell(run) for run in runs]
    order = _labels(folder)
    cells.sort(key=lambda cell: (cell["seed"], cell["setting"] != "linear", order.index(cell["label"])))
    first, score = runs[0], runs[0].evaluations[0].scores
    config = first.config
    told = json.loads((first.path / "cell.json").read_text())
    return {
        "command": command,
        "environment": {
            "python": platform.python_version(),
            "torch": str(torch.__version__),
            "processor": _processor(),
            "threads_per_process": 1,
            "made_with": dict(first.environment),
        },
        "plan": told["plan"],
        "methods": order,
        "points": told["points"],
        "parameters": _parameters(config),
        "generate_steps": told["evaluate"]["steps"],
        "scores": {"label": score.label, "n_generated": score.n_generated, "n_real": score.n_real, "real": score.real},
        "config": {
            "steps": config["run"]["steps"],
            "size": config["data"]["size"],
            "batch_size": config["data"]["batch_size"],
            "learning_rate": config["optimizer"]["learning_rate"],
            "model": config["model"],
        },
        "costs": json.loads((folder / "cost.json").read_text()),
        "cells": cells,
    }


def updated_cells(kept: dict[str, Any], newer: dict[str, Any]) -> dict[str, Any]:
    """``kept`` with the cells that ``newer`` has too taken from there; refused where the two were not set up alike."""
    alike = ("points", "generate_steps", "scores", "config")
    for name in alike:
        if kept[name] != newer[name]:
            raise SystemExit(f"{name} differ, so the cells cannot stand side by side: {kept[name]} and {newer[name]}.")
    again = {_place(cell): cell for cell in newer["cells"]}
    cells = [{**again.pop(_place(cell), cell), "baseline": cell["baseline"]} for cell in kept["cells"]]
    if again:
        raise SystemExit(f"not among the cells kept: {sorted(again)}.")
    return {**kept, "cells": cells}


def _place(cell: dict[str, Any]) -> tuple[str, str, int]:
    return cell["label"], cell["setting"], cell["seed"]


def _cell(run: Run) -> dict[str, Any]:
    held_out = {record["step"]: record["ema"]["loss"] for record in run.validation}
    return {
        "label": run.label,
        "setting": run.setting,
        "seed": run.seed,
        "baseline": run.baseline,
        "points": [
            {
                "step": each.step,
                "kid": each.scores.kid,
                "kid_low": each.scores.kid_low,
                "kid_high": each.scores.kid_high,
                "held_out": held_out[each.step],
            }
            for each in run.evaluations
        ],
        "seconds_per_step": [record["seconds_per_step"] for record in run.timing],
    }


def _is_finished(run: Run) -> bool:
    points = json.loads((run.path / "cell.json").read_text())["points"]
    return {each.step for each in run.evaluations} >= set(points)


def _labels(folder: Path) -> list[str]:
    from opportune.compare import read_plan

    return [method.label for method in read_plan(folder / "plan.toml").methods]


def _parameters(config: Any) -> int:
    from opportune.models import count_parameters
    from opportune.train.config import TrainConfig
    from opportune.train.config_file import updated
    from opportune.train.parts import model_on_meta

    return count_parameters(model_on_meta(updated(TrainConfig(), config)))


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{len(names)} x {names[0]}" if names else platform.processor()


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("folder", type=Path, help="of the comparison")
    options.add_argument("--update", action="store_true", help="replace only the cells that the folder has")
    given = options.parse_args()
    found = collect(given.folder, "opportune compare table1-small --output-dir runs/table1-small")
    if given.update:
        found = updated_cells(json.loads(RESULT.read_text()), found)
    RESULT.write_text(json.dumps(found, indent=1) + "\n")
    print(f"{len(found['cells'])} cells: {RESULT}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
