"""Training one range, measured everywhere: rows train, columns measure, and what was handed over stays as it was."""

from __future__ import annotations

import copy

import pytest
import torch
from tests.diagnostics.models import Table, data, toy

import opportune as op
from opportune.diagnostics import interdependence
from opportune.testing.toy import batches

PROCESS = op.DDPM("linear", steps=30)
LOTS = batches(40, size=16)


def of_table(*, leans=False, **settings):
    model = Table(3, 30, leans=leans)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return interdependence(
        op.objective(model, PROCESS), optimizer, LOTS, data(64), bins=3, steps=5, **{"repeats": 2, **settings}
    )


def test_with_a_parameter_per_range_training_one_improves_it_and_leaves_the_others():
    found = of_table()
    assert bool((found.change.diag() < -0.01 * found.before).all())
    assert float((found.change - found.change.diag().diag()).abs().max()) == 0
    assert bool((found.everywhere < 0).all())


def test_rows_train_and_columns_measure():
    found = of_table(leans=True)
    assert float(found.change[0, 2].abs()) > 1e-3 and float(found.change[2, 0]) == 0
    assert torch.equal(found.relative, found.change / found.before)


def test_errors_are_over_repeats_or_over_examples():
    two, one = of_table(repeats=2), of_table(repeats=1)
    assert bool((two.change_error.diag() > 0).all()) and bool((one.change_error.diag() > 0).all())
    assert float(two.change_error[0, 1]) == 0
    assert not torch.equal(two.change, one.change), "another repeat sees other batches"


def trained():
    """A toy network in the middle of its training, with Adam's moments and a gradient that was accumulated."""
    objective = toy(PROCESS, op.weighting("min_snr", PROCESS))
    objective.model.train()
    optimizer = torch.optim.Adam(objective.model.parameters(), lr=1e-2)
    for x0 in LOTS[:3]:
        objective.losses(x0, op.sampler("uniform", PROCESS).draw(x0)).mean().backward()
        optimizer.step()
    return objective, optimizer


def same(a, b):
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


def test_model_optimizer_gradients_and_streams_stay_to_the_bit():
    objective, optimizer = trained()
    before = copy.deepcopy([objective.model.state_dict(), optimizer.state_dict()])
    gradients, stream = [p.grad.clone() for p in objective.model.parameters()], torch.get_rng_state()
    modes = [module.training for module in objective.model.modules()]
    first = interdependence(objective, optimizer, LOTS, data(), bins=2, steps=3, repeats=2)
    assert same(before, [objective.model.state_dict(), optimizer.state_dict()])
    assert same(gradients, [p.grad for p in objective.model.parameters()])
    assert torch.equal(stream, torch.get_rng_state())
    assert modes == [module.training for module in objective.model.modules()]
    again = interdependence(objective, optimizer, LOTS, data(), bins=2, steps=3, repeats=2)
    assert torch.equal(first.change, again.change), "decided by its arguments alone"


def test_copies_begin_with_the_optimizers_state_and_the_given_clipping():
    objective, optimizer = trained()
    fresh = torch.optim.Adam(objective.model.parameters(), lr=1e-2)
    settings = {"bins": 2, "steps": 1, "repeats": 1}
    warm = interdependence(objective, optimizer, LOTS, data(), **settings)
    cold = interdependence(objective, fresh, LOTS, data(), **settings)
    assert (warm.change - cold.change).abs().max() > 1e-4

    plain = torch.optim.SGD(objective.model.parameters(), lr=0.1)
    loose = interdependence(objective, plain, LOTS, data(), **settings)
    tight = interdependence(objective, plain, LOTS, data(), **settings, max_gradient_norm=1e-4)
    assert tight.change.abs().max() < 1e-3 * loose.change.abs().max()


def test_a_learned_weighting_is_copied_too():
    weighting = op.weighting("learned_uncertainty", PROCESS)
    objective = toy(PROCESS, weighting)
    optimizer = torch.optim.SGD([*objective.model.parameters(), *weighting.parameters()], lr=0.1)
    before = copy.deepcopy(weighting.state_dict())
    interdependence(objective, optimizer, LOTS, data(), bins=2, steps=2, repeats=1)
    assert same(before, weighting.state_dict())


def test_wrong_inputs():
    objective, optimizer = trained()
    with pytest.raises(ValueError, match=r"ended after 40 of steps \* repeats = 60"):
        interdependence(objective, optimizer, LOTS, data(), bins=2, steps=30, repeats=2)
    with pytest.raises(ValueError, match="none of the model's parameters"):
        interdependence(objective, torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0), LOTS, data())
    with pytest.raises(ValueError, match="learning rate is 0"):
        interdependence(objective, torch.optim.SGD(objective.model.parameters(), lr=0.0), LOTS, data())
    with pytest.raises(ValueError, match="bins=1"):
        interdependence(objective, optimizer, LOTS, data(), bins=1)
