"""What the tables say, against numbers that can be checked by hand."""

import math
import shutil

import pytest
from tests.report.folders import edited, score, with_loss

from opportune.report.arrange import arrange
from opportune.report.comparable import check_held_out, check_scores
from opportune.report.metrics import metrics_of
from opportune.report.outcome import outcomes
from opportune.report.overhead import costs
from opportune.report.runs import read_runs
from opportune.report.words import choice_text, headline, reach_text
from opportune.train.errors import ConfigError

BASE = {0: {0: 10, 5: 6, 10: 4, 12: 3}, 1: {0: 10, 5: 5, 10: 4, 12: 2}}
# Seed 0 passes 3 halfway between 5 and 10; seed 1 passes 2 at step 10.
FAST = {0: {0: 10, 5: 4, 10: 2, 12: 1}, 1: {0: 10, 5: 4, 10: 2, 12: 1}}


@pytest.fixture
def measured(runs):
    """The runs with held-out losses of known course, and steps of known length: 1 s, of ``adaptive`` 3 s."""
    for seed in (0, 1):
        with_loss(runs / f"uniform-{seed}", BASE[seed])
        with_loss(runs / f"adaptive-{seed}", FAST[seed])
        edited(runs / f"uniform-{seed}" / "timing.jsonl", lambda record: record.update(seconds_per_step=1.0))
        edited(runs / f"adaptive-{seed}" / "timing.jsonl", lambda record: record.update(seconds_per_step=3.0))
        for name in ("uniform", "adaptive"):
            shutil.rmtree(runs / f"{name}-{seed}" / "evaluations")
    return runs


def found_in(folder, **asked):
    (setting,) = arrange(read_runs(sorted(folder.iterdir())), **asked)
    (metric,) = [metric for metric in metrics_of(setting) if metric.key == "loss"]
    return setting, metric, {outcome.label: outcome for outcome in outcomes(setting, metric)}


def test_steps_and_time_to_the_baselines_value_seed_by_seed(measured):
    _, _, found = found_in(measured)
    base, fast = found["uniform"], found["adaptive"]
    assert [reach.steps for reach in base.reaches] == [12, 12]
    assert [(reach.target, reach.steps, reach.seconds) for reach in fast.reaches] == [(3, 7.5, 22.5), (2, 10, 30)]
    assert fast.paired and fast.never == 0
    assert fast.steps_share.mean == pytest.approx((7.5 + 10) / 2 / 12)
    assert fast.time_share.mean == pytest.approx(3 * (7.5 + 10) / 2 / 12)
    half = 12.7062047 * (2.5 / math.sqrt(2)) / math.sqrt(2) / 12
    assert fast.steps_share.high - fast.steps_share.mean == pytest.approx(half)
    assert (fast.final.mean, fast.difference.mean) == (1, -1.5)
    assert base.difference is None


def test_never_is_said_and_never_averaged_away(measured):
    with_loss(measured / "adaptive-1", {0: 10, 5: 9, 10: 8, 12: 7})
    setting, metric, found = found_in(measured)
    assert found["adaptive"].never == 1 and found["adaptive"].steps_share is None
    assert reach_text(found["adaptive"]) == "never in 1 of 2 seeds"
    said = headline(setting, metric, list(found.values()))
    assert (
        str(said) == "No method reached uniform’s final held-out loss in every seed. adaptive: never in 1 of 2 seeds."
    )


def test_seeds_that_do_not_match_are_compared_with_the_mean(measured):
    shutil.rmtree(measured / "uniform-1")
    shutil.rmtree(measured / "adaptive-0")
    setting, metric, found = found_in(measured)
    assert not found["adaptive"].paired and found["adaptive"].difference is None
    assert [(reach.target, reach.steps) for reach in found["adaptive"].reaches] == [(3, 7.5)]
    assert "One seed cannot tell" in str(headline(setting, metric, list(found.values())))


def test_as_many_steps_as_the_baseline_took_is_not_faster(measured):
    for name in ("uniform-1", "adaptive-1"):
        shutil.rmtree(measured / name)
    with_loss(measured / "adaptive-0", BASE[0])
    setting, metric, found = found_in(measured)
    assert str(headline(setting, metric, list(found.values()))) == (
        "In one seed no method was faster to uniform’s final held-out loss; adaptive took 100 % of the steps and 300 % "
        "of the time."
    )


def test_only_seeds_that_both_have_are_paired(measured):
    shutil.rmtree(measured / "uniform-1")
    _, _, found = found_in(measured)
    assert [reach.seed for reach in found["adaptive"].reaches] == [0] and found["adaptive"].seeds == (0, 1)


def test_unfinished_runs_are_not_counted(measured):
    text = (measured / "adaptive-1" / "config.toml").read_text()
    (measured / "adaptive-1" / "config.toml").write_text(text.replace("steps = 12", "steps = 40"))
    text = (measured / "adaptive-0" / "config.toml").read_text()
    (measured / "adaptive-0" / "config.toml").write_text(text.replace("steps = 12", "steps = 40"))
    setting, metric, found = found_in(measured)
    assert list(found) == ["uniform"]
    assert (
        str(headline(setting, metric, list(found.values())))
        == "uniform ends at a held-out loss of 2.5 ± 6.4 (2 seeds)."
    )


def test_a_diverged_run_takes_the_mean_with_it(measured):
    with_loss(measured / "adaptive-1", {0: 10, 5: 9, 10: math.nan, 12: math.nan})
    _, _, found = found_in(measured)
    assert found["adaptive"].final is None and found["adaptive"].never == 1


def test_the_headline_doubts_an_interval_that_includes_the_baseline(measured):
    setting, metric, found = found_in(measured)
    assert str(headline(setting, metric, list(found.values()))) == (
        "No method was clearly faster to uniform’s final held-out loss; adaptive took 73 % of the steps and 219 % of "
        "the time. 95 % intervals over 2 seeds: 0 to 205 % of the steps, 0 to 616 % of the time."
    )
    for seed in (0, 1):
        with_loss(measured / f"uniform-{seed}", BASE[0])
    setting, metric, found = found_in(measured)
    said = headline(setting, metric, list(found.values()))
    assert str(said).startswith("adaptive reached uniform’s final held-out loss in 62 % of the steps")
    assert not choice_text(setting)  # there is one method to choose


def test_what_a_step_costs(measured):
    edited(measured / "uniform-0" / "timing.jsonl", lambda record: record.update(overhead_share=0.25))
    edited(measured / "uniform-1" / "timing.jsonl", lambda record: record.update(overhead_share=0.35))
    (setting,) = arrange(read_runs(sorted(measured.iterdir())))
    base, fast = costs(setting)
    assert base.sampler.mean == pytest.approx(0.3) and base.relative is None and base.measured is None
    assert fast.relative.mean == pytest.approx(3) and fast.seconds.mean == pytest.approx(3)


def test_the_measured_cost_of_a_comparison_is_used(comparison):
    (setting,) = arrange(read_runs([comparison]))
    assert [cost.measured and cost.measured.cost for cost in costs(setting)] == [None, 1.5]
    for run in (run for run in setting.runs if not run.baseline):
        with_loss(run.path, {0: 10, 5: 0.0001, 10: 0.0001, 12: 0.0001})
    (setting,) = arrange(read_runs([comparison]))
    metric = metrics_of(setting)[-1]
    _, fast = outcomes(setting, metric)
    assert fast.cost_share.mean == pytest.approx(1.5 * fast.steps_share.mean)


# ---- arrangement and refusals ----------------------------------------------------------------------------------------


def test_a_label_stands_for_one_configuration(runs):
    text = (runs / "adaptive-1" / "config.toml").read_text()
    (runs / "adaptive-1" / "config.toml").write_text(text.replace("learning_rate = 0.001", "learning_rate = 0.01"))
    (setting,) = arrange(read_runs(sorted(runs.iterdir())))
    labels = [method.label for method in setting.methods]
    assert labels == ["uniform", "adaptive (optimizer.learning_rate=0.001)", "adaptive (optimizer.learning_rate=0.01)"]


def test_settings_are_apart_and_a_label_keeps_its_number(runs):
    for run in ("uniform-0", "adaptive-1"):
        text = (runs / run / "config.toml").read_text()
        (runs / run / "config.toml").write_text(text.replace('name = "ddpm"', 'name = "flow"'))
    settings = arrange(read_runs([runs / name for name in ("adaptive-0", "adaptive-1", "uniform-0", "uniform-1")]))
    numbers = [[(method.label, method.number, method.baseline) for method in each.methods] for each in settings]
    assert numbers == [[("uniform", 0, True), ("adaptive", 1, False)]] * 2


def test_the_baseline_can_be_chosen_and_must_exist(runs):
    (setting,) = arrange(read_runs(sorted(runs.iterdir())), "adaptive")
    assert [method.label for method in setting.methods] == ["adaptive", "uniform"] and setting.methods[0].baseline
    with pytest.raises(ConfigError, match=r"'adaptiv' is no label of these runs; did you mean 'adaptive'\?"):
        arrange(read_runs(sorted(runs.iterdir())), "adaptiv")
    with pytest.raises(ConfigError, match=r"'x' is no label of these runs\. Labels: 'adaptive', 'uniform'\."):
        arrange(read_runs(sorted(runs.iterdir())), "x")


def test_several_baselines_are_refused(runs):
    text = (runs / "uniform-1" / "config.toml").read_text()
    (runs / "uniform-1" / "config.toml").write_text(text.replace("batch_size = 8\nacc", "batch_size = 16\nacc"))
    with pytest.raises(ConfigError, match="choose one with --baseline LABEL"):
        arrange(read_runs(sorted(runs.iterdir())))


def test_without_a_baseline_nothing_is_said_about_speed(runs):
    setting, metric, found = found_in_two(runs)
    assert "no baseline" in str(headline(setting, metric, list(found.values())))
    assert not found["adaptive"].reaches


def found_in_two(runs):
    for seed in (0, 1):
        shutil.rmtree(runs / f"uniform-{seed}")
    return found_in(runs)


def test_one_run_twice_is_refused(runs):
    shutil.copytree(runs / "uniform-0", runs / "copy")
    with pytest.raises(ConfigError, match=r"copy and .*uniform-0 are one run twice"):
        arrange(read_runs(sorted(runs.iterdir())))


def test_distances_of_different_counts_are_refused_by_name(runs):
    score(runs / "adaptive-1", 12, count=20)
    (setting,) = arrange(read_runs(sorted(runs.iterdir())))
    with pytest.raises(
        ConfigError, match=r"adaptive-1: .*n_generated=16 and n_generated=20.*same settings.*--no-frechet"
    ):
        check_scores(setting)
    assert "unbiased" in check_scores(setting, frechet=False)
    assert [metric.key for metric in metrics_of(setting, frechet=False)] == ["kid", "loss"]


def test_kid_alone_may_have_different_counts(runs):
    score(runs / "adaptive-1", 12, count=20)
    edited(runs / "adaptive-1" / "evaluations" / "step-000012.json", lambda scores: scores.update(frechet=None))
    (setting,) = arrange(read_runs(sorted(runs.iterdir())))
    assert "unbiased" in check_scores(setting)


@pytest.mark.parametrize(
    ("change", "told"),
    [({"features": "other"}, "features="), ({"real": "0" * 64}, "real="), ({"weights": "raw"}, "same --weights")],
)
def test_scores_on_different_scales_are_refused(runs, change, told):
    edited(runs / "uniform-1" / "evaluations" / "step-000008.json", lambda scores: scores.update(change))
    (setting,) = arrange(read_runs(sorted(runs.iterdir())))
    with pytest.raises(ConfigError, match=told) as error:
        check_scores(setting, frechet=False)
    assert "uniform-1" in str(error.value) and "\n" not in str(error.value)


def test_held_out_losses_of_different_images_are_refused(runs):
    for seed in (0, 1):
        text = (runs / f"adaptive-{seed}" / "config.toml").read_text()
        (runs / f"adaptive-{seed}" / "config.toml").write_text(text.replace("examples = 16", "examples = 32"))
    (setting,) = arrange(read_runs(sorted(runs.iterdir())))
    with pytest.raises(ConfigError, match=r"adaptive-0 cannot be .*validation.examples=16 and 32") as error:
        check_held_out(setting)
    assert "uniform-0" in str(error.value)
