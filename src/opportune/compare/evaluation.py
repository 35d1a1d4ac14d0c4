"""Score the checkpoints of one run at the points of a plan: images of the same noise, a picture, a JSON file each."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor

from opportune.diagnostics.found import write_whole
from opportune.evaluate import evaluate_images, feature_extractor
from opportune.generate import save_grid
from opportune.train.checkpoint import Checkpoints
from opportune.train.config import TrainConfig
from opportune.train.data import open_source
from opportune.train.saved import folder_name
from opportune.train.trained import load_trained
from opportune.train.trained_images import ImageSettings, conditions_of, make_images, real_images

from .plan import Evaluate

EVALUATIONS, SAMPLES = "evaluations", "samples"


def evaluation_path(run: Path, step: int) -> Path:
    """Where the scores of a step are."""
    return run / EVALUATIONS / f"{folder_name(step)}.json"


def missing(run: Path, points: Sequence[int]) -> list[int]:
    """The points that have no scores yet."""
    return [step for step in points if not evaluation_path(run, step).is_file()]


def evaluate_points(
    run: Path,
    points: Sequence[int],
    evaluate: Evaluate,
    *,
    seed: int,
    cache: Path,
    device: torch.device,
    keep_going: Callable[[], bool] = lambda: True,
) -> bool:
    """Score those of ``points`` that have no scores, then delete their checkpoints; False where told to stop.

    Args:
        run: the run folder.
        points: steps that have checkpoints, or scores.
        evaluate: how.
        seed: of the noise; cells of one seed show the same images in the making.
        cache: folder for the features of the real images.
        device: to work on.
        keep_going: asked before every point.
    """
    waiting = missing(run, points)
    scorer = _Scorer(run, evaluate, seed=seed, cache=cache, device=device) if waiting else None
    for step in waiting:
        if not keep_going():
            return False
        if scorer is not None:
            scorer.score(step)
    Checkpoints(run / "checkpoints").thin()
    return True


def check_scoring(evaluate: Evaluate, config: TrainConfig) -> None:
    """Find out before anything is trained whether the feature network and the real images can be had."""
    feature_extractor(evaluate.features)
    if evaluate.real is not None:
        data = config.data
        open_source(evaluate.real, split=evaluate.split, size=data.size, channels=3, image_column=data.image_column)


class _Scorer:
    """Holds what all points of a run need: the feature network, and the real images once their size is known."""

    def __init__(self, run: Path, evaluate: Evaluate, *, seed: int, cache: Path, device: torch.device) -> None:
        self.run, self.evaluate, self.cache, self.device = run, evaluate, cache, device
        self.settings = ImageSettings(
            steps=evaluate.steps,
            method=evaluate.method,
            guidance=evaluate.guidance,
            seed=seed,
            batch_size=evaluate.batch_size,
            autoencoder=evaluate.autoencoder,
            count=evaluate.count,
        )
        self.extractor = feature_extractor(evaluate.features, device=device)
        self.real: Tensor | None = None

    def score(self, step: int) -> None:
        wanted = self.evaluate
        trained = load_trained(self.run / "checkpoints" / folder_name(step), weights=wanted.weights, device=self.device)
        images = make_images(trained, self.settings, conditions_of(trained, self.settings))
        if self.real is None:
            size = images.shape[-1]
            self.real = real_images(trained, 2 * wanted.count, of=wanted.real, split=wanted.split, size=size)
        scores = evaluate_images(
            images,
            self.real,
            features=self.extractor,
            metrics=wanted.metrics,
            reference_count=min(wanted.count, len(self.real)),
            device=self.device,
            cache_folder=self.cache,
        )
        save_grid(images[: wanted.grid], self.run / SAMPLES / f"{folder_name(step)}.png")
        found = {**asdict(scores), "step": step, "weights": trained.weights}
        write_whole(evaluation_path(self.run, step), json.dumps(found, indent=2, allow_nan=False) + "\n")
