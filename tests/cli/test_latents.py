"""A latent model from the command line: encode once, train, generate, evaluate, on one rank or two."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from opportune.cli import main
from opportune.train.checkpoint import Checkpoints
from opportune.train.data import open_source
from opportune.train.trained import load_trained
from opportune.train.trained_images import ImageSettings, side_of

MODEL = ["--model", "dit", "--model.settings.width", "16", "--model.settings.depth", "1", "--model.settings.heads", "2"]


@pytest.fixture(scope="module")
def autoencoder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A random one of grey images that halves their sides."""
    from diffusers import AutoencoderKL

    torch.manual_seed(0)
    made = AutoencoderKL(
        in_channels=1,
        out_channels=1,
        block_out_channels=(4, 4),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        latent_channels=2,
        norm_num_groups=2,
    )
    folder = str(tmp_path_factory.mktemp("autoencoder"))
    made.save_pretrained(folder, safe_serialization=True)
    return folder


@pytest.fixture(scope="module")
def run(autoencoder: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("latent")
    images = folder / "images"
    images.mkdir()
    numbers = np.random.default_rng(0)
    for index in range(24):
        Image.fromarray(numbers.integers(0, 256, (16, 16), dtype=np.uint8)).save(images / f"{index:02}.png")
    words = ["--data.source", f"folder:{images}", "--data.size", "16", "--data.channels", "1"]
    latents = str(folder / "latents")
    assert main(["encode", *words, "--autoencoder", autoencoder, "--output", latents, "--device", "cpu"]) == 0
    words = ["--data.source", f"latents:{latents}", "--data.size", "8", "--data.channels", "2", "--batch-size", "4"]
    short = ["--steps", "2", "--validation.examples", "4", "--report-to", "none", "--hardware.device", "cpu"]
    assert main(["train", *MODEL, *words, *short, "--output-dir", str(folder / "run")]) == 0
    return folder / "run"


def test_images_are_decoded_and_scored_at_their_own_size(
    run: Path, autoencoder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    made = [str(run), "--steps", "2", "--device", "cpu", "--autoencoder", autoencoder]
    assert main(["generate", *made, "--count", "5"]) == 0
    assert {Image.open(path).size for path in (run / "generated" / "images").iterdir()} == {(16, 16)}
    real = ["--real", f"folder:{run.parent / 'images'}", "--features", "pixels"]
    assert main(["evaluate", *made, "--count", "8", *real]) == 0
    assert json.loads((run / "evaluation.json").read_text())["n_real"] == 8
    # Real images are read at the size of the decoded ones, not of the latents.
    assert side_of(load_trained(run), ImageSettings(autoencoder=autoencoder)) == 16
    assert main(["generate", str(run), "--device", "cpu"]) == 2
    assert "name the autoencoder" in capsys.readouterr().err


def test_what_is_wrong_is_found_before_images_are_made(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def made(*_: object) -> None:
        raise AssertionError("images were made first")

    monkeypatch.setattr("opportune.cli.evaluate.make_images", made)
    monkeypatch.setattr("opportune.cli.generate.make_images", made)
    (tmp_path / "file").touch()
    for words, message in (
        (["evaluate", str(run), "--features", "inceptoin"], "did you mean 'inception'"),
        (["evaluate", str(run), "--features", "inception"], 'pip install "opportune[inception]"'),
        (["evaluate", str(run), "--output", "/no/such/folder/x.json"], "cannot be written"),
        (["generate", str(run), "--output", str(tmp_path / "file")], "is a file; name a folder"),
        (["generate", str(run), "--card"], "--card goes with --export"),
        (["generate", str(tmp_path)], "neither the folder of a run nor a checkpoint"),
    ):
        assert main([*words, "--device", "cpu"]) == 2, words
        assert message in capsys.readouterr().err


def test_what_is_made_from_a_checkpoint_lies_in_the_run(run: Path, autoencoder: str) -> None:
    checkpoint = Checkpoints(run / "checkpoints").list()[-1]
    words = ["generate", str(checkpoint), "--count", "5", "--steps", "2", "--autoencoder", autoencoder]
    assert main([*words, "--device", "cpu", "--seed", "7"]) == 0
    assert not (checkpoint / "generated").exists()


def test_two_ranks_make_the_images_of_one(run: Path, autoencoder: str, tmp_path: Path) -> None:
    words = ["generate", str(run), "--count", "5", "--steps", "2", "--batch-size", "2", "--autoencoder", autoencoder]
    assert main([*words, "--device", "cpu", "--output", str(tmp_path / "one")]) == 0
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*launcher, "-m", "opportune", *words, "--device", "cpu", "--output", str(tmp_path / "two")]
    done = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("5 images of step 2") == 1
    for number in range(5):
        one, two = (np.asarray(Image.open(tmp_path / n / "images" / f"{number:06}.png")) for n in ("one", "two"))
        assert np.abs(one.astype(int) - two).max() <= 1
    assert len(open_source(f"folder:{tmp_path / 'two' / 'images'}", size=16, channels=1)) == 5


def test_several_ranks_do_not_encode_over_one_another(
    autoencoder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["encode", "--data.source", "embedded:fashion16", "--data.size", "16", "--data.channels", "1"]
    for launcher in ("WORLD_SIZE", "SLURM_STEP_NUM_TASKS"):
        with monkeypatch.context() as patched:
            patched.setenv(launcher, "2")
            assert main([*words, "--autoencoder", autoencoder, "--output", str(tmp_path / "latents")]) == 2
        shown = capsys.readouterr().err
        assert (
            shown.startswith("error: opportune encode works as one process, and 2 came up") and shown.count("\n") == 1
        )
        assert list(tmp_path.iterdir()) == []
