"""What is wrong with a plan is said in one line, before anything runs."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
from tests.compare.tiny import DIVERGES, EVALUATE, HEAD, SPEED, UNIFORM, tiny_plan

from opportune.compare import Evaluate, cells_of, plans, read_plan, shipped_plan
from opportune.compare.cells import part_of, points_of
from opportune.compare.dry_run import describe
from opportune.train.errors import ConfigError

WHOLE = HEAD + UNIFORM + SPEED + EVALUATE


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('sampler.name = "speed"', 'sampler.name = "sped"', r"method 'SpeeD' in setting 'all': .*did you mean 'speed'"),
        ('sampler.name = "speed"', 'smapler.name = "speed"', r"section 'smapler' is unknown; did you mean 'sampler'"),
        ('sampler.name = "speed"', "sampler.settings.k = -1", r"method 'SpeeD'"),
        ('sampler.name = "speed"', "in.cosin.run.steps = 1", r"in.cosin is no setting of this plan"),
        ("[base]", "[bse]", r"plan has no key 'bse'; did you mean 'base'"),
        ('recipe = "fashion16"', 'recipe = "fashon16"', r"did you mean 'fashion16'"),
        ('recipe = "fashion16"', "", r"recipe = \"NAME\" or config = \"FILE\""),
        ("seeds = [0]", "seeds = [0, 0]", r"seeds=\[0, 0\] must be a list of different whole numbers"),
        ("seeds = [0]", "seeds = [-1]", r"seeds=-1 is not allowed"),
        ("baseline = true", "", r"must have baseline = true.*has: none"),
        ('label = "SpeeD"', 'label = "SpeeD"\nbaseline = true', r"has: uniform, SpeeD"),
        ('label = "SpeeD"', 'label = "uniform"', r"two methods are called 'uniform'"),
        ('label = "SpeeD"', 'label = "Uniform!"', r"two cells would use the folder all-uniform-seed0"),
        ("points = 2", "points = 7", r"run.steps=240 does not divide into evaluate.points=7"),
        ("points = 2", "points = 2\nevery_steps = 120", r"both points and every_steps"),
        ("count = 8", "coutn = 8", r"evaluate.coutn is unknown; did you mean 'count'"),
        ("count = 8", 'metrics = ["fid"]', r"evaluate.metrics='fid' is unknown"),
        ("count = 8", 'method = "euler"', r"evaluate.method='euler' does not fit the process; use ddim"),
        ("{ every_steps = 60", "{ every_steps = 0", r"the held-out loss is compared"),
    ],
)
def test_a_wrong_plan_is_refused_with_the_remedy(old, new, message, tmp_path):
    assert WHOLE.count(old) == 1
    path = tmp_path / "plan.toml"
    path.write_text(WHOLE.replace(old, new))
    with pytest.raises(ConfigError, match=message):
        cells_of(read_plan(path), tmp_path / "out")
    assert [each.name for each in tmp_path.iterdir()] == ["plan.toml"]


def test_latents_are_refused_without_what_scores_them(tmp_path):
    text = WHOLE.replace("data.batch_size = 8", 'data = { source = "latents:x/{split}", batch_size = 8 }')
    with pytest.raises(ConfigError, match=r"holds latents, so evaluate.autoencoder must be given"):
        cells_of(tiny_plan(text), tmp_path)


def test_layers_lie_over_each_other_in_order(tmp_path):
    text = WHOLE.replace(
        '[[methods]]\nlabel = "SpeeD"', '[settings.a]\nrun.steps = 300\n[settings.b]\n\n[[methods]]\nlabel = "SpeeD"'
    )
    text = text.replace('sampler.name = "speed"', "run.steps = 360\nin.b.run.steps = 480")
    found = {(cell.setting, cell.label): cell.config.run.steps for cell in cells_of(tiny_plan(text), tmp_path)}
    assert found == {("a", "uniform"): 300, ("a", "SpeeD"): 360, ("b", "uniform"): 240, ("b", "SpeeD"): 480}


def test_cells_come_seed_by_seed_and_differ_in_their_seed(tmp_path):
    cells = cells_of(tiny_plan(WHOLE.replace("seeds = [0]", "seeds = [4, 1]")), tmp_path)
    assert [(cell.seed, cell.label) for cell in cells] == [
        (4, "uniform"), (4, "SpeeD"), (1, "uniform"), (1, "SpeeD")
    ]  # fmt: skip
    assert all(cell.config.run.seed == cell.seed for cell in cells)
    assert [cell.folder.name for cell in cells][:2] == ["all-uniform-seed4", "all-speed-seed4"]


def test_every_point_has_a_checkpoint_and_a_held_out_loss(tmp_path):
    text = WHOLE.replace("points = 2", "points = 3").replace("{ every_steps = 60", "{ every_steps = 50")
    for cell in cells_of(tiny_plan(text), tmp_path):
        assert cell.points == (80, 160, 240)
        checkpoint = cell.config.checkpoint
        assert (checkpoint.every_steps, checkpoint.keep_every_steps) == (20, 80)
        assert cell.config.validation.every_steps == 40


def test_points_and_their_parts():
    assert points_of(1000, Evaluate(points=4)) == (250, 500, 750, 1000)
    assert points_of(1000, Evaluate(every_steps=500)) == (500, 1000)
    assert part_of(200, 500) == 200
    assert part_of(200, 60) == 50
    assert part_of(401, 100) == 401, "a prime has no parts; saving at every step would be worse"


@pytest.mark.parametrize("name", plans())
def test_every_shipped_plan_passes_a_dry_run(name, tmp_path):
    plan = shipped_plan(name)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a method that would do nothing in this plan warns
        cells = cells_of(plan, tmp_path / "out")
        said = describe(plan, cells, measure=False)
    assert len(cells) == len(plan.methods) * len(plan.settings) * len(plan.seeds)
    assert f"{len(cells)} cells" in said
    assert "PFLOP" in said
    for method in plan.methods:
        assert f": {method.label}" in said
    assert not list(tmp_path.iterdir())


def test_a_dry_run_shows_what_a_method_changes_and_measures_a_small_network(tmp_path):
    plan = tiny_plan(HEAD + UNIFORM + DIVERGES + EVALUATE)
    said = describe(plan, cells_of(plan, tmp_path))
    line = next(line for line in said.splitlines() if "diverges" in line)
    assert "optimizer.learning_rate: 0.001 -> 1e+30; optimizer.max_skips: 10 -> 1" in line
    assert "120, 240" in line
    assert "measured here: about" in said


def test_the_equal_decay_control_is_in_the_ablation_of_mdlrc():
    for name in ("clts", "clts-small"):
        decays = {cell.config.optimizer.momentum_decay for cell in cells_of(shipped_plan(name), Path("out"))}
        assert decays == {"none", "equal_decay", "mdlrc"}
