"""Every method against data whose best network, and whose probability flow, are known in closed form."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from tests.generate.exact import SHAPE, Exact, data, flow_end, start
from torch import Tensor

from opportune.generate import generate, methods
from opportune.generate.ddim import DDIM
from opportune.generate.ddpm import Ancestral
from opportune.generate.denoiser import Denoiser
from opportune.generate.generate import _method, _scale
from opportune.generate.levels import Level, own_time
from opportune.generate.method import Method
from opportune.processes import DDPM, EDM, VE, VP, Flow, Process

PROCESSES = [
    DDPM("linear"),
    DDPM("cosine", prediction="x0"),
    DDPM("cosine", prediction="v", zero_terminal_snr=True),
    VP(),
    VP(prediction="v"),
    EDM(),
    EDM(prediction="eps"),
    VE(),
    Flow(),
    Flow(shift=3.0, prediction="x0"),
    Flow(prediction="eps"),
]


def _error(process: Process, method: str, steps: int) -> float:
    """Largest distance from where the exact flow ends."""
    mixture = data()
    first = _method(process, method, {}).levels(process, steps)[0]
    want = flow_end(mixture, start(3, _scale(process, first)), first.alpha, first.sigma)
    made = generate(
        Exact(process, mixture), process, (3, *SHAPE), method=method, steps=steps, clip=None, dtype=torch.float64
    )
    return float((made - want).abs().max())


@pytest.mark.parametrize("process", PROCESSES, ids=repr)
def test_errors_fall_with_the_order_of_the_method(process: Process) -> None:
    for method in set(methods(process)) - {"ddpm"}:
        errors = [_error(process, method, steps) for steps in (16, 32, 64)]
        orders = [math.log2(a / b) for a, b in pairwise(errors)]
        low, high = (1.8, 2.5) if method == "heun" else (0.9, 1.1)
        assert all(low < order < high for order in orders), (method, errors, orders)
        assert errors[-1] < (0.01 if method == "heun" else 0.05)


def test_heun_beats_first_order_at_the_same_number_of_network_calls() -> None:
    process = EDM()
    assert _error(process, "heun", 32) < 0.5 * _error(process, "euler", 63)


def _spread(images: Tensor) -> tuple[Tensor, Tensor]:
    """Mean error in standard errors, and variance over the true one, per value."""
    mixture = data()
    flat, variance = images.double().flatten(1), mixture.variances[0]
    return (flat.mean(0) - mixture.means[0]) / (variance / len(flat)).sqrt(), flat.var(0) / variance


@pytest.mark.parametrize(
    ("process", "settings"),
    [
        (DDPM("linear", steps=100), {"method": "ddpm", "steps": 100, "variance": "large"}),
        (DDPM("cosine", steps=100, prediction="v"), {"method": "ddpm", "steps": 100}),
        (DDPM("cosine", prediction="v", zero_terminal_snr=True), {"method": "ddpm", "steps": 100}),
        (VP(), {"method": "ddpm", "steps": 100, "variance": "large"}),
        (DDPM("linear"), {"method": "ddim", "steps": 200}),
        (DDPM("linear"), {"method": "heun", "steps": 32}),
        (VP(), {"method": "heun", "steps": 32}),
        (EDM(), {"method": "heun", "steps": 32}),
        (VE(), {"method": "heun", "steps": 32}),
        (Flow(shift=2.0), {"method": "heun", "steps": 32}),
        (Flow(), {"method": "euler", "steps": 200}),
    ],
    ids=str,
)
def test_generated_images_have_the_mean_and_variance_of_the_data(process: Process, settings: dict) -> None:
    count = 1000
    images = generate(Exact(process, data()), process, (count, *SHAPE), clip=None, **settings)
    mean, variance = _spread(images)
    # The fixed seed's eight values: 3.5 standard errors, and the discretisation's own share of a few per cent.
    assert float(mean.abs().max()) < 3.5
    assert float((variance - 1).abs().max()) < 3.5 * math.sqrt(2 / count) + 0.06
    # All eight together, four times sharper: a wrong variance in the last steps shows here.
    assert abs(float(variance.mean()) - 1) < 3.5 * math.sqrt(2 / (8 * count)) + 0.06


def _exact_spread(process: Process, method: Method, steps: int) -> tuple[Tensor, Tensor]:
    """Mean error and variance over the true one ``[C, H, W]``, exactly.

    For one Gaussian every step is linear, so the variance of the end is the sum over all noise drawn of its squared
    effect: row k of one batch gets a unit of the k-th noise and nothing else, the last row none at all.
    """
    mixture, levels = data(), method.levels(process, steps)
    rows = torch.eye(steps + 1, dtype=torch.float64)[:, :, None, None, None].expand(-1, -1, *SHAPE)
    rows = torch.cat([rows[:steps], torch.zeros_like(rows[:1])])
    denoiser = Denoiser(Exact(process, mixture), process, clip=None, dtype=torch.float64)
    drawn = iter(range(1, steps))

    def denoise(x: Tensor, level: Level) -> tuple[Tensor, Tensor]:
        return denoiser(x, own_time(process, level.t, len(x), x.device))

    end = method.run(rows[:, 0], levels, denoise, lambda: rows[:, next(drawn)])
    variance = (end[:-1] - end[-1]).square().sum(0)
    return end[-1] - mixture.means[0].view(SHAPE), variance / mixture.variances[0].view(SHAPE)


@pytest.mark.parametrize("method", [Ancestral(), Ancestral(variance="large"), DDIM(eta=1.0), DDIM(eta=0.5)], ids=str)
@pytest.mark.parametrize("process", [DDPM("linear"), DDPM("cosine", prediction="v", zero_terminal_snr=True)], ids=repr)
def test_all_timesteps_give_the_mean_and_variance_of_the_data(process: Process, method: Method) -> None:
    mean, variance = _exact_spread(process, method, 1000)
    assert float(mean.abs().max()) < 0.01
    assert float((variance - 1).abs().max()) < 0.03


def test_the_small_variance_gives_less_spread_when_steps_are_few() -> None:
    process, exact = DDPM("linear"), Exact(DDPM("linear"), data(std=0.3))
    made = {
        v: generate(exact, process, (1000, *SHAPE), method="ddpm", steps=10, variance=v, clip=None)
        for v in ("small", "large")
    }
    truth = data(std=0.3).variances.sum()
    small, large = (float(made[v].flatten(1).var(0).sum()) for v in ("small", "large"))
    assert small < 0.9 * truth and small < 0.9 * large
