"""Kim's policy on two real gloo ranks: one policy, different draws, and the same life as one process."""

from __future__ import annotations

import torch
from tests.ranks import on_ranks

import opportune as op
from opportune.distributed import place

BATCH, STEPS = 12, 14


def life(batch: int) -> dict[str, torch.Tensor]:
    """Train a tiny real model; every rank sees its examples of the same global batches."""
    rank, world = place()
    process = op.DDPM("linear", steps=40)
    sampler = op.sampler("kim", process, seed=3, every_steps=2, coverage=20, learning_rate=0.05)
    slope = torch.nn.Linear(3, 3)
    with torch.no_grad():
        slope.weight.copy_(torch.eye(3)), slope.bias.zero_()
    objective = op.objective(lambda x, t: slope(x), process)
    drawn = []
    for step in range(STEPS):
        data = torch.randn(batch * world, 3, generator=torch.Generator().manual_seed(step))
        x0 = data[rank::world]
        draw = sampler.draw(x0)
        drawn.append(draw.u)
        with sampler.watch(draw, None, objective.probe(x0), model=slope), torch.no_grad():
            slope.weight.mul_(0.97)  # the same step on every rank
    state = {k: v for k, v in sampler.state_dict().items() if isinstance(v, torch.Tensor) and k != "average"}
    return {"u": torch.stack(drawn), **state}


def test_two_ranks_share_one_policy_and_one_process_lives_the_same_life():
    first, second = on_ranks(2, life, BATCH)
    assert not torch.equal(first["u"], second["u"])
    for name in first.keys() - {"u"}:
        assert torch.equal(first[name], second[name]), f"{name} differs between ranks"
    alone = life(2 * BATCH)
    moved = alone["policy.biases.2"] - op.sampler("kim", op.DDPM(steps=40)).policy.biases[-1]
    assert float(moved.abs().max()) > 0.05  # there was something to agree on
    together = torch.stack([first["u"], second["u"]], dim=2).flatten(1)
    torch.testing.assert_close(together, alone["u"], rtol=0, atol=1e-4)
    for name in first.keys() - {"u"}:
        torch.testing.assert_close(first[name], alone[name], rtol=1e-2, atol=1e-4, msg=lambda m, n=name: f"{n}: {m}")


def uneven(sizes: list[list[int]]) -> dict[str, torch.Tensor]:
    sampler = op.sampler("kim", op.DDPM("linear", steps=40), every_steps=1, coverage=20)
    slope = torch.nn.Linear(3, 3)
    objective = op.objective(lambda x, t: slope(x), sampler.process)
    for size in sizes[place()[0]]:
        x0 = torch.randn(size, 3)
        with sampler.watch(sampler.draw(x0), None, objective.probe(x0), model=slope), torch.no_grad():
            slope.weight.mul_(0.97)
    return {k: v for k, v in sampler.state_dict().items() if isinstance(v, torch.Tensor) and k != "average"}


def test_ranks_with_batches_of_different_sizes_learn_the_same() -> None:
    first, second = on_ranks(2, uneven, [[4, 4, 5], [3, 4, 1]])
    assert int(first["queue.filled"]) == 3
    for name in first:
        assert torch.equal(first[name], second[name]), f"{name} differs between ranks"
