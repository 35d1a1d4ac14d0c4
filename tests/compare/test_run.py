"""Real comparisons in real processes: what is done stays, what was interrupted goes on exactly, and so on."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.compare.tiny import DIVERGES, EVALUATE, HEAD, SPEED, UNIFORM, tiny_plan

from opportune.compare import cells_of
from opportune.compare.run import Outcome, run_plan
from opportune.compare.summary import summarise
from opportune.report.runs import read_runs
from opportune.train.checkpoint import Checkpoints
from opportune.train.config_file import read_toml
from opportune.train.errors import ConfigError
from opportune.train.saved import step_of

PLAN = HEAD + UNIFORM + DIVERGES + SPEED + EVALUATE
ALONE = HEAD + UNIFORM + EVALUATE


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> tuple[Path, Outcome, list[str]]:
    """A comparison nobody disturbed; its second cell diverges."""
    output, said = tmp_path_factory.mktemp("whole"), []
    return output, run_plan(tiny_plan(PLAN), output, say=said.append), said


def test_a_cell_that_fails_does_not_stop_the_others_and_is_named(whole):
    output, outcome, said = whole
    assert outcome.exit_code == 1
    assert list(outcome.failed) == ["all-diverges-seed0"]
    assert "finite" in outcome.failed["all-diverges-seed0"], "the last line of its log says why"
    assert said == [
        "3 cells, 0 finished before", "measuring what a step of each method costs, in turns; then the cells",
        "1/3  all-uniform-seed0", "2/3  all-diverges-seed0  FAILED", "3/3  all-speed-seed0",
    ]  # fmt: skip
    for cell in ("all-uniform-seed0", "all-speed-seed0"):
        names = sorted(path.name for path in (output / "runs" / cell / "evaluations").iterdir())
        assert names == ["step-000120.json", "step-000240.json"]


def test_the_folder_is_what_reports_read(whole):
    output = whole[0]
    cell = output / "runs" / "all-speed-seed0"
    told = json.loads((cell / "cell.json").read_text())
    assert {key: told[key] for key in ("label", "setting", "seed", "baseline", "plan")} == {
        "label": "SpeeD", "setting": "all", "seed": 0, "baseline": False, "plan": "tiny"
    }  # fmt: skip
    scores = json.loads((cell / "evaluations" / "step-000120.json").read_text())
    assert (scores["step"], scores["weights"], scores["n_generated"]) == (120, "ema", 8)
    assert scores["kid"] is not None and scores["frechet"] is not None
    assert (cell / "samples" / "step-000120.png").read_bytes().startswith(b"\x89PNG")
    assert read_toml(cell / "config.toml")["sampler"]["name"] == "speed"
    runs = {run.label: run for run in read_runs([output])}
    assert [each.step for each in runs["uniform"].evaluations] == [120, 240]
    assert runs["uniform"].baseline and not runs["SpeeD"].baseline


def test_scored_checkpoints_are_deleted_but_for_the_newest_two(whole):
    saved = Checkpoints(whole[0] / "runs" / "all-uniform-seed0" / "checkpoints").list()
    assert [step_of(path) for path in saved] == [220, 240]


def test_costs_are_relative_to_the_baseline(whole):
    cost = json.loads((whole[0] / "cost.json").read_text())
    assert set(cost) == {"uniform", "diverges", "SpeeD"}
    assert cost["uniform"]["all"]["cost"] == 1.0
    assert cost["SpeeD"]["all"]["low"] <= cost["SpeeD"]["all"]["cost"] <= cost["SpeeD"]["all"]["high"]


def test_the_summary_holds_the_numbers_of_the_files(whole):
    output = whole[0]
    tables = {table.metric: table for table in summarise(cells_of(tiny_plan(PLAN), output), output)}
    assert set(tables) == {"frechet", "kid", "loss"}
    assert all(table.partial for table in tables.values()), "a cell of the only seed failed"
    run = output / "runs" / "all-speed-seed0"
    kid = next(row for row in tables["kid"].rows if row.label == "SpeeD")
    assert {step: value.mean for step, value in kid.at.items()} == {
        step: json.loads((run / "evaluations" / f"step-000{step}.json").read_text())["kid"] for step in (120, 240)
    }
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    held_out = {record["step"]: record["ema"]["loss"] for record in records if record["kind"] == "validation"}
    loss = next(row for row in tables["loss"].rows if row.label == "SpeeD")
    assert {step: value.mean for step, value in loss.at.items()} == {step: held_out[step] for step in (120, 240)}


def test_finished_cells_are_not_run_again_and_failed_ones_are(whole, tmp_path):
    output = tmp_path / "again"
    shutil.copytree(whole[0], output)
    before = _times(output)
    said: list[str] = []
    outcome = run_plan(tiny_plan(PLAN), output, say=said.append)
    assert said == ["3 cells, 2 finished before", "1/1  all-diverges-seed0  FAILED"]
    assert outcome.exit_code == 1
    changed = {path for path, when in _times(output).items() if before.get(path) != when}
    assert changed and all("all-diverges-seed0" in path or path in ("plan.toml", "run.lock") for path in changed)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("ema.decay = 0.9", "ema.decay = 0.8", r"all-uniform-seed0: ema.decay: 0.9 -> 0.8"),
        ("count = 8", "count = 9", r"all-uniform-seed0: evaluate.count: 8 -> 9, which makes other scores"),
        ("points = 2", "points = 4", r"all-uniform-seed0: scored at steps \[120, 240\], not \[60, 120, 180, 240\]"),
    ],
)
def test_a_changed_plan_over_an_old_folder_is_refused(whole, old, new, message):
    output = whole[0]
    text = (
        PLAN.replace("validation = { every_steps = 120", "validation = { every_steps = 60") if "points" in old else PLAN
    )
    assert old in text
    before = _times(output)
    with pytest.raises(ConfigError, match=message):
        run_plan(tiny_plan(PLAN.replace(old, new)), output, say=lambda line: None)
    assert _times(output) == before


def test_runs_of_other_plans_are_left_out_aloud(whole):
    output, said = whole[0], []
    run_plan(tiny_plan(ALONE), output, say=said.append)
    assert "2 runs in" in said[0] and "all-diverges-seed0, all-speed-seed0" in said[0]
    assert [row.label for table in summarise(cells_of(tiny_plan(ALONE), output), output) for row in table.rows] == [
        "uniform"
    ] * 3


def test_stopped_and_killed_in_the_middle_it_makes_the_same_run_to_the_byte(whole, tmp_path):
    """SIGTERM to the plan, then kill -9 to the cell, then to its end: as if nobody had touched it."""
    (tmp_path / "plan.toml").write_text(ALONE)
    output = tmp_path / "out"
    output.mkdir()
    shutil.copy(whole[0] / "cost.json", output)
    run = output / "runs" / "all-uniform-seed0"

    plan = _start(tmp_path)
    _wait_for(plan, run, 40)
    plan.send_signal(signal.SIGTERM)
    said = plan.communicate(timeout=120)[1]
    assert plan.returncode == 143
    assert f"go on with: opportune compare {output}" in said
    first = _newest(run)
    assert 40 <= first < 240

    plan = _start(output)
    _wait_for(plan, run, first + 20)
    os.kill(json.loads((run / "run.lock").read_text())["pid"], signal.SIGKILL)
    said = plan.communicate(timeout=120)[1]
    assert plan.returncode == 1
    assert "killed by signal 9" in said
    assert first < _newest(run) < 240

    plan = _start(output)
    assert "finished before" in plan.communicate(timeout=120)[1]
    assert plan.returncode == 0
    undisturbed = whole[0] / "runs" / "all-uniform-seed0"
    for name in ("metrics.jsonl", "evaluations/step-000120.json", "evaluations/step-000240.json",
                 "samples/step-000240.png"):  # fmt: skip
        assert (run / name).read_bytes() == (undisturbed / name).read_bytes(), name


def test_a_feature_network_nobody_knows_is_found_out_before_anything_runs(tmp_path):
    plan = tiny_plan(PLAN.replace('"pixels"', '"pixel"'))
    with pytest.raises(ValueError, match="did you mean 'pixels'"):
        run_plan(plan, tmp_path / "out", say=lambda line: None)
    assert not (tmp_path / "out").exists()


def _times(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def _start(plan: Path) -> subprocess.Popen[str]:
    words = [sys.executable, "-m", "opportune", "compare", str(plan if plan.name == "out" else plan / "plan.toml")]
    more = [] if plan.name == "out" else ["--output-dir", str(plan / "out")]
    return subprocess.Popen([*words, *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _newest(run: Path) -> int:
    return max((step_of(path) or 0 for path in Checkpoints(run / "checkpoints").list()), default=0)


def _wait_for(plan: subprocess.Popen[str], run: Path, step: int) -> None:
    while _newest(run) < step:
        assert plan.poll() is None, plan.communicate()
        time.sleep(0.005)
