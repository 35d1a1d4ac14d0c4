"""Gradient variance on a model whose gradients are known in closed form."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import opportune as op
from opportune.testing import SAMPLER_CHECKS

SIZE = 300  # weights: one direction of the gradient says little about all
DDPM = op.DDPM("linear", steps=100)
SHORT = {"bins": 10, "every_steps": 2, "measured_bins": 5, "warmup_steps": 10, "floor": 0.0}


class Line(nn.Module):
    """loss_i = sum_p theta_p (mean(u_i) + spread(u_i) z_ip), z standard normal: that mean and spread of gradient."""

    def __init__(self, mean, spread):
        super().__init__()
        self.theta = nn.Parameter(torch.ones(SIZE))
        self.mean, self.spread = mean, spread

    def probe(self, draw):
        return (self.mean(draw.u)[:, None] + self.spread(draw.u)[:, None] * draw.noise) @ self.theta


def run(sampler, model, steps, batch=32):
    for _ in range(steps):
        draw = sampler.draw(torch.zeros(batch, SIZE))
        with sampler.watch(draw, torch.zeros(batch), model.probe, model=model):
            pass
    return sampler.probs().reshape(10, -1).sum(dim=1)


def middles():
    return (torch.arange(10, dtype=torch.float64) + 0.5) / 10


def spread_of(u):
    return 0.2 + u**2


def mean_of(u):
    return 2 - 2 * u


def test_published_form_is_proportional_to_the_variance_alone():
    """The mean gradient must not enter: it is ten times the spread at u = 0."""
    probs = run(op.sampler("gradient_variance", DDPM, **SHORT), Line(mean_of, spread_of), 40)
    expected = spread_of(middles()) ** 2
    torch.testing.assert_close(probs, expected / expected.sum(), rtol=0.15, atol=0.01)


def test_unbiased_form_is_proportional_to_the_root_of_the_mean_square():
    sampler = op.sampler("gradient_variance", DDPM, unbiased=True, **{**SHORT, "floor": 0.01})
    probs = run(sampler, Line(mean_of, spread_of), 40)
    expected = (mean_of(middles()) ** 2 + spread_of(middles()) ** 2).sqrt()
    torch.testing.assert_close(probs, 0.99 * expected / expected.sum() + 0.001, rtol=0.1, atol=0.005)
    draw = sampler.draw(torch.zeros(100, SIZE))
    torch.testing.assert_close(draw.correction * draw.density, torch.ones(100))


def test_the_weight_of_the_objective_enters_squared_in_the_variance():
    process = op.DDPM("linear", steps=100, prediction="x0")
    weight = op.weighting("soft_min_snr", process).at((torch.arange(100) + 0.5) / 100)
    sampler = op.sampler("gradient_variance", process, weighting="soft_min_snr", **SHORT)
    probs = run(sampler, Line(torch.zeros_like, torch.ones_like), 40)
    expected = weight.square().reshape(10, 10).mean(dim=1)
    torch.testing.assert_close(probs, expected / expected.sum(), rtol=0.2, atol=0.01)


def test_a_measurement_costs_one_forward_pass_per_bin_and_gives_the_losses_with_it():
    model, seen = Line(mean_of, spread_of), []

    def probe(draw):
        seen.append(model.probe(draw))
        return seen[-1]

    sampler = op.sampler("gradient_variance", DDPM, every_steps=1, measured_bins=3)
    with sampler.watch(sampler.draw(torch.zeros(8, SIZE)), None, probe, model=model):
        pass
    assert len(seen) == 3
    assert torch.equal(sampler.take_measured().before, torch.stack(seen))


def test_bins_are_measured_in_turn_and_within_their_edges():
    sampler = op.sampler("gradient_variance", DDPM, bins=10, every_steps=3, measured_bins=4)
    seen = []
    for _ in range(15):
        draw = sampler.draw(torch.zeros(64, SIZE))
        request = sampler.request(draw)
        if request is not None:
            assert (sampler.steps_watched + 1) % 3 == 0
            for probe in request.draws:
                bins = (probe.u.double() * 10).long()
                assert len(set(bins.tolist())) == 1
                assert float(probe.u.max() - probe.u.min()) > 0.08  # spread over the bin
                seen.append(int(bins[0]))
        sampler.steps_watched += 1
    assert seen == [index % 10 for index in range(20)]


def test_a_bin_whose_gradient_is_not_finite_takes_its_neighbours_value():
    sampler = op.sampler("gradient_variance", DDPM, **SHORT)
    broken = Line(torch.zeros_like, lambda u: torch.where((u >= 0.4) & (u < 0.5), math.nan, 1.0))
    probs = run(sampler, broken, 40)
    assert bool(torch.isfinite(probs).all())
    assert float(probs[4]) == pytest.approx(float(probs[3] + probs[5]) / 2, rel=1e-6)


def test_the_density_stays_uniform_through_the_warm_up_and_leaves_it_then():
    sampler, model = op.sampler("gradient_variance", DDPM, **SHORT), Line(mean_of, spread_of)
    torch.testing.assert_close(run(sampler, model, 9), torch.full((10,), 0.1, dtype=torch.float64))
    assert float(run(sampler, model, 1).max()) > 0.15


def test_more_bins_than_timesteps_become_as_many():
    sampler = op.sampler("gradient_variance", op.DDPM("linear", steps=3), every_steps=1, warmup_steps=2)
    assert sampler.bins == 3
    model = Line(mean_of, spread_of)
    for _ in range(6):
        draw = sampler.draw(torch.zeros(32, SIZE))
        with sampler.watch(draw, None, model.probe, model=model):
            pass
    assert not torch.allclose(sampler.probs(), torch.full((3,), 1 / 3, dtype=torch.float64))


def test_what_is_missing_is_named():
    model = Line(mean_of, spread_of)
    for message, batch, arguments in (
        ("probe is missing", 4, {}),
        ("model is missing", 4, {"probe": model.probe}),
    ):
        sampler = op.sampler("gradient_variance", DDPM, every_steps=1)
        draw = sampler.draw(torch.zeros(batch, SIZE))
        with pytest.raises(ValueError, match=message), sampler.watch(draw, **arguments):
            pass


@pytest.mark.parametrize("lost", ["detached", "another model"])
def test_losses_without_a_gradient_are_refused(lost):
    model, other = Line(mean_of, spread_of), Line(mean_of, spread_of)
    probe = other.probe if lost == "another model" else lambda draw: model.probe(draw).detach()
    sampler = op.sampler("gradient_variance", DDPM, every_steps=1)
    with (
        pytest.raises(ValueError, match="do not depend on the model's parameters"),
        sampler.watch(sampler.draw(torch.zeros(4, SIZE)), None, probe, model=model),
    ):
        pass


def test_a_single_example_is_left_out_with_one_warning():
    """The last batch of an epoch may hold one; halves of it cannot be compared."""
    model, sampler = Line(mean_of, spread_of), op.sampler("gradient_variance", DDPM, every_steps=1)
    with pytest.warns(UserWarning, match="2 or more") as caught:
        for _ in range(3):
            with sampler.watch(sampler.draw(torch.zeros(1, SIZE)), None, model.probe, model=model):
                pass
    assert len(caught) == 1 and sampler.steps_watched == 3
    assert float(sampler.variance.count.sum()) == 0 and bool(torch.isfinite(sampler.variance.sums).all())


@pytest.mark.parametrize("check", SAMPLER_CHECKS[4:9], ids=lambda check: check.__name__)
def test_conformance_past_the_warm_up(check):
    settings = {**SHORT, "floor": 0.05}
    check(lambda p, **common: op.sampler("gradient_variance", p, **settings, **common), op.DDPM("cosine", steps=20))
