"""SpeeD, CLTS, curriculum: the papers' formulas, how they transfer to other schedules, and what they do over time."""

from __future__ import annotations

import io
import math
import warnings
from typing import Any

import pytest
import torch
from tests.reference import samplers as reference

import opportune as op

DDPM = op.DDPM("linear", steps=1000)


def close(ours: torch.Tensor, wanted: list[float], rtol: float = 1e-9) -> None:
    torch.testing.assert_close(ours, torch.tensor(wanted, dtype=torch.float64), rtol=rtol, atol=1e-12)


def at_step(sampler: op.Sampler, step: int) -> op.Sampler:
    sampler.draws_made = step * sampler.accumulation
    return sampler


# ---- SpeeD -------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:SpeeD draws uniformly")
@pytest.mark.parametrize(("k", "tau"), [(5.0, 700), (2.0, 700), (1.0, 500), (5, 1), (10.0, 999), (0.5, 300)])
def test_speed_is_the_published_pmf(k: float, tau: int) -> None:
    close(op.sampler("speed", DDPM, k=k, tau=tau).probs(), reference.speed(1000, tau, k))


def test_speeds_published_ratios() -> None:
    probs = op.sampler("speed", DDPM).probs() * 1000
    assert float(probs[0]) == pytest.approx(1.316, abs=1e-3)
    assert float(probs[699]) == pytest.approx(1.316, abs=1e-3)
    assert 1 / float(probs[700]) == pytest.approx(3.8)


@pytest.mark.parametrize(
    ("schedule", "tau"), [("linear", 700), ("quadratic", 874), ("cosine", 946), ("scaled_linear", 966)]
)
def test_speeds_boundary_transfers_by_noise_level(schedule: str, tau: int) -> None:
    process = op.DDPM(schedule, steps=1000)
    sampler = op.sampler("speed", process)
    assert round(sampler.boundary * 1000) == tau
    assert process.alphas_cumprod[tau] <= 1 / 144 < process.alphas_cumprod[tau - 1]
    close(sampler.probs(), reference.speed(1000, tau, 5.0))


@pytest.mark.parametrize("process", [op.VP(), op.VE(), op.Flow(), op.Flow(shift=3.0), op.EDM()], ids=repr)
def test_speeds_boundary_in_continuous_time(process: op.Process) -> None:
    sampler = op.sampler("speed", process)
    below, above = sampler.boundary - 1 / 4096, sampler.boundary + 1 / 4096
    levels = process.log_snr(torch.tensor([below, min(above, 1.0)], dtype=torch.float64))
    assert levels[1] <= -math.log(143) <= levels[0]
    edge = sampler.boundary
    ratio = sampler.density(torch.tensor([edge / 2])) / sampler.density(torch.tensor([(1 + edge) / 2]))
    assert float(ratio) == pytest.approx(5.0, rel=1e-6)


def test_speeds_tau_as_a_share() -> None:
    half = op.sampler("speed", DDPM, tau=0.5)
    torch.testing.assert_close(half.probs(), op.sampler("speed", DDPM, tau=500).probs())
    flow = op.sampler("speed", op.Flow(), tau=0.3)
    assert float(flow.density(torch.tensor([0.2])) / flow.density(torch.tensor([0.8]))) == pytest.approx(5.0, rel=1e-6)


@pytest.mark.parametrize(
    ("schedule", "m"), [("linear", 642), ("quadratic", 829), ("cosine", 959), ("scaled_linear", 866), ("constant", 229)]
)
def test_speeds_dual_is_the_released_marginal(schedule: str, m: int) -> None:
    process = op.DDPM(schedule, steps=1000)
    sampler = op.sampler("speed", process, dual=True, tau=700)
    assert sampler._turn() == m
    close(sampler.probs(), reference.speed_dual(process.alphas_cumprod.tolist(), 700, 5.0))


def test_speeds_dual_has_the_measured_figures() -> None:
    linear = op.sampler("speed", DDPM, dual=True).probs()
    assert float(linear[:700].sum()) == pytest.approx(0.961, abs=5e-4)
    assert float(linear[999]) * 1000 == pytest.approx(0.132, abs=5e-4)
    single = op.sampler("speed", DDPM).probs()
    assert float(single[:700].sum()) == pytest.approx(0.921, abs=5e-4)
    assert float(single[999]) * 1000 == pytest.approx(0.263, abs=5e-4)
    cosine = op.sampler("speed", op.DDPM("cosine", steps=1000), dual=True, tau=700).probs()
    assert float(cosine[:700].sum()) == pytest.approx(0.79, abs=5e-3)


def test_speeds_dual_matches_pairs_drawn_one_by_one() -> None:
    """Draw t from P, mirror it, pool both: what the declared density promises, by simulation."""
    generator = torch.Generator().manual_seed(0)
    single = torch.tensor(reference.speed(1000, 700, 5.0), dtype=torch.float64)
    t = torch.multinomial(single, 400_000, replacement=True, generator=generator)
    pooled = torch.cat([t, torch.where(t < 642, 642 - t, t - 642)])
    counts = torch.bincount(pooled // 20, minlength=50).double() / len(pooled)
    declared = op.sampler("speed", DDPM, dual=True).probs().reshape(50, 20).sum(dim=1)
    torch.testing.assert_close(counts, declared, rtol=0.06, atol=0)


@pytest.mark.parametrize(
    ("process", "settings", "match"),
    [
        (DDPM, {"k": 0.0}, "k=0 is outside"),
        (DDPM, {"tau": 0}, "tau=0 is not allowed; give a whole number, 1 to 1000"),
        (DDPM, {"tau": 1001}, "tau=1001"),
        (DDPM, {"tau": 1.5}, "tau=1.5 is outside"),
        (DDPM, {"tau": "700"}, "tau='700'"),
        (op.Flow(), {"tau": 700}, "tau=700 is a timestep, but Flow has continuous time; give a share"),
        (op.VE(sigma_max=0.5), {"dual": True}, "dual=True cannot be used"),
        (op.DDPM("linear", steps=1), {"dual": True}, "dual=True needs a process of 2 or more"),
    ],
)
def test_speeds_bad_settings(process: op.Process, settings: dict[str, Any], match: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(ValueError, match=match):
            op.sampler("speed", process, **settings)


def test_speed_warns_where_it_can_have_no_effect() -> None:
    with pytest.warns(UserWarning, match="SpeeD draws uniformly: no timestep .* lies beyond its boundary tau"):
        sampler = op.sampler("speed", op.VE(sigma_max=5.0))
    assert float(sampler.density(torch.tensor([0.99]))) == pytest.approx(1.0)
    with pytest.warns(UserWarning, match="SpeeD draws uniformly: k=1"):
        op.sampler("speed", DDPM, k=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert float(op.sampler("speed", DDPM, k=1, dual=True).probs().std()) > 0


# ---- CLTS --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [0, 1, 500, 999, 1000, 50_000])
@pytest.mark.parametrize("std", [0.3, 0.5, 1.0])
def test_clts_is_the_papers_mixture_at_every_step(step: int, std: float) -> None:
    sampler = at_step(op.sampler("clts", DDPM, ramp_steps=1000, std=std), step)
    probs = sampler.probs()
    close(probs, reference.clts(1000, mean=0.3, std=std, step=step, ramp_steps=1000), rtol=1e-5)
    drawn = sampler.draw(64)
    torch.testing.assert_close(drawn.density.double(), probs[drawn.t] * 1000, rtol=1e-5, atol=0)


def test_cltss_bell_has_the_stated_height() -> None:
    final = at_step(op.sampler("clts", DDPM, ramp_steps=10), 10).probs() * 1000
    assert float(final[300]) == pytest.approx(1.24, abs=0.005)
    assert float(final[999]) == pytest.approx(0.46, abs=0.005)
    assert abs(int(final.argmax()) - 300) <= 1


@pytest.mark.parametrize(
    "process",
    [op.DDPM(name, steps=1000) for name in ("quadratic", "cosine", "scaled_linear")]
    + [op.DDPM("linear", steps=250), op.VP(), op.EDM(), op.Flow(), op.Flow(shift=3.0)],
    ids=repr,
)
def test_cltss_bell_sits_at_the_same_noise_level_on_every_process(process: op.Process) -> None:
    centre = op.sampler("clts", process).centre
    linear = DDPM.alphas_cumprod
    wanted = 0.5 * (torch.logit(linear[299]) + torch.logit(linear[300]))
    step = 1 / process.cells
    levels = process.log_snr(torch.tensor([centre - step, centre + step], dtype=torch.float64))
    assert levels[1] <= wanted <= levels[0]


def test_cltss_ramp_counts_optimizer_steps_and_is_clamped() -> None:
    sampler = op.sampler("clts", DDPM, ramp_steps=4, accumulation=3)
    seen = []
    for _ in range(18):
        seen.append(sampler.gamma)
        assert bool((sampler.draw(8).density > 0).all())
    assert seen == [0.0] * 3 + [0.25] * 3 + [0.5] * 3 + [0.75] * 3 + [1.0] * 6


def test_clts_resumes_in_the_middle_of_its_ramp() -> None:
    def make() -> op.Sampler:
        return op.sampler("clts", DDPM, ramp_steps=40, seed=3)

    sampler = make()
    for _ in range(17):
        sampler.draw(8)
    file = io.BytesIO()
    torch.save(sampler.state_dict(), file)
    file.seek(0)
    other = make()
    for _ in range(18):  # its table now stands where the restored one must go next: it must be made anew all the same
        other.draw(8)
    other.load_state_dict(torch.load(file, weights_only=True))
    torch.testing.assert_close(other.probs(), sampler.probs(), rtol=0, atol=0)
    close(other.probs(), reference.clts(1000, mean=0.3, std=0.5, step=17, ramp_steps=40), rtol=1e-5)
    assert all(torch.equal(sampler.draw(8).u, other.draw(8).u) for _ in range(60))


def test_clts_takes_its_ramp_from_the_run() -> None:
    assert op.sampler("clts", DDPM, total_steps=1000).ramp_steps == 800
    assert op.sampler("clts", DDPM, total_steps=1).ramp_steps == 1
    with pytest.warns(UserWarning, match=r"ramp_steps=50000 is longer than the run of 100 steps.*total_steps=100"):
        op.sampler("clts", DDPM).check_run(100)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        op.sampler("clts", DDPM, total_steps=100).check_run(100)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"ramp_steps": 0}, "ramp_steps=0"),
        ({"ramp_steps": 10, "total_steps": 10}, "both given; give one"),
        ({"total_steps": -1}, "total_steps=-1"),
        ({"mean": 1.2}, "mean=1.2"),
        ({"std": 0.0}, "std=0"),
    ],
)
def test_cltss_bad_settings(settings: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        op.sampler("clts", DDPM, **settings)


# ---- curriculum --------------------------------------------------------------------------------------------------


def test_curriculum_is_logit_normal_then_uniform() -> None:
    sampler = op.sampler("curriculum", DDPM, mean=0.5, std=0.7, switch_step=3, accumulation=2)
    first = op.sampler("logit_normal", DDPM, mean=0.5, std=0.7)
    for draw in range(10):
        early = draw < 6
        wanted = first.probs() if early else torch.full((1000,), 1e-3, dtype=torch.float64)
        torch.testing.assert_close(sampler.probs(), wanted)
        drawn = sampler.draw(16)
        torch.testing.assert_close(drawn.density, (wanted[drawn.t] * 1000).float(), rtol=1e-5, atol=0)


def test_curriculums_settings() -> None:
    assert op.sampler("curriculum", DDPM, total_steps=1000).switch_step == 500
    with pytest.raises(ValueError, match="both given"):
        op.sampler("curriculum", DDPM, switch_step=1, total_steps=10)
    with pytest.raises(ValueError, match="switch_step=0"):
        op.sampler("curriculum", DDPM, switch_step=0)
    with pytest.raises(ValueError, match="std=0 is outside"):
        op.sampler("curriculum", DDPM, std=0.0)
    with pytest.raises(ValueError, match=r"phases=\[\] is not a setting of sampler Curriculum"):
        op.sampler("curriculum", DDPM, phases=[])
    with pytest.warns(UserWarning, match="phase that starts at step 50000 never begins in a run of 100"):
        op.sampler("curriculum", DDPM).check_run(100)
