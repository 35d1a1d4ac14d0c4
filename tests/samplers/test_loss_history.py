"""Second moment, Kingma-Gao and InfoNoise against slow twins and closed forms."""

from __future__ import annotations

import math

import pytest
import torch
from tests.reference import loss_history as twin

import opportune as op
from opportune.testing import SAMPLER_CHECKS

TINY = op.DDPM("linear", steps=12)
SHORT = {
    "kingma_gao": {"warmup_steps": 20, "refresh_steps": 10, "bins": 20},
    "second_moment": {"warmup_steps": 20},
    "info_noise": {"warmup_steps": 20, "refresh_steps": 10, "bins": 20},
}


def feed(sampler, loss_of, steps, batch):
    """Watched steps whose raw loss is ``loss_of(draw)``; the draws."""
    draws = []
    for _ in range(steps):
        draw = sampler.draw(batch)
        with sampler.watch(draw, loss_of(draw)):
            pass
        draws.append(draw)
    return draws


@pytest.mark.parametrize("check", SAMPLER_CHECKS[4:8], ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", SHORT)
def test_conformance_past_the_warm_up(name, check):
    """The general suite trains for 130 steps; here that is well past the warm-up."""
    check(lambda p, **common: op.sampler(name, p, **SHORT[name], **common), op.DDPM("cosine", steps=20))


# ---- second moment -------------------------------------------------------------------------------------------


def test_second_moment_keeps_the_last_ten_losses_like_the_paper():
    """Batches hold more losses of a timestep than its history, and some are not finite."""
    sampler = op.sampler("second_moment", TINY, history=10, warmup_steps=1, refresh_steps=1)
    slow, generator = twin.SecondMoment(12, 10, 0.001), torch.Generator().manual_seed(0)
    for _ in range(6):
        losses = torch.rand(300, generator=generator)
        losses[::17] = math.nan
        (draw,) = feed(sampler, lambda _, losses=losses: losses, 1, 300)
        for t, loss in zip(draw.t.tolist(), losses.double().tolist(), strict=True):
            slow.add(t, loss)
        assert slow.full()
        torch.testing.assert_close(sampler.probs(), torch.tensor(slow.probabilities(), dtype=torch.float64))


@pytest.mark.filterwarnings("ignore:SecondMoment has no bin")
def test_second_moment_forgets_nothing_too_early():
    """Few losses per batch: the window fills over several steps and then drops the oldest, not the newest."""
    sampler = op.sampler("second_moment", TINY, history=3, warmup_steps=1, refresh_steps=1)
    slow = twin.SecondMoment(12, 3, 0.001)
    for step in range(8):
        losses = torch.arange(12).float() + 100 * step
        draw = sampler.at((torch.arange(12) + 0.5) / 12, shape=(12,))
        with sampler.watch(draw, losses):
            pass
        for t in range(12):
            slow.add(t, float(losses[t]))
        if slow.full():
            torch.testing.assert_close(sampler.probs(), torch.tensor(slow.probabilities(), dtype=torch.float64))


def test_second_moment_of_a_half_filled_history_is_interpolated():
    sampler = op.sampler("second_moment", TINY, history=2, warmup_steps=2, refresh_steps=1, floor=0.0, unbiased=False)
    u = torch.cat([torch.arange(12), torch.tensor([0, 1, 2, 4, 5, 6, 7, 8, 9, 10, 11])])
    losses = torch.where(u == 4, 3.0, 1.0)
    losses[3] = 50.0  # the only loss of timestep 3, between neighbours 1 and 3
    for _ in range(2):
        draw = sampler.at((u + 0.5) / 12, shape=(23,))
        with sampler.watch(draw, losses if sampler.steps_watched == 0 else torch.full_like(losses, math.nan)):
            pass
    torch.testing.assert_close(float(sampler.probs()[3] / sampler.probs()[0]), 2.0)


# ---- Kingma-Gao ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weighting", [None, "min_snr"])
@pytest.mark.filterwarnings("ignore:floor=0")
def test_the_corrected_weighted_loss_is_the_same_everywhere(weighting):
    """The defining property, p proportional to E[w loss]: correction x weight x loss does not depend on u."""
    process = op.DDPM("linear", steps=100, prediction="x0")
    sampler = op.sampler(
        "kingma_gao", process, bins=100, warmup_steps=40, refresh_steps=1, floor=0.0, unbiased=True, weighting=weighting
    )  # fmt: skip
    raw = lambda draw: 0.02 + draw.u**2  # noqa: E731
    feed(sampler, raw, 40, 2000)
    draw = sampler.draw(5000)
    weight = op.weighting(weighting, process)(draw.t) if weighting else torch.ones(5000)
    terms = draw.correction * weight * (0.02 + ((draw.t + 0.5) / 100) ** 2)
    assert float(terms.std() / terms.mean()) < 0.02


def test_a_fixed_objective_is_estimated_with_less_variance():
    process = op.DDPM("linear", steps=100)
    raw = lambda draw: torch.exp(-8 * draw.u)  # noqa: E731
    learned = op.sampler("kingma_gao", process, warmup_steps=10, refresh_steps=1)
    feed(learned, raw, 10, 1000)
    uniform, drawn = op.sampler("uniform", process).draw(20000), learned.draw(20000)
    plain, corrected = raw(uniform), drawn.correction * raw(drawn)
    assert float(corrected.var()) < 0.2 * float(plain.var())
    error = abs(float(corrected.mean()) - (1 - math.exp(-8)) / 8)
    assert error < 5 * float(corrected.std()) / math.sqrt(20000)


def test_kingma_gao_follows_a_loss_that_changes():
    sampler = op.sampler("kingma_gao", TINY, bins=12, decay=0.9, warmup_steps=1, refresh_steps=1, floor=0.01)
    feed(sampler, lambda draw: (draw.u < 0.5).float(), 30, 500)
    assert float(sampler.probs()[:6].sum()) > 0.95
    feed(sampler, lambda draw: (draw.u >= 0.5).float(), 60, 500)
    assert float(sampler.probs()[:6].sum()) < 0.1


# ---- InfoNoise -----------------------------------------------------------------------------------------------

STD = 0.5
DENSE = [math.exp(math.log(0.002) + (math.log(80) - math.log(0.002)) * (i + 0.5) / 1500) for i in range(1500)]


def eps_loss(process, u):
    """What a perfect network trained on N(0, STD^2) would show, as the loss of the process's own target."""
    sigma = torch.exp(-process.log_snr(u.double()).clamp(-80, 80) / 2)
    x0_mse = sigma**2 * STD**2 / (sigma**2 + STD**2)
    to_x0 = op.weighting("constant", process, target="x0").at(u)
    return (x0_mse / to_x0).float()


def learned_info_noise(process, **settings):
    sampler = op.sampler("info_noise", process, warmup_steps=1, refresh_steps=1, floor=0.0, data_std=STD, **settings)
    draw = sampler.at((torch.arange(200000) + 0.5) / 200000, shape=(200000,))
    with sampler.watch(draw, eps_loss(process, draw.u)):
        pass
    return sampler


def share_above(sampler, sigma):
    """Probability of noise levels above ``sigma``, from the declared density."""
    u = (torch.arange(200000, dtype=torch.float64) + 0.5) / 200000
    above = sampler.process.log_snr(u) < -2 * math.log(sigma)
    return float((sampler.density(u) * above).mean())


def expected(weight):
    return twin.info_noise(lambda s: twin.gaussian_mmse(s, STD), weight, DENSE, n=3, p=0.002)


@pytest.mark.parametrize(
    "process",
    [
        op.EDM(sigma_data=STD),
        op.VE(sigma_min=0.002, sigma_max=80.0),
        op.VE(sigma_min=0.002, sigma_max=80.0, prediction="x0"),
    ],
    ids=["edm-F", "ve-eps", "ve-x0"],
)
def test_info_noise_is_the_papers_density_in_every_coordinate(process):
    """Checks the Jacobian (m / sigma^2 per d ln sigma), the pivot, the gate, and the division by the weight."""

    def weight(s):  # of weight 1 on the process's own target, on the x0-MSE
        u = process.axis(torch.tensor([s], dtype=torch.float64))
        return 1 / float(op.weighting("constant", process, target="x0").at(u))

    sampler = learned_info_noise(process, bins=1024)
    pi = expected(weight)
    for sigma in (0.1, 0.5, 1.0, 3.0):
        share = sum(x for x, s in zip(pi, DENSE, strict=True) if s > sigma) / sum(pi)
        assert share_above(sampler, sigma) == pytest.approx(share, abs=0.005), sigma


def test_info_noise_divides_by_the_weight_of_the_objective():
    """The product pi * w is what is set: twice the weight is half the draws."""
    process = op.VE(sigma_min=0.002, sigma_max=80.0, prediction="x0")
    products = []
    for name in ("constant", "soft_min_snr", "edm"):
        sampler, weighting = learned_info_noise(process, weighting=name), op.weighting(name, process)
        u = torch.linspace(0.05, 0.95, 400)
        product = sampler.density(u) * weighting.at(u)
        products.append(product / product.sum())
    torch.testing.assert_close(products[1], products[0], rtol=0.02, atol=1e-9)  # cells have a width in sigma
    torch.testing.assert_close(products[2], products[0], rtol=0.02, atol=1e-9)


def test_the_pivot_is_the_largest_noise_level_not_the_smallest():
    """Searched from the wrong end the gate stays open down to sigma_low and the mass collapses there."""
    process = op.VE(sigma_min=0.002, sigma_max=80.0, prediction="x0")
    assert share_above(learned_info_noise(process), 0.05) > 0.99
    collapsed = learned_info_noise(process, pivot_sigma=0.002)  # what the other end would give
    assert share_above(collapsed, 0.05) < 0.6


def test_errors_that_only_a_bad_network_makes_do_not_draw_all_compute():
    """An eps-loss of 0.01 at SNR 1e-9 is an x0-error of 1e7; no data has that variance."""
    process = op.DDPM("cosine", steps=1000)
    sampler = op.sampler("info_noise", process, warmup_steps=1, refresh_steps=1, floor=0.0)
    draw = sampler.at((torch.arange(20000) + 0.5) / 20000, shape=(20000,))
    with sampler.watch(draw, torch.full((20000,), 0.01)):
        pass
    per_log_sigma = sampler.probs() / (-process.edge_log_snr() / 2).diff()
    sigma = torch.exp(-process.log_snr((torch.arange(1000) + 0.5) / 1000) / 2)
    at = [int((sigma - wanted).abs().argmin()) for wanted in (20.0, 60.0)]  # uncapped: 9 times as often at 60
    assert float(per_log_sigma[at[1]] / per_log_sigma[at[0]]) == pytest.approx(1.0, abs=0.1)


def test_a_range_of_noise_the_process_never_has_is_refused():
    with pytest.raises(ValueError, match=r"sigma_low=500.*overlaps"):
        op.sampler("info_noise", op.DDPM("linear", steps=1000), sigma_low=500.0, sigma_high=1000.0)


@pytest.mark.filterwarnings("ignore:InfoNoise has no bin")
def test_infinite_losses_are_left_out_of_info_noise_not_capped():
    sampler = op.sampler("info_noise", TINY, bins=3, warmup_steps=1)
    draw = sampler.at(torch.tensor([0.1, 0.1, 0.1]), shape=(3,))
    with sampler.watch(draw, torch.tensor([math.inf, math.nan, 0.5])):
        pass
    assert float(sampler.history.count.sum()) == 1


def test_zero_terminal_snr_stays_finite_in_every_method():
    process = op.DDPM("linear", steps=50, zero_terminal_snr=True)
    for name, settings in SHORT.items():
        sampler = op.sampler(name, process, **{**settings, "warmup_steps": 2})
        feed(sampler, lambda draw: 0.1 + draw.u, 5, 500)
        assert bool(torch.isfinite(sampler.probs()).all())
        assert bool((sampler.probs() > 0).all())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_losses_of_any_precision_are_taken(dtype):
    for name in SHORT:
        sampler = op.sampler(name, TINY, warmup_steps=1, refresh_steps=1)
        feed(sampler, lambda draw: (0.5 + draw.u).to(dtype), 3, 400)
        assert bool(torch.isfinite(sampler.probs()).all())


def test_missing_losses_are_asked_for():
    sampler = op.sampler("kingma_gao", TINY)
    draw = sampler.draw(4)
    with pytest.raises(ValueError, match="losses"), sampler.watch(draw):
        pass
