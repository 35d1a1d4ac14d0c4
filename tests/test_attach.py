"""Step hooks: once per real step, whoever drives the optimizer."""

from __future__ import annotations

import copy
import warnings

import accelerate
import lightning
import pytest
import torch

import opportune as op
from opportune.testing.toy import ToyNetwork, batches

from .test_step import LossRecorder, Recorder


def one_batch(sampler, network, attachment, x0, *, scale=1.0):
    objective = op.objective(network, sampler.process)
    draw = sampler.draw(x0)
    losses = objective(x0, draw)
    attachment.observe(draw, losses, objective.probe(x0))
    return losses.mean() * scale


def test_it_watches_like_the_context_manager():
    process = op.DDPM(steps=10)
    results = []
    for attached in (False, True):
        torch.manual_seed(3)
        sampler, network = Recorder(process, every=1), ToyNetwork()
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
        objective = op.objective(network, process)
        attachment = op.attach(sampler, optimizer, model=network) if attached else None
        for x0 in batches(4):
            draw = sampler.draw(x0)
            losses = objective(x0, draw)
            losses.mean().backward()
            if attachment:
                attachment.observe(draw, losses, objective.probe(x0))
                optimizer.step()
            else:
                with sampler.watch(draw, losses, objective.probe(x0), model=network):
                    optimizer.step()
            optimizer.zero_grad()
        results.append([(r.before, r.after) for r in sampler.records])
    assert len(results[0]) == len(results[1]) == 4
    for (b1, a1), (b2, a2) in zip(*results, strict=True):
        assert torch.equal(b1, b2) and torch.equal(a1, a2)


@pytest.mark.parametrize("make", [torch.optim.Adam, torch.optim.SGD, lambda p, lr: torch.optim.Adam(p, lr, fused=True)])
def test_once_per_real_step_under_accumulation(make):
    sampler, network = LossRecorder(op.DDPM(steps=10), accumulation=3), ToyNetwork()
    optimizer = make(network.parameters(), lr=0.1)
    attachment = op.attach(sampler, optimizer)
    for index, x0 in enumerate(batches(9)):
        one_batch(sampler, network, attachment, x0).backward()
        if index % 3 == 2:
            optimizer.step()
            optimizer.zero_grad()
    assert [r.losses.shape[0] for r in sampler.records] == [48, 48, 48]


def test_every_micro_batch_of_a_long_accumulation_is_learned_from():
    sampler = LossRecorder(op.DDPM(steps=10), accumulation=70)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    attachment = op.attach(sampler, optimizer)
    for _ in range(70):
        attachment.observe(sampler.draw(2), torch.ones(2))
    optimizer.step()
    assert sampler.records[0].losses.shape == (140,)


def test_lbfgs_counts_one_step_however_often_it_evaluates():
    sampler, network = LossRecorder(op.DDPM(steps=10)), ToyNetwork()
    optimizer = torch.optim.LBFGS(network.parameters(), max_iter=4)
    attachment = op.attach(sampler, optimizer)
    for x0 in batches(2):
        objective = op.objective(network, sampler.process)
        draw, noise = sampler.draw(x0), torch.randn_like(x0)
        attachment.observe(draw, objective(x0, draw, noise))

        def closure(objective=objective, x0=x0, draw=draw, noise=noise):
            optimizer.zero_grad()
            loss = objective(x0, draw, noise).mean()
            loss.backward()
            return loss

        optimizer.step(closure)
    assert len(sampler.records) == 2


def test_accelerated_optimizer_is_unwrapped_and_counts_real_steps():
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    sampler, network = LossRecorder(op.DDPM(steps=10), accumulation=2), ToyNetwork()
    model, optimizer = accelerator.prepare(network, torch.optim.Adam(network.parameters(), 1e-3))
    attachment = op.attach(sampler, optimizer)
    for x0 in batches(6):
        with accelerator.accumulate(model):
            accelerator.backward(one_batch(sampler, model, attachment, x0))
            optimizer.step()
            optimizer.zero_grad()
    assert len(sampler.records) == 3


@pytest.mark.parametrize(("fused", "learned"), [(False, [16, 32]), (True, [16, 16])])
def test_a_scaler_that_skips_teaches_nothing(fused, learned):
    """torch's GradScaler on the CPU: at an infinite gradient it does not call the optimizer, so the hooks stay silent.

    A fused one it calls in any case; that one sees the infinity itself and does not move.
    """
    sampler, network = LossRecorder(op.DDPM(steps=10)), ToyNetwork()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, fused=fused)
    attachment = op.attach(sampler, optimizer)
    scaler = torch.amp.GradScaler("cpu")
    for index, x0 in enumerate(batches(3)):
        scale = float("inf") if index == 1 else 1.0
        scaler.scale(one_batch(sampler, network, attachment, x0, scale=scale)).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    assert sampler.steps_watched == 2
    assert [r.losses.shape[0] for r in sampler.records] == learned


class Lit(lightning.LightningModule):
    """Lightning runs forward and backward inside optimizer.step, as its closure."""

    def __init__(self, sampler):
        super().__init__()
        self.sampler, self.network = sampler, ToyNetwork()

    def training_step(self, x0):
        return one_batch(self.sampler, self.network, self.attachment, x0)

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.network.parameters(), lr=0.1)
        self.attachment = op.attach(self.sampler, optimizer, model=self.network)
        return optimizer


@pytest.mark.parametrize("accumulation", [1, 2])
def test_lightning_teaches_every_micro_batch_before_and_after_the_step(accumulation):
    seen = {}
    for kind in (LossRecorder, Recorder):
        lit = Lit(kind(op.DDPM(steps=10), **({"every": 1} if kind is Recorder else {}), accumulation=accumulation))
        trainer = lightning.Trainer(
            max_epochs=1,
            accelerator="cpu",
            accumulate_grad_batches=accumulation,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="(?!.*observe)")
            trainer.fit(lit, torch.utils.data.DataLoader(batches(4), batch_size=None))
        seen[kind] = lit.sampler.records
    assert [len(r.losses) for r in seen[LossRecorder]] == [16 * accumulation] * (4 // accumulation)
    assert len(seen[Recorder]) == 4 // accumulation
    for record in seen[Recorder]:
        assert not torch.equal(record.before, record.after)  # one before the weights moved, one after


@pytest.mark.parametrize("by_name", [True, False])
def test_a_closure_that_evaluates_again_is_measured_at_the_first_weights(by_name):
    process = op.DDPM(steps=10)
    sampler, network = Recorder(process, every=1), ToyNetwork()
    objective = op.objective(network, process)
    optimizer = torch.optim.LBFGS(network.parameters(), max_iter=4)
    attachment = op.attach(sampler, optimizer, model=network)
    x0 = batches(1)[0]
    noise = torch.randn_like(x0)
    draw, seen = sampler.draw(x0), []

    def closure():
        optimizer.zero_grad()
        losses = objective(x0, draw, noise)
        seen.append(copy.deepcopy(network).eval())
        attachment.observe(draw, losses, objective.probe(x0))
        losses.mean().backward()
        return losses.mean()

    loss = optimizer.step(closure=closure) if by_name else optimizer.step(closure)
    assert len(seen) > 1 and loss is not None
    asked = Recorder(process, every=1)
    asked.draws_made = 1
    request = asked.request(draw)
    expected = torch.stack([op.objective(seen[0], process)(x0, probe) for probe in request.draws])
    assert len(sampler.records) == 1
    torch.testing.assert_close(sampler.records[0].before, expected)


def test_detach_removes_the_hooks():
    sampler, network = LossRecorder(op.DDPM(steps=10)), ToyNetwork()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    attachment = op.attach(sampler, optimizer)
    attachment.detach()
    one_batch(sampler, network, attachment, batches(1)[0]).backward()
    optimizer.step()
    assert sampler.records == []


def test_stepping_without_observing_warns_once():
    sampler, network = LossRecorder(op.DDPM(steps=10)), ToyNetwork()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    op.attach(sampler, optimizer)
    with pytest.warns(UserWarning, match="observe") as caught:
        optimizer.step()
        optimizer.step()
    assert len(caught) == 1


def test_something_that_is_no_optimizer_is_refused():
    with pytest.raises(ValueError, match="not a torch optimizer"):
        op.attach(op.sampler("uniform", op.DDPM()), object())


def test_something_that_is_no_sampler_is_refused():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    with pytest.raises(ValueError, match="sampler='kim' is not a sampler"):
        op.attach("kim", optimizer)
