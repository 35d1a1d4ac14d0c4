"""What a log tells, against the draws and losses it was written from."""

from __future__ import annotations

import pytest
import torch

import opportune as op
from opportune.diagnostics import density_over_training, loss_over_training
from opportune.testing.toy import train
from opportune.train.meters import Meters

PROCESS = op.DDPM("linear", steps=100)
BINS = 4


def logged(sampler, weighting=None):
    """Records as the trainer writes them, from a real training, and the draws they are of."""
    records, kept = [], train(sampler, PROCESS, 30, size=64)
    for place in range(0, 30, 10):
        meters = Meters(BINS, torch.device("cpu"))
        for step in kept[place : place + 10]:
            weights = torch.ones(64) if weighting is None else weighting(step.draw.t)
            meters.add(step, weights * step.draw.correction * step.losses, None)
        records.append({"kind": "train", "step": place + 10, **meters.record()})
    return records, [torch.cat([step.draw.u for step in kept[place : place + 10]]) for place in range(0, 30, 10)]


def test_drawn_and_declared_density():
    sampler = op.sampler("beta", PROCESS, a=2.0, b=1.0)
    records, u = logged(sampler)
    found = density_over_training(records, PROCESS, label="beta")
    assert found.steps.tolist() == [10, 20, 30] and found.label == "beta"
    for row, drawn in enumerate(u):
        torch.testing.assert_close(found.drawn[row], torch.histc(drawn, BINS, 0, 1).double() * BINS / len(drawn))
        for number in range(BINS):
            inside = drawn[(drawn >= number / BINS) & (drawn < (number + 1) / BINS)]
            declared = sampler.density(inside).double().mean()
            torch.testing.assert_close(found.density[row, number], declared, rtol=1e-4, atol=0)
    # With weight 1 and no correction the objective is made of the density alone.
    torch.testing.assert_close(found.effective, found.drawn)


def test_weighting_as_a_density_and_the_product():
    weighting = op.weighting("min_snr", PROCESS)
    records, _ = logged(op.sampler("uniform", PROCESS), weighting)
    found = density_over_training(records, PROCESS, weighting)
    weights = weighting(torch.arange(100)).double().reshape(BINS, -1).mean(dim=1)
    torch.testing.assert_close(found.weighting, weights / weights.mean())
    product = found.drawn[0] * weights
    torch.testing.assert_close(found.effective[0], product / product.mean())
    assert float(found.density.sub(1).abs().max()) < 1e-5


def test_an_unbiased_sampler_leaves_the_objective_flat():
    steps = {"density": [1, 2, 3, 2]}
    records, _ = logged(op.sampler("stratified", PROCESS, of="table", of_settings=steps, unbiased=True))
    found = density_over_training(records, PROCESS)
    assert float((found.drawn - 1).abs().max()) > 0.2
    assert float((found.effective - 1).abs().max()) < 0.02


def test_what_was_never_drawn_is_nan_and_what_a_weighting_learned_is_not_guessed():
    records, _ = logged(op.sampler("table", PROCESS, density=[1, 0]))
    found = density_over_training(records, PROCESS)
    assert bool(found.density[:, 2:].isnan().all()) and bool((found.drawn[:, 2:] == 0).all())
    torch.testing.assert_close(found.effective, found.drawn)
    learned = density_over_training(records, PROCESS, op.weighting("learned_uncertainty", PROCESS))
    assert bool(learned.effective.isnan().all())


def test_held_out_losses():
    records = [
        {"kind": "train", "step": 1, "bins": {"count": [0, 0]}},
        {"kind": "validation", "step": 1, "raw": {"bins": [4.0, None]}, "ema": {"bins": [3.0, 2.0]}},
        {"kind": "validation", "step": 5, "raw": {"bins": [1.0, 0.5]}},
    ]
    found = loss_over_training(records)
    assert found.steps.tolist() == [1, 5] and found.edges.tolist() == [0, 0.5, 1]
    assert found.loss.tolist()[1] == [1.0, 0.5] and found.loss.isnan().tolist() == [[False, True], [False, False]]
    assert found.average[0].tolist() == [3.0, 2.0] and bool(found.average[1].isnan().all())
    assert density_over_training(records, PROCESS) is None and loss_over_training(records[:1]) is None


def test_logs_of_two_runs_in_one():
    records, _ = logged(op.sampler("uniform", PROCESS))
    records[1]["bins"] = {name: values[:2] for name, values in records[1]["bins"].items()}
    with pytest.raises(ValueError, match="different numbers of bins"):
        density_over_training(records, PROCESS)
