"""Do the claims of Kim et al. (CVPR 2025, arXiv 2411.09998) about timesteps hold on a small real run?

    python benchmarks/claims.py --source 'parquet:PATH/{split}.parquet' --output benchmarks/results/claims

Trains a UNet of 0.28 M parameters on 16x16 images: three noise schedules, two seeds, 1,000 steps each. Then, with the
functions of ``opportune.diagnostics``: loss and gradient variance along the noise axis at three stages, raw and under
the variational bound, and what 20 steps in one sixth of the axis do to all others. Runs and measurements that are in
``--work`` already are not made again, so a stopped benchmark goes on where it was.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import opportune as op
from opportune.diagnostics import gradient_variance, interdependence, loss_profile
from opportune.diagnostics.found import Found, write_json
from opportune.diagnostics.runs import Stage, open_stages
from opportune.train import Trainer
from opportune.train.checkpoint import Checkpoints
from opportune.train.config import TrainConfig
from opportune.train.config_file import updated

SCHEDULES = ("linear", "cosine", "quadratic")
STEPS = 1000
STAGES = {0: (100, 300, 1000), 1: (1000,)}
"""Steps looked at, by seed: the course of training on one, the last step on both."""
EDGES = [0, 0.001, 0.003, 0.01, 0.03, *(k / 20 for k in range(1, 20)), 0.97, 0.99, 0.997, 0.999, 1]
"""Bins of the noise axis, finer at its ends, where the variational bound has its spikes."""
EXAMPLES, PAIRS = 64, 12
TRAINED = {"at": 500, "bins": 6, "steps": 20, "repeats": 4}


def config_of(source: str, folder: Path, schedule: str, seed: int) -> TrainConfig:
    """One run; the checkpoints of every hundredth step stay."""
    return updated(
        TrainConfig(),
        {
            "run": {"output_dir": str(folder), "steps": STEPS, "seed": seed},
            "data": {"source": source, "size": 16, "channels": 3, "batch_size": 64, "flip": True},
            "model": {"name": "unet", "settings": {"widths": [16, 32, 32], "blocks_per_level": 1, "group_count": 8}},
            "process": {"name": "ddpm", "settings": {"schedule": schedule}},
            "optimizer": {"learning_rate": 1e-3},
            "schedule": {"warm_up_steps": 50},
            "ema": {"decay": 0.99},
            "validation": {"every_steps": 100},
            "checkpoint": {"every_steps": 100, "keep": STEPS // 100 + 1},
            "logs": {"report_to": "none"},
            "hardware": {"device": "cpu"},
        },
    )


def trained(source: str, folder: Path, schedule: str, seed: int) -> Path:
    """The folder of a finished run; one that was interrupted goes on where it was."""
    found = Checkpoints(folder / "checkpoints").latest()
    if found is None or found.step < STEPS:
        Trainer(config_of(source, folder, schedule, seed), resume=None if found is None else "latest").run()
    return folder


def stage_of(run: Path, step: int) -> Stage:
    return open_stages([run / "checkpoints" / f"step-{step:06d}"])[0]


def profiles(run: Path, step: int) -> Iterator[Found]:
    """Loss and gradient variance of one stage, raw and under the variational bound."""
    stage = stage_of(run, step)
    objective = stage.objective(weighting=op.weighting("vlb", stage.process))
    held_out = stage.held_out(EXAMPLES)
    yield loss_profile(objective, held_out, bins=EDGES, label=f"step {step}")
    yield gradient_variance(objective, held_out, bins=EDGES, pairs=PAIRS, label=f"step {step}")


def matrix(run: Path) -> Iterator[Found]:
    """What training in one part of the axis does to all."""
    stage = stage_of(run, TRAINED["at"])
    objective = stage.objective()
    objective.model.train()
    yield interdependence(
        objective,
        stage.optimizer(objective),
        stage.batches(),
        stage.held_out(EXAMPLES),
        bins=TRAINED["bins"],
        steps=TRAINED["steps"],
        repeats=TRAINED["repeats"],
        max_gradient_norm=stage.config.optimizer.max_gradient_norm,
        label=f"step {TRAINED['at']}",
    )


def measured(folder: Path, figures: tuple[str, ...], make: Iterator[Found]) -> dict[str, Any]:
    """Findings by figure, from ``folder`` where they are there already; nothing is computed before it is asked for."""
    if not all((folder / f"{figure}.json").exists() for figure in figures):
        for found in make:
            write_json([found], folder)
            print(f"measured {folder.name}: {found.figure}", flush=True)
    return {figure: json.loads((folder / f"{figure}.json").read_text())["found"][0] for figure in figures}


def everything(source: str, work: Path) -> dict[str, Any]:
    """All runs and all measurements, as JSON holds them."""
    found: dict[str, Any] = {"profiles": {}, "interdependence": {}}
    for seed in STAGES:
        for schedule in SCHEDULES:
            run = trained(source, work / f"{schedule}-{seed}", schedule, seed)
            for step in STAGES[seed]:
                folder = work / "measured" / f"{schedule}-{seed}-{step}"
                found["profiles"].setdefault(schedule, {}).setdefault(str(seed), {})[str(step)] = measured(
                    folder, ("loss", "gradient"), profiles(run, step)
                )
            if seed == 0:
                folder = work / "measured" / f"{schedule}-{seed}"
                found["interdependence"] |= {
                    schedule: measured(folder, ("interdependence",), matrix(run))["interdependence"]
                }
    return found


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--source", required=True, help="images, e.g. 'parquet:PATH/{split}.parquet'")
    options.add_argument("--data", default="", help="what these images are, for the page")
    options.add_argument("--work", type=Path, default=Path("runs/claims"), help="folder of the runs")
    options.add_argument("--output", type=Path, help="FILE of FILE.json and FILE.png")
    chosen = options.parse_args()
    torch.set_num_threads(1)
    found = {
        "data": chosen.data,
        "setup": {"stages": STAGES[0], "seeds": list(STAGES), "examples": EXAMPLES, "pairs": PAIRS, **TRAINED},
        **everything(chosen.source, chosen.work),
    }
    if chosen.output:
        chosen.output.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n")
        from _claims_figure import draw

        draw(found, chosen.output.with_suffix(".png"))


if __name__ == "__main__":
    main()
