"""The drop-in for diffusers' scripts, used the way the scripts use it."""

from __future__ import annotations

import pytest
import torch
from diffusers import DDPMScheduler, FlowMatchEulerDiscreteScheduler

import opportune as op
from opportune.adapters import TimestepDensity


@pytest.mark.parametrize("shift", [1.0, 3.0])
def test_the_scripts_look_up_finds_the_noise_level_the_sampler_meant(shift: float) -> None:
    """Their three lines after it, as they stand in the scripts; naive indexing would find the mirror image."""
    scheduler = FlowMatchEulerDiscreteScheduler(shift=shift)
    sampler = op.sampler("logit_normal", op.Flow.from_diffusers(scheduler), mean=1.0)
    compute_density_for_timestep_sampling = TimestepDensity(sampler, scheduler)
    u = compute_density_for_timestep_sampling(
        weighting_scheme="none", batch_size=5000, logit_mean=0.0, logit_std=1.0, mode_scale=1.29
    )
    indices = (u * scheduler.config.num_train_timesteps).long()
    timesteps = scheduler.timesteps[indices]
    draw = compute_density_for_timestep_sampling.last
    assert float((timesteps / 1000 - draw.t).abs().max()) <= 0.5 * shift / 1000 + 1e-6
    assert float(draw.u.mean()) == pytest.approx(0.70, abs=0.02)
    assert float((u > 0).all() and (u < 1).all())


def test_a_sampler_that_learns_learns_through_it() -> None:
    scheduler = FlowMatchEulerDiscreteScheduler(shift=3.0)
    sampler = op.sampler("adaptive", op.Flow.from_diffusers(scheduler), warmup_steps=8)
    density = TimestepDensity(sampler, scheduler)
    for step in range(80):
        density("none", 64)
        with sampler.watch(density.last, density.last.u * (1 + 3 / (1 + step))):
            pass
    assert float(sampler.density(torch.tensor([0.05, 0.95])).diff()) > 0.1


def test_a_density_asked_for_in_vain_is_named_once() -> None:
    scheduler = FlowMatchEulerDiscreteScheduler()
    density = TimestepDensity(op.sampler("uniform", op.Flow.from_diffusers(scheduler)), scheduler)
    with pytest.warns(UserWarning, match="weighting_scheme='logit_normal' .* drawn by Uniform") as seen:
        for _ in range(3):
            density("logit_normal", 4, logit_mean=0.0, logit_std=1.0)
    assert len(seen) == 1


def test_what_does_not_fit_is_refused() -> None:
    flow, scheduler = op.sampler("uniform", op.Flow()), FlowMatchEulerDiscreteScheduler()
    with pytest.raises(ValueError, match="not a sampler on a flow process"):
        TimestepDensity(op.sampler("uniform", op.DDPM()), scheduler)
    with pytest.raises(ValueError, match="DDPMScheduler has no timesteps and sigmas"):
        TimestepDensity(flow, DDPMScheduler())
