"""A first look: the same small model trained with uniform timesteps and with the adaptive sampler.

Trains twice on 16x16 pictures of clothes that come with the package, and writes into demo/:

    drawn.png        which timesteps were drawn, at the start and at the end
    held_out.png     held-out loss along training, and per noise level
    generated.png    pictures of both models from the same noise, beside real ones
    uniform/, adaptive/   the two run folders: logs, configuration, checkpoints

Under five minutes on two CPU cores. Run it again to start over: only these are replaced.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path

# Before torch is imported: threads that spin while they wait make a step fifty times slower beside a busy neighbour.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from torch import Tensor

from opportune.embedded import load_fashion16
from opportune.generate import generate
from opportune.train.config import (
    CheckpointConfig,
    EmaConfig,
    LogsConfig,
    ModelConfig,
    OptimizerConfig,
    ProcessConfig,
    RunConfig,
    SamplerConfig,
    ScheduleConfig,
    TrainConfig,
    ValidationConfig,
)
from opportune.train.logs import read_log
from opportune.train.trained import load_trained
from opportune.train.trainer import Trainer

COLOURS = {"uniform": "#777777", "adaptive": "#d1495b"}


def main() -> int:
    parser = argparse.ArgumentParser(description="Train uniform and adaptive on small real images, and compare.")
    parser.add_argument("--folder", type=Path, default=Path("demo"))
    parser.add_argument("--steps", type=int, default=600)
    options = parser.parse_args()
    folder: Path = options.folder
    folder.mkdir(parents=True, exist_ok=True)

    runs: dict[str, Path] = {}
    for name in COLOURS:
        shutil.rmtree(folder / name, ignore_errors=True)
        print(f"Training {options.steps} steps with sampler={name!r} ...", flush=True)
        outcome = Trainer(configuration(folder / name, name, options.steps)).run()
        if outcome.exit_code:
            print(f"Stopped by {outcome.stopped_by} at step {outcome.step}; run again to start over.")
            return outcome.exit_code
        runs[name] = outcome.folder

    logs = {name: read_log(run / "metrics.jsonl") for name, run in runs.items()}
    draw_densities(logs, folder / "drawn.png")
    curves = draw_losses(logs, folder / "held_out.png")
    draw_pictures(runs, folder / "generated.png")
    print(what_it_means(curves, runs, folder))
    return 0


def configuration(folder: Path, sampler: str, steps: int) -> TrainConfig:
    """A UNet of 0.3 M parameters on the linear schedule, where choosing timesteps matters most."""
    return TrainConfig(
        run=RunConfig(output_dir=str(folder), steps=steps, seed=0),
        model=ModelConfig(name="unet", settings={"widths": (16, 32, 32), "blocks_per_level": 1, "group_count": 8}),
        process=ProcessConfig(name="ddpm", settings={"schedule": "linear"}),
        sampler=SamplerConfig(name=sampler),
        optimizer=OptimizerConfig(learning_rate=2e-3),
        schedule=ScheduleConfig(warm_up_steps=50),
        ema=EmaConfig(decay=0.99),
        validation=ValidationConfig(every_steps=max(1, steps // 10), examples=512),
        checkpoint=CheckpointConfig(every_steps=max(1, steps // 2)),
        logs=LogsConfig(every_steps=max(1, steps // 20), report_to="none"),
    )


def draw_densities(logs: dict[str, list[dict]], path: Path) -> None:
    """The density over the noise axis: the first that was logged (dotted) and the last."""
    figure, axes = plt.subplots(figsize=(7, 3.2))
    for name, log in logs.items():
        density = [r["bins"]["density"] for r in log if r["kind"] == "train"]
        places = [(i + 0.5) / len(density[-1]) for i in range(len(density[-1]))]
        axes.step(places, density[0], where="mid", color=COLOURS[name], lw=1, ls=":", label=f"{name}, at the start")
        axes.step(places, density[-1], where="mid", color=COLOURS[name], lw=2, label=f"{name}, at the end")
    axes.set(xlim=(0, 1), ylim=(0, None), xlabel="noise level u  (more noise →)", ylabel="how often it is drawn")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130, bbox_inches="tight")
    plt.close(figure)


def draw_losses(logs: dict[str, list[dict]], path: Path) -> dict[str, tuple[list[int], list[float]]]:
    """Held-out loss on fixed (noise level, noise) pairs: the mean along training, and the last per noise level."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2))
    curves: dict[str, tuple[list[int], list[float]]] = {}
    for name, log in logs.items():
        records = [r for r in log if r["kind"] == "validation"]
        curves[name] = ([r["step"] for r in records], [r["ema"]["loss"] for r in records])
        left.plot(*(values[1:] for values in curves[name]), color=COLOURS[name], lw=2, label=name)  # from 1 at step 0
        last = records[-1]["ema"]["bins"]
        right.plot([(i + 0.5) / len(last) for i in range(len(last))], last, color=COLOURS[name], lw=2, label=name)
    left.set(xlabel="step", ylabel="held-out loss", yscale="log")
    right.set(xlabel="noise level u  (more noise →)", ylabel="held-out loss at the end", yscale="log")
    left.legend(frameon=False)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=130, bbox_inches="tight")
    plt.close(figure)
    return curves


def draw_pictures(runs: dict[str, Path], path: Path) -> None:
    """Two rows of twelve for each model, from the same noise, and two of real pictures."""
    real = load_fashion16("test")[0][:24].float() / 127.5 - 1
    shown = {"real": real}
    for name, run in runs.items():
        trained = load_trained(run)
        shown[name] = generate(trained.model, trained.process, (24, *trained.shape), steps=50, seed=1)
    figure, axes = plt.subplots(len(shown), 1, figsize=(7.5, 1.35 * len(shown)))
    for place, (name, images) in zip(axes, shown.items(), strict=True):
        place.imshow(_tiled(images), cmap="gray", vmin=-1, vmax=1)
        place.set_ylabel(name)
        place.set(xticks=[], yticks=[])
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _tiled(images: Tensor, columns: int = 12) -> Tensor:
    rows = torch.nn.functional.pad(images[:, 0], (1, 1, 1, 1), value=-1.0).unflatten(0, (-1, columns))
    return rows.permute(0, 2, 1, 3).flatten(0, 1).flatten(1)


def what_it_means(curves: dict[str, tuple[list[int], list[float]]], runs: dict[str, Path], folder: Path) -> str:
    """Plain words, with the figures of this run."""
    (steps, uniform), (_, adaptive) = curves["uniform"], curves["adaptive"]
    reached = next((s for s, loss in zip(steps, adaptive, strict=True) if loss <= uniform[-1]), None)
    timing = [read_log(run / "timing.jsonl") for run in runs.values()]
    overhead = timing[-1][-1]["overhead_share"]
    if reached is None:
        verdict = (
            f"adaptive did not reach uniform's last held-out loss ({uniform[-1]:.4f}); it ended at {adaptive[-1]:.4f}"
        )
    else:
        verdict = f"adaptive was at uniform's last held-out loss ({uniform[-1]:.4f}) by step {reached} of {steps[-1]}"
    return f"""
{folder}/drawn.png      which noise levels were drawn: uniform draws all alike, adaptive where the loss still falls
{folder}/held_out.png   {verdict}
{folder}/generated.png  pictures from the same noise; at this size and length, differences by eye are luck
Choosing and learning cost adaptive {overhead:.1%} of a step here. One seed, one small model: a look, not a measurement.
The loss is mostly noise that no model can predict, so small differences in it can be large differences in the model.
"""


if __name__ == "__main__":
    sys.exit(main())
