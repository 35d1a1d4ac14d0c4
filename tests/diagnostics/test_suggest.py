"""``op.diagnostics.suggest``: it finds what is best where that is known, and says nothing where nothing is known."""

from __future__ import annotations

import math

import pytest
import torch
from tests.diagnostics.histories import BINS, history, objective, optimum

import opportune as op
from opportune.diagnostics.density_map import bar_means
from opportune.diagnostics.suggest import from_losses, from_records, suggest
from opportune.diagnostics.suggest.decide import LEAST_EFOLDS
from opportune.diagnostics.suggest.elsewhere import elsewhere
from opportune.diagnostics.suggest.families import families
from opportune.diagnostics.suggest.forecast import POWER, efolds_of_weighting

MIDDLES = (torch.arange(BINS, dtype=torch.float64) + 0.5) / BINS
SLOPE = 0.02 * torch.exp(-4 * MIDDLES)  # much is left near the data, little in the noise
HUMP = 0.002 + 0.03 * torch.exp(-0.5 * ((MIDDLES - 0.4) / 0.15) ** 2)
PROCESSES = [
    op.DDPM("linear"), op.DDPM("cosine", steps=500), op.Flow(), op.Flow(shift=3.0), op.EDM(), op.VE(), op.VP(),
]  # fmt: skip


def masses_of(sampler: op.Sampler) -> torch.Tensor:
    return bar_means(sampler.masses * sampler.process.cells, BINS) / BINS


@pytest.mark.parametrize("left", [SLOPE, HUMP], ids=["slope", "hump"])
@pytest.mark.parametrize("process", [op.DDPM("linear"), op.Flow(), op.EDM()], ids=["ddpm", "flow", "edm"])
def test_the_best_density_is_found(process, left):
    found = suggest(process, history(left))
    assert not found.keep
    least, uniform = objective(left, optimum(left)), objective(left, torch.full_like(left, 1 / BINS))
    table = found.choices[-1]
    assert table.name == "table"
    assert objective(left, table.masses) < least * 1.02
    # A family of two numbers has not every shape: what it ends with is within 10 % of the best, and uniform is not.
    assert objective(left, found.choice.masses) < least * 1.1 < 0.95 * uniform


def test_a_density_of_a_family_is_found_again():
    process = op.Flow(shift=3.0)
    true = masses_of(op.sampler("logit_normal", process, mean=-0.6, std=1.1))
    left = 0.01 * (true * BINS).pow(1 / POWER)
    sure, unsure = (suggest(process, history(left, spread=spread)).choice for spread in (0.01, 0.1))
    for choice in (sure, unsure):
        assert choice.name == "logit_normal"
        assert choice.settings["mean"] == pytest.approx(-0.6, abs=0.08)
    # Broader than the truth: bins count for their neighbours, and what is not measured well is drawn more.
    assert 1.1 < sure.settings["std"] < 1.25 and sure.settings["std"] < unsure.settings["std"] < 1.4
    for name in ("mean", "std"):
        (low, high), (wide_low, wide_high) = sure.intervals[name], unsure.intervals[name]
        assert low <= sure.settings[name] <= high, "an interval holds what it is about"
        assert 0 < high - low < wide_high - wide_low < 0.3, "and is as wide as the data are noisy"


def test_the_objective_decides_where():
    process = op.DDPM("linear")
    flat = torch.full((BINS,), 0.01, dtype=torch.float64)
    for name in ("vlb", "min_snr"):
        found = suggest(process, history(flat), objective=name)
        weight = op.weighting(name, process).at((torch.arange(1000) + 0.5) / 1000)
        weight = bar_means(weight.clamp(max=float(weight.quantile(0.99))), BINS)
        table = found.choices[-1].masses
        assert objective(flat * weight, table) < objective(flat * weight, optimum(flat * weight)) * 1.02
        assert found.objective == name


def test_without_an_objective_it_is_what_the_run_trained_for():
    process, log = op.DDPM("linear"), history(torch.full((BINS,), 0.01, dtype=torch.float64))
    trained = suggest(process, log, weighting="min_snr", weighting_settings={"gamma": 1.0})
    named = suggest(process, log, objective=op.weighting("min_snr", process, gamma=1.0))
    own = suggest(process, log, weighting="min_snr", weighting_settings={"gamma": 1.0}, objective="own")
    assert torch.allclose(trained.share, named.share) and not torch.allclose(trained.share, own.share, atol=0.01)
    assert (trained.objective, own.objective) == ("min_snr", "own")


def test_it_does_not_matter_what_the_run_drew():
    process = op.Flow()
    drawn = masses_of(op.sampler("logit_normal", process, mean=1.0, std=1.4))
    exponent = 1 / POWER - 1 / 0.8  # at which POWER is exact
    uniform = suggest(process, history(SLOPE, exponent=exponent, spread=0.03)).choices[-1].masses
    skewed = suggest(process, history(SLOPE, drawn, exponent=exponent, spread=0.03)).choices[-1].masses
    assert torch.allclose(uniform, skewed, rtol=0.1)  # of draws that differ by a factor of 47


def test_a_flat_profile_wants_uniform():
    process, flat = op.DDPM("linear"), torch.full((BINS,), 0.01, dtype=torch.float64)
    found = suggest(process, history(flat))
    assert found.keep and "worth its trouble" in found.reason
    assert float((found.choices[-1].masses * BINS - 1).abs().max()) < 0.1
    drawn = masses_of(op.sampler("beta", process, a=1.0, b=2.5))
    away = suggest(process, history(flat, drawn))
    assert away.choice.name == "uniform" and away.choice.efolds > LEAST_EFOLDS


def test_what_is_as_good_already_is_kept():
    process = op.Flow()
    drawn = masses_of(op.sampler("logit_normal", process))
    left = 0.01 * (drawn * BINS).pow(1 / POWER)
    found = suggest(process, history(left, drawn, exponent=1 / POWER - 1 / 0.8))
    assert found.keep


def test_too_little_evidence_is_no_suggestion():
    process = op.DDPM("linear")
    short = suggest(process, history(SLOPE, steps=500))
    assert short.keep and "10 records" in short.reason
    noisy = suggest(process, history(SLOPE, batch=8, spread=10.0))
    assert noisy.keep and "two standard errors" in noisy.reason and noisy.measured < 0.6
    nothing = suggest(process, history(torch.zeros(BINS, dtype=torch.float64)))
    assert nothing.keep and nothing.measured < 0.6


def test_the_error_of_a_fall_is_how_far_it_is_off():
    """Over many runs that differ in their noise alone, falls scatter by what each says its error is."""
    profiles = [from_records(history(SLOPE, spread=1.0, seed=seed)) for seed in range(40)]
    falls, errors = (torch.stack([getattr(p, name) for p in profiles]) for name in ("fall", "error"))
    assert float((falls.std(dim=0) / errors.mean(dim=0)).mean()) == pytest.approx(1, abs=0.15)


def test_two_points_of_a_run_show_the_same_as_its_log():
    random = torch.Generator().manual_seed(0)
    shared = torch.randn(BINS, 200, generator=random, dtype=torch.float64)  # the same examples, noise levels and noise
    left = SLOPE[:, None]
    before, after = (left * n**-1.0 + 0.1 + 0.1 * shared for n in (0.5, 1.0))
    before = before + 1e-4 * torch.randn(BINS, 200, generator=random, dtype=torch.float64)
    uniform = torch.full((BINS,), 1 / BINS, dtype=torch.float64)
    profile = from_losses(before, after, growth=2.0, drawn=uniform, source="two points")
    assert torch.allclose(profile.fall, SLOPE / math.log(2), rtol=0.1)
    assert float(profile.error.mean()) == pytest.approx(1e-4 / math.sqrt(200) / math.log(2), rel=0.1)
    found = suggest(op.Flow(), profile)
    assert objective(SLOPE, found.choices[-1].masses) < objective(SLOPE, optimum(SLOPE)) * 1.02


@pytest.mark.parametrize("process", PROCESSES, ids=repr)
def test_densities_of_families_are_those_of_their_samplers(process):
    for family in families(process):
        grid = family.grid()
        picked = grid[torch.linspace(0, len(grid) - 1, 5).long()]
        for values, masses in zip(picked, family.masses(process, picked, BINS), strict=True):
            settings = dict(zip(family.settings, values.tolist(), strict=True))
            if family.of_process:
                shifted = op.Flow(shift=settings["shift"])
                v = (torch.arange(200_000, dtype=torch.float64) + 0.5) / 200_000
                u = process.axis(shifted.time(v))
                expected = torch.histc(u, BINS, 0, 1) / len(v)
            else:
                expected = masses_of(op.sampler(family.sampler, process, **settings))
            # Discrete timesteps cut the noise axis into cells, whose edges bins need not meet.
            tolerance = 1e-4 if process.steps is None or family.sampler != "log_normal" else 1e-3
            assert torch.allclose(masses, expected, atol=tolerance), (family.name, settings)


def test_the_weighting_that_evens_out_the_gradient_gains():
    uniform = torch.full((BINS,), 1 / BINS, dtype=torch.float64)
    level = torch.logspace(0, -3, BINS, dtype=torch.float64)
    one = torch.ones_like(level)
    even = level.rsqrt()
    most = efolds_of_weighting(uniform, uniform, level, even, one)
    assert most > 0
    assert efolds_of_weighting(uniform, uniform, level, 7 * even, one) == pytest.approx(most)  # a scale changes nothing
    for other in (even.square(), even.sqrt(), 1 / even):
        assert efolds_of_weighting(uniform, uniform, level, other, one) < most
    assert efolds_of_weighting(uniform, uniform, one, even, one) < 0
    assert efolds_of_weighting(uniform, uniform, level, even, even) == 0


def test_a_weighting_is_suggested_where_it_gains_and_the_own_kept_where_not():
    process = op.DDPM("linear")
    weight = bar_means(op.weighting("p2", process, gamma=0.5).at((torch.arange(1000) + 0.5) / 1000), BINS)
    rows = history(SLOPE, floor=0.0)  # a loss that falls as much as p2's weight says gradients are even
    for record in rows:
        record["bins"]["raw_loss"] = (torch.tensor(record["bins"]["raw_loss"]) + 0.05 / weight.square()).tolist()
    found = suggest(process, rows)
    assert found.weighting == ("p2", {"gamma": 0.5}) and found.weighting_efolds > LEAST_EFOLDS
    kept = suggest(process, rows, objective="own", weighting="p2", weighting_settings={"gamma": 0.5})
    assert kept.weighting == ("p2", {"gamma": 0.5}) and kept.weighting_efolds == 0
    even = suggest(process, history(SLOPE, floor=1.0))
    assert even.weighting == ("none", {})


def test_lines_for_other_trainers_draw_the_same_noise_levels():
    torch.manual_seed(0)
    count = 200_000
    for process in (op.DDPM("linear"), op.Flow(shift=3.0)):
        for choice in suggest(process, history(SLOPE)).choices:
            for trainer, line in elsewhere(choice, process):
                if trainer != "a loop of your own":
                    continue
                drawn = {"B": count, "torch": torch}
                exec(line, drawn)
                u = process.axis(drawn["t"])
                seen = torch.histc(u.double(), BINS, 0, 1) / count
                assert torch.allclose(seen, choice.masses, atol=0.005), line
    process = op.EDM()
    choice = next(c for c in suggest(process, history(SLOPE)).choices if c.name == "log_normal")
    lines = dict(elsewhere(choice, process))
    exec(lines["a loop of your own"], drawn := {"B": count, "torch": torch})
    seen = torch.histc(process.axis(drawn["sigma"]).double(), BINS, 0, 1) / count
    assert torch.allclose(seen, choice.masses, atol=0.005)
    mean, std = choice.settings["mean"], choice.settings["std"]
    assert lines["EDM, EDM2 (training loss)"] == f"P_mean={mean:g}, P_std={std:g}"


def test_the_flags_for_diffusers_draw_the_same_noise_levels_from_its_own_scheduler():
    training = pytest.importorskip("diffusers.training_utils")
    from diffusers import FlowMatchEulerDiscreteScheduler

    process = op.Flow(shift=3.0)
    choice = next(c for c in suggest(process, history(SLOPE)).choices if c.name == "logit_normal")
    assert choice.settings["mean"] < -0.25, "a mean of 0 would hide a wrong sign"
    lines = dict(elsewhere(choice, process))
    words = lines["diffusers' flow scripts (scheduler shift 3)"].split()
    given = dict(zip(words[::2], words[1::2], strict=True))
    torch.manual_seed(0)
    u = training.compute_density_for_timestep_sampling(
        given["--weighting_scheme"], 200_000, float(given["--logit_mean"]), float(given["--logit_std"]), 1.29
    )
    scheduler = FlowMatchEulerDiscreteScheduler(shift=3.0)  # as examples/dreambooth/train_dreambooth_sd3.py uses it
    t = scheduler.timesteps[(u * scheduler.config.num_train_timesteps).long()].double() / 1000
    assert torch.allclose(torch.histc(process.axis(t), BINS, 0, 1) / len(t), choice.masses, atol=0.006)
    words = lines["sd-scripts"].split()
    given = dict(zip(words[::2], words[1::2], strict=True))
    t = torch.sigmoid(torch.randn(200_000, dtype=torch.float64) * float(given["--sigmoid_scale"]))
    shift = float(given["--discrete_flow_shift"])
    t = t * shift / (1 + (shift - 1) * t)
    assert torch.allclose(torch.histc(process.axis(t), BINS, 0, 1) / len(t), choice.masses, atol=0.006)


def test_a_bin_without_finite_losses_is_left_out_and_not_guessed():
    rows = history(SLOPE)
    for record in rows:
        record["bins"]["raw_loss"][19] = None
        record["bins"]["count"][19] = 0
    rows[7]["bins"]["raw_loss"][3] = math.nan
    found = suggest(op.Flow(), rows)
    assert all(math.isfinite(choice.efolds) for choice in found.choices)
    assert float(found.profile.drawn[19]) == 0 and bool(torch.isfinite(found.share).all())


def test_wrong_logs_are_refused():
    process, rows = op.Flow(), history(SLOPE, steps=1000)
    with pytest.raises(ValueError, match="no training record among 1"):
        suggest(process, [{"kind": "validation", "step": 5}])
    with pytest.raises(ValueError, match="order of their steps"):
        suggest(process, rows[::-1])
    with pytest.raises(ValueError, match=r"\[4, 20\] bins"):
        suggest(process, [*rows, *history(SLOPE[:4], steps=1050)[-1:]])
    with pytest.raises(ValueError, match="min_snr"):
        suggest(process, rows, objective="min_snrr")
    with pytest.raises(ValueError, match="growth=1"):
        from_losses(torch.ones(4, 2), torch.ones(4, 2), growth=1.0, drawn=torch.ones(4), source="")
