"""``opportune evaluate --bits``: the bound on held-out images, in the scores; refused where it has no meaning."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.train.runs import SMALL

from opportune.cli import main
from opportune.evaluate import Scores
from opportune.evaluate.bits_per_dim import bits_per_dim
from opportune.train.data import DataError, open_source
from opportune.train.held_out import first_held_out, open_data
from opportune.train.trained import load_trained

SHORT = ["--steps", "3", "--batch-size", "4", "--schedule.warm-up-steps", "1", "--validation.examples", "8"]
SCORED = ["--count", "4", "--steps", "2", "--device", "cpu"]


def trained_run(folder: Path, *words: str) -> str:
    """A run of three steps; its folder."""
    run = str(folder / "run")
    made = ["train", "--recipe", "fashion16", *SMALL, *SHORT, "--output-dir", run, "--report-to", "none", *words]
    assert main(made) == 0
    return run


def test_the_bits_of_held_out_images_are_printed_and_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = trained_run(tmp_path, "--data.classes", "10", "--learning-rate", "0.01")
    assert main(["evaluate", run, "--bits", "6", "--batch-size", "4", *SCORED]) == 0
    scores = Scores.from_json((Path(run) / "evaluation.json").read_text())

    trained = load_trained(run)
    held_out = open_data(trained.config, verify=False)[1]
    assert held_out is not None and held_out.labels is not None
    wanted = bits_per_dim(
        trained.model, trained.process, held_out.images[:6], labels=held_out.labels[:6], timesteps=50, seed=0
    )
    assert scores.bits_n == 6 and scores.n_generated == 4
    assert scores.bits_per_dim == pytest.approx(wanted.value, rel=1e-5)
    assert scores.bits_stderr == pytest.approx(wanted.stderr, rel=1e-4)
    line = f"Bits per dimension, n=6 held-out images: {scores.bits_per_dim:.4f} ± {scores.bits_stderr:.4f}"
    assert line in capsys.readouterr().out


def test_without_the_flag_there_are_no_bits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = trained_run(tmp_path)
    assert main(["evaluate", run, *SCORED]) == 0
    assert Scores.from_json((Path(run) / "evaluation.json").read_text()).bits_per_dim is None
    assert "Bits" not in capsys.readouterr().out
    for count, message in (("1", "bits=1"), ("-3", "bits=-3"), ("1000000", "1000000 held-out images were asked for")):
        assert main(["evaluate", run, "--bits", count, "--output", str(tmp_path / "no.json"), *SCORED]) == 2
        said = capsys.readouterr().err
        assert message in said and said.startswith("error: ") and said.count("\n") == 1
    assert main(["evaluate", run, *SCORED, "--features", "pixels", "--features-weights", "x.pth"]) == 2
    assert "weights='x.pth' has no use with features='pixels'" in capsys.readouterr().err
    assert not (tmp_path / "no.json").exists()


def test_bits_of_another_process_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "flow.toml").write_text('[process]\nname = "flow"\nsettings = {}\n')
    run = trained_run(tmp_path, "--config", str(tmp_path / "flow.toml"))
    assert main(["evaluate", run, "--bits", "4", *SCORED]) == 2
    said = capsys.readouterr().err
    assert "bits per dimension need a DDPM process" in said and said.count("\n") == 1
    assert not (Path(run) / "evaluation.json").exists()


def test_bits_of_latents_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from opportune.train.data import write_latents

    numbers = torch.Generator().manual_seed(0)
    latents = ((torch.randn(4, 8, 8, generator=numbers), None) for _ in range(24))
    write_latents(tmp_path / "latents", latents, made_from={"content": "latents"})
    shape = ["--data.source", f"latents:{tmp_path / 'latents'}", "--data.channels", "4", "--data.size", "8"]
    run = trained_run(tmp_path, *shape)
    assert main(["evaluate", run, "--bits", "4", "--real", "embedded:fashion16", *SCORED]) == 2
    said = capsys.readouterr().err
    assert "bits per dimension need 8-bit images" in said and said.count("\n") == 1


def test_images_set_apart_are_never_those_trained_on(tmp_path: Path) -> None:
    """A data set without a split of its own: asking for more than was set apart is refused, not filled up."""
    from opportune.generate import save_folder

    source = open_source("embedded:fashion16", split="train", size=16, channels=1)
    save_folder(torch.stack([source.get(i).image for i in range(20)]), tmp_path / "photos")
    run = trained_run(tmp_path, "--data.source", f"folder:{tmp_path / 'photos'}")
    config = load_trained(run).config
    training, apart = open_data(config, verify=False)
    assert apart is not None and len(training) == 12  # type: ignore[arg-type]
    found = first_held_out(config, 5)
    assert torch.equal(found.images, apart.images[:5]) and found.ids == apart.ids[:5]
    with pytest.raises(DataError, match="9 held-out images were asked for"):
        first_held_out(config, 9)
    with pytest.raises(DataError, match="set no images apart"):
        first_held_out(replace(config, validation=replace(config.validation, every_steps=0)), 5)
