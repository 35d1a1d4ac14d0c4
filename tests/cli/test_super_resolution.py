"""``opportune generate`` for a model that enlarges images: small ones come from the held-out images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tests.train.runs import SMALL
from torch.nn import functional as F

from opportune.cli import main
from opportune.generate import generate, save_grid
from opportune.train.held_out import open_data
from opportune.train.trained import load_trained

SHORT = ["--steps", "3", "--batch-size", "4", "--schedule.warm-up-steps", "1", "--validation.examples", "8"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = str(tmp_path_factory.mktemp("enlarge") / "run")
    kind = ["--data.low-resolution-factor", "4", "--data.classes", "10", "--learning-rate", "0.01"]
    made = ["train", "--recipe", "fashion16", *SMALL, *SHORT, *kind, "--output-dir", folder, "--report-to", "none"]
    assert main(made) == 0
    return folder


def pixels(path: Path) -> np.ndarray:
    return np.asarray(Image.open(path))


def test_images_are_made_from_the_first_held_out_ones(run: str, tmp_path: Path) -> None:
    output = tmp_path / "out"
    words = ["generate", run, "--count", "6", "--steps", "2", "--batch-size", "4", "--device", "cpu"]
    assert main([*words, "--output", str(output)]) == 0

    trained = load_trained(run)
    held_out = open_data(trained.config, verify=False)[1]
    assert held_out is not None and held_out.labels is not None
    small = F.avg_pool2d(held_out.images[:6], 4)
    wanted = generate(
        trained.model, trained.process, (6, 1, 16, 16), steps=2, condition=small, labels=held_out.labels[:6]
    )
    save_grid(wanted, tmp_path / "wanted.png")
    assert np.abs(pixels(output / "grid.png").astype(int) - pixels(tmp_path / "wanted.png")).max() <= 1
    assert len(list((output / "images").iterdir())) == 6

    shown = F.interpolate(small, size=(16, 16), mode="bicubic", align_corners=False)
    save_grid(shown, tmp_path / "shown.png")
    assert np.array_equal(pixels(output / "low_resolution.png"), pixels(tmp_path / "shown.png"))


def test_the_model_is_given_the_small_images_and_they_matter(run: str) -> None:
    """Guards the test above: with other small images the same noise makes other pictures."""
    trained = load_trained(run, weights="raw")
    labels = torch.zeros(2, dtype=torch.int64)
    made = [
        generate(trained.model, trained.process, (2, 1, 16, 16), steps=2, labels=labels, condition=c)
        for c in (torch.zeros(2, 1, 4, 4), torch.ones(2, 1, 4, 4))
    ]
    assert float((made[0] - made[1]).abs().max()) > 0.02


def test_more_than_there_are_held_out_is_refused(run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["generate", run, "--count", "1000000", "--output", str(tmp_path / "none"), "--device", "cpu"]
    assert main(words) == 2
    said = capsys.readouterr().err
    assert "1000000 held-out images were asked for" in said and said.count("\n") == 1
    assert not (tmp_path / "none").exists()


def test_a_model_that_enlarges_is_scored(run: str, tmp_path: Path) -> None:
    scored = tmp_path / "scores.json"
    words = ["evaluate", run, "--count", "4", "--steps", "2", "--bits", "3", "--device", "cpu"]
    assert main([*words, "--output", str(scored)]) == 0
    assert '"bits_n": 3' in scored.read_text()
