"""The loop: order of events, accumulation, skipped steps, and what a sampler is handed."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

import opportune as op
from opportune.samplers import FixedSampler
from opportune.step import PlainEngine
from opportune.testing.toy import ToyNetwork, batches


class Recorder(FixedSampler):
    """Asks for two probes before and after every third step and remembers what it was given."""

    needs = "probe"

    def __init__(self, process, *, every=3, gradient=False, **common):
        super().__init__(process, **common)
        self.every, self.gradient, self.records = every, gradient, []
        self._build()

    def cumulative(self, u, log_snr):
        return u

    def request(self, draw):
        if self.steps_watched % self.every:
            return None
        looks = (self.probe_draw(draw, torch.linspace(0.1, 0.9, self.global_size(draw)), i) for i in range(2))
        return op.Request(draws=tuple(looks), after=True, gradient=self.gradient)

    def learn(self, record):
        self.records.append(record)


class LossRecorder(Recorder):
    needs = "losses"

    def request(self, draw):
        return None


def run(sampler, *, steps=7, accumulation=1, engine=None, network=None):
    network = network or ToyNetwork()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05)
    objective = op.objective(network, sampler.process)
    data = batches(steps * accumulation)
    loop = op.training_steps(objective, sampler, optimizer, data, accumulation=accumulation, engine=engine)
    return list(loop), network


def test_one_record_per_step_with_this_steps_draw():
    records, _ = run(op.sampler("uniform", op.DDPM(steps=10)))
    assert [r.step for r in records] == list(range(7))
    assert all(r.losses.shape == r.draw.u.shape == (16,) for r in records)
    assert not torch.equal(records[0].draw.u, records[1].draw.u)


def test_probes_are_asked_for_on_schedule_and_measured_on_both_sides_of_the_step():
    sampler = Recorder(op.DDPM(steps=10))
    run(sampler)
    assert [r.step for r in sampler.records] == [0, 3, 6]
    for record in sampler.records:
        assert record.before.shape == record.after.shape == record.probe_u.shape == (2, 16)
        assert not torch.equal(record.before, record.after), "the step must lie between the two measurements"


def test_before_and_after_use_the_same_noise_and_eval_mode():
    """With a learning rate of 0 nothing moves, so paired measurements agree to the bit, dropout or not."""
    sampler = Recorder(op.DDPM(steps=10), every=1)
    network = ToyNetwork()
    objective = op.objective(network, sampler.process)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.0)
    network.train()
    modes = []
    network.drop.register_forward_pre_hook(lambda module, _: modes.append(module.training))
    list(op.training_steps(objective, sampler, optimizer, batches(3)))
    assert all(torch.equal(r.before, r.after) for r in sampler.records)
    assert modes == [True, *[False] * 4] * 3, "one training pass, two probes before and two after the step"


def test_accumulation_steps_once_per_group_and_hands_over_every_loss():
    sampler = LossRecorder(op.DDPM(steps=10), accumulation=3)
    records, _ = run(sampler, steps=4, accumulation=3)
    assert len(records) == len(sampler.records) == 4
    assert sampler.records[0].losses.shape == (48,)
    assert sampler.step == 4 and sampler.draws_made == 12


def test_accumulation_gives_the_gradient_of_the_whole_batch():
    process = op.DDPM(steps=10)
    whole, parts = ToyNetwork(), ToyNetwork()
    whole.eval(), parts.eval()
    data = batches(2)
    u = op.sampler("uniform", process, accumulation=2)
    draws = [u.draw(x) for x in data]
    noise = [torch.randn_like(x) for x in data]
    together = op.objective(whole, process)
    raw = torch.cat([together.losses(x, d, n) for x, d, n in zip(data, draws, noise, strict=True)])
    raw.mean().backward()
    for x, d, n in zip(data, draws, noise, strict=True):
        (op.objective(parts, process).losses(x, d, n).mean() / 2).backward()
    for a, b in zip(whole.parameters(), parts.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)


def test_an_incomplete_last_group_is_not_trained_on():
    process = op.DDPM(steps=10)
    network = ToyNetwork()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    sampler = op.sampler("uniform", process, accumulation=2)
    records = list(op.training_steps(op.objective(network, process), sampler, optimizer, batches(5), accumulation=2))
    assert len(records) == 2 and all(p.grad is None for p in network.parameters())


class Refuses(PlainEngine):
    """Finds every second gradient unfit."""

    calls = 0

    def allow(self, loss, gradient_norm):
        self.calls += 1
        return self.calls % 2 == 1


class ScalerSkips(PlainEngine):
    def step(self, optimizer):
        return False


@pytest.mark.parametrize(("engine", "stepped"), [(Refuses(), 2), (ScalerSkips(), 0)])
def test_a_step_that_is_refused_or_skipped_teaches_nothing(engine, stepped):
    sampler = LossRecorder(op.DDPM(steps=10))
    records, network = run(sampler, steps=4, engine=engine)
    assert sum(not r.skipped for r in records) == len(sampler.records) == sampler.steps_watched == stepped
    if not stepped:
        fresh = ToyNetwork()
        assert all(map(torch.equal, network.parameters(), fresh.parameters()))


def test_mismatched_accumulation_is_refused():
    with pytest.raises(ValueError, match=r"accumulation=2.*accumulation=1"):
        next(op.training_steps(None, op.sampler("uniform", op.DDPM()), None, [], accumulation=2))


def test_clipping_reports_the_length_before():
    network = ToyNetwork()
    engine = PlainEngine(network.parameters(), max_norm=1e-6)
    records, _ = run(op.sampler("uniform", op.DDPM(steps=10)), engine=engine, network=network)
    assert all(float(r.gradient_norm) > 1e-6 for r in records)


def test_an_error_inside_watch_passes_through_and_nothing_is_learned():
    sampler = LossRecorder(op.DDPM(steps=10))
    draw = sampler.draw(4)
    with pytest.raises(RuntimeError, match="boom"), sampler.watch(draw, torch.ones(4)):
        raise RuntimeError("boom")
    assert sampler.records == [] and sampler.steps_watched == 0


@pytest.mark.parametrize("losses", [torch.ones(3), torch.ones(4, 1), torch.tensor(1.0)])
def test_reduced_losses_are_refused(losses):
    sampler = LossRecorder(op.DDPM(steps=10))
    with pytest.raises(ValueError, match="per example"), sampler.watch(sampler.draw(4), losses):
        pass


def test_missing_parts_are_named():
    sampler = LossRecorder(op.DDPM(steps=10))
    with pytest.raises(ValueError, match="losses"), sampler.watch(sampler.draw(4)):
        pass
    with pytest.raises(ValueError, match="draw is an empty list"), sampler.watch([], []):
        pass
    with pytest.raises(ValueError, match="draw=None is not a draw"), sampler.watch(None, torch.ones(4)):
        pass
    with pytest.raises(ValueError, match="losses has float"), sampler.watch(sampler.draw(1), [0.5]):
        pass
    probing = Recorder(op.DDPM(steps=10))
    with pytest.raises(ValueError, match="probe is missing"), probing.watch(probing.draw(torch.zeros(4, 2))):
        pass
    gradient = Recorder(op.DDPM(steps=10), gradient=True)
    with (
        pytest.raises(ValueError, match="model is missing"),
        gradient.watch(gradient.draw(torch.zeros(4, 2)), None, lambda d: torch.ones(4)),
    ):
        pass


def test_a_probe_that_reduces_is_refused():
    sampler = Recorder(op.DDPM(steps=10))
    with (
        pytest.raises(ValueError, match="one loss per example"),
        sampler.watch(sampler.draw(torch.zeros(4, 2)), None, lambda d: torch.tensor(1.0)),
    ):
        pass


def test_objective_names_what_does_not_fit():
    with pytest.raises(ValueError, match="model=None cannot be called"):
        op.objective(None, op.DDPM())
    with pytest.raises(ValueError, match="process='ddpm' is not a process"):
        op.objective(lambda x, t: x, "ddpm")
    for nothing in (None, torch.tensor(1.0)):
        with pytest.raises(ValueError, match="is not a batch"):
            op.objective(lambda x, t: x, op.DDPM())(nothing, op.sampler("uniform", op.DDPM()).draw(1))
    process = op.DDPM(steps=10)
    objective = op.objective(lambda x, t: x[:, :1], process)
    sampler = op.sampler("uniform", process)
    with pytest.raises(ValueError, match="model returned shape"):
        objective(torch.zeros(4, 2), sampler.draw(4))
    with pytest.raises(ValueError, match="3 examples and the draw 4"):
        objective(torch.zeros(3, 2), sampler.draw(4))
    with pytest.raises(ValueError, match=r"weighting=3 is not a weighting; give op\.weighting"):
        op.objective(nn.Identity(), process, 3)
    with pytest.raises(ValueError, match="another process"):
        op.Objective(nn.Identity(), process, op.weighting("constant", op.DDPM()))


def test_objective_is_the_mean_squared_error_of_the_target_times_weight_and_correction():
    process = op.DDPM("cosine", steps=20, prediction="v")
    weighting = op.weighting("constant", process, target="eps")
    objective = op.objective(lambda x, t: 0.5 * x, process, weighting)
    x0, noise = torch.randn(6, 3), torch.randn(6, 3)
    draw = op.sampler("log_normal", process, unbiased=True).draw(x0)
    raw = objective(x0, draw, noise)
    for i in range(6):
        bar = process.alphas_cumprod[draw.t[i]].float()
        x_t = bar.sqrt() * x0[i] + (1 - bar).sqrt() * noise[i]
        v = bar.sqrt() * noise[i] - (1 - bar).sqrt() * x0[i]
        torch.testing.assert_close(raw[i], (0.5 * x_t - v).square().mean())
        snr = bar / (1 - bar)
        torch.testing.assert_close(
            objective.weighted(raw, draw)[i],
            raw[i] * draw.correction[i] * snr / (snr + 1),
            rtol=1e-4,
            atol=1e-6,
        )


def test_objective_refuses_whole_numbers_and_takes_plain_vectors():
    process = op.DDPM(steps=10)
    objective = op.objective(lambda x, t: x, process)
    draw = op.sampler("uniform", process).draw(4)
    with pytest.raises(ValueError, match=r"x0 has dtype torch.uint8; give floats"):
        objective(torch.zeros(4, 3, dtype=torch.uint8), draw)
    x0, noise = torch.randn(4), torch.randn(4)
    expected = (process.corrupt(x0, noise, draw.t) - noise).square()
    torch.testing.assert_close(objective(x0, draw, noise), expected)


def test_unbiased_must_be_true_false_or_none():
    with pytest.raises(ValueError, match="unbiased='False' is not allowed"):
        op.sampler("uniform", op.DDPM(steps=10), unbiased="False")


@pytest.mark.parametrize("make", [{"name": "adaptive"}, {"name": "stratified", "of": "kingma_gao"}])
def test_a_loop_that_forgets_to_watch_is_told_once(make):
    sampler = op.sampler(process=op.DDPM(steps=10), accumulation=2, **make)
    with pytest.warns(UserWarning, match="has drawn for 100 steps and watched none, so it learns nothing") as seen:
        for _ in range(500):
            sampler.draw(4)
    assert len(seen) == 1


@pytest.mark.parametrize("name", ["uniform", "adaptive"])
def test_a_loop_that_draws_twice_a_step_is_told_once(name):
    sampler = op.sampler(name, op.DDPM(steps=10))
    with pytest.warns(UserWarning, match=r"drawn for 100 steps \(accumulation=1\) and watched 49") as seen:
        for _ in range(200):
            sampler.draw(4)
            draw = sampler.draw(4)
            with sampler.watch(draw, torch.ones(4)):
                pass
    assert len(seen) == 1


@pytest.mark.parametrize(("name", "watches"), [("logit_normal", False), ("logit_normal", True), ("adaptive", True)])
def test_a_loop_that_does_what_the_method_needs_is_told_nothing(name, watches):
    sampler = op.sampler(name, op.DDPM(steps=10), accumulation=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(120):
            draws = [sampler.draw(4), sampler.draw(4)]
            if watches:
                with sampler.watch(draws, [torch.rand(4), torch.rand(4)]):
                    pass
