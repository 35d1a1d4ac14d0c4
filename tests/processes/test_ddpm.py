"""DDPM schedules against the papers, diffusers and the known extremes; the index map; bad input."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from diffusers import (
    DDIMScheduler,
    DDPMScheduler,
    DPMSolverMultistepScheduler,
    EulerDiscreteScheduler,
    FlowMatchEulerDiscreteScheduler,
    UniPCMultistepScheduler,
)
from diffusers.training_utils import compute_snr
from tests.reference import processes as reference

import opportune as op

SCHEDULES = ["linear", "quadratic", "cosine", "scaled_linear", "constant"]
DIFFUSERS: dict[str, dict[str, Any]] = {
    "linear": {"beta_schedule": "linear"},
    "cosine": {"beta_schedule": "squaredcos_cap_v2"},
    "scaled_linear": {"beta_schedule": "scaled_linear", "beta_start": 0.00085, "beta_end": 0.012},
}


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("steps", [1000, 100, 37])
def test_schedules_are_the_papers(name: str, steps: int) -> None:
    wanted = torch.tensor(reference.alphas_cumprod(name, steps), dtype=torch.float64)
    torch.testing.assert_close(op.DDPM(name, steps=steps).alphas_cumprod, wanted, rtol=1e-9, atol=0)


@pytest.mark.parametrize(
    ("name", "terminal", "high", "low", "sigma_low", "sigma_high"),
    [
        ("linear", 4.04e-5, 9.21, -10.12, 0.0100, 157.4),
        ("quadratic", 7.33e-4, 9.21, -7.22, 0.0100, 36.9),
        ("cosine", 2.4e-9, 10.09, -19.84, 0.0064, 2.0e4),
        ("scaled_linear", 4.66e-3, 7.07, -5.36, 0.0292, 14.6),
        ("constant", 1.7e-9, 3.89, -20.2, 0.143, 2.4e4),
    ],
)
def test_the_extremes_of_the_schedules(
    name: str, terminal: float, high: float, low: float, sigma_low: float, sigma_high: float
) -> None:
    process = op.DDPM(name, steps=1000)
    ends = process.log_snr(torch.tensor([0.0, 0.9999]))
    assert float(process.alphas_cumprod[-1]) == pytest.approx(terminal, rel=0.03)
    assert ends.tolist() == pytest.approx([high, low], abs=0.04)
    assert torch.exp(-ends / 2).tolist() == pytest.approx([sigma_low, sigma_high], rel=0.03)


@pytest.mark.parametrize("name", DIFFUSERS)
@pytest.mark.parametrize("rescale", [False, True])
def test_schedules_and_snr_are_diffusers(name: str, rescale: bool) -> None:
    scheduler = DDPMScheduler(num_train_timesteps=1000, rescale_betas_zero_snr=rescale, **DIFFUSERS[name])
    ours = op.DDPM(name, steps=1000, zero_terminal_snr=rescale)
    theirs = scheduler.alphas_cumprod.double()
    torch.testing.assert_close(ours.alphas_cumprod, theirs, rtol=1e-3, atol=1e-6)  # theirs is a float32 product
    taken = op.DDPM.from_diffusers(scheduler)
    torch.testing.assert_close(taken.alphas_cumprod, theirs, rtol=0, atol=0)
    t = torch.tensor([0, 10, 500, 900])
    torch.testing.assert_close(taken.log_snr(taken.axis(t)).exp().float(), compute_snr(scheduler, t), rtol=1e-3, atol=0)
    x0, noise = torch.randn(4, 3, 2, 2), torch.randn(4, 3, 2, 2)
    torch.testing.assert_close(taken.corrupt(x0, noise, t), scheduler.add_noise(x0, noise, t), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("theirs", "ours"), [("epsilon", "eps"), ("sample", "x0"), ("v_prediction", "v")])
def test_the_prediction_is_taken_from_the_scheduler(theirs: str, ours: str) -> None:
    scheduler = DDPMScheduler(prediction_type=theirs)
    process = op.DDPM.from_diffusers(scheduler)
    assert process.prediction == ours
    if ours == "v":
        x0, noise, t = torch.randn(4, 2), torch.randn(4, 2), torch.tensor([0, 100, 700, 999])
        torch.testing.assert_close(process.target(x0, noise, t), scheduler.get_velocity(x0, noise, t))
    assert op.DDPM.from_diffusers(scheduler, prediction="x0").prediction == "x0"
    assert op.DDPM.from_diffusers(EulerDiscreteScheduler()).steps == 1000


@pytest.mark.parametrize("scheduler", [DDIMScheduler, EulerDiscreteScheduler, DPMSolverMultistepScheduler])
def test_a_rescaled_schedule_ends_in_noise_whichever_scheduler_it_comes_from(scheduler: Any) -> None:
    """Those that divide by alpha hold 2^-24 at the end, which is less noise than the timestep before."""
    made = scheduler(rescale_betas_zero_snr=True, prediction_type="v_prediction")
    process = op.DDPM.from_diffusers(made)
    assert float(process.alphas_cumprod[-1]) == 0.0
    torch.testing.assert_close(process.alphas_cumprod[:-1], made.alphas_cumprod[:-1].double(), rtol=0, atol=0)
    assert process.prediction == "v"


def test_a_flow_scheduler_is_refused_with_the_way_out() -> None:
    with pytest.raises(ValueError, match=r"FlowMatchEulerDiscreteScheduler has no alphas_cumprod.*Flow\.from_diff"):
        op.DDPM.from_diffusers(FlowMatchEulerDiscreteScheduler())
    solver = UniPCMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0)
    with pytest.raises(ValueError, match=r"prediction_type='flow_prediction'.*use Flow\.from_diffusers"):
        op.DDPM.from_diffusers(solver)
    assert op.Flow.from_diffusers(solver).shift == 3.0


@pytest.mark.parametrize("name", SCHEDULES)
def test_zero_terminal_snr(name: str) -> None:
    plain, process = op.DDPM(name, steps=1000), op.DDPM(name, steps=1000, zero_terminal_snr=True, prediction="v")
    wanted = torch.tensor(reference.zero_terminal_snr(plain.alphas_cumprod.tolist()), dtype=torch.float64)
    torch.testing.assert_close(process.alphas_cumprod, wanted, rtol=1e-9, atol=1e-16)
    assert float(process.alphas_cumprod[-1]) == 0.0
    assert process.alphas_cumprod[0] == pytest.approx(float(plain.alphas_cumprod[0]))
    last = torch.tensor([999, 999])
    x0, noise = torch.randn(2, 3), torch.randn(2, 3)
    assert torch.equal(process.corrupt(x0, noise, last), noise), "nothing is left of the data"
    torch.testing.assert_close(process.target(x0, noise, last), -x0)
    assert float(process.log_snr(torch.tensor([0.9999]))) == -math.inf
    edges = process.edge_log_snr()
    assert bool(torch.isfinite(edges[:-1]).all()) and bool((edges.diff() < 0).all())


def test_betas_and_alphas_cumprod_are_two_ways_to_say_the_same() -> None:
    betas = torch.linspace(1e-4, 0.02, 50)
    one = op.DDPM(betas=betas)
    assert one.steps == 50
    torch.testing.assert_close(one.betas, betas.double(), rtol=1e-6, atol=0)
    two = op.DDPM(alphas_cumprod=one.alphas_cumprod.float())
    torch.testing.assert_close(one.alphas_cumprod, two.alphas_cumprod, rtol=1e-6, atol=0)
    assert float(op.DDPM("linear", steps=1000).betas[-1]) == pytest.approx(0.02)


# ---- the index map -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [1, 2, 3, 7, 1000])
def test_every_timestep_owns_an_equal_share_of_the_axis(steps: int) -> None:
    process = op.DDPM("linear", steps=steps)
    u = (torch.arange(steps * 40, dtype=torch.float64) + 0.5) / (steps * 40)
    assert torch.bincount(process.time(u), minlength=steps).tolist() == [40] * steps
    t = torch.arange(steps)
    assert torch.equal(process.time(process.axis(t)), t)


def test_the_ends_are_not_short_of_draws() -> None:
    """``round(u * (T - 1))`` would give both ends 5000 of these draws instead of 10000."""
    t = op.sampler("uniform", op.DDPM("linear", steps=10)).draw(100_000).t
    assert torch.bincount(t, minlength=10)[[0, 9]].tolist() == pytest.approx([10_000] * 2, abs=500)


def test_the_ends_of_the_axis_are_in_range() -> None:
    process = op.DDPM("linear", steps=1000)
    u = torch.tensor([0.0, 1 - 2.0**-24, 1.0])
    assert process.time(u).tolist() == [0, 999, 999]
    assert process.time(u).dtype == torch.int64


def test_half_precision_axes_keep_their_timestep() -> None:
    process = op.DDPM("linear", steps=1000)
    u = torch.tensor([0.25, 0.5, 0.75], dtype=torch.float16)
    assert process.time(u).tolist() == [250, 500, 750]


@pytest.mark.parametrize("steps", [1, 2])
def test_one_and_two_timesteps(steps: int) -> None:
    process = op.DDPM("cosine", steps=steps, prediction="v")
    assert process.edge_log_snr().shape == (steps + 1,)
    assert bool((process.edge_log_snr().diff() < 0).all())
    draw = op.sampler("uniform", process).draw(torch.randn(6, 3))
    assert set(draw.t.tolist()) <= set(range(steps))
    x0, noise = torch.randn(6, 3), torch.randn(6, 3)
    assert bool(torch.isfinite(process.target(x0, noise, draw.t)).all())


def test_inner_edges_are_half_way_between_timesteps() -> None:
    process = op.DDPM("cosine", steps=5)
    levels = torch.logit(process.alphas_cumprod)
    torch.testing.assert_close(process.edge_log_snr()[1:-1], (levels[1:] + levels[:-1]) / 2)


# ---- bad input -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"schedule": "lienar"}, "schedule='lienar' is unknown; did you mean 'linear'"),
        ({"steps": 0}, "steps=0 is not allowed; give a whole number, 1 or more"),
        ({"steps": 10.0}, r"steps=10\.0"),
        ({"steps": True}, "steps=True"),
        ({"prediction": "epsilon"}, "prediction='epsilon' is unknown; did you mean 'eps'"),
        ({"prediction": "velocity"}, "Known: eps, v, x0"),
        ({"steps": 1, "zero_terminal_snr": True}, "needs steps of 2 or more"),
        ({"betas": [0.1], "alphas_cumprod": [0.9]}, "both given; give one"),
        ({"betas": []}, "betas is empty"),
        ({"betas": "cosine"}, r"a schedule's name comes first: DDPM\('cosine'\)"),
        ({"schedule": "cosine", "beta_end": 0.01}, "beta_end=0.01 has no effect on schedule='cosine'"),
        ({"beta_start": 0.03}, "beta falls from 0.03 to 0.02"),
        ({"beta_end": 1.0}, "beta_end=1 is outside"),
        ({"betas": [0.1, 0.2], "beta_end": 0.3}, "leave them out where arrays are given"),
        ({"betas": [0.1, 0.2], "schedule": "cosine"}, "schedule='cosine' has no effect where arrays are given"),
        ({"betas": [0.1, 0.2], "steps": 7}, "steps=7 but betas has 2 values"),
        ({"betas": [[0.1, 0.2]]}, r"betas has shape \(1, 2\)"),
        ({"betas": [0.1, math.nan]}, "betas holds 1 NaN"),
        ({"betas": [None]}, r"betas=\[None\] is not numbers; give one number per timestep"),
        ({"betas": [0.1, 0.0]}, r"betas has values outside \(0, 1\]: from 0 to 0\.1"),
        ({"betas": [0.1, -0.2]}, r"from -0\.2 to 0\.1"),
        ({"alphas_cumprod": [0.5, 0.9]}, "does not fall at index 1; noise must grow"),
        ({"alphas_cumprod": [1.0, 0.5]}, r"values must lie in \[0, 1\)"),
        ({"alphas_cumprod": [0.5, -0.1]}, r"from -0\.1 to 0\.5"),
        ({"alphas_cumprod": [0.0]}, "only the last one may be pure noise"),
    ],
)
def test_bad_schedules_are_refused(settings: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        op.DDPM(**settings)


@pytest.mark.parametrize("name", ["linear", "scaled_linear"])
def test_the_ends_of_a_schedule_can_be_given(name: str) -> None:
    """Latent diffusion on faces used 0.0015 to 0.0195."""
    ours = op.DDPM(name, beta_start=0.0015, beta_end=0.0195).alphas_cumprod
    theirs = DDPMScheduler(beta_schedule=name, beta_start=0.0015, beta_end=0.0195).alphas_cumprod
    assert torch.allclose(ours.float(), theirs, rtol=2e-4)
    assert op.DDPM("quadratic", beta_end=0.01).betas[[0, -1]].tolist() == pytest.approx([1e-4, 0.01])
    assert op.DDPM(name, steps=4, beta_start=0.9, beta_end=0.9).betas.tolist() == pytest.approx([0.999] * 4)


def test_the_recipe_for_faces_has_the_schedule_of_its_paper() -> None:
    from opportune.recipes import recipe

    betas = op.DDPM(**recipe("celebahq-ldm")["process"]["settings"]).betas
    assert betas[[0, -1]].tolist() == pytest.approx([0.0015, 0.0195])


def test_float_timesteps_are_refused() -> None:
    process = op.DDPM("linear", steps=1000)
    with pytest.raises(ValueError, match=r"t has dtype torch\.float32; DDPM timesteps are int64"):
        process.corrupt(torch.randn(2, 3), torch.randn(2, 3), torch.tensor([0.5, 0.1]))


@pytest.mark.parametrize("wrong", [-1, 10])
def test_timesteps_off_the_schedule_are_refused(wrong: int) -> None:
    """-1 would otherwise be read as the noisiest step."""
    with pytest.raises(ValueError, match=r"timesteps lie in \[0, 10\)"):
        op.DDPM(steps=10).corrupt(torch.randn(2, 3), torch.randn(2, 3), torch.tensor([0, wrong]))


@pytest.mark.parametrize("process", [op.DDPM(steps=10), op.EDM(), op.Flow(), op.VP(), op.VE()])
def test_noisy_data_has_the_dtype_of_the_data(process: op.Process) -> None:
    """The noise of a probe is float32; a network in bfloat16 must not be handed float32 because of it."""
    t = op.sampler("uniform", process).draw(2).t
    assert process.corrupt(torch.randn(2, 3, dtype=torch.bfloat16), torch.randn(2, 3), t).dtype == torch.bfloat16
    with pytest.raises(ValueError, match=r"x0 has dtype torch\.uint8; give floats"):
        process.corrupt(torch.zeros(2, 3, dtype=torch.uint8), torch.randn(2, 3), t)
