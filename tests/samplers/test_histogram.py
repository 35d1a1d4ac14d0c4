"""The engine of the loss-history methods: what enters, what is forgotten, and a warm-up that always ends."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch
from tests.reference.loss_history import running_mean

import opportune as op
from opportune.samplers.histogram import Histogram, between, spread

DDPM = op.DDPM("linear", steps=100)


def feed(sampler, loss_of, steps, batch=64):
    """Watched steps whose raw loss is ``loss_of(u)``."""
    for _ in range(steps):
        draw = sampler.draw(batch)
        with sampler.watch(draw, loss_of(draw.u)):
            pass


def test_means_decay_as_the_slow_twin_says():
    histogram, batches = Histogram(5, decay=0.8), []
    for _ in range(12):
        u, values = torch.rand(7), torch.randn(7)
        values[0] = math.nan
        histogram.add(u, values)
        batches.append([(int(a * 5), b) for a, b in zip(u.double().tolist(), values.double().tolist(), strict=True)])
    expected = torch.tensor(running_mean(batches, 5, 0.8), dtype=torch.float64)
    torch.testing.assert_close(histogram.mean, expected)
    squares = [[(at, value**2) for at, value in batch] for batch in batches]
    torch.testing.assert_close(
        histogram.second_moment, torch.tensor(running_mean(squares, 5, 0.8), dtype=torch.float64)
    )


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_finite_neither_enter_nor_count(bad):
    histogram = Histogram(4, decay=1.0)
    histogram.add(torch.tensor([0.1, 0.1, math.nan]), torch.tensor([2.0, bad, 3.0]))
    assert histogram.count.tolist() == [1, 0, 0, 0]
    assert histogram.mean.tolist() == [2, 0, 0, 0]


def test_the_ends_of_the_axis_belong_to_the_first_and_last_bin():
    histogram = Histogram(3, decay=1.0)
    histogram.add(torch.tensor([0.0, 1 - 2.0**-24, 1.0]), torch.ones(3))
    assert histogram.count.tolist() == [1, 0, 2]


def test_merging_is_order_free_and_loses_nothing():
    parts, together = [Histogram(6, decay=1.0) for _ in range(3)], Histogram(6, decay=1.0)
    for part in parts:
        u, values = torch.rand(50), torch.randn(50)
        part.add(u, values)
        together.add(u, values)
    merged = []
    for order in ([0, 1, 2], [2, 0, 1]):
        total = Histogram(6, decay=1.0)
        for index in order:
            total.merge(parts[index])
        merged.append(total)
    for total in merged:
        torch.testing.assert_close(total.sums, together.sums)
    with pytest.raises(ValueError, match=r"bins=7.*bins=6"):
        merged[0].merge(Histogram(7, decay=1.0))


def test_unknown_bins_are_interpolated_like_numpy():
    values, known = torch.randn(20).double(), torch.rand(20) < 0.4
    known[3] = True
    at = known.nonzero().flatten()
    expected = np.interp(np.arange(20), at.numpy(), values[at].numpy())
    torch.testing.assert_close(between(values, known), torch.from_numpy(expected))


@pytest.mark.parametrize(("bins", "cells"), [(10, 1000), (7, 60), (60, 7), (5, 5), (1, 3), (3, 1)])
def test_spreading_bins_over_cells_keeps_every_piece_of_mass(bins, cells):
    masses = torch.rand(bins).double()
    expected = []
    for cell in range(cells):
        low, high = cell / cells, (cell + 1) / cells
        overlap = [max(0.0, min(high, (b + 1) / bins) - max(low, b / bins)) * bins for b in range(bins)]
        expected.append(sum(m * o for m, o in zip(masses.tolist(), overlap, strict=True)))
    torch.testing.assert_close(spread(masses, cells), torch.tensor(expected, dtype=torch.float64), atol=1e-12, rtol=0)


@pytest.mark.parametrize("name", ["kingma_gao", "second_moment", "info_noise"])
def test_the_warm_up_ends_even_if_most_bins_are_empty(name):
    """A method that waits for every bin (as published) would wait for ever: half the axis only gives NaN."""
    sampler = op.sampler(name, DDPM, warmup_steps=20, refresh_steps=1)
    broken = lambda u: torch.where(u < 0.5, 0.1 + u, math.nan)  # noqa: E731
    feed(sampler, broken, 19)
    assert torch.equal(sampler.probs(), torch.full((100,), 0.01, dtype=torch.float64))
    feed(sampler, broken, 1)
    probs = sampler.probs()
    assert not torch.allclose(probs, torch.full((100,), 0.01, dtype=torch.float64), rtol=1e-2)
    assert bool((probs > 0).all())


def test_empty_bins_take_the_value_of_their_neighbours():
    sampler = op.sampler("kingma_gao", DDPM, bins=10, warmup_steps=5, floor=0.0, unbiased=False, refresh_steps=1)
    feed(sampler, lambda u: torch.where((u >= 0.3) & (u < 0.6), math.nan, torch.where(u < 0.3, 1.0, 5.0)), 5, 500)
    by_bin = sampler.probs().reshape(10, 10).sum(dim=1)
    torch.testing.assert_close(by_bin / by_bin[0], torch.tensor([1, 1, 1, 2, 3, 4, 5, 5, 5, 5]).double())


def test_thin_bins_are_not_believed():
    """One wild loss in a bin below the minimum count must not decide where compute goes."""
    sampler = op.sampler("kingma_gao", DDPM, bins=10, warmup_steps=1, refresh_steps=1, minimum_count=4)
    u = torch.cat([(torch.arange(90) % 9 + 0.5) / 10, torch.tensor([0.95])])
    draw = sampler.at(u, shape=(91,))
    with sampler.watch(draw, torch.cat([torch.ones(90), torch.tensor([1e6])])):
        pass
    torch.testing.assert_close(sampler.probs(), torch.full((100,), 0.01, dtype=torch.float64))


def test_nothing_to_learn_from_is_said_not_hidden():
    sampler = op.sampler("kingma_gao", DDPM, warmup_steps=3)
    with pytest.warns(UserWarning, match="no bin with 4 or more finite values"):
        feed(sampler, lambda u: torch.full_like(u, math.nan), 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # said once
        feed(sampler, lambda u: torch.full_like(u, math.nan), 200)


def test_a_floor_keeps_every_timestep_drawn():
    sampler = op.sampler("kingma_gao", DDPM, bins=10, warmup_steps=1, refresh_steps=1, floor=0.2)
    feed(sampler, lambda u: (u < 0.1).float(), 1, 2000)
    torch.testing.assert_close(sampler.probs()[50:], torch.full((50,), 0.2 / 100, dtype=torch.float64))


def test_losses_that_are_all_zero_change_nothing():
    sampler = op.sampler("kingma_gao", DDPM, warmup_steps=1, refresh_steps=1)
    feed(sampler, torch.zeros_like, 3, 2000)
    torch.testing.assert_close(sampler.probs(), torch.full((100,), 0.01, dtype=torch.float64))


def test_a_warm_up_longer_than_the_run_is_named():
    with pytest.warns(UserWarning, match="warms up for 500 steps but the run has 400"):
        op.sampler("kingma_gao", DDPM).check_run(400)


def test_gradient_accumulation_counts_optimizer_steps():
    sampler = op.sampler("kingma_gao", DDPM, warmup_steps=4, refresh_steps=1, accumulation=2, bins=10)
    for step in range(4):
        assert torch.allclose(sampler.probs(), torch.full((100,), 0.01, dtype=torch.float64)), step
        draws = [sampler.draw(200), sampler.draw(200)]
        with sampler.watch(draws, [draw.u for draw in draws]):
            pass
    assert not torch.allclose(sampler.probs(), torch.full((100,), 0.01, dtype=torch.float64))
    assert float(sampler.history.count.sum()) > 1500


@pytest.mark.parametrize(
    ("setting", "value"),
    [("bins", 0), ("warmup_steps", -1), ("refresh_steps", 0), ("floor", 1.5), ("decay", -0.1), ("minimum_count", 0)],
)
def test_settings_out_of_range_are_named(setting, value):
    with pytest.raises(ValueError, match=f"{setting}={value}"):
        op.sampler("kingma_gao", DDPM, **{setting: value})


def test_a_weighting_of_another_process_is_refused():
    other = op.weighting("min_snr", op.DDPM("cosine", steps=100))
    with pytest.raises(ValueError, match=r"weighting=.*process"):
        op.sampler("kingma_gao", DDPM, weighting=other)


def test_a_learned_weighting_is_served_by_its_instance_only():
    """One made by name would stay as it starts, and the sampler would serve another objective than the loss."""
    process = op.DDPM("linear", steps=100)
    for name in ("kingma_gao", "adaptive", "kim"):
        with pytest.raises(ValueError, match=r"weighting='learned_uncertainty' learns.*give the instance"):
            op.sampler(name, process, weighting="learned_uncertainty")
    weighting = op.weighting("learned_uncertainty", process)
    sampler = op.sampler("kingma_gao", process, weighting=weighting)
    before = sampler.weight_at(torch.tensor([0.5]))
    torch.nn.init.normal_(weighting.linear)
    assert not torch.equal(sampler.weight_at(torch.tensor([0.5])), before)


@pytest.mark.parametrize(
    ("name", "settings", "match"),
    [
        ("kingma_gao", {"floor": 1.0}, "floor=1 makes KingmaGao draw uniformly"),
        ("second_moment", {"bins": 20}, "bins=20 has no effect: DDPM.* each of 100 timesteps"),
        ("info_noise", {"pivot_sigma": 0.2, "pivot_share": 0.1}, r"pivot_share=0\.1 has no effect: pivot_sigma=0\.2"),
    ],
)
def test_settings_without_effect_are_named(name, settings, match):
    with pytest.warns(UserWarning, match=match) as caught:
        op.sampler(name, DDPM, **settings)
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        op.sampler(name, DDPM)


def test_no_floor_under_a_correction_is_named():
    with pytest.warns(UserWarning, match="floor=0 with unbiased=True"):
        op.sampler("kingma_gao", DDPM, floor=0.0)
