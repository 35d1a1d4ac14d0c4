"""Learning progress: it finds what is left to learn, ignores what cannot be learned, and never collapses."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

import opportune as op
from opportune.samplers.progress import LossHistory, mark_index, positive_mean, smooth

BINS = (torch.arange(20) + 0.5) / 20


def learn(sampler, loss_of, steps, *, batch=128, seed=0):
    """Feed losses made by ``loss_of(u, step, noise)``."""
    random = torch.Generator().manual_seed(seed)
    for step in range(steps):
        draw = sampler.draw(batch)
        losses = loss_of(draw.u, step, torch.randn(batch, generator=random))
        with sampler.watch(draw, losses):
            pass
    return sampler.density(BINS)


def bump(u, at=0.3):
    return torch.exp(-(((u - at) / 0.1) ** 2))


@pytest.mark.parametrize("seed", range(5))
def test_it_draws_where_the_loss_falls_not_where_it_is_large(seed):
    """A large constant loss near u = 1, a small falling one at 0.3: only the second can be learned."""
    sampler = op.sampler("adaptive", op.DDPM("cosine"), seed=seed)
    density = learn(
        sampler, lambda u, k, noise: 5 * (u > 0.7) + 0.5 * bump(u) * (k + 1) ** -0.5 + 0.1 * noise, 1000, seed=seed
    )
    assert density[4:8].mean() > 1.35 * density[12:].mean()
    assert BINS[int(density.argmax())] == pytest.approx(0.3, abs=0.16)


def test_the_history_recovers_a_power_law_exactly():
    """loss = c + A n^-b, seen at a constant rate: the fall per e-fold is close to b A n^-b, whatever the constant."""
    history = LossHistory(4)
    level = torch.tensor([0.0, 1.0, 5.0, 100.0], dtype=torch.float64)
    for step in range(1, 2001):
        u = torch.tensor([0.1, 0.3, 0.6, 0.9])
        history.add(u, level + 2.0 * step**-0.5)
        history.remember(step)
    falls, _, level = history.progress(2000)
    assert level[3] > 99 and bool((falls > 0).all())
    expected = 0.5 * 2.0 * (2000 * 0.57) ** -0.5  # the outer windows lie around 3/8 and 7/8 of the run
    torch.testing.assert_close(falls.sum(dim=0), torch.full((4,), expected, dtype=torch.float64), rtol=0.1, atol=0)


def test_marks_grow_by_nine_percent_and_never_repeat():
    steps = [k for k in range(1, 5000) if mark_index(k) is not None]
    indices = [mark_index(k) for k in steps]
    assert indices == sorted(set(indices)) and len(steps) < 90
    assert all(b <= math.ceil(a * 1.1 + 1) for a, b in itertools.pairwise(steps))


def test_the_mean_of_a_positive_quantity():
    """Against numerical integration of the truncated normal; far tails stay positive and finite."""
    for z in (-4.0, -1.0, 0.0, 2.0, 10.0):
        grid = torch.linspace(1e-6, 30, 400_000, dtype=torch.float64)
        weight = torch.exp(-0.5 * (grid - z) ** 2)
        expected = float((grid * weight).sum() / weight.sum())
        got = float(positive_mean(torch.tensor(z, dtype=torch.float64), torch.tensor(1.0, dtype=torch.float64)))
        assert got == pytest.approx(expected, rel=1e-3)
    tails = positive_mean(torch.tensor([-1e6, -40.0]).double(), torch.tensor([1.0, 1.0]).double())
    assert bool((tails > 0).all())


def test_smoothing_keeps_a_constant_and_shrinks_errors():
    values, errors = smooth(torch.full((20,), 3.0).double(), torch.ones(20).double(), 1.0)
    torch.testing.assert_close(values, torch.full((20,), 3.0).double())
    assert bool((errors < 0.8).all())
    spiked = torch.zeros(20).double()
    spiked[10] = 1.0
    wide = torch.ones(20).double()
    wide[10] = 100.0  # a value nobody is sure of hardly counts
    assert float(smooth(spiked, wide, 1.0)[0][10]) < 0.01
    rows = torch.stack([spiked, values])
    torch.testing.assert_close(smooth(rows, wide, 1.0)[0], torch.stack([smooth(row, wide, 1.0)[0] for row in rows]))


def test_the_objective_decides_where_it_looks():
    process = op.DDPM("cosine")

    def falling(u, k, noise):
        return (k + 1) ** -0.5 + 0.05 * noise

    low = learn(op.sampler("adaptive", process, objective=lambda u: (u < 0.5).double()), falling, 500)
    assert float(low[:10].mean()) > 1.7 and float(low[11:].mean()) == pytest.approx(0.1, abs=0.02)
    vlb = learn(op.sampler("adaptive", process, objective="vlb"), falling, 500)
    assert float(vlb[0]) > 1.3, "the bound counts the cleanest timesteps most"
    assert float(vlb[-1]) < 6, "one index of the cosine bound must not decide everything"


def flat_fall(u, k, noise):
    """Equal falls everywhere; a loss of about 9 on the clean half, 1 on the other, most of it irreducible."""
    return torch.where(u < 0.5, 9.0, 1.0) + (k + 1) ** -0.5 + 0.05 * noise


def corrections(sampler, u=BINS):
    return sampler.at(u, shape=(len(u),)).correction


def test_noise_is_corrected_for_and_not_avoided():
    """p ~ w g whatever the noise; the correction is 1 over the root of the loss, and averages 1 over the draws."""
    sampler = op.sampler("adaptive", op.DDPM("linear"), power=1.0, floor=0.0)
    density = learn(sampler, flat_fall, 1500)
    assert float(density[:10].mean()) == pytest.approx(float(density[10:].mean()), rel=0.15)
    found = corrections(sampler)
    ratio = ((1 + (1500 * 0.87) ** -0.5) / (9 + (1500 * 0.87) ** -0.5)) ** 0.5
    assert float(found[:10].mean() / found[10:].mean()) == pytest.approx(ratio, rel=0.02)
    assert float((found * density).mean()) == pytest.approx(1, abs=0.01)


def test_the_training_weight_scales_the_noise():
    """Weighted by 1/3 on the noisy half, gradients are equally noisy everywhere and nothing is left to correct."""
    weight = op.weighting("constant", (process := op.DDPM("linear")))
    weight.at = lambda u: torch.where(u < 0.5, 1 / 3, 1.0).double()
    sampler = op.sampler("adaptive", process, objective=lambda u: torch.ones_like(u), weighting=weight)
    learn(sampler, flat_fall, 800)
    found = corrections(sampler)
    assert float(found[:10].mean() / found[10:].mean()) == pytest.approx(1, abs=0.05)


def test_unbiased_keeps_the_density_and_corrects_by_its_inverse():
    process = op.DDPM("linear")
    aimed, unbiased = (op.sampler("adaptive", process, unbiased=flag) for flag in (False, True))
    assert torch.equal(learn(aimed, flat_fall, 400), learn(unbiased, flat_fall, 400))
    product = corrections(unbiased).double() * unbiased.density(BINS).double()
    torch.testing.assert_close(product, torch.ones(20, dtype=torch.float64), rtol=1e-5, atol=1e-5)
    assert float(corrections(aimed).std()) > 0.1


def test_a_floor_around_it_keeps_what_it_aims_at():
    """The mixture draws from floor + (1 - floor) p and is trained under floor + (1 - floor) q."""
    sampler = op.sampler("mixture", op.DDPM("linear"), of="adaptive", floor=0.3)
    learn(sampler, flat_fall, 400)
    inner = sampler.inner
    aimed = corrections(inner).double() * inner.density(BINS).double()
    drawn = corrections(sampler).double() * sampler.density(BINS).double()
    torch.testing.assert_close(drawn, 0.3 + 0.7 * aimed, rtol=1e-4, atol=1e-6)
    assert float(drawn.std()) > 0.05


def test_no_correction_is_large_where_the_loss_vanishes():
    sampler = op.sampler("adaptive", op.DDPM("linear"))
    learn(sampler, lambda u, k, noise: torch.where(u < 0.5, 1.0, 1e-12) * (1 + (k + 1) ** -0.5), 400)
    found = corrections(sampler)
    assert float(found[-1] / found[0]) == pytest.approx(32 * 2**0.5, rel=0.05)


def test_nothing_is_ever_starved_and_a_flat_loss_stays_near_uniform():
    sampler = op.sampler("adaptive", op.DDPM(), floor=0.1)
    density = learn(sampler, lambda u, k, noise: 1 + 0.3 * noise, 2000)
    assert float(sampler.probs().min()) * 1000 >= 0.1 - 1e-9
    assert float(density.max()) < 2.5


def test_a_noise_level_that_suffers_is_drawn_more_not_less():
    """Near clean the loss rises again, as it does where too little is trained; elsewhere it stays."""
    sampler = op.sampler("adaptive", op.DDPM(), floor=0.1)
    density = learn(sampler, lambda u, k, noise: 1 + 0.3 * noise + 0.3 * (u < 0.2) * (k > 800), 1200)
    assert density[:4].mean() > 2 * density[6:].mean()


def test_a_fall_and_the_rise_after_it_do_not_cancel():
    """Near clean the loss falls and then rises to where it was, so that the difference early to late is about zero."""

    def there_and_back(u, k, noise):  # the quarters of the run up to the mark at 1117 end at the marks 280, 559 and 862
        return 1 + 0.1 * noise + 0.3 * (u < 0.2) * ((k < 559) | (k >= 862))

    sampler = op.sampler("adaptive", op.DDPM(), floor=0.1)
    density = learn(sampler, there_and_back, 1117)
    falls, _, _ = sampler.history.progress(1117)
    assert bool((falls.sum(dim=0).abs() < 0.1 * falls.abs().sum(dim=0))[:4].all()), "the case is one of cancelling"
    assert density[:4].mean() > 4 * density[6:].mean()


def test_uniform_until_the_warm_up_ends():
    sampler = op.sampler("adaptive", op.DDPM(), warmup_steps=200)
    assert float(learn(sampler, lambda u, k, noise: bump(u) / (k + 1), 150).std()) == 0
    assert float(learn(sampler, lambda u, k, noise: bump(u) / (k + 150), 100).std()) > 0.1
    with pytest.warns(UserWarning, match="warms up for 200 steps but the run has 100"):
        sampler.check_run(100)


@pytest.mark.parametrize(
    "settings",
    [
        {"power": -1.0},
        {"power": 2.5},
        {"floor": 1.5},
        {"bins": 0},
        {"warmup_steps": 2},
        {"objective": "vlbb"},
        {"objective": 0.5},
        {"objective": lambda u: -torch.ones_like(u)},
        {"objective": lambda u: torch.zeros_like(u)},
        {"objective": lambda u: torch.ones(3)},
    ],
)
def test_bad_settings_are_refused(settings):
    with pytest.raises(ValueError):
        op.sampler("adaptive", op.DDPM(), **settings)


def test_no_finite_loss_is_said_not_drawn_from():
    sampler = op.sampler("adaptive", op.DDPM(), warmup_steps=8)
    with pytest.warns(UserWarning, match="no finite loss when its warm-up of 8 steps") as caught:
        density = learn(sampler, lambda u, k, noise: u * math.nan, 40)
    assert len(caught) == 1 and float(density.std()) == 0
