"""What the tests do to run folders: score them with the real parts, and change their files."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from opportune.embedded import load_fashion16
from opportune.evaluate import evaluate_images
from opportune.generate import generate, save_grid
from opportune.train.saved import folder_name
from opportune.train.trained import load_trained

NASTY = '<img src=x onerror="document.title=1">{{ 7*7 }}$x_1$</script><b>'
"""A label that would do harm if it were anything but text: to HTML, templates, matplotlib or a script block."""


def score(run: Path, step: int, count: int = 16) -> None:
    """Generate images with the checkpoint of ``step`` and keep scores and picture as a comparison does."""
    trained = load_trained(run / "checkpoints" / folder_name(step))
    images = generate(trained.model, trained.process, (count, *trained.shape), steps=3, seed=0)
    scores = evaluate_images(images, load_fashion16("test")[0][: 2 * count], features=_pixels, reference_count=count)
    path = run / "evaluations" / f"{folder_name(step)}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({**asdict(scores), "step": step, "weights": trained.weights}))
    save_grid(images, run / "samples" / f"{folder_name(step)}.png")


def edited(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change a file of JSON, or every line of one of JSON lines."""
    lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
    records = [json.loads(line) for line in lines]
    for record in records:
        change(record)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def with_loss(run: Path, losses: dict[int, float]) -> None:
    """Replace the held-out losses of a run's steps; the bins stay."""

    def change(record: dict[str, Any]) -> None:
        if record["kind"] == "validation":
            for kind in ("raw", "ema"):
                record[kind]["loss"] = losses[record["step"]]

    edited(run / "metrics.jsonl", change)


def _pixels(images: torch.Tensor) -> torch.Tensor:
    """Means of four columns: features that need no network."""
    return torch.nn.functional.adaptive_avg_pool2d(images.float(), (1, 4)).flatten(1)
