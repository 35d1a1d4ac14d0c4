"""Run folders as they are read back, whole and damaged."""

import json
import os
import shutil
from dataclasses import replace

import pytest
from tests.report.folders import NASTY, edited
from tests.train.runs import stop_at, tiny

from opportune.report import read_run, read_runs
from opportune.train.errors import RunFolderError
from opportune.train.logs import read_log


def test_a_run_is_read_as_it_was_written(trained):
    run = read_run(trained / "adaptive-1")
    records = read_log(run.path)
    assert (run.label, run.seed, run.baseline, run.finished) == ("adaptive", 1, False, True)
    assert run.setting == "ddpm on embedded:fashion16 at 16 px"
    assert list(run.train) == [record for record in records if record["kind"] == "train"]
    assert [record["step"] for record in run.validation] == [0, 5, 10, 12]
    assert [record["step"] for record in run.timing] == [3, 6, 9, 12]
    assert [(each.step, each.weights, each.scores.n_generated) for each in run.evaluations] == [
        (8, "ema", 16),
        (12, "ema", 16),
    ]
    assert [(step, path.name) for step, path in run.samples] == [(8, "step-000008.png"), (12, "step-000012.png")]
    assert "torch" in run.environment and not run.notes


def test_the_label_tells_what_was_done_about_timesteps(trained, runs):
    config = (runs / "uniform-0" / "config.toml").read_text()
    config = config.replace(
        'name = "uniform"\nsettings = {}', 'name = "stratified"\nunbiased = true\nsettings = {of = "kim"}'
    )
    config = config.replace('name = "none"\nsettings = {}', 'name = "min_snr"\nsettings = {gamma = 5}')
    config = config.replace('momentum_decay = "none"', 'momentum_decay = "mdlrc"')
    (runs / "uniform-0" / "config.toml").write_text(config)
    run = read_run(runs / "uniform-0")
    assert run.label == "stratified(of=kim) unbiased + min_snr(gamma=5) + mdlrc" and not run.baseline
    assert read_run(trained / "uniform-0").baseline


def test_a_cell_tells_its_own_label(comparison):
    found = {run.path.name: run for run in read_runs([comparison])}
    assert len(found) == 4
    assert all(run.comparison == comparison and run.setting == "small & <quick>" for run in found.values())
    assert [found[name].baseline for name in ("uniform-0", "uniform-1", "adaptive-0")] == [True, True, False]
    assert found["adaptive-1"].label.startswith("<img") and found["adaptive-1"].seed == 1


def test_a_comparison_is_read_in_the_order_of_its_plan(comparison):
    """Labels sort as "<img …" < "uniform" and folders as adaptive < uniform: the plan says otherwise, both times."""
    methods = [{"label": "uniform", "baseline": True}, {"label": NASTY}]
    for order in (methods, methods[::-1]):
        plan = "\n".join(f"[[methods]]\nlabel = {json.dumps(method['label'])}" for method in order)
        (comparison / "plan.toml").write_text(plan)
        labels = [method["label"] for method in order for _ in (0, 1)]
        assert [(run.label, run.seed) for run in read_runs([comparison])] == [
            (label, seed) for label, seed in zip(labels, (0, 1, 0, 1), strict=True)
        ]
    edited(comparison / "runs" / "uniform-1" / "cell.json", lambda cell: cell.update(setting="first"))
    (comparison / "plan.toml").write_text('[settings.first]\n[settings."small & <quick>"]\n')
    assert read_runs([comparison])[0].setting == "first"


@pytest.mark.parametrize("damage", ["[[methods", "methods = 3\nsettings = []", "methods = [3]"])
def test_a_damaged_plan_costs_the_order_alone(comparison, damage):
    (comparison / "plan.toml").write_text(damage)
    assert len(read_runs([comparison])) == 4


def test_a_last_line_cut_short_is_left_out_and_said(runs):
    path = runs / "uniform-0" / "metrics.jsonl"
    whole = read_run(runs / "uniform-0")
    path.write_bytes(path.read_bytes()[:-30])
    run = read_run(runs / "uniform-0")
    assert len(run.train) + len(run.validation) == len(whole.train) + len(whole.validation) - 1
    assert "cut off" in run.notes[0]


def test_a_run_that_was_stopped_is_unfinished(tmp_path):
    stop_at(tiny(tmp_path / "run"), 7)
    run = read_run(tmp_path / "run")
    assert (run.reached, run.steps, run.finished, run.started) == (7, 12, False, True)


def test_a_run_without_checkpoints_is_read_with_a_note(runs):
    shutil.rmtree(runs / "uniform-0" / "checkpoints")
    run = read_run(runs / "uniform-0")
    assert run.finished and "no checkpoint" in run.notes[0]


def test_evaluation_of_an_older_model_has_no_step(runs):
    run = runs / "uniform-0"
    shutil.move(run / "evaluations" / "step-000012.json", run / "evaluation.json")
    edited(run / "evaluation.json", lambda values: (values.pop("step"), values.pop("weights")))
    shutil.rmtree(run / "evaluations")
    assert [each.step for each in read_run(run).evaluations] == [12]
    os.utime(run / "evaluation.json", (1, 1))
    assert [each.step for each in read_run(run).evaluations] == [None]


def test_a_cell_that_has_not_begun_is_no_error(comparison):
    (comparison / "runs" / "adaptive-0" / "metrics.jsonl").unlink()
    shutil.rmtree(comparison / "runs" / "adaptive-0" / "checkpoints")
    assert [run.started for run in read_runs([comparison])].count(False) == 1


def test_a_folder_named_twice_is_one_run(trained):
    assert len(read_runs([trained / "uniform-0", trained / "uniform-0", trained / "." / "uniform-0"])) == 1


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda run: shutil.rmtree(run), "there is no run at"),
        (lambda run: (run / "config.toml").unlink(), "no config.toml in"),
        (lambda run: (run / "metrics.jsonl").unlink(), "no records in metrics.jsonl"),
        (
            lambda run: (run / "metrics.jsonl").write_text('{"kind": "train", "step": 1\n{}\n'),
            "line 1 is not valid JSON",
        ),
        (lambda run: (run / "metrics.jsonl").write_text('["step"]\n'), "line 1 is no record of a step"),
        (lambda run: (run / "metrics.jsonl").write_text('{"kind": "train", "step": 1}\n'), "step 1 has no bins"),
        (lambda run: (run / "metrics.jsonl").write_text('{"kind": "validation", "step": 1}\n'), "step 1 has no losses"),
        (lambda run: (run / "metrics.jsonl").write_bytes(b"\xff\xfe\n"), "not text in UTF-8"),
        (lambda run: (run / "timing.jsonl").write_text('{"step": 1}\n'), "step 1 has no seconds_per_step"),
        (lambda run: (run / "config.toml").write_text("[run]\nseed = 1\n"), "run.steps=None"),
        (lambda run: (run / "config.toml").write_text("[run"), "not valid TOML"),
        (lambda run: (run / "evaluation.json").write_text("{"), "evaluation.json is not valid JSON"),
        (lambda run: (run / "evaluation.json").write_text('{"fid": 3}'), "holds no scores"),
        (
            lambda run: edited(run / "evaluations" / "step-000012.json", lambda s: s.update(frechet="low")),
            "frechet='low'",
        ),
        (lambda run: edited(run / "evaluations" / "step-000012.json", lambda s: s.update(n_real=2.5)), "n_real=2.5"),
        (lambda run: (run / "checkpoints/step-000012/manifest.json").write_text("[]"), "JSON list, not an object"),
    ],
)
def test_what_cannot_be_read_is_one_line_that_names_it(runs, damage, told):
    damage(runs / "uniform-0")
    with pytest.raises((RunFolderError, ValueError)) as error:
        read_runs([runs / "uniform-0"])
    assert told in str(error.value) and "uniform-0" in str(error.value) and "\n" not in str(error.value)


def test_a_comparison_without_runs_says_so(tmp_path):
    (tmp_path / "plan.toml").touch()
    with pytest.raises(RunFolderError, match="holds no run yet"):
        read_runs([tmp_path])


def test_runs_are_values(trained):
    run = read_run(trained / "uniform-0")
    assert replace(run, label="x") != run and json.dumps(run.config)
