"""Every formula against its paper's, and against diffusers where it has it."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.reference import weightings as paper

import opportune as op
from opportune.weightings.base import log_conversion

T = torch.arange(1000)
SCHEDULES = ["linear", "quadratic", "cosine", "scaled_linear", "constant"]


def x0_weight_at(name: str, log_snr: float, **settings: float) -> float:
    """ln W of a weighting at any SNR, through no process of its own."""
    weighting = op.weighting(name, op.VP(), **settings)
    point = torch.tensor([log_snr], dtype=torch.float64)
    return float(weighting.log_weight(torch.full_like(point, 0.5), point).exp())


@pytest.mark.parametrize("name", sorted(paper.BY_SNR))
@given(log_snr=st.floats(-13.0, 13.0))
def test_follows_the_paper_at_any_snr(name: str, log_snr: float) -> None:
    snr = math.exp(log_snr)
    settings = {"smallest_sigma": 1e-9} if name == "sigma_sqrt" else {}
    expected = paper.to_x0(*paper.BY_SNR[name](snr), snr)
    assert x0_weight_at(name, log_snr, **settings) == pytest.approx(expected, rel=1e-9)


@given(log_snr=st.floats(-9.0, 9.0), gamma=st.floats(0.05, 30.0), k=st.floats(0.1, 10.0))
def test_settings_mean_what_the_papers_mean(log_snr: float, gamma: float, k: float) -> None:
    snr = math.exp(log_snr)
    for made, expected in [
        (x0_weight_at("p2", log_snr, gamma=gamma, k=k), paper.p2(snr, gamma, k)),
        (x0_weight_at("min_snr", log_snr, gamma=gamma), paper.min_snr(snr, gamma)),
        (x0_weight_at("soft_min_snr", log_snr, gamma=gamma), paper.soft_min_snr(snr, gamma**-0.5)),
        (x0_weight_at("soft_min_snr", log_snr, sigma_data=k), paper.soft_min_snr(snr, k)),
        (x0_weight_at("edm", log_snr, sigma_data=k), paper.edm(snr, k)),
    ]:
        assert made == pytest.approx(paper.to_x0(*expected, snr), rel=1e-9)


def table_of_the_papers(snr: float, loss: str) -> dict[str, float]:
    """The weights on the eps- and v-MSE as codebases write them, each by hand."""
    eps = {
        "debiased": 1 / math.sqrt(snr),
        "edm": (snr + 4) / snr,
        "min_snr": min(1, 5 / snr),
        "p2": 1 / (1 + snr),
        "soft_min_snr": 4 / (snr + 4),
        "truncated_snr": max(1, 1 / snr),
    }
    v = {
        "debiased": math.sqrt(snr) / (snr + 1),
        "edm": (snr + 4) / (snr + 1),
        "min_snr": min(snr, 5) / (snr + 1),
        "p2": snr / ((1 + snr) * (snr + 1)),
        "soft_min_snr": 4 * snr / ((snr + 4) * (snr + 1)),
        "truncated_snr": max(snr, 1) / (snr + 1),
    }
    return {"eps": eps, "v": v}[loss]


@pytest.mark.parametrize("loss", ["eps", "v"])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_table_on_eps_and_v(schedule: str, loss: str) -> None:
    process = op.DDPM(schedule, prediction=loss)
    bars = process.alphas_cumprod.tolist()
    made = {name: op.weighting(name, process)(T) for name in table_of_the_papers(1.0, loss)}
    for t in (0, 1, 250, 500, 998, 999):
        for name, expected in table_of_the_papers(paper.snr_of(bars[t]), loss).items():
            assert float(made[name][t]) == pytest.approx(expected, rel=1e-5), (name, t)


@pytest.mark.parametrize("target", ["eps", "x0", "v", "velocity", "F"])
def test_constant_is_one_on_its_own_target(target: str) -> None:
    log_snr = torch.linspace(-12, 12, 97, dtype=torch.float64)
    weighting = op.weighting("constant", op.EDM(), target=target)
    weight = weighting.log_weight(torch.full_like(log_snr, 0.5), log_snr) + log_conversion(log_snr, target)
    torch.testing.assert_close(weight, torch.zeros_like(weight), atol=1e-12, rtol=0)


def test_constant_x0_space() -> None:
    for snr in (1e-4, 0.3, 1.0, 70.0):
        expected = {"x0": 1, "eps": snr, "v": snr + 1, "velocity": (math.sqrt(snr) + 1) ** 2, "F": snr + 4}
        for target, w in expected.items():
            assert x0_weight_at("constant", math.log(snr), target=target) == pytest.approx(w, rel=1e-12)


def test_flow_forms_need_no_division() -> None:
    t = torch.linspace(0, 1, 1001, dtype=torch.float64)[:-1]
    for shift in (1.0, 3.0):
        process = op.Flow(shift=shift)
        hard, soft = op.weighting("min_snr", process)(t), op.weighting("soft_min_snr", process, gamma=5.0)(t)
        a, b = (1 - t) ** 2, 5 * t**2
        torch.testing.assert_close(hard.double(), torch.minimum(a, b), atol=1e-12, rtol=1e-6)
        torch.testing.assert_close(soft.double(), a * b / (a + b), atol=1e-12, rtol=1e-6)


def test_edm_weight_is_one_on_the_f_target() -> None:
    process = op.EDM(sigma_data=0.7)
    sigma = torch.tensor([0.002, 0.3, 1.0, 40.0])
    torch.testing.assert_close(op.weighting("edm", process)(sigma), torch.ones(4))
    assert op.weighting("soft_min_snr", process).gamma == pytest.approx(0.7**-2)


@pytest.mark.parametrize("variance", ["small", "large"])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_vlb_against_ddpm(schedule: str, variance: str) -> None:
    process = op.DDPM(schedule)
    weights = op.weighting("vlb", process, variance=variance)(T)
    bars = process.alphas_cumprod.tolist()
    for t in (0, 1, 2, 10, 348, 990, 998, 999):
        assert float(weights[t]) == pytest.approx(paper.vlb(bars, t, variance), rel=1e-5), t


def test_vlb_known_figures() -> None:
    """Large variance: the shape of c_t on two schedules, and how one timestep outweighs the rest on cosine."""
    linear = op.weighting("vlb", op.DDPM("linear"), variance="large")(T)
    assert [round(float(linear[i]), 3) for i in (0, 1, 10, 100)] == [0.5, 0.273, 0.068, 0.01]
    assert int(linear.argmin()) == 348
    cosine = op.weighting("vlb", op.DDPM("cosine"), variance="large")(T)
    assert float(cosine[999]) == pytest.approx(499.5, rel=1e-4)
    capped = op.weighting("vlb", op.DDPM("cosine"), variance="large", cap_quantile=0.99)(T)
    cap = torch.quantile(cosine.double(), 0.99)
    torch.testing.assert_close(capped.double(), cosine.double().clamp(max=cap), rtol=1e-5, atol=0)
    assert float(capped.max()) < 1


def test_vlb_in_continuous_time() -> None:
    """Half the slope of ln SNR on eps: 1/(u(1-u)) for the flow, a constant for VE; DDPM's T c_t approaches VP's."""
    u = torch.tensor([0.003, 0.2, 0.5, 0.93], dtype=torch.float64)
    flow = op.weighting("vlb", op.Flow(prediction="eps")).at(u)
    torch.testing.assert_close(flow, 1 / (u * (1 - u)), rtol=1e-7, atol=0)
    ve = op.weighting("vlb", op.VE(sigma_min=0.02, sigma_max=100)).at(u)
    torch.testing.assert_close(ve, torch.full_like(u, math.log(5000)), rtol=1e-7, atol=0)
    edm = op.weighting("vlb", op.EDM(prediction="eps")).at(u)
    z = torch.special.ndtri(u)
    torch.testing.assert_close(edm, 1.2 * math.sqrt(2 * math.pi) * torch.exp(z**2 / 2), rtol=1e-7, atol=0)
    many, t = op.DDPM("linear", steps=4000), torch.tensor([400, 2000, 3900])
    discrete = 4000 * op.weighting("vlb", many)(t)
    continuous = op.weighting("vlb", op.VP()).at((t + 0.5) / 4000)
    torch.testing.assert_close(discrete.double(), continuous, rtol=0.02, atol=0)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_change_aware_against_the_paper(schedule: str) -> None:
    process = op.DDPM(schedule)
    expected = torch.tensor(paper.change_aware(process.alphas_cumprod.tolist()))
    weights = op.weighting("speed", process)(T)
    torch.testing.assert_close(weights, expected / expected.mean(), rtol=1e-5, atol=0)
    assert float(weights.mean()) == pytest.approx(1, rel=1e-6)


def test_change_aware_peaks_where_the_released_code_does() -> None:
    assert int(op.weighting("speed", op.DDPM("linear"))(T).argmax()) == 219
    assert int(op.weighting("speed", op.DDPM("cosine"))(T).argmax()) == 495


def test_change_aware_released_tail() -> None:
    process = op.DDPM("linear")
    expected = torch.tensor(paper.change_aware(process.alphas_cumprod.tolist()))
    expected[700:] = 1
    torch.testing.assert_close(op.weighting("speed", process, tail="released")(T), expected, rtol=1e-5, atol=0)
    cosine = op.DDPM("cosine")
    literal = op.weighting("speed", cosine, tail="released", tau=700)(T)
    moved = op.weighting("speed", cosine, tail="released")(T)
    assert bool((literal[700:] == 1).all()) and float(literal[699]) < 0.9
    assert bool((moved[946:] == 1).all()) and float(moved[945]) < 0.9


def test_change_aware_transfers_through_snr() -> None:
    """In continuous time the linear schedule's curve is read at equal SNR, whatever the time axis."""
    linear = torch.tensor(paper.change_aware(op.DDPM("linear").alphas_cumprod.tolist()), dtype=torch.float64)
    for process in (op.VP(), op.Flow(shift=3.0, prediction="eps"), op.EDM(prediction="eps")):
        weighting = op.weighting("speed", process)
        every = weighting.at((torch.arange(4096, dtype=torch.float64) + 0.5) / 4096)
        assert float(every.mean()) == pytest.approx(1, rel=1e-6)
        nodes = op.DDPM("linear").log_snr((torch.tensor([20, 219, 600]) + 0.5) / 1000)
        made = (weighting.log_weight(torch.full_like(nodes, 0.5), nodes) - nodes).exp()
        torch.testing.assert_close(made * weighting._mean, linear[[20, 219, 600]], rtol=1e-6, atol=0)


def test_against_diffusers() -> None:
    training_utils = pytest.importorskip("diffusers.training_utils")
    from diffusers import DDPMScheduler

    for schedule in ("linear", "scaled_linear", "squaredcos_cap_v2"):
        scheduler = DDPMScheduler(beta_schedule=schedule)
        snr = training_utils.compute_snr(scheduler, T)
        for prediction, divisor in (("eps", snr), ("v", snr + 1)):
            process = op.DDPM.from_diffusers(scheduler, prediction=prediction)
            expected = snr.clamp(max=5) / divisor
            torch.testing.assert_close(op.weighting("min_snr", process)(T), expected, rtol=2e-3, atol=0)
    sigmas = torch.linspace(0.001, 0.999, 500)
    flow = op.Flow()
    for name in ("sigma_sqrt", "cosmap"):
        expected = training_utils.compute_loss_weighting_for_sd3(name, sigmas)
        torch.testing.assert_close(op.weighting(name, flow)(sigmas), expected, rtol=1e-4, atol=0)
        preconditioned = op.weighting(name, op.Flow(prediction="x0"), target="x0")(sigmas)
        torch.testing.assert_close(preconditioned, expected, rtol=1e-4, atol=0)
