"""The folder of a comparison: what lies where, and whether a plan may begin or continue there."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from opportune.diagnostics.found import write_whole
from opportune.report.lines import read_object
from opportune.report.runs import CELL, PLAN
from opportune.train.config_file import differences, read_toml, sections_to_toml, to_dict, to_toml
from opportune.train.errors import ConfigError
from opportune.train.run_folder import CONFIG

from .cells import Cell, describe_evaluate
from .evaluation import EVALUATIONS, missing
from .plan import KEPT, Plan

RUNS, FEATURES, LOG = "runs", "features", "log.txt"
_MARK = "# From the command line:"
_SHOWN = 3


def is_finished(cell: Cell) -> bool:
    """Whether all its points are scored."""
    return not missing(cell.folder, cell.points)


def check_folder(plan: Plan, cells: Sequence[Cell], output: Path) -> list[str]:
    """A ConfigError where an old cell was made otherwise than this plan would; else the runs that are no part of it."""
    changed = [problem for cell in cells for problem in _changes(plan, cell)]
    if changed:
        more = f"\n  and {len(changed) - _SHOWN} more" if len(changed) > _SHOWN else ""
        raise ConfigError(
            f"{output} holds cells that this plan would make otherwise, and the two must not be mixed:\n  "
            + "\n  ".join(changed[:_SHOWN])
            + more
            + "\nChoose another --output-dir, or delete these cells' folders to run them anew."
        )
    names = {cell.name for cell in cells}
    runs = output / RUNS
    return sorted(path.name for path in runs.glob("*") if path.name not in names) if runs.is_dir() else []


def write_folder(plan: Plan, cells: Sequence[Cell], output: Path) -> None:
    """The plan, and for every cell what it is and its configuration; what is there already stays."""
    if plan.config is not None:
        write_whole(output / KEPT, plan.config.read_bytes())
    write_whole(output / PLAN, _with_overrides(plan))
    for cell in cells:
        if is_finished(cell):
            continue
        write_whole(cell.folder / CELL, json.dumps(_description(plan, cell), indent=2) + "\n")
        write_whole(cell.folder / CONFIG, to_toml(cell.config))


def _changes(plan: Plan, cell: Cell) -> list[str]:
    """What is different from the cell that was made: its first difference, in one line."""
    if (cell.folder / "checkpoints").is_dir() and (cell.folder / CONFIG).is_file():
        found = differences(read_toml(cell.folder / CONFIG), json.loads(json.dumps(to_dict(cell.config))))
        if found:
            more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
            return [f"{cell.name}: {found[0]}{more}"]
    if not any((cell.folder / EVALUATIONS).glob("step-*.json")):
        return []
    old = read_object(cell.folder / CELL) if (cell.folder / CELL).is_file() else {}
    before, now = old.get("evaluate", {}), describe_evaluate(plan.evaluate)
    if not set(cell.points) <= set(old.get("points", [])):
        return [f"{cell.name}: scored at steps {old.get('points')}, not {list(cell.points)}"]
    return [
        f"{cell.name}: evaluate.{key}: {before.get(key)!r} -> {now[key]!r}, which makes other scores"
        for key in now
        if before.get(key) != now[key]
    ][:1]


def _description(plan: Plan, cell: Cell) -> dict[str, Any]:
    return {
        "label": cell.label,
        "setting": cell.setting,
        "seed": cell.seed,
        "baseline": cell.baseline,
        "plan": plan.name,
        "points": list(cell.points),
        "evaluate": {**describe_evaluate(plan.evaluate), "grid": plan.evaluate.grid},
    }


def _with_overrides(plan: Plan) -> str:
    own = plan.text.split(_MARK)[0].rstrip() + "\n"
    if not plan.overrides:
        return own
    return f"{own}\n{_MARK}\n{sections_to_toml(plan.overrides, within='overrides.')}"
