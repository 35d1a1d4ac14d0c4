"""Ranks: one stream, different shares, the same record everywhere. Real gloo processes."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import opportune as op
from opportune.distributed import data_parallel_group, gather, place
from opportune.testing.toy import ToyNetwork, batches

from .ranks import on_ranks
from .test_step import Recorder


def _gathered():
    rank, _ = place()
    even = gather(torch.tensor([[10.0 * i + rank] for i in range(3)]))
    uneven = gather(torch.tensor([10.0 * i + rank for i in range(3 - rank)]))
    return {"even": even, "uneven": uneven}


def test_gather_interleaves_in_the_order_of_the_global_batch():
    for result in on_ranks(2, _gathered):
        assert result["even"].flatten().tolist() == [0, 1, 10, 11, 20, 21]
        assert result["uneven"].tolist() == [0, 1, 10, 11, 20]


def _grouped():
    group = dist.new_group([0, 1])
    other = dist.new_group([2])
    mine = group if dist.get_rank() < 2 else other
    with data_parallel_group(mine):
        return {"place": list(place()), "sum": gather(torch.ones(2)).sum()}


def test_ranks_are_counted_in_the_data_parallel_group():
    results = on_ranks(3, _grouped)
    assert [r["place"] for r in results] == [[0, 2], [1, 2], [0, 1]]
    assert [float(r["sum"]) for r in results] == [4, 4, 2]


def _train_a_share(steps):
    """DDP training with probes and gradients asked for; every rank's share of one global batch of 16."""
    rank, world = place()
    sampler = Recorder(op.DDPM(steps=50), every=2, gradient=True)
    network = ToyNetwork()
    network.eval()
    model = DistributedDataParallel(network) if world > 1 else network
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    objective = op.objective(model, sampler.process)
    draws = []
    for step, whole in enumerate(batches(steps)):
        x0 = whole[rank::world]
        draw = sampler.draw(x0)
        noise = torch.randn(whole.shape, generator=torch.Generator().manual_seed(step))[rank::world]
        losses = objective(x0, draw, noise)
        losses.mean().backward()
        with sampler.watch(draw, losses, objective.probe(x0), model=model):
            optimizer.step()
        optimizer.zero_grad()
        draws.append(draw.u)
    last = sampler.records[-1]
    return {
        "u": torch.stack(draws), "record_u": last.draw.u, "losses": last.losses, "probe_u": last.probe_u,
        "before": last.before, "after": last.after, "gradient": last.gradient,
        "weights": torch.cat([p.detach().flatten() for p in network.parameters()]),
    }  # fmt: skip


def test_two_ranks_draw_different_shares_and_see_what_one_process_sees():
    first, second = on_ranks(2, _train_a_share, 5)
    alone = _train_a_share(5)
    assert not torch.equal(first["u"], second["u"]), "ranks must draw different timesteps"
    assert torch.equal(torch.stack([first["u"], second["u"]], dim=2).flatten(1), alone["u"])
    for name in ("record_u", "losses", "probe_u", "before", "after", "gradient"):
        assert torch.equal(first[name], second[name]), f"{name} differs between ranks"
    assert torch.equal(first["record_u"], alone["record_u"])
    for name in ("losses", "before", "after", "weights"):
        torch.testing.assert_close(first[name], alone[name], rtol=1e-4, atol=1e-5)
    assert torch.equal(first["probe_u"], alone["probe_u"])
