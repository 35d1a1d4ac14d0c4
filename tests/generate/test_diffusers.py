"""Step by step the same as the schedulers of diffusers, given the same network, start and noise."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import diffusers
import pytest
import torch
from torch import Tensor

from opportune.generate.ddim import DDIM
from opportune.generate.ddpm import Ancestral
from opportune.generate.denoiser import Denoiser
from opportune.generate.euler import Euler
from opportune.generate.heun import Heun
from opportune.generate.levels import Level, own_time
from opportune.generate.method import Method
from opportune.processes import DDPM, EDM, Flow, Process

START = torch.randn(3, 2, 4, 4, generator=torch.Generator().manual_seed(0))
EXACT = START.double()
KINDS = {"eps": "epsilon", "x0": "sample", "v": "v_prediction"}


def network(x: Tensor, time: Tensor) -> Tensor:
    """Any smooth function of input and time."""
    return 0.8 * torch.tanh(x) + 0.2 * torch.sin(0.01 * time.to(x.dtype)).view(-1, 1, 1, 1) - 0.1


def trail(
    method: Method,
    process: Process,
    steps: int,
    *,
    clip: float | None = None,
    noise: Callable[[], Tensor] | None = None,
    first: Tensor = START,
) -> tuple[list[Level], list[Tensor], Tensor]:
    """Levels, the state met at each network call, and the end."""
    levels = method.levels(process, steps)
    seen: list[Tensor] = []
    denoiser = Denoiser(network, process, clip=clip, dtype=first.dtype)

    def denoise(x: Tensor, level: Level) -> tuple[Tensor, Tensor]:
        seen.append(x)
        return denoiser(x, own_time(process, level.t, len(x), x.device))

    scale = levels[0].sigma if isinstance(process, EDM) else 1.0
    return levels, seen, method.run(scale * first, levels, denoise, noise or (lambda: torch.zeros_like(first)))


def follow(scheduler: Any, **step: Any) -> list[Tensor]:
    """The states before each step, and the end."""
    x, states = START, [START]
    for t in scheduler.timesteps:
        x = scheduler.step(network(x, t.expand(len(x))), t, x, **step).prev_sample
        states.append(x)
    return states


def same(ours: list[Tensor], theirs: list[Tensor]) -> None:
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("prediction", KINDS)
@pytest.mark.parametrize(("schedule", "clip"), [("linear", None), ("linear", 1.0), ("cosine", 1.0)])
@pytest.mark.parametrize("steps", [10, 50, 1000])
def test_ddim(prediction: str, schedule: str, clip: float | None, steps: int) -> None:
    process = DDPM(schedule, prediction=prediction)
    scheduler = diffusers.DDIMScheduler(
        trained_betas=process.betas.tolist(),
        prediction_type=KINDS[prediction],
        timestep_spacing="trailing",
        clip_sample=clip is not None,
    )
    scheduler.set_timesteps(steps)
    levels, seen, end = trail(DDIM(), process, steps, clip=clip)
    assert [level.t for level in levels] == scheduler.timesteps.tolist()
    same([*seen, end], follow(scheduler, use_clipped_model_output=clip is not None))


def test_ddim_with_fresh_noise() -> None:
    process = DDPM("linear")
    scheduler = diffusers.DDIMScheduler(
        trained_betas=process.betas.tolist(), timestep_spacing="trailing", clip_sample=False
    )
    scheduler.set_timesteps(20)
    mine, theirs = torch.Generator().manual_seed(5), torch.Generator().manual_seed(5)
    _, seen, end = trail(DDIM(eta=0.7), process, 20, noise=lambda: torch.randn(START.shape, generator=mine))
    same([*seen, end], follow(scheduler, eta=0.7, generator=theirs))


@pytest.mark.parametrize("variance", ["small", "large"])
@pytest.mark.parametrize("prediction", KINDS)
@pytest.mark.parametrize(("steps", "clip"), [(1000, 1.0), (40, None)])
def test_ddpm(variance: str, prediction: str, steps: int, clip: float | None) -> None:
    process = DDPM("linear", prediction=prediction)
    scheduler = diffusers.DDPMScheduler(
        trained_betas=process.betas.tolist(),
        prediction_type=KINDS[prediction],
        variance_type=f"fixed_{variance}",
        timestep_spacing="trailing",
        clip_sample=clip is not None,
    )
    scheduler.set_timesteps(steps)
    mine, theirs = torch.Generator().manual_seed(5), torch.Generator().manual_seed(5)
    levels, seen, end = trail(
        Ancestral(variance=variance), process, steps, clip=clip, noise=lambda: torch.randn(START.shape, generator=mine)
    )
    assert [level.t for level in levels] == scheduler.timesteps.tolist()
    states = follow(scheduler, generator=theirs)
    # With few steps their last one adds noise to the finished image; ours never does.
    same([*seen, end][: len(seen) + (steps == 1000)], states[: len(seen) + (steps == 1000)])


@pytest.mark.parametrize("shift", [1.0, 3.0])
def test_flow_euler(shift: float) -> None:
    process, steps = Flow(shift=shift), 20
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler(shift=shift)
    scheduler.set_timesteps(sigmas=torch.linspace(1, 1 / steps, steps).tolist())  # as the image pipelines do
    levels, seen, end = trail(Euler(), process, steps)
    torch.testing.assert_close(torch.tensor([level.t * 1000 for level in levels]), scheduler.timesteps.float())
    same([*seen, end], follow(scheduler))


def test_edm_grid_and_euler() -> None:
    process, steps = EDM(prediction="eps"), 18
    scheduler = diffusers.EDMEulerScheduler(sigma_min=0.002, sigma_max=80.0, sigma_data=0.5, rho=7.0)
    scheduler.set_timesteps(steps)
    levels = Heun().levels(process, steps)
    torch.testing.assert_close(torch.tensor([level.t for level in levels]), scheduler.sigmas[:-1].float())
    _, seen, end = trail(Euler(), process, steps, first=EXACT)
    x = 80.0 * EXACT
    sigmas = [level.sigma for level in levels]
    for k, (here, there) in enumerate(zip(sigmas, [*sigmas[1:], 0.0], strict=True)):
        torch.testing.assert_close(seen[k], x, rtol=1e-4, atol=1e-4)
        x = x + (there - here) * network(x, torch.full((len(x),), here, dtype=torch.float64).log() / 4)
    torch.testing.assert_close(end, x, rtol=1e-4, atol=1e-4)


def test_edm_heun_is_the_papers_algorithm() -> None:
    process, steps = EDM(), 6
    sigmas = [*(level.sigma for level in Heun().levels(process, steps)), 0.0]

    def slope(x: Tensor, sigma: float) -> Tensor:
        total = sigma**2 + 0.25
        time = torch.full((len(x),), sigma, dtype=torch.float64).log() / 4
        image = 0.25 / total * x + sigma * 0.5 / total**0.5 * network(x / total**0.5, time)
        return (x - image) / sigma

    x = sigmas[0] * EXACT
    for here, there in pairwise(sigmas):
        first = slope(x, here)
        euler = x + (there - here) * first
        x = euler if there == 0 else x + (there - here) * 0.5 * (first + slope(euler, there))
    torch.testing.assert_close(trail(Heun(), process, steps, first=EXACT)[2], x, rtol=1e-4, atol=1e-4)
