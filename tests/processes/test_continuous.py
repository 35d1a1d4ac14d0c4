"""VP, VE, EDM and Flow in closed form; round trips; targets and their inverses for every prediction."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import opportune as op

EVERY = [
    *(op.DDPM(name, steps=100, prediction=p) for name in ("linear", "cosine") for p in op.DDPM.predictions),
    op.DDPM("linear", steps=100, prediction="v", zero_terminal_snr=True),
    op.DDPM("linear", steps=100, prediction="x0", zero_terminal_snr=True),
    *(op.VP(prediction=p) for p in op.VP.predictions),
    *(op.VE(prediction=p) for p in op.VE.predictions),
    *(op.EDM(prediction=p) for p in op.EDM.predictions),
    *(op.Flow(prediction=p) for p in op.Flow.predictions),
    op.Flow(shift=3.0),
]
CONTINUOUS = [op.VP(), op.VE(), op.EDM(), op.EDM(p_mean=-0.4, p_std=1.0), op.Flow(), op.Flow(shift=3.0)]
U = torch.tensor([0.02, 0.2, 0.5, 0.77, 0.98], dtype=torch.float64)


@pytest.mark.parametrize("process", EVERY, ids=repr)
def test_split_undoes_target(process: op.Process) -> None:
    t = process.time(U)
    x0, noise = torch.randn(5, 2, 3, dtype=torch.float64), torch.randn(5, 2, 3, dtype=torch.float64)
    x_t = process.corrupt(x0, noise, t)
    data, eps = process.split(process.target(x0, noise, t), x_t, t)
    torch.testing.assert_close(data, x0, rtol=0, atol=1e-3)
    torch.testing.assert_close(eps, noise, rtol=0, atol=1e-3)


@pytest.mark.parametrize("process", CONTINUOUS, ids=repr)
def test_own_time_and_axis_are_inverse(process: op.Process) -> None:
    torch.testing.assert_close(process.axis(process.time(U)), U, rtol=0, atol=1e-9)
    alpha, sigma = process.coefficients(process.time(U))
    torch.testing.assert_close(process.log_snr(U), 2 * torch.log(alpha / sigma), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("process", EVERY, ids=repr)
def test_one_is_noise(process: op.Process) -> None:
    x0, noise = torch.full((2, 4), 5.0), torch.zeros(2, 4)
    clean, noisy = process.coefficients(process.time(torch.tensor([0.01, 0.99])))[1]
    assert noisy > clean
    t = process.time(torch.tensor([0.001, 0.999]))
    if isinstance(process, (op.DDPM, op.VP, op.Flow)):  # here the data fades; EDM and VE drown it
        x_t = process.corrupt(x0, noise, t)
        assert float(x_t[0, 0]) > 4.9 and float(x_t[1, 0]) < 0.1


def test_vp_is_the_sdes_closed_form() -> None:
    process = op.VP()
    t = process.time(U)
    sigma = torch.sqrt(torch.expm1(9.95 * t**2 + 0.1 * t))  # Karras et al., table 1: 19.9 / 2 t^2 + 0.1 t
    torch.testing.assert_close(process.log_snr(U), -2 * torch.log(sigma), rtol=1e-9, atol=1e-9)
    assert process.time(torch.tensor([0.0, 1.0], dtype=torch.float64)).tolist() == pytest.approx([1e-5, 1.0])
    assert process.network_time(t).tolist() == pytest.approx((999 * t).tolist())


def test_ve_is_log_uniform_between_its_ends() -> None:
    process = op.VE()
    sigma = process.time(torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64))
    assert sigma.tolist() == pytest.approx([0.02, math.sqrt(0.02 * 100), 100.0])
    assert process.network_time(sigma).tolist() == pytest.approx([math.log(s / 2) for s in sigma.tolist()])


def test_edms_uniform_axis_is_its_log_normal() -> None:
    sigma = op.sampler("uniform", op.EDM()).draw(40_000).sigma
    assert sigma is not None
    assert float(sigma.log().mean()) == pytest.approx(-1.2, abs=0.03)
    assert float(sigma.log().std()) == pytest.approx(1.2, abs=0.03)
    edm2 = op.EDM(p_mean=-0.4, p_std=1.0)
    probability = torch.distributions.Normal(-0.4, 1.0).cdf(torch.tensor([0.1, 1.0, 5.0]).log().double())
    torch.testing.assert_close(edm2.axis(torch.tensor([0.1, 1.0, 5.0]).double()), probability, rtol=1e-5, atol=1e-6)


def test_edms_preconditioning_is_the_papers() -> None:
    """Karras et al., table 1; the F-target has unit variance at every noise level."""
    process = op.EDM(sigma_data=0.5)
    t = torch.tensor([0.01, 0.3, 2.0, 50.0], dtype=torch.float64)
    skip, out = process.skip_and_out(t)
    torch.testing.assert_close(skip, 0.25 / (t**2 + 0.25))
    torch.testing.assert_close(out, 0.5 * t / torch.sqrt(t**2 + 0.25))
    torch.testing.assert_close(process.network_time(t), t.log() / 4)
    x0, noise = 0.5 * torch.randn(4, 50_000, dtype=torch.float64), torch.randn(4, 50_000, dtype=torch.float64)
    x_t = process.corrupt(x0, noise, t)
    assert process.network_input(x_t, t).std(dim=1).tolist() == pytest.approx([1.0] * 4, abs=0.02)
    assert process.target(x0, noise, t).std(dim=1).tolist() == pytest.approx([1.0] * 4, abs=0.02)
    torch.testing.assert_close(
        process.target(x0, noise, t), (x0 - skip[:, None] * x_t) / out[:, None], rtol=1e-9, atol=1e-9
    )
    assert torch.equal(op.EDM(prediction="x0").network_input(x_t, t), x_t)


@pytest.mark.parametrize("shift", [0.5, 1.0, 3.0])
def test_flow_is_the_straight_line(shift: float) -> None:
    process = op.Flow(shift=shift)
    t = process.time(U)
    torch.testing.assert_close(t, shift * U / (1 + (shift - 1) * U))
    x0, noise = torch.randn(5, 3, dtype=torch.float64), torch.randn(5, 3, dtype=torch.float64)
    torch.testing.assert_close(process.corrupt(x0, noise, t), (1 - t)[:, None] * x0 + t[:, None] * noise)
    torch.testing.assert_close(process.target(x0, noise, t), noise - x0)
    # the shift lowers ln SNR by 2 ln s everywhere
    torch.testing.assert_close(process.log_snr(U), op.Flow().log_snr(U) - 2 * math.log(shift))
    torch.testing.assert_close(process.log_snr(U), -2 * torch.logit(t))
    assert process.network_time(t).tolist() == pytest.approx((1000 * t).tolist())


@pytest.mark.parametrize("process", CONTINUOUS, ids=repr)
def test_the_ends_of_the_axis_give_finite_draws(process: op.Process) -> None:
    sampler = op.sampler("uniform", process)
    u = sampler._place(torch.tensor([0.0, 1 - 2.0**-53], dtype=torch.float64), None).float()
    t = process.time(u)
    assert bool(torch.isfinite(t).all()) and bool(torch.isfinite(process.log_snr(u)).all())
    x0 = torch.randn(2, 3)
    assert bool(torch.isfinite(process.target(x0, torch.randn(2, 3), t)).all())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("process", EVERY, ids=repr)
def test_half_precision_data_stays_half_and_finite(process: op.Process, dtype: torch.dtype) -> None:
    draw = op.sampler("uniform", process).draw(torch.randn(16, 3).to(dtype))
    x0, noise = torch.randn(16, 3).to(dtype), torch.randn(16, 3).to(dtype)
    for value in (process.corrupt(x0, noise, draw.t), process.target(x0, noise, draw.t)):
        assert value.dtype == dtype and bool(torch.isfinite(value).all())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("process", EVERY, ids=repr)
def test_targets_in_half_precision_are_right_to_its_rounding(process: op.Process, dtype: torch.dtype) -> None:
    """A target must not be a small difference of large numbers: EDM's would be all rounding at low noise."""
    t = process.time(torch.linspace(0.001, 0.999, 200))
    x0, noise = torch.randn(200, 3).to(dtype), torch.randn(200, 3).to(dtype)
    exact = process.target(x0.double(), noise.double(), t)
    off = (process.target(x0, noise, t).double() - exact).abs() / (x0.abs() + noise.abs() + 1).double()
    assert float(off.max()) < 4 * torch.finfo(dtype).eps


def test_edms_target_at_no_noise_is_its_limit() -> None:
    x0, noise = torch.randn(2, 3), torch.randn(2, 3)
    torch.testing.assert_close(op.EDM().target(x0, noise, torch.zeros(2)), -noise)


@pytest.mark.parametrize("process", EVERY, ids=repr)
def test_data_noise_and_time_must_go_together(process: op.Process) -> None:
    x0, t = torch.randn(4, 3), process.time(torch.full((4,), 0.5))
    for noise, time, match in (
        (x0[:1], t, r"noise has shape \(1, 3\), x0 \(4, 3\)"),  # one noise for all, were it broadcast
        (x0, t[:1], r"t has shape \(1,\) for 4 examples"),
        (x0, t.to("meta"), "t on meta; move them to one device"),
        (x0.to("meta"), t, "noise on meta"),
    ):
        with pytest.raises(ValueError, match=match):
            process.corrupt(x0, noise, time)


@pytest.mark.parametrize("process", [p for p in EVERY if p.steps is None], ids=repr)
def test_times_the_process_does_not_have_are_refused(process: op.Process) -> None:
    for wrong in (math.nan, math.inf, -0.5, *([] if isinstance(process, (op.EDM, op.VE)) else [1.5])):
        with pytest.raises(ValueError, match=r"t runs from .* outside \[0, "):
            process.corrupt(torch.randn(2, 3), torch.randn(2, 3), torch.tensor([0.5, wrong]))


@pytest.mark.parametrize(
    ("make", "settings", "match"),
    [
        (op.VP, {"beta_min": 0.0}, "beta_min=0 is outside"),
        (op.VP, {"beta_max": 0.05}, r"beta_max=0\.05 is outside the allowed range \[0\.1"),
        (op.VP, {"t_min": 1.0}, "t_min=1 is outside"),
        (op.VE, {"sigma_min": 0.0}, "sigma_min=0"),
        (op.VE, {"sigma_max": 0.02}, r"sigma_max=0\.02 is outside"),
        (op.VE, {"prediction": "v"}, "prediction='v' is unknown.*Known: eps, x0"),
        (op.EDM, {"p_std": 0.0}, "p_std=0"),
        (op.EDM, {"p_mean": math.nan}, "p_mean=nan"),
        (op.EDM, {"sigma_data": -0.5}, r"sigma_data=-0\.5"),
        (op.Flow, {"shift": 0.0}, "shift=0 is outside"),
        (op.Flow, {"shift": math.inf}, "shift=inf"),
        (op.Flow, {"time_scale": 0}, "time_scale=0"),
        (op.Flow, {"prediction": "v"}, "did you mean 'velocity'|Known: eps, velocity, x0"),
    ],
)
def test_bad_settings_are_refused(make: Any, settings: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        make(**settings)
