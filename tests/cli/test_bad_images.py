"""Folders with images that cannot be read, in every command that reads images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tests.train.runs import SMALL

from opportune.cli import main
from opportune.train.data import open_source


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Ten images, one of them cut short and one empty."""
    made, numbers = tmp_path / "images", np.random.default_rng(0)
    made.mkdir()
    for index in range(10):
        Image.fromarray(numbers.integers(0, 256, (16, 16), dtype=np.uint8)).save(made / f"{index}.png")
    whole = (made / "3.png").read_bytes()
    (made / "3.png").write_bytes(whole[: len(whole) // 2])
    (made / "7.png").write_bytes(b"")
    return made


def test_a_model_trained_with_skips_is_scored_with_skips(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    run, source = str(folder.parent / "run"), ["--data.source", f"folder:{folder}"]
    words = ["train", *SMALL, *source, "--steps", "2", "--batch-size", "4", "--validation.every-steps", "0"]
    bad = ["--data.on-bad", "skip", "--data.max-bad-share", "0.5"]
    assert main([*words, *bad, "--report-to", "none", "--output-dir", run]) == 0
    caplog.clear()
    score = ["evaluate", run, "--count", "4", "--steps", "2", "--features", "pixels", "--device", "cpu"]
    assert main(score) == 0
    assert "3.png" in caplog.text and "7.png" in caplog.text


def test_encode_names_and_counts_what_it_leaves_out(
    folder: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    from diffusers import AutoencoderKL

    torch.manual_seed(0)
    made = AutoencoderKL(in_channels=1, out_channels=1, block_out_channels=(4,), latent_channels=2, norm_num_groups=2)
    made.save_pretrained(str(folder.parent / "autoencoder"), safe_serialization=True)
    output = folder.parent / "latents"
    words = ["encode", "--data.source", f"folder:{folder}", "--data.size", "16", "--data.channels", "1"]
    words += ["--autoencoder", str(folder.parent / "autoencoder"), "--output", str(output), "--device", "cpu"]
    assert main([*words, "--encode-batch-size", "2"]) == 2
    assert "3.png" in capsys.readouterr().err
    assert sorted(path.name for path in folder.parent.iterdir()) == ["autoencoder", "images"]  # nothing half-made
    assert main([*words, "--data.on-bad", "skip"]) == 0
    assert (
        capsys.readouterr().out == f"skipped 2 images that cannot be read, named in the warnings\nlatents: {output}\n"
    )
    assert "3.png" in caplog.text and "7.png" in caplog.text
    assert len(open_source(f"latents:{output}")) == 8  # type: ignore[arg-type]
