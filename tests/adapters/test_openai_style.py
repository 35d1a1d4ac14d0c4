"""The drop-in for guided-diffusion's training loops, used the way they use it."""

from __future__ import annotations

import pytest
import torch

import opportune as op
from opportune.adapters import ScheduleSampler

PROCESS = op.DDPM("linear", steps=20)
SETTINGS = {"warmup_steps": 10, "refresh_steps": 1, "history": 2}


def losses_at(t: torch.Tensor) -> torch.Tensor:
    return 0.1 + t.float()


def drive(schedule_sampler: ScheduleSampler, calls: int) -> list[torch.Tensor]:
    drawn = []
    for _ in range(calls):
        t, _ = schedule_sampler.sample(32, torch.device("cpu"))
        schedule_sampler.update_with_local_losses(t, losses_at(t))
        drawn.append(t)
    return drawn


def test_it_learns_and_weighs_as_the_sampler_does_in_our_own_loop() -> None:
    theirs = ScheduleSampler(op.sampler("second_moment", PROCESS, **SETTINGS))
    ours = op.sampler("second_moment", PROCESS, **SETTINGS)
    for t in drive(theirs, 40):
        draw = ours.draw(32)
        assert torch.equal(t, draw.t)
        with ours.watch(draw, losses_at(draw.t)):
            pass
    assert float(ours.probs()[-1] / ours.probs()[2]) > 4  # it has learned
    t, weights = theirs.sample(1000)
    torch.testing.assert_close(weights.double(), 1 / (20 * theirs.sampler.probs()[t]), rtol=1e-5, atol=0)


def test_micro_batches_are_one_step() -> None:
    schedule_sampler = ScheduleSampler(op.sampler("kingma_gao", PROCESS, accumulation=3))
    drive(schedule_sampler, 7)
    assert schedule_sampler.sampler.steps_watched == 2


def test_drawn_without_losses_is_forgotten_and_a_restart_is_exact() -> None:
    one = ScheduleSampler(op.sampler("second_moment", PROCESS, **SETTINGS))
    drive(one, 15)
    one.sample(32)
    drive(one, 5)
    assert one.sampler.steps_watched == 20
    other = ScheduleSampler(op.sampler("second_moment", PROCESS, seed=4, **SETTINGS))
    other.load_state_dict(one.state_dict())
    assert all(map(torch.equal, drive(one, 5), drive(other, 5)))


def test_a_method_that_learns_nothing_takes_the_call() -> None:
    schedule_sampler = ScheduleSampler(op.sampler("logit_normal", PROCESS))
    drive(schedule_sampler, 3)
    assert bool((schedule_sampler.sample(4)[1] == 1).all())


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="Kim measures before and after"):
        ScheduleSampler(op.sampler("kim", PROCESS))
    schedule_sampler = ScheduleSampler(op.sampler("second_moment", PROCESS))
    with pytest.raises(ValueError, match="not the timesteps last sampled"):
        schedule_sampler.update_with_local_losses(torch.zeros(3, dtype=torch.long), torch.ones(3))
    t, _ = schedule_sampler.sample(4)
    schedule_sampler.update_with_local_losses(t, losses_at(t))
    with pytest.raises(ValueError, match="not the timesteps last sampled"):
        schedule_sampler.update_with_local_losses(t, losses_at(t))
