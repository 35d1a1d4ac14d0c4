"""A density kept to a stretch of the noise axis: what is drawn, what it means, and what is refused."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

import opportune as op

DDPM = op.DDPM("linear", steps=1000)


@pytest.mark.parametrize("inner", ["uniform", "logit_normal", "speed", "mixture"])
def test_it_is_the_density_within_cut_and_scaled_up(inner: str) -> None:
    settings = {"of": "beta"} if inner == "mixture" else {}
    cut = op.sampler("within", DDPM, of=inner, of_settings=settings, low=0.2, high=0.8).probs()
    whole = op.sampler(inner, DDPM, **settings).probs()
    assert not bool(cut[:200].any()) and not bool(cut[800:].any())
    torch.testing.assert_close(cut[200:800], whole[200:800] / whole[200:800].sum())


def test_timesteps_are_those_of_the_stretch_and_the_ends_are_not_short_of_draws() -> None:
    sampler = op.sampler("within", op.DDPM(steps=10), low=0.2, high=0.8)
    counts = torch.bincount(sampler.draw(60_000).t, minlength=10)
    assert counts[[0, 1, 8, 9]].tolist() == [0] * 4
    assert float((counts[2:8] - 10_000).abs().max()) < 500
    flow = op.sampler("within", op.Flow(shift=3.0), low=0.25, high=0.5).draw(5000).u
    assert float(flow.min()) >= 0.25 and float(flow.max()) < 0.5


@pytest.mark.parametrize("wrap", ["stratified", "low_discrepancy"])
def test_strata_fill_the_stretch_on_either_side_of_the_cut(wrap: str) -> None:
    process = op.DDPM(steps=100)
    for sampler in (
        op.sampler(wrap, process, of="within", of_settings={"low": 0.2, "high": 0.7}),
        op.sampler("within", process, of=wrap, low=0.2, high=0.7),
    ):
        assert sorted(sampler.draw(50).t.tolist()) == list(range(20, 70))


def test_unbiased_is_the_processs_own_objective_on_the_stretch() -> None:
    with pytest.warns(UserWarning, match="unbiased=True cannot hold for Within outside its stretch"):
        sampler = op.sampler("within", DDPM, of="logit_normal", low=0.2, high=0.8, unbiased=True)
    draw = sampler.draw(200_000)
    wanted = (0.8**3 - 0.2**3) / 3  # the integral of u^2 over the stretch
    assert float((draw.correction * draw.u**2).mean()) == pytest.approx(wanted, rel=0.01)


def test_what_a_learner_within_aims_at_is_scaled_up_too() -> None:
    process = op.DDPM(steps=100)
    sampler = op.sampler("within", process, of="adaptive", of_settings={"warmup_steps": 8}, low=0.3, high=0.9)
    for step in range(80):
        draw = sampler.draw(64)
        with sampler.watch(draw, (2 - draw.u) * (1 + 3 / (1 + step)) * draw.u):
            pass
    draw = sampler.draw(100_000)
    assert float(draw.correction.std()) > 0.01 and float(draw.correction.mean()) == pytest.approx(1, abs=0.01)
    assert int(draw.t.min()) == 30 and int(draw.t.max()) == 89


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"low": 0.5, "high": 0.5}, r"high=0.5 is outside the allowed range \(0.5, 1\]"),
        ({"low": 1.0}, r"low=1 is outside the allowed range \[0, 1\)"),
        ({"low": 0.5001, "high": 0.5002}, "leave none of the 1000 timesteps"),
        ({"of": "table", "of_settings": {"density": [1.0, 0.0]}, "low": 0.6}, "leave nothing to draw: Given"),
        ({"of": "kim", "high": 0.5}, "of=Kim gives each example a density of its own"),
    ],
)
def test_what_cannot_be_cut_is_refused(settings: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        op.sampler("within", DDPM, **settings)


def test_the_whole_axis_is_no_stretch() -> None:
    with pytest.warns(UserWarning, match="low=0 and high=1 have no effect"):
        op.sampler("within", DDPM, of="beta")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        op.sampler("within", DDPM, of="beta", high=0.999)


def test_a_density_that_leaves_the_stretch_leaves_it_uniform() -> None:
    phases = {"phases": [(0, "uniform"), (1, "table", {"density": [1.0, 0.0]})]}
    sampler = op.sampler("within", op.DDPM(steps=10), of="phases", of_settings=phases, low=0.5)
    assert int(sampler.draw(100).t.min()) >= 5
    assert torch.bincount(sampler.draw(5000).t, minlength=10)[5:].min() > 900
