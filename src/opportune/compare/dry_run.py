"""What a plan would run and cost, without making a file."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from opportune.models import count_parameters
from opportune.train.config_file import differences, to_dict
from opportune.train.dry_run import MEASURED_UP_TO, forward_operations, step_seconds
from opportune.train.parts import model_on_meta

from .cells import Cell, describe_evaluate
from .plan import Plan
from .tables import aligned


def describe(plan: Plan, cells: Sequence[Cell], *, measure: bool = True) -> str:
    """The cells, what each changes of its baseline, how they are scored, and the work.

    Args:
        plan: the plan.
        cells: its cells.
        measure: time a step on this machine where the network is small enough.
    """
    first_seed = [cell for cell in cells if cell.seed == cells[0].seed]
    rows = [["cell", "steps", "scored at", "beside the baseline"]]
    rows += [[_name(cell), f"{cell.config.run.steps:,}", _points(cell), _changes(cell, cells)] for cell in first_seed]
    scored = ", ".join(f"{key}={value}" for key, value in describe_evaluate(plan.evaluate).items() if value is not None)
    counts = f"{len(plan.methods)} methods x {len(plan.settings)} settings x {len(plan.seeds)} seeds"
    return "\n".join(
        [
            plan.title,
            f"{len(cells)} cells: {counts} {list(plan.seeds)}",
            "",
            aligned(rows, left=(0, 3)),
            "",
            f"scores: {scored}",
            *_work(plan, cells, measure),
        ]
    )


def _name(cell: Cell) -> str:
    return f"{cell.setting}: {cell.label}" + (" (baseline)" if cell.baseline else "")


def _points(cell: Cell) -> str:
    return ", ".join(f"{point:,}" for point in cell.points)


def _changes(cell: Cell, cells: Sequence[Cell]) -> str:
    base = next(each for each in cells if each.baseline and (each.setting, each.seed) == (cell.setting, cell.seed))
    changed = differences(to_dict(base.config), to_dict(cell.config))
    return "; ".join(changed) if changed else "-"


def _work(plan: Plan, cells: Sequence[Cell], measure: bool) -> list[str]:
    """Operations of training and of making images, and the hours they take here."""
    lines, total, seconds = [], 0.0, 0.0
    per_step: dict[str, tuple[float, float | None]] = {}
    for cell in cells:
        config = cell.config
        key = f"{config.model} {config.data.batch_size} {config.data.size}"
        if key not in per_step:
            model = model_on_meta(config)
            lines.append(f"network: {config.model.name}, {count_parameters(model):,} parameters")
            one = forward_operations(config, model)
            small = measure and 3 * config.data.batch_size * one <= MEASURED_UP_TO
            per_step[key] = one, step_seconds(config) if small else None
        one, step = per_step[key]
        images = len(cell.points) * plan.evaluate.count * plan.evaluate.steps
        passes = 3 * config.run.steps * config.data.batch_size + images
        total += passes * one
        seconds += 0.0 if step is None else passes * step / (3 * config.data.batch_size)
    lines.append(
        f"work: {total / 1e15:.4g} PFLOP of training steps and images, without what samplers measure and features cost"
    )
    if all(step is not None for _, step in per_step.values()):
        threads = torch.get_num_threads()
        lines.append(f"measured here: about {seconds / 3600:.2g} h in one process of {threads} threads")
    else:
        lines.append("too large to try out here: divide by the speed of your hardware, half of its peak at best")
    return lines
