"""The learned weighting: its loss, its optimum, and what it leaves alone."""

import math

import pytest
import torch
from tests.reference import weightings as paper

import opportune as op


def test_loss_is_the_papers() -> None:
    process = op.EDM()
    weighting = op.weighting("learned_uncertainty", process)
    torch.nn.init.normal_(weighting.linear)
    sigma, losses = torch.tensor([0.01, 0.3, 1.0, 9.0]), torch.tensor([0.2, 0.5, 1.5, 0.1])
    u = weighting.uncertainty(sigma).tolist()
    w = [1.0] * 4  # EDM's weight on the F-target
    expected = paper.learned_uncertainty(losses.tolist(), u, w)
    assert float(weighting.apply_to(losses, sigma).mean().detach()) == pytest.approx(expected, rel=1e-5)
    assert max(u) - min(u) > 0.1, "u must vary with the noise level"
    torch.testing.assert_close(weighting(sigma), torch.tensor([math.exp(-x) for x in u]))


def test_starts_as_edms_weight() -> None:
    process = op.DDPM("linear", prediction="v")
    t = torch.arange(1000)
    assert torch.equal(op.weighting("learned_uncertainty", process)(t), op.weighting("edm", process)(t))


def test_weight_carries_no_gradient_and_the_loss_does() -> None:
    weighting = op.weighting("learned_uncertainty", op.Flow())
    t, losses = torch.rand(8), torch.rand(8, requires_grad=True)
    assert not weighting(t).requires_grad
    weighting.apply_to(losses, t).sum().backward()
    torch.testing.assert_close(losses.grad, weighting(t)), "the model sees the weight and nothing else"
    assert float(weighting.linear.grad.abs().sum()) > 0


@pytest.mark.parametrize("process", [op.EDM(), op.DDPM("linear", steps=100, prediction="v")], ids=repr)
def test_trained_it_gives_every_noise_level_equal_say(process: op.Process) -> None:
    """At the optimum u = ln E[w mse]: the weighted losses are 1 everywhere, where the raw ones differ 11-fold."""
    weighting = op.weighting("learned_uncertainty", process)
    optimizer = torch.optim.Adam(weighting.parameters(), lr=0.05)
    u = torch.linspace(0.05, 0.95, 64)
    t = process.time(u)
    raw = (0.1 + 5 * (u - 0.5) ** 2) / op.weighting("edm", process)(t)
    for _ in range(1500):
        optimizer.zero_grad()
        weighting.apply_to(raw, t).mean().backward()
        optimizer.step()
    torch.testing.assert_close(weighting(t) * raw, torch.ones(64), atol=0.12, rtol=0)
    torch.testing.assert_close(
        weighting.uncertainty(t).detach().exp(), op.weighting("edm", process)(t) * raw, atol=0.05, rtol=0.12
    )


def test_features_depend_on_the_seed_alone() -> None:
    a, b, c = (op.weighting("learned_uncertainty", op.EDM(), seed=s) for s in (1, 1, 2))
    torch.manual_seed(99)
    assert torch.equal(a.frequencies, b.frequencies) and torch.equal(a.phases, b.phases)
    assert not torch.equal(a.frequencies, c.frequencies)
    c.load_state_dict(a.state_dict())
    assert torch.equal(a.frequencies, c.frequencies), "a restart must not change u under the trained weights"


def test_trains_in_the_loop_beside_the_model() -> None:
    process = op.DDPM("linear", steps=50, prediction="v")
    weighting = op.weighting("learned_uncertainty", process)
    model = torch.nn.Linear(6, 6)
    objective = op.objective(lambda x, t: model(x), process, weighting)
    groups = [{"params": model.parameters()}, {"params": weighting.parameters(), "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-2)
    sampler = op.sampler("uniform", process)
    batches = (torch.randn(16, 6) for _ in range(5))
    records = list(op.training_steps(objective, sampler, optimizer, batches))
    assert all(bool(torch.isfinite(r.loss)) for r in records)
    assert float(weighting.linear.detach().abs().max()) > 0.02
    assert all(bool((r.losses >= 0).all()) for r in records), "raw losses are not weighted"


def test_u_is_a_linear_map_of_fourier_features_of_a_quarter_of_ln_sigma() -> None:
    weighting = op.weighting("learned_uncertainty", op.EDM(), features=3)
    with torch.no_grad():
        weighting.linear.copy_(torch.tensor([0.5, -1.0, 2.0]))
    for sigma in (0.01, 0.5, 7.0):
        waves = torch.cos(weighting.frequencies * math.log(sigma) / 4 + weighting.phases) * math.sqrt(2 / 3)
        got = weighting.uncertainty(torch.tensor([sigma]))
        torch.testing.assert_close(got, (weighting.linear * waves).sum()[None], rtol=1e-4, atol=1e-4)
