"""Fixed densities against the papers' formulas, other libraries, and the direction they promise."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import scipy.special
import scipy.stats
import torch
from diffusers.training_utils import compute_density_for_timestep_sampling
from tests.reference import samplers as reference
from torch import Tensor

import opportune as op
from opportune.samplers.beta import incomplete_beta
from opportune.samplers.mode import LARGEST_SCALE

DDPM = op.DDPM("linear", steps=1000)
PROCESSES = [DDPM, op.DDPM("cosine", steps=50), op.VP(), op.VE(), op.EDM(), op.Flow(), op.Flow(shift=3.0)]


def mean_u(sampler: op.Sampler) -> float:
    points = (torch.arange(4000, dtype=torch.float64) + 0.5) / 4000
    return float((sampler.density(points) * points).mean())


@pytest.mark.parametrize(
    ("name", "settings", "density"),
    [
        ("logit_normal", {}, reference.logit_normal(0.0, 1.0)),
        ("logit_normal", {"mean": 0.7, "std": 0.4}, reference.logit_normal(0.7, 0.4)),
        ("logit_normal", {"mean": -0.8, "std": 0.8}, reference.logit_normal(-0.8, 0.8)),
        ("cosmap", {}, reference.cosmap),
        ("beta", {"a": 2.0, "b": 5.0}, lambda u: u * (1 - u) ** 4),
        ("beta", {"a": 1.5, "b": 1.0}, lambda u: u**0.5),
        ("u_shaped", {}, lambda u: reference.u_shaped(u, 4.0)),
        ("u_shaped", {"steepness": 0.5}, lambda u: reference.u_shaped(u, 0.5)),
    ],
)
def test_the_density_is_the_papers(name: str, settings: dict[str, float], density: Any) -> None:
    wanted = torch.tensor(reference.cell_masses(density, 1000, points=200), dtype=torch.float64)
    probs = op.sampler(name, DDPM, **settings).probs()
    torch.testing.assert_close(probs, wanted, rtol=2e-3, atol=1e-9)
    u = torch.tensor([0.1003, 0.5003, 0.9003], dtype=torch.float64)  # in continuous time: the density, not the masses
    area = sum(density((i + 0.5) / 20000) for i in range(20000)) / 20000
    wanted_at = torch.tensor([density(float(x)) / area for x in u], dtype=torch.float64)
    torch.testing.assert_close(op.sampler(name, op.Flow(), **settings).density(u), wanted_at, rtol=5e-3, atol=1e-9)


def shares_below(sampler: op.Sampler, log_snr: list[float]) -> list[float]:
    """Probability of less noise than each ln SNR, on a process in continuous time."""
    levels = sampler.process.log_snr((torch.arange(4096, dtype=torch.float64) + 0.5) / 4096)
    masses = sampler.density((torch.arange(4096, dtype=torch.float64) + 0.5) / 4096) / 4096
    return [float(masses[levels > level].sum()) for level in log_snr]


@pytest.mark.parametrize("process", [op.EDM(), op.VP(), op.Flow(shift=2.0)], ids=repr)
def test_log_uniform_is_uniform_in_ln_sigma_between_its_ends(process: op.Process) -> None:
    sigmas = [0.01, 0.05, 0.1, 0.5, 1.0, 4.0, 20.0]
    sampler = op.sampler("log_uniform", process, sigma_low=0.05, sigma_high=10.0)
    wanted = [reference.log_uniform_share(sigma, 0.05, 10.0) for sigma in sigmas]
    assert shares_below(sampler, [-2 * math.log(s) for s in sigmas]) == pytest.approx(wanted, abs=2e-3)


def test_log_uniform_is_the_reference_of_ve() -> None:
    probs = op.sampler("log_uniform", op.VE(), sigma_low=0.02, sigma_high=100.0)
    torch.testing.assert_close(probs.density(torch.rand(99)), torch.ones(99, dtype=torch.float64), rtol=1e-6, atol=0)


@pytest.mark.parametrize("process", [op.EDM(p_std=3.0), op.Flow()], ids=repr)
@pytest.mark.parametrize(("mean", "scale"), [(-0.69, 0.5), (0.4, 1.2)])
def test_log_logistic_draws_the_published_map(process: op.Process, mean: float, scale: float) -> None:
    shares = [0.05, 0.2, 0.5, 0.8, 0.95]
    sigmas = [reference.log_logistic_sigma(v, mean, scale) for v in shares]
    sampler = op.sampler("log_logistic", process, mean=mean, scale=scale)
    assert shares_below(sampler, [-2 * math.log(s) for s in sigmas]) == pytest.approx(shares, abs=2e-3)


def test_log_logistic_on_flow_can_be_uniform() -> None:
    sampler = op.sampler("log_logistic", op.Flow(), mean=0.0, scale=1.0)
    torch.testing.assert_close(sampler.density(torch.rand(99)), torch.ones(99, dtype=torch.float64), rtol=1e-6, atol=0)


@pytest.mark.parametrize("process", [op.EDM(p_std=3.0), op.Flow()], ids=repr)
@pytest.mark.parametrize(("image", "clean", "noisy"), [(64, 64, 64), (256, 64, 64), (512, 256, 32), (64, 32, 256)])
def test_cosine_is_the_schedule_of_simple_diffusion(
    process: op.Process, image: float, clean: float, noisy: float
) -> None:
    shares = [0.1, 0.3, 0.5, 0.7, 0.9]
    levels = [reference.cosine_log_snr(v, image, clean, noisy) for v in shares]
    settings = {"log_snr_shift": 2 * math.log(clean / image), "log_snr_shift_noise": 2 * math.log(noisy / image)}
    assert shares_below(op.sampler("cosine", process, **settings), levels) == pytest.approx(shares, abs=3e-3)


def test_cosine_without_a_shift_is_cosmap_on_flow() -> None:
    u = torch.rand(500, dtype=torch.float64)
    one, other = (op.sampler(name, op.Flow()).density(u) for name in ("cosine", "cosmap"))
    torch.testing.assert_close(one, other, rtol=1e-6, atol=0)


@pytest.mark.parametrize("scale", [-1.0, -0.5, 0.0, 0.81, 1.29, LARGEST_SCALE])
def test_mode_draws_what_the_published_map_gives(scale: float) -> None:
    v = (np.arange(200_000) + 0.5) / 200_000
    mapped = np.array([reference.mode_map(x, scale) for x in v])
    wanted = np.histogram(mapped, bins=50, range=(0, 1))[0] / len(v)
    probs = op.sampler("mode", op.DDPM("linear", steps=50), scale=scale).probs().numpy()
    np.testing.assert_allclose(probs, wanted, atol=2e-5)


def test_mode_never_returns_the_end_of_the_axis() -> None:
    sampler = op.sampler("mode", op.Flow(), scale=-0.5)  # the published formula rounds to u = 1.0 now and then here
    last = sampler._place(torch.tensor([0.0, 1 - 2.0**-53], dtype=torch.float64), None).float()
    assert float(last[0]) >= 0 and float(last[1]) < 1
    assert int(op.DDPM("linear", steps=1000).time(last)[1]) == 999


@pytest.mark.parametrize(
    ("name", "settings", "theirs"),
    [
        ("logit_normal", {"mean": 0.5, "std": 1.3}, {"logit_mean": 0.5, "logit_std": 1.3}),
        ("mode", {"scale": 1.29}, {"mode_scale": 1.29}),
        ("mode", {"scale": -0.7}, {"mode_scale": -0.7}),
        ("uniform", {}, {}),
    ],
)
def test_draws_match_diffusers_sd3_densities(name: str, settings: dict[str, float], theirs: dict[str, float]) -> None:
    """Kolmogorov-Smirnov between our draws and diffusers'; both call 1 the noise end."""
    ours = op.sampler(name, op.Flow(), **settings).draw(40_000).u
    other = compute_density_for_timestep_sampling(name, 40_000, **theirs)
    assert scipy.stats.ks_2samp(ours.numpy(), other.numpy()).pvalue > 1e-4


def test_logit_normal_is_torchs() -> None:
    base = torch.distributions.Normal(0.3, 0.9)
    twin = torch.distributions.TransformedDistribution(base, torch.distributions.SigmoidTransform())
    u = torch.linspace(0.05, 0.95, 19, dtype=torch.float64)
    ours = op.sampler("logit_normal", op.Flow(), mean=0.3, std=0.9).density(u)
    torch.testing.assert_close(ours, twin.log_prob(u).exp(), rtol=5e-3, atol=0)


@pytest.mark.parametrize("process", PROCESSES, ids=repr)
def test_larger_means_move_the_way_they_say(process: op.Process) -> None:
    more_noise = op.sampler("logit_normal", process, mean=1.0).draw(4000)
    less_noise = op.sampler("logit_normal", process, mean=-1.0).draw(4000)
    assert float(more_noise.u.mean()) == pytest.approx(0.70, abs=0.02)
    assert float(less_noise.u.mean()) == pytest.approx(0.30, abs=0.02)
    ratio = [x[1].float().mean() / x[0].float().mean() for x in map(process.coefficients, (more_noise.t, less_noise.t))]
    assert ratio[0] > ratio[1], "the mean noise level must rise with mean, in the process's own coefficients too"
    for name, noisier, cleaner in (
        ("beta", {"a": 4.0, "b": 2.0}, {"a": 2.0, "b": 4.0}),
        ("laplace", {"mean": -1.5}, {"mean": 1.5}),  # a mean of ln SNR: larger is less noise
        ("log_normal", {"mean": 0.5}, {"mean": -1.5}),
        ("log_logistic", {"mean": 0.5}, {"mean": -1.5}),
        ("log_uniform", {"sigma_low": 0.5}, {"sigma_high": 1.0}),
        ("cosine", {"log_snr_shift": -2.0}, {"log_snr_shift": 1.0}),  # added to ln SNR: larger is less noise
    ):
        high, low = (op.sampler(name, process, **settings) for settings in (noisier, cleaner))
        assert mean_u(high) > mean_u(low) + 0.02, name


@pytest.mark.parametrize("name", ["mode", "cosmap", "u_shaped"])
def test_the_symmetric_ones_are(name: str) -> None:
    probs = op.sampler(name, DDPM).probs()
    torch.testing.assert_close(probs, probs.flip(0), rtol=1e-9, atol=0)
    assert (float(probs[500]) > float(probs[0])) == (name != "u_shaped")


def test_logit_normal_on_flow_is_log_normal_with_the_same_mean_and_std() -> None:
    """ln sigma = ln(t / (1 - t)) on unshifted flow, so the two names mean one density there."""
    u = torch.linspace(0.01, 0.99, 50, dtype=torch.float64)
    one = op.sampler("logit_normal", op.Flow(), mean=0.4, std=0.8).density(u)
    two = op.sampler("log_normal", op.Flow(), mean=0.4, std=0.8).density(u)
    torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-9)


def test_flows_shift_is_applied_once() -> None:
    """Drawn before the shift, shifted by the process: Stable Diffusion 3's order."""
    drawn = op.sampler("logit_normal", op.Flow(shift=3.0)).draw(20_000)
    torch.testing.assert_close(drawn.t, 3 * drawn.u / (1 + 2 * drawn.u))
    assert float(drawn.u.median()) == pytest.approx(0.5, abs=0.01)
    assert float(drawn.t.median()) == pytest.approx(0.75, abs=0.01)


@pytest.mark.parametrize("process", [op.Flow(), op.Flow(shift=3.0), op.VP(), op.VE()], ids=repr)
def test_laplace_draws_the_published_inverse(process: op.Process) -> None:
    """ln SNR at the v-quantile is the paper's schedule at t = v, wherever the process reaches."""
    sampler = op.sampler("laplace", process, mean=0.3, scale=0.5)
    v = torch.tensor([0.05, 0.2, 0.4, 0.5, 0.7, 0.9, 0.97], dtype=torch.float64)
    log_snr = process.log_snr(sampler._place(v, None))
    wanted = torch.tensor([reference.laplace_log_snr(float(x), 0.3, 0.5) for x in v], dtype=torch.float64)
    torch.testing.assert_close(log_snr, wanted, rtol=0, atol=0.02)


def test_laplace_on_timesteps_is_the_density_of_log_snr_truncated() -> None:
    probs = op.sampler("laplace", DDPM, mean=0.0, scale=0.5).probs()
    levels = DDPM.log_snr((torch.arange(1000, dtype=torch.float64) + 0.5) / 1000)
    width = torch.gradient(-levels)[0]
    wanted = torch.exp(-levels.abs() / 0.5) / (2 * 0.5) * width
    torch.testing.assert_close(probs[50:950], (wanted / wanted.sum())[50:950], rtol=2e-2, atol=1e-12)
    assert int(probs.argmax()) == int(levels.abs().argmin())


@pytest.mark.parametrize("a", [0.01, 0.3, 0.8, 1.0, 2.0, 7.5, 60.0, 1000.0])
@pytest.mark.parametrize("b", [0.01, 0.5, 1.0, 3.3, 40.0, 1000.0])
def test_the_incomplete_beta_function_is_scipys(a: float, b: float) -> None:
    x = torch.cat([torch.linspace(0, 1, 301, dtype=torch.float64), torch.tensor([1e-9, 1 - 1e-9], dtype=torch.float64)])
    ours = incomplete_beta(x, torch.tensor(a), torch.tensor(b).double())
    theirs = torch.from_numpy(scipy.special.betainc(float(torch.tensor(a)), float(torch.tensor(b).double()), x.numpy()))
    assert float((ours - theirs).abs().max()) < 1e-10


def test_the_incomplete_beta_function_broadcasts() -> None:
    a, b, x = torch.rand(5, 1).double() + 0.1, torch.rand(5, 1).double() + 0.1, torch.rand(1, 9).double()
    theirs = scipy.special.betainc(a.numpy(), b.numpy(), x.numpy())
    np.testing.assert_allclose(incomplete_beta(x, a, b).numpy(), theirs, atol=1e-12)


def test_beta_with_b_one_is_the_power_of_a_uniform() -> None:
    sampler = op.sampler("beta", op.Flow(), a=0.6, b=1.0)
    v = torch.linspace(0.05, 0.95, 19, dtype=torch.float64)
    torch.testing.assert_close(sampler._place(v, None), v ** (1 / 0.6), rtol=0, atol=2 / 4096)


@pytest.mark.parametrize(
    ("name", "settings", "match"),
    [
        ("logit_normal", {"std": 0.0}, r"std=0 is outside the allowed range \(0, inf\)"),
        ("logit_normal", {"mean": math.nan}, "mean=nan"),
        ("logit_normal", {"mean": "1"}, "mean='1' is not a number"),
        ("mode", {"scale": 1.76}, r"scale=1.76 is outside the allowed range \[-1, 1.75"),
        ("mode", {"scale": -1.01}, "scale=-1.01"),
        ("beta", {"a": 0.0}, "a=0 is outside"),
        ("beta", {"b": math.inf}, "b=inf is outside"),
        ("beta", {"b": 1e38}, "b=1e.38 is outside"),
        ("laplace", {"scale": -1.0}, "scale=-1 is outside"),
        (
            "laplace",
            {"mean": 1000.0},
            "no probability.*: mean=1000, scale=0.5 lie outside what it covers, ln SNR from",
        ),
        ("cosmap", {"scale": 1.0}, "scale=1.0 is not a setting"),
        ("log_uniform", {"sigma_low": 2.0, "sigma_high": 1.0}, r"sigma_high=1 is outside the allowed range \(2, inf\)"),
        ("log_uniform", {"sigma_low": 1e6, "sigma_high": 1e7}, "no probability"),
        ("log_logistic", {"scale": 0.0}, "scale=0 is outside"),
        ("cosine", {"log_snr_shift_noise": 6.3}, r"log_snr_shift_noise=6.3 is outside the allowed range .*6.28319\]"),
        ("u_shaped", {"steepness": 0.0}, r"steepness=0 is outside the allowed range \(0, 100\]"),
    ],
)
def test_bad_settings_say_what_is_allowed(name: str, settings: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        op.sampler(name, DDPM, **settings)


@pytest.mark.parametrize(
    "name",
    ["logit_normal", "mode", "cosmap", "beta", "laplace", "log_logistic", "cosine", "u_shaped", "speed", "clts"],
)
@pytest.mark.parametrize(
    "process",
    [op.DDPM("linear", steps=1), op.DDPM("cosine", steps=2), op.DDPM("linear", steps=100, zero_terminal_snr=True)],
    ids=repr,
)
@pytest.mark.filterwarnings("ignore:SpeeD draws uniformly")
def test_few_timesteps_and_zero_terminal_snr(name: str, process: op.DDPM) -> None:
    probs = op.sampler(name, process).probs()
    assert probs.shape == (process.steps,) and bool((probs > 0).all()) and float(probs.sum()) == pytest.approx(1)


# ---- given ("table") ---------------------------------------------------------------------------------------------


def test_a_table_of_the_processs_length_is_the_pmf() -> None:
    process = op.DDPM("linear", steps=4)
    torch.testing.assert_close(
        op.sampler("table", process, density=[1, 0, 2, 5]).probs(), torch.tensor([1, 0, 2, 5]).double() / 8
    )


@pytest.mark.parametrize(
    ("table", "steps", "wanted"),
    [
        ([3.0, 1.0], 4, [0.375, 0.375, 0.125, 0.125]),  # each bin covers two timesteps
        ([1.0, 1.0, 4.0, 0.0], 2, [1 / 3, 2 / 3]),  # two bins per timestep
        ([1.0, 0.0, 2.0], 2, [1 / 3, 2 / 3]),  # the middle bin is split between the two
        ([0.0, 6.0, 0.0], 2, [0.5, 0.5]),
    ],
)
def test_a_table_of_another_length_keeps_its_masses(table: list[float], steps: int, wanted: list[float]) -> None:
    probs = op.sampler("table", op.DDPM("linear", steps=steps), density=table).probs()
    torch.testing.assert_close(probs, torch.tensor(wanted, dtype=torch.float64))


def test_a_zero_bin_is_never_drawn_and_the_first_bin_is_the_clean_end() -> None:
    sampler = op.sampler("table", DDPM, density=torch.tensor([1.0, 0.0, 0.0]))
    assert int(sampler.draw(20_000).t.max()) == 333  # timestep 333 straddles the edge at 333.3
    assert float(sampler.probs()[334:].sum()) == 0.0


def test_a_density_function_is_integrated_per_timestep() -> None:
    process = op.DDPM("linear", steps=10)
    probs = op.sampler("table", process, density=lambda u: 3 * u**2).probs()
    edges = torch.linspace(0, 1, 11, dtype=torch.float64)
    torch.testing.assert_close(probs, (edges**3).diff(), rtol=0, atol=1e-4)


def test_a_list_of_timesteps_is_equally_likely_and_repeats_count() -> None:
    sampler = op.sampler("table", DDPM, timesteps=[0, 999, 999, 500])
    assert {i: float(p) for i, p in enumerate(sampler.probs()) if p > 0} == {0: 0.25, 500: 0.25, 999: 0.5}
    assert set(sampler.draw(500).t.tolist()) == {0, 500, 999}


@pytest.mark.parametrize(
    ("process", "times"), [(op.EDM(), [0.05, 0.3, 2.0]), (op.Flow(shift=3.0), [0.2, 0.75]), (op.VE(), [1.0])], ids=repr
)
def test_own_times_in_continuous_time_are_narrow_cells(process: op.Process, times: list[float]) -> None:
    drawn = op.sampler("table", process, timesteps=times).draw(300)
    given = process.axis(torch.tensor(times, dtype=torch.float64))
    distance = (drawn.u.double()[:, None] - given[None]).abs()
    assert float(distance.min(dim=1).values.max()) <= 1 / 4096
    assert set(distance.argmin(dim=1).tolist()) == set(range(len(times)))


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({}, "neither of density and timesteps given; give one"),
        ({"density": [1.0], "timesteps": [1]}, "both of density and timesteps given; give one"),
        ({"density": []}, "density is empty"),
        ({"density": [[1.0, 2.0]]}, r"density has shape \(1, 2\)"),
        ({"density": [1.0, -0.5]}, "density has a value of -0.5"),
        ({"density": [0.0, 0.0]}, "density is 0 everywhere"),
        ({"density": [1.0, math.nan]}, "density holds 1 NaN or infinite"),
        ({"density": "uniform"}, "density='uniform' is not numbers; give one number per bin"),
        ({"density": torch.tensor([1.0, math.inf])}, "density holds 1 NaN or infinite"),
        ({"density": lambda u: u[:3]}, r"density returned shape \(3,\)"),
        ({"density": lambda u: u - 0.5}, "density has a value of -0.49"),
        ({"density": lambda u: 1 / (u * 0)}, "density holds"),
        ({"timesteps": [1000]}, r"timesteps holds 1000; .* from 0 \(clean\) to 999"),
        ({"timesteps": [-1]}, "timesteps holds -1"),
        ({"timesteps": [3.5]}, "timesteps holds 3.5"),
        ({"timesteps": []}, "timesteps is empty"),
    ],
)
def test_bad_densities_are_refused(settings: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        op.sampler("table", DDPM, **settings)


def test_times_outside_a_continuous_process_are_refused() -> None:
    with pytest.raises(ValueError, match="timesteps run from 1000 to 1000, outside the own times"):
        op.sampler("table", op.VE(), timesteps=[1000.0])
    with pytest.raises(ValueError, match="outside the own times"):
        op.sampler("table", op.Flow(), timesteps=[500.0])


def test_a_hole_under_unbiased_warns_once_and_names_the_way_out() -> None:
    table = torch.ones(1000)
    table[7] = 0
    with pytest.warns(UserWarning, match="unbiased=True cannot hold for Given: 1 of 1000 cells") as caught:
        sampler = op.sampler("table", DDPM, density=table, unbiased=True)
        sampler.draw(10)
    assert len(caught) == 1 and "mixture" in str(caught[0].message)


@pytest.mark.filterwarnings("error")
def test_no_hole_no_warning() -> None:
    weights: Tensor = torch.rand(1000) + 0.1
    drawn = op.sampler("table", DDPM, density=weights, unbiased=True).draw(100)
    torch.testing.assert_close(drawn.correction, (weights.mean() / weights)[drawn.t], rtol=1e-5, atol=0)
