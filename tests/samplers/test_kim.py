"""Kim's policy: what it draws, what it asks for, what it learns, against slow twins and well-kept libraries."""

from __future__ import annotations

import io
import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from sklearn.feature_selection import f_regression
from tests.reference import kim as twin

import opportune as op
from opportune.samplers.kim.adam import Adam
from opportune.samplers.kim.policy import CELLS, FEATURES, Policy, entropy, features, log_masses
from opportune.samplers.kim.selection import Queue, evenly, f_statistic, spaced
from opportune.testing import SAMPLER_CHECKS

DDPM = op.DDPM("linear", steps=100)
CHEAP = {"every_steps": 1, "coverage": 20, "weighting": "constant"}
LOG_U = Policy(hidden=4, seed=0).log_u


class Band:
    """A world where a step improves only noise levels in a band, and only as far as it was trained there.

    An example's loss at u in the band falls by ``rate`` if it was itself trained in the band.
    """

    def __init__(self, low, high, rate=0.5):
        self.low, self.high, self.rate = low, high, rate
        self.stepped = False

    def inside(self, u):
        return ((u >= self.low) & (u < self.high)).float()

    def watch(self, sampler, batch, wrap=lambda probe: probe, **arguments):
        x = torch.randn(batch, 4)
        draw = sampler.draw(x)
        trained, self.stepped = self.inside(draw.u), False

        def probe(probed):
            noise = probed.noise.square().mean(dim=1)
            return 1 + noise - self.rate * self.stepped * trained * self.inside(probed.u)

        with sampler.watch(draw, None, wrap(probe), **arguments):
            self.stepped = True
        return draw


def share(sampler, low, high, batch=512):
    sampler.draw(torch.randn(batch, 4))
    u = (torch.arange(2000) + 0.5) / 2000
    return float((sampler.density(u) * ((u >= low) & (u < high))).mean())


# ---- it learns -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("measurement", ["selected", "shared"])
@pytest.mark.parametrize("seed", range(5))
def test_the_policy_moves_to_the_rewarded_region(seed, measurement):
    sampler, world = op.sampler("kim", DDPM, seed=seed, measurement=measurement, **CHEAP), Band(0.4, 0.6)
    assert share(sampler, 0.4, 0.6) == pytest.approx(0.2, abs=1e-3)
    for _ in range(40):
        world.watch(sampler, 32)
    assert share(sampler, 0.4, 0.6) > 0.45


def test_a_harmful_region_is_left():
    sampler, world = op.sampler("kim", DDPM, **CHEAP), Band(0.0, 0.3, rate=-0.5)
    for _ in range(40):
        world.watch(sampler, 32)
    assert share(sampler, 0.0, 0.3) < 0.1


def test_the_policy_can_tell_examples_apart():
    """Two kinds of data, each improving at its own noise level: one density for all would not do."""
    sampler = op.sampler("kim", DDPM, **CHEAP)
    for _ in range(120):
        x = torch.ones(32, 4) * torch.tensor([1.0, -1.0]).repeat(16)[:, None]
        draw = sampler.draw(x)
        good = torch.where(x[:, 0] > 0, draw.u > 0.7, draw.u < 0.3).float()
        after = [False]

        def probe(probed, good=good, after=after):
            return 1 - 0.5 * after[0] * good + 0 * probed.u

        with sampler.watch(draw, None, probe):
            after[0] = True
    noisy, clean = sampler.draw(torch.ones(500, 4)).u, sampler.draw(-torch.ones(500, 4)).u
    assert float(noisy.mean()) > 0.6
    assert float(clean.mean()) < 0.4


def test_without_reward_the_entropy_alone_leads_back_to_uniform():
    def after(entropy_weight):
        sampler, world = op.sampler("kim", DDPM, entropy_weight=entropy_weight, **CHEAP), Band(0.4, 0.6, rate=0.0)
        sampler.policy.biases[-1].copy_(torch.tensor([3.0, 3.0]))
        for _ in range(40):
            world.watch(sampler, 32)
        return share(sampler, 0.4, 0.6)

    assert after(0.01) == pytest.approx(0.2, abs=0.03)
    assert after(0.0) > 0.35


def test_noise_redrawn_after_the_step_buries_the_reward():
    """The released code's mistake, planted into the probe: the same world is not learned any more."""

    own = torch.Generator().manual_seed(0)  # the global stream is put back after each measurement: it would be paired

    def redrawn(probe):
        return lambda probed: probe(replace(probed, noise=30 * torch.randn(probed.noise.shape, generator=own)))

    paired, broken = (op.sampler("kim", DDPM, **CHEAP) for _ in range(2))
    world = Band(0.4, 0.6)
    for _ in range(40):
        world.watch(paired, 32)
        world.watch(broken, 32, wrap=redrawn)
    assert share(paired, 0.4, 0.6) > 0.45
    assert share(broken, 0.4, 0.6) < 0.3


# ---- what it asks for ----------------------------------------------------------------------------------------


def test_before_and_after_see_the_same_noise_and_eval_mode():
    sampler = op.sampler("kim", DDPM, **CHEAP)
    model = torch.nn.Dropout(0.5).train()
    calls = []

    def probe(probed):
        calls.append((probed.u.clone(), probed.noise.clone(), model.training, torch.is_grad_enabled()))
        return probed.u

    draw = sampler.draw(torch.randn(8, 4))
    with sampler.watch(draw, None, probe, model=model):
        half = len(calls)
    assert model.training
    assert len(calls) == 2 * half
    for (u, noise, *mode), (u_after, noise_after, *mode_after) in zip(calls[:half], calls[half:], strict=True):
        assert torch.equal(u, u_after)
        assert torch.equal(noise, noise_after)
        assert mode == mode_after == [False, False]
    noises = torch.stack([noise for _, noise, *_ in calls[:half]])
    assert len(noises.flatten().unique()) == noises.numel()  # no two probes or examples share noise


@pytest.mark.parametrize(("measurement", "probes"), [("selected", 4), ("shared", 1)])
@pytest.mark.parametrize(("steps", "batch"), [(200, 32), (200, 300), (4000, 32), (7, 3), (5, 1)])
def test_a_measurement_has_the_price_stated_whatever_the_timesteps_and_the_batch(measurement, probes, steps, batch):
    process = op.DDPM("linear", steps=steps)
    sampler = op.sampler("kim", process, every_steps=3, measurement=measurement, weighting="constant")
    requests = []
    for _ in range(6):
        draw = sampler.draw(torch.randn(batch, 2))
        requests.append(sampler.request(draw))
        sampler.steps_watched += 1
    assert [r is not None for r in requests] == [False, False, True, False, False, True]
    covered = sampler.coverage
    assert covered == min(128, steps)
    for request in (requests[2], requests[5]):
        assert request.after
        assert len(request.draws) == probes
        for probe, column in zip(request.draws[1:], evenly(3, covered).tolist(), strict=probes > 1):
            assert set((probe.u.double() * covered).long().tolist()) == {column}


@pytest.mark.parametrize(("coverage", "batch"), [(100, 100), (100, 130), (128, 32), (7, 3), (5, 1)])
def test_the_whole_axis_is_covered_in_one_measurement_or_in_several(coverage, batch):
    """As evenly as the batch allows: no two neighbours of one measurement are further apart than they must be."""
    sampler = op.sampler("kim", op.DDPM(steps=200), every_steps=1, coverage=coverage, weighting="constant")
    seen = set()
    for _ in range(-(-4 * coverage // batch)):
        row = sampler.request(sampler.draw(torch.randn(batch, 2))).draws[0]
        columns = (row.u.double() * coverage).long()
        assert int(columns.diff().max() if batch > 1 else 0) <= -(-coverage // batch)
        assert len(columns.unique()) == min(batch, coverage)
        seen |= set(columns.tolist())
        sampler.steps_watched += 1
    assert len(seen) == coverage


@pytest.mark.parametrize("selected", [1, 2, 3, 4, 5])
def test_a_shared_probe_looks_at_the_selected_timesteps_and_at_the_whole_axis(selected):
    sampler = op.sampler("kim", DDPM, measurement="shared", selected=selected, **CHEAP)
    (probe,) = sampler.request(sampler.draw(torch.randn(80, 4))).draws
    columns = (probe.u.double() * 20).long()
    assert columns[::4].unique().tolist() == list(range(20))
    others = columns[torch.arange(80) % 4 != 0]
    assert torch.equal(others.unique(), evenly(selected, 20))
    assert set(others.bincount()[evenly(selected, 20)].tolist()) == {60 // selected}


def test_shared_rewards_are_less_what_is_usual_at_their_place():
    """Without that, an example measured where losses fall most would look as if its timestep had earned it."""
    sampler = op.sampler("kim", DDPM, measurement="shared", **CHEAP)
    caught = []
    sampler._improve = lambda draw, reward: caught.append(reward)
    for _ in range(2):
        after = [False]
        draw = sampler.draw(torch.randn(80, 4))
        with sampler.watch(draw, None, lambda probed, after=after: 20 - after[0] * (1 + 5 * probed.u)):
            after[0] = True
    assert float(caught[0].min()) > 1 and float(caught[0].max()) > 4  # nothing is usual yet
    torch.testing.assert_close(caught[1], torch.zeros(80).double(), rtol=0, atol=1e-5)


# ---- selection -----------------------------------------------------------------------------------------------


def test_f_statistic_is_scikit_learns():
    generator = torch.Generator().manual_seed(0)
    columns = torch.randn(12, 40, generator=generator).double()
    columns[:, 3] = 7.0
    target = columns.mean(dim=1)
    ours = f_statistic(columns, target)
    theirs, _ = f_regression(columns.numpy(), target.numpy())
    expected = torch.nan_to_num(torch.from_numpy(theirs))
    torch.testing.assert_close(ours, expected)
    slow = [twin.f_statistic(columns[:, c].tolist(), target.tolist()) for c in range(40)]
    torch.testing.assert_close(ours, torch.tensor(slow, dtype=torch.float64))


def test_f_statistic_is_finite_where_it_degenerates():
    target = torch.tensor([1.0, 2.0, 3.0, 4.0])
    columns = torch.stack([target, -target, torch.full((4,), 0.1), torch.tensor([1.0, 1.0, 1.0, 2.0])], dim=1)
    scores = f_statistic(columns, target)
    assert bool(torch.isfinite(scores).all())
    assert scores[0] == scores[1] > 1e6
    assert scores[2] == 0
    assert f_statistic(columns, torch.ones(4)).tolist() == [0, 0, 0, 0]
    assert f_statistic(columns[:2], target[:2]).tolist() == [0, 0, 0, 0]  # two rows: no degrees of freedom


def test_selection_is_the_twins_and_keeps_its_distance():
    generator = torch.Generator().manual_seed(1)
    queue = Queue(20, 60)
    smooth = torch.linspace(0, 6, 60).sin().double()
    for _ in range(25):
        row = smooth * torch.randn((), generator=generator) + 0.3 * torch.randn(60, generator=generator)
        queue.push(row.double())
    assert int(queue.filled) == 20
    chosen = queue.select(3, 6).tolist()
    assert chosen == twin.select(queue.gains.tolist(), 3, 6)
    assert all(b - a >= 6 for a, b in pairwise(chosen))
    scores = f_statistic(queue.gains, queue.gains.mean(dim=1))
    together = scores.topk(3).indices
    assert int(together.max() - together.min()) < 20  # without the distance neighbours would be chosen


def test_two_rows_select_evenly_and_the_oldest_row_leaves():
    queue = Queue(3, 10)
    for row in range(2):
        queue.push(torch.randn(10).double())
        assert queue.select(2, 1).tolist() == [2, 7], row
    for value in range(5):
        queue.push(torch.full((10,), float(value)).double())
    assert queue.gains[:, 0].tolist() == [2, 3, 4]


@pytest.mark.parametrize(("columns", "count"), [(1, 1), (2, 2), (3, 3), (5, 3), (100, 3), (7, 7)])
def test_spacing_never_runs_out_of_columns(columns, count):
    for scores in (torch.zeros(columns), torch.rand(columns), torch.arange(columns).float()):
        chosen = spaced(scores, count, distance=10**6).tolist()
        assert len(set(chosen)) == count
        assert chosen == sorted(chosen)
        assert 0 <= chosen[0] <= chosen[-1] < columns


# ---- the policy ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shape",
    [
        (3,),
        (5, 2),
        (4, 7000),
        (2, 3, 32, 32),
        (2, 4, 5, 7),
        (1, 1, 1, 1),
        (3, 77, 768),
        (2, 3, 8, 16, 16),
        (2, 2, 2, 2, 2, 2),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.uint8])
def test_any_data_is_looked_at(shape, dtype):
    x = (torch.rand(shape) * 3).to(dtype)
    seen = features(x)
    assert seen.shape[0] == shape[0]
    assert 1 <= seen.shape[1] <= FEATURES
    assert seen.dtype == torch.float32
    draw = op.sampler("kim", DDPM, weighting="constant").draw(x)
    assert draw.t.shape == (shape[0],)


def test_features_keep_small_data_and_average_large():
    x = torch.randn(2, 3, 8, 8)
    torch.testing.assert_close(features(x), x.flatten(1))
    large = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(features(large), large.unfold(2, 4, 4).unfold(3, 4, 4).mean(dim=(-1, -2)).flatten(1))


def test_data_that_is_not_finite_still_gets_a_timestep():
    x = torch.randn(4, 3, 8, 8)
    x[0, 0, 0, 0], x[1] = math.nan, math.inf
    for data in (x, torch.randn(4, 3, 8, 8) * 3e38):  # finite, but not a layer later
        draw = op.sampler("kim", DDPM, weighting="constant").draw(data)
        assert bool(torch.isfinite(draw.u).all() and torch.isfinite(draw.density).all())


@pytest.mark.parametrize("inside", [0.02, 0.98])
def test_the_density_declared_is_that_of_the_cell_drawn_from(inside):
    """Up to both edges of each cell: round(u * 255) instead of floor(u * 256) would shift them."""
    sampler = op.sampler("kim", op.Flow())
    sampler.average = torch.arange(1, CELLS + 1, dtype=torch.float64) / (CELLS * (CELLS + 1) / 2)
    density = sampler.density((torch.arange(CELLS, dtype=torch.float64) + inside) / CELLS)
    torch.testing.assert_close(density, sampler.average * CELLS)


def test_the_policy_starts_exactly_uniform():
    sampler = op.sampler("kim", DDPM, weighting="constant")
    x = torch.randn(64, 3, 8, 8)
    torch.testing.assert_close(sampler.policy.shape(features(x)), torch.ones(64, 2), rtol=0, atol=1e-6)
    torch.testing.assert_close(sampler.draw(x).density, torch.ones(64), rtol=0, atol=1e-5)


@pytest.mark.parametrize(("a", "b"), [(1, 1), (0.05, 0.05), (0.05, 50), (50, 50), (2, 5), (0.7, 62)])
def test_masses_are_the_beta_density_on_cells(a, b):
    ours = log_masses(torch.tensor([[float(a), float(b)]]), LOG_U).exp()[0]
    torch.testing.assert_close(ours.double(), twin.cell_masses(a, b, CELLS), rtol=1e-3, atol=1e-7)


@pytest.mark.parametrize(("a", "b"), [(2.0, 5.0), (1.5, 1.2), (10.0, 3.0)])
def test_entropy_and_its_gradient_are_torchs(a, b):
    """Sign and size: the gradient pulls towards uniform, and is not scaled by the entropy itself."""
    shape = torch.tensor([[a, b]], requires_grad=True)
    ours = entropy(log_masses(shape, LOG_U))
    (gradient,) = torch.autograd.grad(ours.sum(), shape)
    exact = torch.tensor([[a, b]], dtype=torch.float64, requires_grad=True)
    theirs = torch.distributions.Beta(exact[:, 0], exact[:, 1]).entropy()
    (expected,) = torch.autograd.grad(theirs.sum(), exact)
    torch.testing.assert_close(ours.double(), theirs, rtol=0, atol=2e-3)
    torch.testing.assert_close(gradient.double(), expected, rtol=0.02, atol=2e-3)


def test_the_update_is_the_score_function_with_entropy(monkeypatch):
    """The gradient handed to the policy's optimizer, against torch.distributions, through the last layer's bias."""
    sampler = op.sampler("kim", DDPM, weighting="constant", entropy_weight=0.3, hidden=8)
    sampler.policy.biases[-1].copy_(torch.tensor([1.5, 2.5]))
    draw = sampler.draw(torch.randn(400, 4))
    reward = torch.randn(400).double()
    caught = []
    monkeypatch.setattr(sampler.adam, "step", lambda parameters, gradients: caught.extend(gradients))
    raw = sampler.policy.biases[-1].clone().requires_grad_()
    rise = torch.nn.functional.softplus(raw)
    shape = (0.05 + rise / (1 + rise / 49.95)).expand(400, 2)
    sampler._improve(draw, reward)
    advantage = (reward - reward.mean()) / (reward - reward.mean()).square().mean().sqrt()
    by_shape = twin.gradient_of_update(shape, draw.u, advantage, 0.3)
    (expected,) = torch.autograd.grad(shape, raw, by_shape.float())
    torch.testing.assert_close(caught[-1], expected, rtol=0.03, atol=3e-3)


def test_bounds_are_reached_but_never_stick():
    policy = Policy(hidden=4, seed=0)
    leaf = torch.tensor([[-30.0, 2000.0]], requires_grad=True)
    policy.biases[-1].zero_()
    policy.weights[-1].copy_(torch.zeros(2, 4))
    policy.biases[-1].copy_(leaf.detach()[0])
    a, b = policy.shape(torch.zeros(1, 4))[0].tolist()
    assert a == pytest.approx(0.05, abs=1e-5)
    assert 45 < b < 50
    rise = torch.nn.functional.softplus(leaf)
    (gradient,) = torch.autograd.grad((rise / (1 + rise / 49.95)).sum(), leaf)
    assert bool((gradient > 0).all())


def test_the_optimizer_is_torchs_adam_with_clipping():
    ours = [torch.randn(3, 2), torch.randn(4)]
    theirs = [torch.nn.Parameter(p.clone()) for p in ours]
    adam, reference = Adam(10, learning_rate=0.01, max_norm=1.0), torch.optim.Adam(theirs, lr=0.01)
    for step in range(20):
        gradients = [torch.randn_like(p) * (5 if step % 2 else 0.01) for p in ours]
        for parameter, gradient in zip(theirs, gradients, strict=True):
            parameter.grad = gradient.clone()
        torch.nn.utils.clip_grad_norm_(theirs, 1.0)
        reference.step()
        assert adam.step(ours, gradients)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b.detach(), rtol=1e-5, atol=1e-6)
    kept = [p.clone() for p in ours]
    assert not adam.step(ours, [torch.full((3, 2), math.nan), torch.zeros(4)])
    assert all(map(torch.equal, kept, ours))
    assert int(adam.taken) == 20


# ---- the objective -------------------------------------------------------------------------------------------


def test_one_degenerate_end_cannot_be_the_whole_reward():
    """c_999 of a cosine schedule is 499, its neighbours 0.01: capped, and the same in any count of covered steps."""
    sampler = op.sampler("kim", op.DDPM("cosine", steps=1000), coverage=1000)
    weights = sampler._column_weights()
    assert weights.shape == (1000,)
    assert float(weights[-1]) < 1
    assert float(weights[-1] / weights.sum()) < 0.02
    torch.testing.assert_close(
        weights[100:900], op.weighting("vlb", sampler.process).at((torch.arange(100, 900) + 0.5) / 1000)
    )


def test_an_infinite_weight_is_capped_too():
    process = op.DDPM("linear", steps=50, zero_terminal_snr=True)
    sampler = op.sampler("kim", process, weighting=op.weighting("constant", process, target="x0"))
    assert bool(torch.isfinite(sampler._column_weights()).all())


def test_the_reward_is_weighted_by_the_objective():
    """The same drop everywhere, in an objective that asks for low noise only: selection and reward see the weight."""
    process = op.DDPM("linear", steps=100)
    weighting = op.weighting("p2", process)
    sampler = op.sampler("kim", process, weighting=weighting, every_steps=1)
    world = Band(0.0, 1.0)
    world.watch(sampler, 100)
    row = sampler.queue.gains[-1]
    expected = 0.5 * sampler._column_weights()
    torch.testing.assert_close(row, expected, rtol=1e-4, atol=1e-7)
    assert set(sampler.state_dict()) == set(op.sampler("kim", process, weighting="constant").state_dict())


def test_the_reward_is_the_mean_drop_of_each_example_at_the_selected_timesteps():
    sampler = op.sampler("kim", DDPM, **CHEAP)
    own, after, caught = torch.arange(16).float(), [False], []
    sampler._improve = lambda draw, reward: caught.append(reward)
    draw = sampler.draw(torch.randn(16, 4))

    with sampler.watch(draw, None, lambda probed: 20 - after[0] * (own + probed.u**2)):
        after[0] = True
    at = (torch.tensor([3, 10, 16]) + 0.5) / 20  # evenly spaced columns of 20
    expected = own + at.square().mean()
    torch.testing.assert_close(caught[0].float(), expected, rtol=0, atol=1e-5)


def test_rewards_are_measured_against_earlier_ones():
    """On the running mean of earlier batches, so that a batch that helped more than usual is told from a usual one."""
    sampler = op.sampler("kim", DDPM, **CHEAP)
    first = sampler._advantage(torch.tensor([1.0, 3.0]).double())
    torch.testing.assert_close(first, torch.tensor([-1.0, 1.0]).double())
    second = sampler._advantage(torch.tensor([5.0, 5.0]).double())
    spread = math.sqrt((0.9 * 1 + 9) / 1.9)
    torch.testing.assert_close(second, torch.tensor([3.0, 3.0]).double() / spread)
    third = sampler._advantage(torch.tensor([4.0]).double())
    assert float(third) == pytest.approx((4 - (0.9 * 2 + 5) / 1.9) / math.sqrt(_third_spread()))


def _third_spread():
    baseline = (0.9 * 2 + 5) / 1.9
    return (0.9 * (0.9 * 1 + 9) + (4 - baseline) ** 2) / (0.9 * 1.9 + 1)


def test_after_an_update_densities_are_the_new_policys():
    sampler = op.sampler("kim", DDPM, **CHEAP)
    draw = Band(0.4, 0.6).watch(sampler, 32)
    again = sampler.at(draw.u, shape=draw.shape, context=draw.context)
    fresh = op.sampler("kim", DDPM, **CHEAP)
    fresh.load_state_dict(sampler.state_dict())
    assert torch.equal(again.density, fresh.at(draw.u, shape=draw.shape, context=draw.context).density)
    assert not torch.allclose(again.density, draw.density)


# ---- bad input -----------------------------------------------------------------------------------------------


def test_losses_that_are_not_finite_are_left_out():
    """One bad example: its reward is dropped and its column takes the neighbours' value; the rest is learned from."""
    sampler = op.sampler("kim", DDPM, every_steps=1, coverage=16, weighting="constant")

    def poison(probe):
        def poisoned(probed):
            losses = probe(probed).clone()
            losses[3] = math.nan
            return losses

        return poisoned

    before = [p.clone() for p in sampler.policy.parameters()]
    Band(0.0, 1.0).watch(sampler, 16, wrap=poison)
    assert int(sampler.queue.filled) == 1
    torch.testing.assert_close(sampler.queue.gains[-1], torch.full((16,), 0.5, dtype=torch.float64), rtol=1e-5, atol=0)
    Band(0.4, 0.6).watch(sampler, 16, wrap=poison)
    assert not all(map(torch.equal, before, sampler.policy.parameters()))
    assert all(bool(torch.isfinite(v).all()) for v in sampler.state_dict().values() if isinstance(v, torch.Tensor))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_with_nothing_left_the_update_is_skipped(value):
    sampler = op.sampler("kim", DDPM, **CHEAP)
    before = {k: v.clone() for k, v in sampler.state_dict().items() if isinstance(v, torch.Tensor) and k != "average"}
    Band(0.4, 0.6).watch(sampler, 8, wrap=lambda probe: lambda probed: torch.full_like(probe(probed), value))
    after = sampler.state_dict()
    assert all(torch.equal(v, after[k]) for k, v in before.items())
    assert sampler.steps_watched == 1


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_few_timesteps_and_one_example(steps):
    process = op.DDPM("linear", steps=steps)
    sampler = op.sampler("kim", process, every_steps=1)
    for _ in range(8):
        Band(0.0, 0.5).watch(sampler, 1)
    probs = sampler.probs()
    assert probs.shape == (steps,)
    assert float(probs.sum()) == pytest.approx(1)
    assert all(bool(torch.isfinite(v).all()) for v in sampler.state_dict().values() if isinstance(v, torch.Tensor))


def test_a_batch_size_alone_is_refused():
    with pytest.raises(ValueError, match="looks at the data"):
        op.sampler("kim", DDPM, weighting="constant").draw(8)


OUT_OF_RANGE = {
    "every_steps": 0, "coverage": 101, "measurement": "some", "selected": 0, "queue_rows": 2, "entropy_weight": -1,
    "learning_rate": 0, "hidden": 0, "min_distance": 2,
}  # fmt: skip


@pytest.mark.parametrize(("setting", "value"), [*OUT_OF_RANGE.items(), ("learning_rate", 100)])
def test_settings_out_of_range_are_named(setting, value):
    with pytest.raises(ValueError, match=f"{setting}={value!r}"):
        op.sampler("kim", DDPM, **{"weighting": "constant", setting: value})


# ---- state ---------------------------------------------------------------------------------------------------


def test_a_restart_between_two_updates_is_invisible():
    """Everything is in the state: policy, its optimizer, queue, pending selection, reward scale, counters."""
    settings = {"every_steps": 3, "coverage": 20, "weighting": "constant"}
    sampler, world = op.sampler("kim", DDPM, seed=5, **settings), Band(0.4, 0.6)
    torch.manual_seed(0)
    for _ in range(16):
        world.watch(sampler, 16)
    assert sampler.selection.tolist() != evenly(3, 20).tolist()
    buffer = io.BytesIO()
    torch.save(sampler.state_dict(), buffer)
    buffer.seek(0)
    restored = op.sampler("kim", DDPM, seed=99, **settings)
    restored.load_state_dict(torch.load(buffer, weights_only=True))
    assert torch.equal(sampler.probs(), restored.probs())
    streams = []
    for one in (sampler, restored):
        torch.manual_seed(1)
        streams.append([Band(0.4, 0.6).watch(one, 16).u for _ in range(12)])
    assert all(map(torch.equal, *streams))


def test_the_policy_keeps_no_graph_and_ignores_autocast():
    sampler = op.sampler("kim", DDPM, weighting="constant")
    sampler.policy.biases[-1].copy_(torch.tensor([0.3, 1.7]))
    twin_ = op.sampler("kim", DDPM, weighting="constant")
    twin_.policy.biases[-1].copy_(torch.tensor([0.3, 1.7]))
    x = torch.randn(16, 3, 8, 8)
    plain = sampler.draw(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = twin_.draw(x)
    assert torch.equal(plain.u, cast.u)
    assert not plain.density.requires_grad
    assert not any(p.requires_grad for p in sampler.parameters())


def test_a_floor_around_the_policy_does_not_pull_it_along():
    """Under a mixture half the draws are not the policy's own; without a reward it must stay where it is."""
    sampler = op.sampler(
        "mixture", DDPM, floor=0.5, of="kim", of_settings={**CHEAP, "entropy_weight": 0.0, "learning_rate": 1e-3}
    )  # fmt: skip
    policy = sampler.of.policy
    policy.biases[-1].copy_(torch.tensor([0.2, 2.0]))
    start = policy.shape(torch.zeros(1, 4))[0].clone()
    gradients = torch.zeros(2)
    original = sampler.of.adam.step

    def record(parameters, found):
        gradients.add_(found[-1])
        return True

    sampler.of.adam.step = record
    sampler.of.reward_sums.copy_(torch.tensor([1.0, 0.0, 1.0]))
    for _ in range(60):  # every example is rewarded alike: the score function's mean is zero, with the right ratio
        draw = sampler.draw(torch.randn(256, 4))
        sampler.of.reward_sums.copy_(torch.tensor([1.0, 0.0, 1.0]))
        sampler.of._improve(draw, torch.ones(256, dtype=torch.float64))
    sampler.of.adam.step = original
    assert torch.equal(policy.shape(torch.zeros(1, 4))[0], start)
    assert float((gradients / 60).abs().max()) < 0.03


@pytest.mark.parametrize("check", SAMPLER_CHECKS[3:9], ids=lambda check: check.__name__)
def test_conformance_with_a_policy_that_has_moved(check):
    """The general suite trains for 130 steps; here that is 26 updates at a high learning rate."""
    settings = {"every_steps": 5, "learning_rate": 0.05, "coverage": 16}
    check(lambda p, **common: op.sampler("kim", p, **settings, **common), op.DDPM("cosine", steps=20))


def test_a_probe_that_is_never_finite_is_said_once():
    sampler = op.sampler("kim", DDPM, **CHEAP)
    with pytest.warns(UserWarning, match="look at what the probe returns") as caught:
        for _ in range(3):
            draw = sampler.draw(torch.randn(8, 4))
            with sampler.watch(draw, torch.ones(8), lambda asked: asked.u * math.nan):
                pass
    assert len(caught) == 1 and int(sampler.queue.filled) == 0
