"""Flow from diffusers' schedulers: which way their arrays run, and that the shift is applied once."""

from __future__ import annotations

import pytest
import torch
from diffusers import DDPMScheduler, FlowMatchEulerDiscreteScheduler
from tests.reference.processes import flux_shift

import opportune as op


def test_mean_plus_one_means_more_noise_where_naive_indexing_means_less() -> None:
    """Their timesteps descend: ``timesteps[(u * 1000).long()]`` trains the other end from the one meant."""
    scheduler = FlowMatchEulerDiscreteScheduler(shift=1.0)
    process = op.Flow.from_diffusers(scheduler)
    draw = op.sampler("logit_normal", process, mean=1.0).draw(40_000)
    naive = scheduler.sigmas[(draw.u * 1000).long()]
    ours = scheduler.sigmas[process.scheduler_index(draw.t, scheduler)]
    assert float(naive.mean()) == pytest.approx(0.30, abs=0.01)
    assert float(ours.mean()) == pytest.approx(0.70, abs=0.01)
    torch.testing.assert_close(ours, draw.sigma, rtol=0, atol=1e-3)


@pytest.mark.parametrize("shift", [1.0, 3.0])
def test_scheduler_index_finds_the_same_noise_level(shift: float) -> None:
    """Their sigmas already hold the shift; looking the level up neither forgets nor doubles it."""
    scheduler = FlowMatchEulerDiscreteScheduler(shift=shift)
    process = op.Flow.from_diffusers(scheduler)
    assert process.shift == shift
    draw = op.sampler("uniform", process).draw(2000)
    index = process.scheduler_index(draw.t, scheduler)
    nearest = (scheduler.sigmas[None].double() - draw.t[:, None].double()).abs().argmin(dim=1)
    gap = (scheduler.sigmas[index].double() - draw.t).abs() - (scheduler.sigmas[nearest].double() - draw.t).abs()
    assert float(gap.max()) < 1e-7
    told = process.network_time(draw.t)
    torch.testing.assert_close(scheduler.timesteps[index], told, rtol=0, atol=1.6 * shift)
    assert process.scheduler_index(torch.tensor([1.0, 0.0]), scheduler).tolist() == [0, 999]


def test_the_noisy_input_is_diffusers_own() -> None:
    scheduler = FlowMatchEulerDiscreteScheduler(shift=3.0)
    process = op.Flow.from_diffusers(scheduler)
    index = torch.tensor([0, 10, 500, 999])
    t = scheduler.sigmas[index]
    assert process.scheduler_index(t, scheduler).tolist() == index.tolist()
    x0, noise = torch.randn(4, 3, 2, 2), torch.randn(4, 3, 2, 2)
    theirs = scheduler.scale_noise(x0, scheduler.timesteps[index], noise)
    torch.testing.assert_close(process.corrupt(x0, noise, t), theirs)


def test_an_inference_grid_can_be_indexed_too() -> None:
    scheduler = FlowMatchEulerDiscreteScheduler(shift=3.0)
    scheduler.set_timesteps(20)  # sigmas now end in an extra 0
    process = op.Flow.from_diffusers(scheduler)
    t = scheduler.sigmas[:20] - 1e-5
    assert process.scheduler_index(t, scheduler).tolist() == list(range(20))


@pytest.mark.parametrize("tokens", [256, 1024, 4096, 6000])
def test_the_resolution_shift_is_fluxs(tokens: int) -> None:
    process = op.Flow.for_resolution(tokens)
    assert process.shift == pytest.approx(flux_shift(tokens))
    scheduler = FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True)
    taken = op.Flow.from_diffusers(scheduler, tokens=tokens)
    assert taken.shift == pytest.approx(flux_shift(tokens))
    u = torch.tensor([0.1, 0.5, 0.9])
    mu = torch.log(torch.tensor(flux_shift(tokens)))
    torch.testing.assert_close(taken.time(u), scheduler.time_shift(float(mu), 1.0, u))


def test_the_resolution_shifts_known_values() -> None:
    assert op.Flow.for_resolution(256).shift == pytest.approx(1.65, abs=0.005)
    assert op.Flow.for_resolution(4096).shift == pytest.approx(3.16, abs=0.005)
    assert op.Flow.for_resolution(4096, rule="sd3").shift == pytest.approx(4.0)
    assert op.Flow.for_resolution(4096, rule="sd3", base_tokens=1024).shift == pytest.approx(2.0)
    assert op.Flow.for_resolution(1024, prediction="x0").prediction == "x0"


def test_what_cannot_be_taken_is_refused_with_the_way_out() -> None:
    with pytest.raises(ValueError, match=r"DDPMScheduler has no config\.shift.*use DDPM\.from_diffusers"):
        op.Flow.from_diffusers(DDPMScheduler())
    with pytest.raises(ValueError, match="tokens is missing: this scheduler's shift depends on the image size"):
        op.Flow.from_diffusers(FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True))
    with pytest.raises(ValueError, match="rule='flex' is unknown; did you mean 'flux'"):
        op.Flow.for_resolution(256, rule="flex")
    with pytest.raises(ValueError, match="tokens=0"):
        op.Flow.for_resolution(0)


def test_numbers_of_tokens_without_effect_warn_and_impossible_ones_are_refused() -> None:
    with pytest.warns(UserWarning, match="tokens=4096 has no effect: the shift of this FlowMatch.* is 3 at any image"):
        assert op.Flow.from_diffusers(FlowMatchEulerDiscreteScheduler(shift=3.0), tokens=4096).shift == 3.0
    with pytest.warns(UserWarning, match="base_tokens=64 has no effect with rule='flux'"):
        op.Flow.for_resolution(1024, base_tokens=64)
    with pytest.raises(ValueError, match="tokens=-5 is not allowed; give a whole number"):
        op.Flow.from_diffusers(FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True), tokens=-5)


def test_sigmas_that_ascend_are_indexed_too() -> None:
    scheduler = FlowMatchEulerDiscreteScheduler(invert_sigmas=True)
    scheduler.set_timesteps(20)
    assert scheduler.sigmas[0] < scheduler.sigmas[10]
    assert op.Flow().scheduler_index(scheduler.sigmas[:20], scheduler).tolist() == list(range(20))
    with pytest.raises(ValueError, match="t runs from nan to nan"):
        op.Flow().scheduler_index(torch.tensor([float("nan")]), scheduler)


def test_the_networks_time_follows_the_schedulers_scale() -> None:
    assert op.Flow.from_diffusers(FlowMatchEulerDiscreteScheduler(num_train_timesteps=500)).time_scale == 500.0
    assert op.Flow.from_diffusers(FlowMatchEulerDiscreteScheduler(), time_scale=1.0).time_scale == 1.0


@pytest.mark.parametrize("kind", ["exponential", "linear"])
def test_both_kinds_of_dynamic_shift_match_the_scheduler(kind: str) -> None:
    scheduler = FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True, time_shift_type=kind)
    process = op.Flow.from_diffusers(scheduler, tokens=1024)
    c = scheduler.config
    slope = (c.max_shift - c.base_shift) / (c.max_image_seq_len - c.base_image_seq_len)
    u = torch.linspace(0.05, 0.95, 19)
    theirs = scheduler.time_shift(c.base_shift + slope * (1024 - c.base_image_seq_len), 1.0, u)
    torch.testing.assert_close(process.time(u), theirs)


def test_indices_are_not_taken_for_flow_times() -> None:
    with pytest.raises(ValueError, match=r"t has dtype torch\.int64; flow times are floats in \[0, 1\]"):
        op.Flow().corrupt(torch.randn(2, 3), torch.randn(2, 3), torch.tensor([0, 500]))
