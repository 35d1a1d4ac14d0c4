"""Same noise, two models: a model agrees with itself, and a perfect denoiser with everybody who is perfect."""

from __future__ import annotations

import pytest
import torch
from tests.diagnostics.models import data, toy

import opportune as op
from opportune.diagnostics import consistency
from opportune.processes.base import expand

PROCESSES = [op.DDPM("linear"), op.DDPM("cosine", steps=40, prediction="v"), op.EDM(), op.Flow(shift=3.0), op.VP()]
SETTINGS = {"starts": (0.2, 0.6, 1.0), "levels": 5, "clip": None}


@pytest.mark.parametrize("process", PROCESSES, ids=repr)
def test_a_model_agrees_with_itself(process):
    model = toy(process).model.train()
    found = consistency(model, model, process, data(), **SETTINGS)
    torch.testing.assert_close(found.similarity, torch.ones(3, dtype=torch.float64), rtol=0, atol=1e-9)
    assert float(found.distance.max()) == 0
    assert model.training
    assert float(found.control[0]) < 1 - 1e-4, "with noise of its own it does not"


def test_other_models_agree_less_and_noise_of_their_own_less_still():
    process = PROCESSES[0]
    found = consistency(toy(process).model, toy(process, seed=1).model, process, data(64), **SETTINGS)
    assert bool((found.similarity < 0.999).all()) and float(found.similarity[0]) > float(found.control[0])
    swapped = consistency(toy(process, seed=1).model, toy(process).model, process, data(64), **SETTINGS)
    torch.testing.assert_close(found.similarity, swapped.similarity)
    torch.testing.assert_close(found.outputs, swapped.outputs.flip(0))


@pytest.mark.parametrize("process", PROCESSES, ids=repr)
def test_a_perfect_denoiser_of_one_image_arrives_there_from_every_start(process):
    """Data that is a single image has a denoiser in closed form; generation must end at that image."""
    image = torch.linspace(-0.9, 0.9, 4)

    def exact(x, time):
        # Undo what the process does to what the network sees, then predict as the process wants it.
        told = torch.stack([process.network_time(t)[0].double() for t in seen])
        t = seen[int((told - time[0].double()).abs().argmin())].expand(len(x))
        alpha, sigma = (expand(c, x) for c in process.coefficients(t))
        scale = process.network_input(torch.ones_like(x), t)
        return process.target(image.expand_as(x).to(x), (x / scale - alpha * image) / sigma, t).to(x)

    u = [
        start * (n - k) / n for start in (0.2, 0.6, 1 - 2.0**-12) for n in [max(1, round(5 * start))] for k in range(n)
    ]
    seen = [process.time(torch.tensor([value], dtype=torch.float64)) for value in u]
    found = consistency(exact, exact, process, image.expand(3, 4).clone(), **SETTINGS)
    torch.testing.assert_close(found.outputs, image.expand_as(found.outputs), rtol=0, atol=0.02)
    torch.testing.assert_close(found.control, torch.ones(3, dtype=torch.float64), rtol=0, atol=1e-3)


def test_wrong_inputs():
    model = toy(PROCESSES[0]).model
    with pytest.raises(ValueError, match="starts=0 is outside"):
        consistency(model, model, PROCESSES[0], data(), starts=(0.0,))
    with pytest.raises(ValueError, match="levels=0"):
        consistency(model, model, PROCESSES[0], data(), levels=0)
