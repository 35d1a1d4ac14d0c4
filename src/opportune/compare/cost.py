"""What a training step of each method costs beside the baseline's, measured in turns in one process.

    python -m opportune.compare.cost PARENT_PID COMPARISON_FOLDER

The cost is the sampler's: weightings and momentum decay cost a multiplication per example or per step. With gradient
accumulation one micro-batch is timed and the sampler's addition counted once per step.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from opportune.diagnostics.found import write_whole
from opportune.diagnostics.overhead import Overhead, overhead
from opportune.objective import Objective
from opportune.report.overhead import COST
from opportune.report.runs import CELL
from opportune.samplers import Sampler
from opportune.train import parts
from opportune.train.config import TrainConfig
from opportune.train.config_file import read_toml, updated
from opportune.train.run_folder import CONFIG
from opportune.train.trained_images import device_of

from .child import EXPLAINED, leave_with


def main(words: Sequence[str]) -> int:
    """Measure every setting of a comparison; returns the exit code."""
    leave_with(int(words[0]))
    output = Path(words[1])
    try:
        write_whole(output / COST, json.dumps(measure(output), indent=2) + "\n")
    except EXPLAINED as error:
        sys.stderr.write(f"error: {' '.join(str(error).split())}\n")
        return 1
    return 0


def measure(output: Path) -> dict[str, dict[str, dict[str, Any]]]:
    """``{label: {setting: {"cost", "low", "high", "clock", "forwards_per_step"}}}`` of the cells in ``output``."""
    cells = [(path.parent, json.loads(path.read_text(encoding="utf-8"))) for path in output.glob(f"runs/*/{CELL}")]
    seed = min(cell["seed"] for _, cell in cells)
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for setting in dict.fromkeys(cell["setting"] for _, cell in cells):
        rows = [(run, cell) for run, cell in cells if cell["setting"] == setting and cell["seed"] == seed]
        configs = {cell["label"]: updated(TrainConfig(), read_toml(run / CONFIG)) for run, cell in rows}
        baseline = next(cell["label"] for _, cell in rows if cell["baseline"])
        for label, cost in costs(configs, baseline).items():
            found.setdefault(label, {})[setting] = cost
    return found


def costs(configs: dict[str, TrainConfig], baseline: str) -> dict[str, dict[str, Any]]:
    """Cost of a step of each configuration relative to ``baseline``'s; they differ in nothing but the method."""
    first = configs[baseline]
    device = device_of(first.hardware.device)
    process = parts.make_process(first)
    samplers = {label: _sampler(config, process).to(device) for label, config in configs.items()}
    data = first.data
    model = parts.make_model(first).to(device)
    x0 = torch.randn(data.batch_size // data.accumulation, data.channels, data.size, data.size, device=device)
    conditions: dict[str, Any] = {}
    if data.classes is not None:
        conditions["labels"] = torch.arange(len(x0), device=device) % data.classes
    if data.low_resolution_factor:
        conditions["condition"] = x0
    measured = overhead(samplers, Objective(model, process), x0, conditions=conditions)
    clock = "wall" if device.type == "cuda" else "cpu"  # CPU time: other programs disturb it less
    reference = _ratio(measured[baseline], clock).median
    return {label: _cost(found, clock, reference, data.accumulation) for label, found in measured.items()}


def _sampler(config: TrainConfig, process: Any) -> Sampler:
    return parts.make_sampler(replace(config, data=replace(config.data, accumulation=1)), process)


def _ratio(found: Overhead, clock: str) -> Any:
    return found.added_wall if clock == "wall" else found.added_cpu


def _cost(found: Overhead, clock: str, reference: float, accumulation: int) -> dict[str, Any]:
    ratio = _ratio(found, clock)

    def relative(value: float) -> float:
        return 1 + (value / reference - 1) / accumulation

    return {
        "cost": relative(ratio.median),
        "low": relative(ratio.low),
        "high": relative(ratio.high),
        "clock": clock,
        "forwards_per_step": found.forwards_per_step / accumulation,
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
