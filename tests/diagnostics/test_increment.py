"""Increments against simulation, and the areas against the published boundary."""

from __future__ import annotations

import pytest
import torch

import opportune as op
from opportune.diagnostics import process_increment


@pytest.mark.parametrize("schedule", ["linear", "cosine", "quadratic"])
def test_mean_and_variances_of_a_simulated_increment(schedule):
    process = op.DDPM(schedule, steps=20)
    found = process_increment(process)
    source = torch.Generator().manual_seed(0)
    count, x0 = 200_000, 1.5
    bars, betas = process.alphas_cumprod, process.betas

    def normal():
        return torch.randn(count, generator=source, dtype=torch.float64)

    for step in (0, 9, 18):
        here = bars[step].sqrt() * x0 + (1 - bars[step]).sqrt() * normal()
        apart = bars[step + 1].sqrt() * x0 + (1 - bars[step + 1]).sqrt() * normal()
        chained = (1 - betas[step + 1]).sqrt() * here + betas[step + 1].sqrt() * normal()
        # The standard error of a variance of n normal values is sqrt(2 / n) of it: 0.3 %.
        assert float((apart - here).var()) == pytest.approx(float(found.variance[step]), rel=0.015)
        assert float((chained - here).var()) == pytest.approx(float(found.step_variance[step]), rel=0.015)
        spread = float((apart - here).std()) / count**0.5
        assert float((apart - here).mean()) == pytest.approx(x0 * float(found.mean[step]), abs=4 * spread)


def test_the_papers_psi():
    process = op.DDPM("linear")
    bars, alphas = process.alphas_cumprod, 1 - process.betas
    torch.testing.assert_close(process_increment(process).variance, 2 - bars[:-1] * (1 + alphas[1:]))


def test_areas_of_the_linear_schedule_reproduce_the_published_boundary():
    found = process_increment(op.DDPM("linear"))
    assert found.tau == 0.7
    growth = found.growth
    turn = round(found.peak * 1000)
    assert bool((growth[:turn].diff() > 0).all()) and bool((growth[turn:].diff() < 0).all())
    assert found.areas == {
        "acceleration": (0.0, found.peak),
        "deceleration": (found.peak, 0.7),
        "convergence": (0.7, 1.0),
    }


@pytest.mark.parametrize("process", [op.DDPM("cosine"), op.DDPM("quadratic"), op.DDPM("scaled_linear"), op.VP()])
def test_convergence_begins_where_the_sampler_draws_less(process):
    found = process_increment(process, levels=process.cells)
    assert found.tau == op.sampler("speed", process).boundary


@pytest.mark.parametrize("process", [op.EDM(), op.Flow(shift=3.0), op.VE()], ids=repr)
def test_other_processes_are_compared_at_equal_snr(process):
    found = process_increment(process, levels=500)
    assert found.levels == 500 and found.u.shape == (499,)
    assert bool((found.variance > 0).all()) and bool((found.variance <= 2).all())
    assert bool((found.step_variance >= 0).all())
    low, high = zip(*found.areas.values(), strict=True)
    assert low[0] == 0 and high[-1] == 1 and low[1:] == high[:-1]


def test_growth_is_a_slope_over_the_whole_axis():
    found = process_increment(op.DDPM("cosine"))
    assert float(found.growth.mean()) == pytest.approx(1, abs=0.02)


def test_too_few_timesteps():
    with pytest.raises(ValueError, match="2 timesteps"):
        process_increment(op.DDPM("linear", steps=2))
