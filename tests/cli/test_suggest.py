"""``opportune suggest``: what it prints can be pasted and is what was found; what is missing takes one line."""

from __future__ import annotations

import json
import math
import shlex
import shutil
import tomllib

import pytest
import torch
from tests.diagnostics.histories import BINS, history
from tests.train.runs import tiny

from opportune.cli import main
from opportune.cli.train import read
from opportune.train.config import TrainConfig
from opportune.train.config_file import to_toml, updated
from opportune.train.trainer import Trainer

SLOPE = 0.02 * torch.exp(-4 * (torch.arange(BINS, dtype=torch.float64) + 0.5) / BINS)
FLOW = {"process": {"name": "flow", "settings": {"shift": 3.0}}, "sampler": {"name": "uniform", "unbiased": True}}
EDM = {"process": {"name": "edm"}}
DDPM = {"process": {"name": "ddpm"}, "weighting": {"name": "min_snr", "settings": {"gamma": 5.0}}}


def logged(folder, changes, **made):
    """A run folder that holds a configuration and a log."""
    folder.mkdir()
    config = updated(TrainConfig(), {"run": {"output_dir": str(folder)}, **changes})
    (folder / "config.toml").write_text(to_toml(config))
    lines = [json.dumps(record) for record in history(SLOPE, **made)]
    (folder / "metrics.jsonl").write_text("\n".join([*lines, ""]))
    return folder, config


def suggested(capsys, *words):
    assert main(["suggest", *map(str, words)]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("changes", [FLOW, EDM, DDPM], ids=["flow", "edm", "ddpm"])
def test_both_ways_to_paste_it_give_the_same_run(changes, tmp_path, capsys):
    run, config = logged(tmp_path / "run", changes)
    told = suggested(capsys, run, "--output", tmp_path / "found.json")
    found = json.loads((tmp_path / "found.json").read_text())
    assert not found["keep"] and found["toml"] in told
    pasted = updated(config, tomllib.loads(found["toml"]))
    (line,) = [line for line in told.splitlines() if line.startswith("  --sampler ")]
    typed = read(["--config", str(run / "config.toml"), *shlex.split(line)]).settings
    assert pasted == typed and pasted.sampler != config.sampler
    assert pasted.process == config.process or found["choice"] == "shift"
    (chosen,) = [each for each in found["choices"] if each["name"] == found["choice"]]
    worth = math.exp(chosen["efolds"] + found["weighting"]["efolds"])
    assert f"as if trained on {worth:.2f} times the examples" in told
    assert "the log of 3000 steps (384000 examples)" in told
    rows = told[told.index("density alone ") :].splitlines()[1:]
    assert len(rows) == len(found["choices"]) and rows[-1].startswith("table of 20 bins ")
    for row, each in zip(rows, found["choices"], strict=True):  # like with like: no row has the weighting's gain in it
        assert float(row.split()[-1].rstrip("%")) == pytest.approx(
            100 * (1 - math.exp(-0.6 * each["efolds"])), abs=0.51
        )


def test_too_short_a_log_says_to_keep_what_there_is(tmp_path, capsys):
    run, _ = logged(tmp_path / "run", EDM, steps=500)
    told = suggested(capsys, run)
    assert "keep what you have: the log has 10 records" in told and "[sampler]" not in told


def test_an_objective_of_its_own(tmp_path, capsys):
    run, _ = logged(tmp_path / "run", DDPM)
    assert "objective: min_snr" in suggested(capsys, run)
    assert "objective: own" in suggested(capsys, run, "--objective", "own")


def without(name):
    def change(run):
        (run / name).unlink()

    return change


def garbled(run):
    (run / "metrics.jsonl").write_text('{"kind": "train"\n{}\n')


def unstarted(run):
    (run / "metrics.jsonl").write_text('{"kind": "validation", "step": 0}\n')


@pytest.mark.parametrize(
    ("change", "words", "said"),
    [
        (shutil.rmtree, [], "there is no run at"),
        (without("config.toml"), [], "there is no config.toml in"),
        (without("metrics.jsonl"), [], "there is no metrics.jsonl in"),
        (garbled, [], "metrics.jsonl is damaged"),
        (unstarted, [], "has no training record yet"),
        (str, ["--objective", "minsnr"], "did you mean 'min_snr'?"),
        (str, ["--probe-steps", "0"], "probe_steps=0"),
        (str, ["--examples", "1"], "examples=1"),
    ],
)
def test_what_is_wrong_takes_one_line(change, words, said, tmp_path, capsys):
    run, _ = logged(tmp_path / "run", EDM)
    change(run)
    assert main(["suggest", str(run), *words]) == 2
    told = capsys.readouterr().err
    assert told.startswith("error: ") and told.count("\n") == 1 and said in told, told


def test_checkpoints_without_a_log_are_measured(tmp_path, capsys):
    run = tmp_path / "run"
    Trainer(tiny(run, checkpoint={"keep": 9}), progress=False).run()
    (run / "metrics.jsonl").unlink()
    last = run / "checkpoints" / "step-000012"
    told = suggested(capsys, last, "--examples", "4", "--device", "cpu")
    assert "the ema weights of steps 4 and 12 on 4 held-out images" in told  # of two, the one nearer to half of 12
    alone = tmp_path / "alone" / "step-000012"
    shutil.copytree(last, alone)
    before = sorted(path for path in tmp_path.rglob("*"))
    told = suggested(capsys, alone, "--examples", "4", "--probe-steps", "3", "--device", "cpu")
    assert "the ema weights of steps 12 and 15 on 4 held-out images" in told
    assert sorted(path for path in tmp_path.rglob("*")) == before, "the copy that was trained is gone"
