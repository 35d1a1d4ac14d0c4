"""The trace of the gradient's covariance: against brute force, against the truth at one noise level, and its error."""

from __future__ import annotations

import pytest
import torch
from tests.diagnostics.models import Recorder, data, toy
from torch import nn

import opportune as op
from opportune.diagnostics import gradient_variance
from opportune.objective import Objective

PROCESS = op.DDPM("linear", steps=100)
ONE_LEVEL = op.DDPM(alphas_cumprod=torch.tensor([0.4], dtype=torch.float64))


def flat_gradient(model, x0, noise, t):
    """By hand: d MSE of one example / d parameters as one vector."""
    bars = PROCESS.alphas_cumprod[t].float()[:, None]
    loss = (model(bars.sqrt() * x0 + (1 - bars).sqrt() * noise, t) - noise).square().mean()
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))]).double()


def test_equals_brute_force_over_its_own_pairs():
    made = toy(PROCESS)
    objective = Recorder(made.model, PROCESS, op.weighting("p2", PROCESS))
    found = gradient_variance(objective, data(), bins=3, pairs=4)
    model = objective.model.eval()
    gradients = torch.stack([flat_gradient(model, x0, draw.noise, draw.t) for x0, draw, _ in objective.asked])
    g, h = gradients[0::2].reshape(3, 4, -1), gradients[1::2].reshape(3, 4, -1)
    scatter, inner = (g - h).square().sum(dim=-1) / 2, (g * h).sum(dim=-1)
    t = torch.cat([draw.t for _, draw, _ in objective.asked])
    assert torch.equal(t[0::2], t[1::2]), "both of a pair at one noise level"
    bars = PROCESS.alphas_cumprod[t[0::2]]
    weight = (1 / (1 + bars / (1 - bars))).reshape(3, 4)
    torch.testing.assert_close(found.variance, scatter.mean(dim=1), rtol=1e-4, atol=0)
    torch.testing.assert_close(found.variance_error, scatter.std(dim=1) / 2, rtol=1e-4, atol=0)
    torch.testing.assert_close(found.weighted, (weight**2 * scatter).mean(dim=1), rtol=1e-4, atol=0)
    torch.testing.assert_close(found.mean_square, inner.mean(dim=1), rtol=1e-3, atol=1e-6)


def test_pairs_are_of_two_examples_with_noise_of_their_own_and_use_all_of_the_batch():
    made = toy(PROCESS)
    objective = Recorder(made.model, PROCESS)
    gradient_variance(objective, data(), bins=1, pairs=8)
    rows = [int((data() == x0).all(dim=1).nonzero()) for x0, _, _ in objective.asked]
    assert sorted(rows) == list(range(16))
    noise = torch.cat([draw.noise for _, draw, _ in objective.asked])
    assert (torch.cdist(noise, noise) + 1e9 * torch.eye(16)).min() > 0.01


def test_finds_the_true_trace_and_says_how_surely():
    """At one noise level, against the sample covariance of 6,000 gradients; the errors against the scatter of runs."""
    objective = toy(ONE_LEVEL)
    model = objective.model.eval()
    x0, noise = data(6000, seed=5), torch.randn(6000, 4)
    x_t = 0.4**0.5 * x0 + 0.6**0.5 * noise

    def loss(parameters, x, eps):
        output = torch.func.functional_call(model, parameters, (x[None], torch.zeros(1, dtype=torch.int64)))
        return (output - eps[None]).square().mean()

    parameters = {name: p.detach() for name, p in model.named_parameters()}
    made = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(parameters, x_t, noise)
    gradients = torch.cat([g.flatten(1) for g in made.values()], dim=1).double()
    trace, square = gradients.var(dim=0).sum(), gradients.mean(dim=0).square().sum()

    runs = [gradient_variance(objective, data(64, seed=100 + s), bins=1, pairs=16, seed=s) for s in range(24)]
    for name, truth in (("variance", trace), ("mean_square", square)):
        values = torch.cat([getattr(run, name) for run in runs])
        errors = torch.cat([getattr(run, f"{name}_error") for run in runs])
        assert abs(values.mean() - truth) < 4 * values.std() / 24**0.5 and values.std() < 0.5 * truth
        assert 0.6 < errors.mean() / values.std() < 1.6, "the error bars are as wide as the scatter"


def test_a_gradient_that_only_the_noise_level_changes_has_no_variance():
    """Averaged over a bin, the variance is that at each level; differences between levels are not scatter."""

    class OfTime(nn.Module):
        def __init__(self):
            super().__init__()
            self.theta = nn.Parameter(torch.ones(1))

        def forward(self, x, time):
            return (self.theta * time.float())[:, None].expand_as(x)

    process = op.DDPM("linear", steps=100, prediction="x0")
    found = gradient_variance(op.objective(OfTime(), process), torch.full((8, 4), 0.5), bins=2, pairs=4)
    assert float(found.variance.abs().max()) == 0
    assert float(found.mean_square.min()) > 1


def test_weighting_counts_squared():
    weighting = op.weighting("vlb", ONE_LEVEL)
    weight = float(weighting(torch.zeros(1, dtype=torch.int64)))
    assert abs(weight - 1) > 0.1
    model = toy(ONE_LEVEL).model
    found = gradient_variance(Objective(model, ONE_LEVEL, weighting), data(), bins=1, pairs=4)
    torch.testing.assert_close(found.weighted, weight**2 * found.variance)
    torch.testing.assert_close(found.weighted_error, weight**2 * found.variance_error)


def test_leaves_gradients_modes_and_streams_alone():
    objective = toy(PROCESS)
    objective.model.train()
    objective.losses(data(), op.sampler("uniform", PROCESS).draw(16)).mean().backward()
    before, stream = [p.grad.clone() for p in objective.model.parameters()], torch.get_rng_state()
    gradient_variance(objective, data(), bins=2, pairs=2)
    assert all(torch.equal(p.grad, old) for p, old in zip(objective.model.parameters(), before, strict=True))
    assert objective.model.training and torch.equal(torch.get_rng_state(), stream)


def test_wrong_inputs():
    with pytest.raises(ValueError, match="pairs=1"):
        gradient_variance(toy(PROCESS), data(), pairs=1)
    with pytest.raises(ValueError, match="1 example; give 2"):
        gradient_variance(toy(PROCESS), data(1))
    with pytest.raises(ValueError, match=r"no nn\.Module"):
        gradient_variance(op.objective(lambda x, t: x, PROCESS), data())
    frozen = toy(PROCESS)
    frozen.model.requires_grad_(False)
    with pytest.raises(ValueError, match="no parameter that requires a gradient"):
        gradient_variance(frozen, data())
