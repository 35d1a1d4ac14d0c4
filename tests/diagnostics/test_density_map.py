"""Bars are exact averages of what the sampler itself declares."""

from __future__ import annotations

import pytest
import torch

import opportune as op
from opportune.diagnostics import density_map
from opportune.diagnostics.density_map import bar_means
from opportune.testing.toy import train

BARS = 7  # divides neither 1000 timesteps nor 4096 cells, so bars cut through cells
PROCESSES = [op.DDPM("linear"), op.DDPM("cosine", steps=5, prediction="v"), op.Flow(shift=3.0), op.EDM(), op.VP()]


def averaged(values, process):
    """Mean per bar of a function of u, by looking at it where no bar and no cell can hide: ``cells`` points per bar."""
    points = BARS * process.cells
    u = (torch.arange(points, dtype=torch.float64) + 0.5) / points
    return values(u).double().reshape(BARS, -1).mean(dim=1)


@pytest.mark.parametrize("process", PROCESSES, ids=repr)
@pytest.mark.parametrize("name", ["uniform", "logit_normal", "log_normal", "speed", "kim"])
def test_density_is_the_samplers_own_averaged_per_bar(name, process):
    sampler = op.sampler(name, process)
    seen = density_map(sampler, bars=BARS)
    torch.testing.assert_close(seen.density, averaged(sampler.density, process), rtol=1e-5, atol=1e-6)
    assert float(seen.density.mean()) == pytest.approx(1, abs=1e-4)
    torch.testing.assert_close(seen.weighting, torch.ones(BARS, dtype=torch.float64))
    torch.testing.assert_close(seen.effective, seen.density, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("unbiased", [False, True])
@pytest.mark.parametrize("process", PROCESSES[:3], ids=repr)
def test_weighting_and_effective_density(process, unbiased):
    sampler = op.sampler("beta", process, a=2.0, b=3.0, unbiased=unbiased)
    weighting = op.weighting("min_snr", process)
    seen = density_map(sampler, weighting, bars=BARS)

    def weight(u):  # constant within a cell, as the density is
        middle = ((u * process.cells).floor() + 0.5) / process.cells
        return weighting(process.time(middle))

    product = averaged(lambda u: weight(u) * (1 if unbiased else sampler.density(u)), process)
    torch.testing.assert_close(seen.weighting, averaged(weight, process), rtol=1e-5, atol=1e-9)
    torch.testing.assert_close(seen.effective, product / product.mean(), rtol=1e-4, atol=1e-9)
    assert seen.unbiased is unbiased


def test_the_last_bar_is_the_noisiest():
    seen = density_map(op.sampler("table", op.DDPM(steps=4), density=[0.0, 0.0, 1.0, 3.0]), bars=2)
    assert seen.density.tolist() == pytest.approx([0, 2])


def test_bars_finer_than_cells_and_as_coarse_as_all():
    cells = torch.tensor([1.0, 3.0], dtype=torch.float64)
    assert bar_means(cells, 4).tolist() == pytest.approx([1, 1, 3, 3])
    assert bar_means(cells, 3).tolist() == pytest.approx([1, 2, 3])
    assert bar_means(cells, 1).tolist() == pytest.approx([2])


def test_a_schedule_is_shown_at_the_step_asked_for():
    process = op.DDPM(steps=20)
    sampler, lived = (op.sampler("clts", process, ramp_steps=100, accumulation=2) for _ in range(2))
    for _ in range(2 * 50):
        lived.draw(1)
    assert lived.step == 50
    there = density_map(sampler, bars=BARS, at_step=50)
    assert there.step == 50
    torch.testing.assert_close(there.density, averaged(lived.density, process), rtol=1e-6, atol=1e-9)
    assert torch.equal(density_map(lived, bars=BARS).density, there.density)
    assert not torch.allclose(density_map(sampler, bars=BARS).density, there.density)


@pytest.mark.parametrize(
    "name, settings",
    [
        ("phases", {"phases": [(0, "logit_normal"), (30, "uniform")]}),
        ("stratified", {"of": "clts"}),
        ("kim", {}),
        ("clts", {"ramp_steps": 100}),
    ],
)
def test_looking_changes_nothing(name, settings):
    process = op.DDPM(steps=20)
    looked, left = (op.sampler(name, process, **settings) for _ in range(2))
    for sampler in (looked, left):
        for _ in range(25):
            sampler.draw(torch.ones(8, 3))
    density_map(looked, bars=BARS, at_step=1000)
    u = torch.linspace(0, 0.99, 11)
    expected = left.density(u)
    states = [sampler.state_dict() for sampler in (looked, left)]
    torch.testing.assert_close(*states, rtol=0, atol=0)
    assert torch.equal(looked.density(u), expected)
    for _ in range(10):  # past the change of phase
        a, b = (sampler.draw(torch.ones(8, 3)) for sampler in (looked, left))
        assert torch.equal(a.u, b.u) and torch.equal(a.density, b.density)


def test_it_says_what_kind_of_method_it_is():
    process = op.DDPM(steps=20)
    kinds = {
        name: density_map(op.sampler(name, process, **settings))
        for name, settings in {
            "uniform": {},
            "clts": {},
            "phases": {"phases": [(0, "uniform"), (9, "speed")]},
            "kim": {},
            "stratified": {"of": "adaptive"},
        }.items()
    }
    assert {name for name, seen in kinds.items() if seen.learns} == {"kim", "stratified"}
    assert {name for name, seen in kinds.items() if seen.scheduled} == {"clts", "phases"}
    late = density_map(op.sampler("clts", process), at_step=10**6)
    assert late.scheduled  # also when the ramp is long over
    learned = op.weighting("learned_uncertainty", process)
    assert density_map(op.sampler("uniform", process), learned).weighting_learns
    assert not density_map(op.sampler("uniform", process), op.weighting("p2", process)).weighting_learns


def test_a_trained_sampler_shows_what_it_has_learned():
    process = op.DDPM(steps=20)
    sampler = op.sampler("adaptive", process, warmup_steps=10)
    before = density_map(sampler, bars=BARS)
    train(sampler, process, 60)
    after = density_map(sampler, bars=BARS)
    assert not torch.allclose(before.density, after.density, rtol=0.01)
    torch.testing.assert_close(after.density, averaged(sampler.density, process), rtol=1e-5, atol=1e-6)


def test_what_cannot_be_shown_is_refused():
    process = op.DDPM(steps=20)
    sampler = op.sampler("uniform", process)
    with pytest.raises(ValueError, match="another process"):
        density_map(sampler, op.weighting("p2", op.DDPM(steps=20)))
    with pytest.raises(ValueError, match="bars=0"):
        density_map(sampler, bars=0)
    with pytest.raises(ValueError, match="at_step=-1"):
        density_map(sampler, at_step=-1)
    ends_in_noise = op.DDPM(steps=20, zero_terminal_snr=True)
    with pytest.raises(ValueError, match="no finite weight"):
        density_map(op.sampler("uniform", ends_in_noise), op.weighting("debiased", ends_in_noise))
