"""The command line of comparisons: what it changes, what it refuses, and a dry run that makes no file."""

from __future__ import annotations

import shutil

import pytest
from tests.compare.tiny import EVALUATE, HEAD, SPEED, UNIFORM

from opportune.cli import main
from opportune.cli.compare import _sorted_out, find_plan
from opportune.compare import cells_of
from opportune.compare.folder import write_folder


@pytest.fixture
def plan(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(HEAD + UNIFORM + SPEED + EVALUATE)
    return path


def test_a_dry_run_says_what_would_run_and_makes_no_file(plan, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["compare", str(plan), "--dry-run", "--run.steps", "360", "--evaluate.count", "9"]) == 0
    said = capsys.readouterr().out
    assert "2 cells: 2 methods x 1 settings x 1 seeds [0]" in said
    assert "sampler.name: 'uniform' -> 'speed'" in said
    assert "180, 360" in said and "count=9" in said
    assert [path.name for path in tmp_path.iterdir()] == ["mine.toml"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nothing"], "plan='nothing' is unknown"),
        (["table1-smal", "--dry-run"], "did you mean 'table1-small'"),
        (["missing.toml"], "there is no plan missing.toml"),
        (["MINE", "--workers", "0"], "--workers=0 must be 1 or more"),
        (["MINE", "--data.source"], "--data.source needs a value"),
        (["MINE", "--run.stesp", "9"], "--run.stesp is unknown; did you mean '--run.steps'?"),
        (["MINE", "--seed", "3"], "unrecognized arguments: --seed 3"),
        (["MINE", "--run.seed", "3"], "--run.seed is set for every cell by the plan"),
        (["MINE", "--run.steps", "many"], "run.steps='many' is a text"),
        (["MINE", "--evaluate.count", "0"], "evaluate.count=0 is not allowed"),
        (["MINE", "--sampler.settings.k", "3"], "method 'uniform' in setting 'all'"),
        (["."], "there is no plan.toml in it"),
    ],
)
def test_what_is_wrong_is_one_line_and_exit_code_2(words, message, plan, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = [str(plan) if word == "MINE" else word for word in words]
    try:
        code = main(["compare", *words])
    except SystemExit as ended:  # argparse's own
        code = ended.code
    assert code == 2
    assert message in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine.toml"]


def test_without_a_plan_one_line_tells(capsys):
    assert main(["compare"]) == 2
    told = capsys.readouterr().err
    assert told.startswith("error: ") and told.count("\n") == 1 and "PLAN" in told


def test_a_plan_with_a_configuration_goes_on_from_its_folder_alone(tmp_path):
    elsewhere = tmp_path / "plans"
    elsewhere.mkdir()
    (elsewhere / "start.toml").write_text("[data]\nbatch_size = 4\n")
    text = HEAD.replace('recipe = "fashion16"', 'config = "start.toml"').replace("data.batch_size = 8\n", "")
    (elsewhere / "mine.toml").write_text(text + UNIFORM + EVALUATE)
    output = tmp_path / "out"
    plan, _ = find_plan(str(elsewhere / "mine.toml"), {}, str(output))
    cells = cells_of(plan, output)
    write_folder(plan, cells, output)
    shutil.rmtree(elsewhere)
    again, _ = find_plan(str(output), {}, None)
    write_folder(again, cells_of(again, output), output)
    third, _ = find_plan(str(output), {}, None)
    assert [cell.config for cell in cells_of(third, output)] == [cell.config for cell in cells]
    assert cells[0].config.data.batch_size == 4


def test_a_damaged_description_of_a_cell_is_named(plan, tmp_path, capsys):
    output = tmp_path / "out"
    made, _ = find_plan(str(plan), {}, str(output))
    write_folder(made, cells_of(made, output), output)
    cell = output / "runs" / "all-uniform-seed0"
    (cell / "evaluations").mkdir()
    (cell / "evaluations" / "step-000120.json").write_text("{}")
    (cell / "cell.json").write_text('{"label": ')
    assert main(["compare", str(output)]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1 and "cell.json is not valid JSON" in told


def test_changes_of_the_command_line_are_kept_with_the_plan_and_may_be_changed_again(plan, tmp_path):
    output = tmp_path / "out"
    words = [
        str(plan),
        "--data.flip=true",
        "--batch-size",
        "4",
        "--model.settings.width",
        "32",
        "--evaluate.points",
        "3",
    ]
    own, changes = _sorted_out(words)
    first, _ = find_plan(own[0], changes, str(output))
    cells = cells_of(first, output)
    write_folder(first, cells, output)
    again, folder = find_plan(str(output), {}, None)
    assert folder == output
    assert [cell.config for cell in cells_of(again, folder)] == [cell.config for cell in cells]
    config = cells[0].config
    assert (config.data.flip, config.data.batch_size, config.model.settings["width"]) == (True, 4, 32)
    assert config.model.settings["depth"] == 1, "the model's other settings stay"
    assert cells[0].points == (80, 160, 240)
    assert "# From the command line:" in (output / "plan.toml").read_text()

    third, _ = find_plan(str(output), {"data": {"batch_size": 2}}, None)
    write_folder(third, cells_of(third, output), output)
    assert (output / "plan.toml").read_text().count("# From the command line:") == 1
    fourth, _ = find_plan(str(output), {}, None)
    config = cells_of(fourth, output)[0].config
    assert (config.data.flip, config.data.batch_size) == (True, 2)
