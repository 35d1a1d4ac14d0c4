"""The loss profile is what a direct evaluation at its own noise levels and noise gives, and leaves no trace."""

from __future__ import annotations

import pytest
import torch
from tests.diagnostics.models import Recorder, data, toy
from torch import nn

import opportune as op
from opportune.diagnostics import loss_profile

PROCESS = op.DDPM("cosine", steps=50)
BINS = 5


def recorded(**settings):
    made = toy(PROCESS)
    objective = Recorder(made.model, PROCESS, op.weighting("min_snr", PROCESS))
    return objective, loss_profile(objective, data(), bins=BINS, **settings)


def test_equals_a_direct_evaluation():
    objective, found = recorded(batch_size=7)
    u = torch.cat([draw.u for _, draw, _ in objective.asked])
    x0 = torch.cat([x0 for x0, _, _ in objective.asked])
    noise = torch.cat([draw.noise for _, draw, _ in objective.asked])
    t = (u.double() * 50).floor().long()
    bars = PROCESS.alphas_cumprod[t].float()[:, None]
    with torch.no_grad():
        output = objective.model.eval()(bars.sqrt() * x0 + (1 - bars).sqrt() * noise, t)
    losses = (output - noise).square().mean(dim=1).double().reshape(BINS, -1)
    snr = (bars / (1 - bars))[:, 0].double()
    weight = (torch.minimum(snr, torch.tensor(5.0)) / snr).reshape(BINS, -1)
    torch.testing.assert_close(found.loss, losses.mean(dim=1), rtol=1e-5, atol=0)
    torch.testing.assert_close(found.loss_error, losses.std(dim=1) / 16**0.5, rtol=1e-5, atol=0)
    torch.testing.assert_close(found.weighted, (weight * losses).mean(dim=1), rtol=1e-5, atol=0)
    assert (found.weighting, found.prediction, found.examples) == ("MinSNR", "eps", 16)


def test_every_example_is_seen_once_in_every_bin_at_a_stratum_of_its_own():
    objective, found = recorded()
    u = torch.cat([draw.u for _, draw, _ in objective.asked]).reshape(BINS, 16)
    x0 = torch.cat([x0 for x0, _, _ in objective.asked]).reshape(BINS, 16, 4)
    for number in range(BINS):
        assert torch.equal(x0[number], data())
        strata = ((u[number] - found.edges[number]) * BINS * 16).floor().long()
        assert sorted(strata.tolist()) == list(range(16))
    noise = torch.cat([draw.noise for _, draw, _ in objective.asked]).reshape(BINS, -1)
    assert (torch.cdist(noise, noise) + 1e9 * torch.eye(BINS)).min() > 1, "bins have noise of their own"


def test_one_seed_is_the_same_places_whatever_the_model_and_the_batches():
    found, same = recorded(batch_size=3)[1], recorded(batch_size=16)[1]
    torch.testing.assert_close(found.loss, same.loss, rtol=1e-5, atol=0)
    other = recorded(seed=1)[1]
    assert (found.loss - other.loss).abs().min() > 1e-4


def test_leaves_no_trace():
    objective = toy(PROCESS)
    objective.model.train()
    objective.model.drop.eval()
    before, stream = {k: v.clone() for k, v in objective.model.state_dict().items()}, torch.get_rng_state()
    loss_profile(objective, data(), bins=2)
    assert torch.equal(torch.get_rng_state(), stream)
    assert objective.model.training and not objective.model.drop.training
    assert all(torch.equal(before[k], v) for k, v in objective.model.state_dict().items())
    assert all(p.grad is None for p in objective.model.parameters())


def test_uneven_bins_and_every_process():
    for process in (op.EDM(), op.Flow(shift=3.0), op.VP(), op.VE()):
        found = loss_profile(toy(process), data(), bins=[0.0, 0.01, 0.5, 1.0])
        assert found.edges.tolist() == [0, 0.01, 0.5, 1] and bool(found.loss.isfinite().all())


class Told(nn.Module):
    """Outputs its label: the loss says which label an example came with."""

    def forward(self, x, time, labels=None):
        return labels[:, None].float().expand_as(x)


def test_conditions_stay_with_their_examples():
    process = op.DDPM("linear", steps=10, prediction="x0")
    labels = torch.arange(6)
    batch = (labels[:, None].float().expand(6, 4), {"labels": labels, "noise": torch.randn(6, 4)})
    assert float(loss_profile(op.objective(Told(), process), batch, bins=2, batch_size=4).loss.max()) == 0


@pytest.mark.parametrize(
    "settings, said",
    [
        ({"bins": 0}, "bins=0"),
        ({"bins": [0.0, 0.5, 0.2]}, "rising edges"),
        ({"bins": [0.0, 2.0]}, "rising edges"),
        ({"batch_size": 0}, "batch_size=0"),
    ],
)
def test_wrong_settings(settings, said):
    with pytest.raises(ValueError, match=said):
        loss_profile(toy(PROCESS), data(), **settings)


def test_an_empty_batch():
    with pytest.raises(ValueError, match="batch is empty"):
        loss_profile(toy(PROCESS), torch.zeros(0, 4))
