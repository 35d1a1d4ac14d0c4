"""Scripts set torch's default dtype to build a model in it; what a sampler draws must not depend on that."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
import torch

import opportune as op


@contextmanager
def default(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", ["uniform", "logit_normal", "second_moment", "stratified", "low_discrepancy"])
def test_the_same_timesteps_are_drawn(name, dtype):
    wanted = op.sampler(name, op.DDPM(steps=1000)).draw(512)
    with default(dtype):
        drawn = op.sampler(name, op.DDPM(steps=1000)).draw(512)
    assert torch.equal(drawn.t, wanted.t) and torch.equal(drawn.u, wanted.u)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_the_policy_works_and_probes_carry_the_same_noise(dtype):
    process, x0 = op.DDPM(steps=1000), torch.randn(64, 3, generator=torch.Generator().manual_seed(0))
    made = []
    for other in (torch.float32, dtype):
        with default(other):
            sampler = op.sampler("kim", process, every_steps=1, coverage=8)
            draw = sampler.draw(x0)
            made.append((draw.t, sampler.request(draw).draws[0].noise))
            with sampler.watch(draw, torch.ones(64), lambda asked: asked.u):
                pass
            assert all(value.dtype == torch.float32 for value in sampler.policy.parameters())
    assert torch.equal(made[0][0], made[1][0]) and torch.equal(made[0][1], made[1][1])
