"""``opportune diagnose`` on a run that ``opportune train`` made in this test: figures, data, and what can be wrong."""

from __future__ import annotations

import hashlib
import json
import shutil

import pytest
import torch

import opportune as op
from opportune.cli import main
from opportune.diagnostics import density_over_training, loss_profile
from opportune.diagnostics.runs import open_stages
from opportune.train.data import write_latents
from opportune.train.logs import read_log

TRAIN = [
    "train", "--steps", "12", "--batch-size", "8", "--model", "dit", "--model.settings.width", "16",
    "--model.settings.depth", "1", "--model.settings.heads", "2", "--model.settings.patch_size", "4",
    "--model.settings.dropout", "0.1", "--learning-rate", "1e-3", "--validation.every-steps", "6",
    "--validation.examples", "16", "--checkpointing-steps", "4", "--checkpoint.keep", "4", "--logs.every-steps", "3",
    "--logs.bins", "5", "--report-to", "none", "--hardware.device", "cpu", "--process.settings.steps", "100",
]  # fmt: skip
QUICK = [
    "--examples", "8", "--pairs", "2", "--ranges", "2", "--steps", "2", "--bins", "4", "--device", "cpu",
]  # fmt: skip


def train(folder, *more):
    assert main([*TRAIN, "--output-dir", str(folder), *more]) == 0
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return train(tmp_path_factory.mktemp("runs") / "uniform")


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    weighted = ["--sampler", "kim", "--weighting", "min_snr", "--seed", "1"]
    return train(tmp_path_factory.mktemp("runs") / "kim", *weighted)


def hashes(folder):
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and "diagnostics" not in path.parts]
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def diagnosed(capsys, *words):
    assert main(["diagnose", *map(str, words)]) == 0
    return capsys.readouterr().out


def data_of(folder, name):
    return json.loads((folder / f"{name}.json").read_text())["found"]


def test_everything_twice_over_and_the_run_stays_as_it_was(run, other, capsys):
    before = hashes(run)
    words = [run, *QUICK, "--against", other]
    told = diagnosed(capsys, *words)
    folder = run / "diagnostics"
    figures = [
        "loss", "loss_over_training", "gradient", "interdependence", "density", "density_over_training", "increment",
        "consistency",
    ]  # fmt: skip
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        f"{figure}.{kind}" for figure in figures for kind in ("json", "png")
    )
    assert "0 clean -> 1 noise" in told and all(str(folder / f"{figure}.png") in told for figure in figures)
    assert max(len(line) for line in told.splitlines() if "/" not in line) < 160
    assert hashes(run) == before

    first = {path.name: path.read_bytes() for path in folder.iterdir()}
    diagnosed(capsys, *words)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == first
    assert hashes(run) == before

    # A later, smaller diagnosis replaces its own figure and leaves the others.
    diagnosed(capsys, run / "checkpoints" / "step-000004", *QUICK, "--what", "loss", "--no-pictures")
    assert [each["label"] for each in data_of(folder, "loss")] == ["step 4"]
    assert (folder / "gradient.json").read_bytes() == first["gradient.json"]


def test_stages_are_spread_from_the_first_to_the_newest(run, capsys, tmp_path):
    diagnosed(capsys, run, *QUICK, "--what", "loss", "--output", tmp_path, "--no-pictures")
    found = data_of(tmp_path, "loss")
    assert [each["label"] for each in found] == ["step 0", "step 8", "step 12"]
    stages = open_stages([run])
    batch = stages[0].held_out(8)
    for stage, each in zip(stages, found, strict=True):
        expected = loss_profile(stage.objective(), batch, bins=4)
        assert each["loss"] == pytest.approx(expected.loss.tolist())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["loss.json", "loss_over_training.json"]


def test_the_weights_that_are_trained_and_their_average(run, capsys, tmp_path):
    words = [run, *QUICK, "--what", "loss", "--stages", "1", "--no-pictures", "--output"]
    diagnosed(capsys, *words, tmp_path / "raw")
    diagnosed(capsys, *words, tmp_path / "ema", "--weights", "ema")
    stage = open_stages([run], at_most=1)[0]
    for weights in ("raw", "ema"):
        expected = loss_profile(stage.objective(weights=weights), stage.held_out(8), bins=4).loss.tolist()
        assert data_of(tmp_path / weights, "loss")[0]["loss"] == pytest.approx(expected)
    assert data_of(tmp_path / "raw", "loss")[0]["loss"] != data_of(tmp_path / "ema", "loss")[0]["loss"]


def test_the_runs_own_weighting_another_and_none(other, capsys, tmp_path):
    words = [other, *QUICK, "--what", "loss,density", "--stages", "1", "--no-pictures", "--output"]
    for name, more in (("own", []), ("p2", ["--weighting", "p2:gamma=0.5"]), ("none", ["--weighting", "none"])):
        diagnosed(capsys, *words, tmp_path / name, *more)
    assert [data_of(tmp_path / name, "loss")[0]["weighting"] for name in ("own", "p2", "none")] == ["MinSNR", "P2", ""]
    process = op.DDPM("linear", steps=100)
    weights = op.weighting("p2", process, gamma=0.5)(torch.arange(100)).double().reshape(5, 20).mean(dim=1)
    found = data_of(tmp_path / "p2", "density_over_training")[0]["weighting"]
    assert found == pytest.approx((weights / weights.mean()).tolist())


def test_several_runs_are_told_apart(run, other, capsys, tmp_path):
    told = diagnosed(capsys, run, other, *QUICK, "--what", "density,increment", "--output", tmp_path)
    assert [each["label"] for each in data_of(tmp_path, "density")] == [
        *(f"uniform step {step}" for step in (0, 8, 12)),
        *(f"kim step {step}" for step in (0, 8, 12)),
    ]
    logged = data_of(tmp_path, "density_over_training")
    assert [each["label"] for each in logged] == ["uniform: uniform", "kim: kim"]
    records = read_log(other)
    expected = density_over_training(records, op.DDPM("linear", steps=100))
    torch.testing.assert_close(torch.tensor(logged[1]["drawn"], dtype=torch.float64), expected.drawn)
    assert len(data_of(tmp_path, "increment")) == 1, "both runs have one process"
    assert "kim step 12" in told


def test_an_early_stage_looks_at_the_log_up_to_there(run, capsys, tmp_path):
    words = [run / "checkpoints" / "step-000008", *QUICK, "--what", "density", "--output", tmp_path, "--no-pictures"]
    diagnosed(capsys, *words)
    assert data_of(tmp_path, "density_over_training")[0]["steps"] == [3, 6]


def copy(run, folder):
    shutil.copytree(run, folder, ignore=shutil.ignore_patterns("diagnostics"))
    return folder


def test_without_a_log_what_models_tell_is_still_there(run, capsys, tmp_path):
    bare = copy(run, tmp_path / "bare")
    (bare / "metrics.jsonl").unlink()
    diagnosed(capsys, bare, *QUICK, "--what", "loss,density", "--stages", "1", "--no-pictures")
    assert sorted(path.name for path in (bare / "diagnostics").iterdir()) == ["density.json", "loss.json"]


def test_a_damaged_checkpoint_is_left_out_and_said_so(run, capsys, tmp_path, caplog):
    hurt = copy(run, tmp_path / "hurt")
    file = hurt / "checkpoints" / "step-000012" / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    diagnosed(capsys, hurt, *QUICK, "--what", "loss", "--no-pictures")
    assert [each["label"] for each in data_of(hurt / "diagnostics", "loss")] == ["step 0", "step 4", "step 8"]
    assert "step-000012 is damaged" in caplog.text


def test_a_damaged_checkpoint_that_is_named_is_refused_with_a_way_out(run, capsys, tmp_path):
    hurt = copy(run, tmp_path / "hurt")
    named = hurt / "checkpoints" / "step-000012"
    (named / "model.safetensors").write_bytes(b"")
    for command in (["diagnose", str(named), "--what", "loss"], ["suggest", str(named)]):
        assert main(command) == 2
        told = capsys.readouterr().err
        assert told.count("\n") == 1 and "step-000012 is damaged" in told and "name another" in told


def test_a_damaged_log_costs_only_what_is_read_off_it(run, capsys, tmp_path):
    hurt = garbled(run, tmp_path / "hurt")
    words = [str(hurt), *QUICK, "--what", "loss,density,increment", "--stages", "1", "--no-pictures"]
    assert main(["diagnose", *words]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1 and "metrics.jsonl is damaged" in told and "restore it" in told
    found = sorted(path.name for path in (hurt / "diagnostics").iterdir())
    assert found == ["density.json", "increment.json", "loss.json"]


def test_the_other_run_is_looked_at_before_anything_slow(run, capsys, tmp_path):
    words = [str(run), *QUICK, "--what", "loss", "--output", str(tmp_path / "out"), "--against", str(tmp_path / "no")]
    assert main(["diagnose", *words]) == 2
    assert "there is no run at" in capsys.readouterr().err and not (tmp_path / "out").exists()


def emptied(run, folder):
    """A run that was stopped before its first checkpoint."""
    made = copy(run, folder)
    shutil.rmtree(made / "checkpoints")
    (made / "checkpoints").mkdir()
    return made


def garbled(run, folder):
    made = copy(run, folder)
    (made / "metrics.jsonl").write_text('{"kind": "train"\n{}\n')
    return made


@pytest.mark.parametrize(
    "make, words, code, said",
    [
        (None, [], 2, "name the run"),
        (None, ["/no/such/run"], 2, "there is no run at /no/such/run"),
        (emptied, [], 2, "holds no checkpoint, so there is nothing to diagnose"),
        (garbled, ["--what", "density"], 2, "metrics.jsonl is damaged"),
        (copy, ["--what", "los"], 2, "did you mean 'loss'?"),
        (copy, ["--waht", "loss"], 2, "did you mean '--what'?"),
        (copy, ["--what", "consistency"], 2, "name the other with --against"),
        (copy, ["--weighting", "minsnr", "--what", "loss"], 2, "did you mean 'min_snr'?"),
        (copy, ["--pairs", "1"], 2, "pairs=1"),
        (copy, ["--examples", "100000", "--what", "loss"], 2, "ask for fewer"),
        (copy, ["--stages", "0"], 2, "stages=0"),
        (copy, ["--device", "cuda"], 2, "no CUDA device is visible"),
        (copy, ["--what", "increment", "--output", "/proc/no"], 2, "/proc/no"),
    ],
)
def test_what_is_wrong_takes_one_line(make, words, code, said, run, tmp_path, capsys):
    where = [str(make(run, tmp_path / "made"))] if make is not None else []
    assert main(["diagnose", *where, *words]) == code
    told = capsys.readouterr().err
    assert told.startswith("error: ") and told.count("\n") == 1 and said in told, told


def test_models_of_two_processes_are_not_compared(run, tmp_path, capsys):
    cosine = train(tmp_path / "cosine", "--process.settings.schedule", "cosine", "--steps", "4")
    assert main(["diagnose", str(run), "--what", "consistency", "--against", str(cosine), "--device", "cpu"]) == 2
    assert "compares models of one process" in capsys.readouterr().err


def test_models_of_other_images_are_not_compared(run, tmp_path, capsys):
    told_apart = train(tmp_path / "conditional", "--data.classes", "10", "--steps", "4")
    assert main(["diagnose", str(run), "--what", "consistency", "--against", str(told_apart), "--device", "cpu"]) == 2
    told = capsys.readouterr().err
    assert "data.classes=None" in told and "has 10, so" in told and told.count("\n") == 1


def test_a_checkpoint_of_another_version_is_named(run, tmp_path, monkeypatch, capsys):
    def grown(*given, **settings):
        sampler = op.sampler(*given, **settings)
        sampler.register_buffer("memory", torch.zeros(3))
        return sampler

    monkeypatch.setattr("opportune.diagnostics.runs.make_sampler", lambda config, process: grown("uniform", process))
    assert main(["diagnose", str(run), "--what", "density", "--output", str(tmp_path), "--device", "cpu"]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1 and "step-000000 holds a sampler of another version of opportune" in told


def test_ctrl_c_takes_one_line(run, monkeypatch, capsys):
    def interrupted(*given, **more):
        raise KeyboardInterrupt

    monkeypatch.setattr("opportune.cli.suggest.suggest_for", interrupted)
    assert main(["suggest", str(run)]) == 130
    assert capsys.readouterr().err == "stopped\n"
    monkeypatch.setattr("opportune.cli.diagnose.Diagnosis.density", interrupted)
    assert main(["diagnose", str(run), *QUICK, "--what", "increment,density", "--no-pictures"]) == 130
    assert "what is listed above is complete" in capsys.readouterr().err


def test_latents_with_moments_work_and_latents_that_are_gone_are_named(tmp_path, capsys):
    source = torch.Generator().manual_seed(0)
    pairs = (
        (torch.randn(4, 8, 8, generator=source), None) for _ in range(60)
    )  # 2 channels of means, 2 of log variances
    folder = write_latents(
        tmp_path / "latents", pairs, made_from={"content": "moments", "scaling": "0.5", "shift": "0.1"}
    )
    run = train(
        tmp_path / "run",
        "--data.source",
        f"latents:{folder}",
        "--data.size",
        "8",
        "--data.channels",
        "2",
        "--steps",
        "4",
    )
    words = [run, *QUICK, "--stages", "1", "--output", tmp_path / "out", "--against", run]
    diagnosed(capsys, *words, "--what", "loss,gradient,interdependence")
    assert data_of(tmp_path / "out", "consistency")[0]["similarity"] == pytest.approx([1] * 6)
    shutil.rmtree(folder)
    assert main(["diagnose", *map(str, words), "--what", "loss"]) == 2
    told = capsys.readouterr().err
    assert told.startswith("error: ") and told.count("\n") == 1 and str(folder) in told
    diagnosed(capsys, run, *QUICK, "--what", "density,increment")  # which need no data


def test_without_matplotlib_nothing_is_computed_in_vain(run, capsys, monkeypatch):
    import sys

    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["diagnose", str(run)]) == 2
    told = capsys.readouterr()
    assert told.err == 'error: pictures need matplotlib; run: pip install "opportune[plot]"\n' and told.out == ""


def test_help_says_what_the_axis_means(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["diagnose", "--help"])
    assert stopped.value.code == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "interdependence" in told and "--against" in told and "checkpoints/step-" in told
