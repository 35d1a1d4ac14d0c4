"""The posterior mean against brute force, the excess against known values, the distance against one known by hand."""

from __future__ import annotations

import math

import pytest
import torch

import opportune as op
from opportune.testing import analytic
from opportune.weightings import log_conversion

DATA = {
    "gaussian": analytic.gaussian(3, std=0.7),
    "anisotropic": analytic.anisotropic(3, decay=2.0, seed=1),
    "modes": analytic.modes(2, count=5, std=0.1, seed=2),
    "ring": analytic.ring(3, count=7, std=0.05, seed=3),
    "low rank": analytic.low_rank(3, rank=1, count=2, thickness=0.0, seed=4),
    "unequal weights": analytic.GaussianMixture(
        torch.tensor([[-1.0], [1.0]]), torch.tensor([[0.04], [0.25]]), weights=torch.tensor([3.0, 1.0])
    ),
}
PROCESSES = {
    "eps": op.DDPM("linear", steps=50),
    "x0": op.DDPM("cosine", steps=50, prediction="x0"),
    "v": op.DDPM("quadratic", steps=50, prediction="v"),
    "velocity": op.Flow(shift=2.0),
    "F": op.EDM(),
}


@pytest.mark.parametrize("name", DATA)
@pytest.mark.parametrize(("alpha", "sigma"), [(0.9, 0.6), (0.3, 0.95), (1.0, 2.0)])
def test_posterior_mean_is_what_weighing_examples_by_their_likelihood_gives(name, alpha, sigma):
    data = DATA[name]
    prior = data.sample(200_000, seed=5).double()
    x_t = alpha * data.sample(4, seed=6) + sigma * torch.randn(4, data.dimension)
    log_likelihood = -(x_t.double()[:, None] - alpha * prior).square().sum(dim=2) / (2 * sigma**2)
    weights = torch.softmax(log_likelihood, dim=1)
    expected = weights @ prior
    spread = (weights.square() @ prior.square()).sqrt() + 1e-3  # size of the estimate's own error
    got = data.posterior_mean(x_t, alpha, sigma)
    assert got.dtype == torch.float32
    assert ((got - expected).abs() < 6 * spread).all()
    assert (spread < 0.05).all(), "the brute-force estimate is too rough to test anything"


def test_mean_and_variance_and_scaling_are_those_of_the_samples():
    for name, data in DATA.items():
        sample = data.sample(100_000, seed=1).double()
        assert torch.allclose(sample.mean(dim=0), data.mean(), atol=0.02), name
        assert float(sample.var(dim=0).mean()) == pytest.approx(data.variance(), rel=0.02), name
    tall = analytic.modes(16, seed=3)
    assert tall.variance() == pytest.approx(1)
    assert tall.mean().abs().max() < 1e-12
    half = tall.scaled(0.5)
    assert torch.allclose(half.sample(50, seed=2), tall.sample(50, seed=2) / 2)
    assert half.variance() == pytest.approx(0.25)


def test_samples_follow_the_seed_and_flat_components_are_flat():
    data = analytic.low_rank(8, rank=2, count=1, seed=1)
    assert torch.equal(data.sample(100, seed=3), data.sample(100, seed=3))
    assert not torch.equal(data.sample(100, seed=3), data.sample(100, seed=4))
    singular = torch.linalg.svdvals(data.sample(500, seed=1) - data.mean().float())
    assert singular[1] > 10
    assert singular[2] < 1e-3


def test_posterior_mean_stays_finite_where_likelihoods_overflow():
    data = analytic.modes(64, count=40, std=0.01, seed=1)
    x0 = data.sample(100, seed=1)
    near = data.posterior_mean(x0 + 1e-4 * torch.randn_like(x0), 1.0, 1e-4)
    assert torch.allclose(near, x0, atol=1e-3)
    far = data.posterior_mean(1e4 * torch.randn_like(x0), 1e-5, 1e4)
    assert torch.isfinite(far).all()


def test_held_out_bayes_loss_of_a_gaussian_is_its_minimum_mean_square_error():
    """x = x0 + sigma n with x0 ~ N(0, 1): mmse = sigma^2 / (1 + sigma^2) of x0."""
    process = op.VE(sigma_min=0.1, sigma_max=10.0, prediction="x0")
    held = analytic.HeldOut(process, analytic.gaussian(16), pairs=8192)
    sigma2 = held.t.double().square()
    bayes, mmse = held.bayes(), sigma2 / (1 + sigma2)
    for part in (slice(0, 2048), slice(2048, 4096), slice(4096, 8192)):
        assert float(bayes[part].mean()) == pytest.approx(float(mmse[part].mean()), rel=0.02)


@pytest.mark.parametrize("name", PROCESSES)
def test_the_optimal_denoiser_has_no_excess_and_a_biased_one_the_square_of_its_bias(name):
    process, data = PROCESSES[name], analytic.modes(4, count=6, std=0.1, seed=2).scaled(0.5)
    held = analytic.HeldOut(process, data, pairs=500)
    alpha, sigma = (c[:, None] for c in process.coefficients(held.t))

    def optimal(network_input, network_time):
        # From what a network is given alone: undo the input scaling, take the posterior mean, form the target.
        scale = process.network_input(torch.ones_like(held.x_t), held.t)
        x_t = (network_input / scale).double()
        x0 = data.posterior_mean(x_t, alpha.double(), sigma.double())
        return process.target(x0, (x_t - alpha * x0) / sigma, held.t)

    assert held.measure(optimal).own < 1e-7
    biased = held.measure(lambda x, t: optimal(x, t) + 0.3, bins=10)
    assert biased.own == pytest.approx(0.09, rel=1e-4)
    factor = analytic.eps_per_target(process, held.u)
    assert biased.eps == pytest.approx(0.09 * float(factor.mean()), rel=1e-4)
    cell = (held.u * process.cells).long()
    vlb = analytic.vlb_coefficients(process)[cell]
    assert biased.vlb == pytest.approx(0.09 * float((vlb * factor).mean()), rel=1e-4)
    assert torch.allclose(biased.profile, 0.09 * factor.reshape(10, 50).mean(dim=1), rtol=1e-3)


@pytest.mark.parametrize("name", PROCESSES)
def test_an_error_in_the_own_target_is_the_error_in_eps_that_split_says(name):
    process = PROCESSES[name]
    u = torch.tensor([0.11, 0.5, 0.87], dtype=torch.float64)
    t = process.time(u)
    x_t, output = torch.randn(3, 4, dtype=torch.float64), torch.randn(3, 4, dtype=torch.float64)
    change = process.split(output + 0.1, x_t, t)[1] - process.split(output, x_t, t)[1]
    expected = analytic.eps_per_target(process, u) * 0.01
    assert torch.allclose(change.square().mean(dim=1), expected, rtol=1e-4)


def test_training_loss_is_bayes_loss_plus_excess():
    """The identity the excess stands on, on a network that is neither optimal nor trivial."""
    process, data = op.Flow(), analytic.modes(2, count=4, std=0.2, seed=1)
    held = analytic.HeldOut(process, data, pairs=60_000)
    excess = float(held.excess(lambda x, t: 0.5 * x).mean())
    x0 = data.sample(60_000, seed=0)
    x = held.x_t
    noise = (x - (1 - held.t[:, None]) * x0) / held.t[:, None]
    loss = float((0.5 * x - (noise - x0)).square().mean())
    assert loss == pytest.approx(float(held.bayes().mean()) + excess, rel=0.02)


def test_vlb_coefficients_are_the_published_ones_and_capped():
    linear = op.DDPM("linear", steps=1000)
    uncapped = analytic.vlb_coefficients(linear, cap=1.0) / 1000
    assert float(uncapped[0]) == pytest.approx(0.5, rel=1e-3)
    assert float(uncapped[-1]) == pytest.approx(0.0102, rel=0.01)
    assert int(uncapped.argmin()) == pytest.approx(348, abs=2)
    cosine = op.DDPM("cosine", steps=1000)
    assert float(analytic.vlb_coefficients(cosine, cap=1.0)[-1]) / 1000 == pytest.approx(499.5, rel=1e-3)
    assert float(analytic.vlb_coefficients(cosine).max()) / 1000 < 0.3
    # Flow: lambda = -2 logit(u), so |d lambda / du| / 2 = 1 / (u (1 - u)).
    flow = analytic.vlb_coefficients(op.Flow(), cap=1.0)
    assert float(flow[1024]) == pytest.approx(1 / (0.25 * 0.75), rel=1e-3)


def test_vlb_of_eps_error_does_not_depend_on_the_target_it_is_measured_in():
    """A given denoiser has one bound: measured as eps or as v prediction it must come out the same."""
    data = analytic.gaussian(4)
    found = []
    for prediction in ("eps", "x0", "v"):
        process = op.DDPM("linear", steps=100, prediction=prediction)
        held = analytic.HeldOut(process, data, pairs=1000)
        bias = (-0.5 * log_conversion(process.log_snr(held.u), prediction)).exp()[:, None] * 0.01  # 0.01 in x0
        found.append(held.measure(lambda x, t, o=held.optimum, b=bias: o + b))
    assert found[0].vlb == pytest.approx(found[1].vlb, rel=1e-3)
    assert found[0].eps == pytest.approx(found[2].eps, rel=1e-3)


def test_sliced_wasserstein_of_a_shift_and_of_a_scale():
    points = torch.randn(4000, 5, generator=torch.Generator().manual_seed(1))
    shift = torch.tensor([1.0, 0, 0, 0, 0])
    # Along direction d the distance is |d_1|, and E d_1^2 = 1/5 on the sphere.
    assert analytic.sliced_wasserstein(points, points + shift, projections=500) == pytest.approx(
        math.sqrt(1 / 5), rel=0.06
    )
    assert analytic.sliced_wasserstein(points, 1.5 * points) == pytest.approx(0.5, rel=0.03)
    assert analytic.sliced_wasserstein(points, points[:2000]) < 0.1
    assert analytic.sliced_wasserstein(points[:100], points) == analytic.sliced_wasserstein(points, points[:100])


def test_arguments_that_make_no_sense_are_refused_by_name():
    data = analytic.gaussian(3)
    with pytest.raises(ValueError, match="sigma has a minimum of 0"):
        data.posterior_mean(torch.zeros(2, 3), 1.0, 0.0)
    with pytest.raises(ValueError, match=r"x_t has shape \(2, 4\)"):
        data.posterior_mean(torch.zeros(2, 4), 1.0, 1.0)
    with pytest.raises(ValueError, match="variances has a minimum of -1"):
        analytic.GaussianMixture(torch.zeros(1, 2), -torch.ones(1, 2))
    with pytest.raises(ValueError, match="weights must be 2 positive"):
        analytic.GaussianMixture(torch.zeros(2, 2), torch.ones(2, 2), weights=torch.tensor([1.0, 0.0]))
    with pytest.raises(ValueError, match="must be"):
        analytic.sliced_wasserstein(torch.zeros(3, 2), torch.zeros(3, 4))
