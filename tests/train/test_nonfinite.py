"""NaN and inf anywhere, on any rank, are found before anything learns from them."""

import math
import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.train.scenarios import PROCESSES
from torch import Tensor

from opportune.train.agree import agree, ranks_where
from opportune.train.errors import NonFiniteError
from opportune.train.nonfinite import SkipBudget, nonfinite_ranks

BAD = [math.nan, math.inf, -math.inf]
DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


def gradients() -> list[Tensor | None]:
    return [torch.randn(3, 4), None, torch.randn(5), torch.tensor(1.0), torch.empty(0, 3)]


def test_finite_is_finite() -> None:
    assert nonfinite_ranks(torch.tensor(0.5), gradients()) == ()
    assert nonfinite_ranks(torch.randn(8), []) == ()
    assert nonfinite_ranks(torch.zeros(()), [None, torch.zeros(4)]) == ()


@pytest.mark.parametrize("bad", BAD)
def test_bad_in_the_loss(bad: float) -> None:
    assert nonfinite_ranks(torch.tensor(bad), gradients()) == (0,)
    assert nonfinite_ranks(torch.tensor([1.0, bad, 2.0]), gradients()) == (0,)


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_bad_in_one_element_of_one_gradient(bad: float, dtype: torch.dtype) -> None:
    for which in (0, 2, 3):
        several = [g if g is None else g.to(dtype) for g in gradients()]
        assert nonfinite_ranks(torch.tensor(0.5), several) == ()
        chosen = several[which]
        assert chosen is not None
        chosen.view(-1)[-1] = bad
        assert nonfinite_ranks(torch.tensor(0.5), several) == (0,)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_largest_finite_values_are_finite(dtype: torch.dtype) -> None:
    """A two-norm would overflow here, and skip steps that are fine."""
    largest = torch.full((100,), torch.finfo(dtype).max, dtype=dtype)
    assert nonfinite_ranks(largest.mul(1), [largest, -largest]) == ()


def test_mixed_dtypes_in_one_model() -> None:
    mixed = [torch.ones(3, dtype=dtype) for dtype in DTYPES]
    assert nonfinite_ranks(torch.tensor(1.0), mixed) == ()
    mixed[2][1] = math.nan
    assert nonfinite_ranks(torch.tensor(1.0), mixed) == (0,)


def test_looking_changes_nothing_and_keeps_no_graph() -> None:
    weight = torch.nn.Parameter(torch.randn(3, 3))
    loss = weight.square().sum()
    loss.backward()
    before = weight.grad.clone()
    nonfinite_ranks(loss, [weight.grad])
    assert torch.equal(weight.grad, before)


def test_the_budget_counts_in_a_row() -> None:
    budget = SkipBudget(limit=2)
    assert not budget.skip(1, ())
    assert budget.skip(2, (0,)) and budget.skip(3, (1,))
    assert not budget.skip(4, ())
    assert budget.skip(5, (0,)) and budget.skip(6, (0,))
    with pytest.raises(NonFiniteError, match=r"step 7, rank 1, 3, the 3\. in a row \(2 may be skipped\)"):
        budget.skip(7, (1, 3))
    assert budget.total == 5


def test_a_budget_of_zero_stops_at_the_first() -> None:
    with pytest.raises(NonFiniteError, match="step 0"):
        SkipBudget(0).skip(0, (0,))
    with pytest.raises(ValueError, match="limit must be >= 0"):
        SkipBudget(-1)


def test_the_budget_survives_a_restart() -> None:
    budget, resumed = SkipBudget(2), SkipBudget(2)
    budget.skip(1, (0,))
    budget.skip(2, (0,))
    resumed.load_state_dict(budget.state_dict())
    with pytest.raises(NonFiniteError):
        resumed.skip(3, (0,))


def test_alone_one_agrees_with_oneself() -> None:
    assert agree(True) and not agree(False)
    assert ranks_where(True) == (0,) and ranks_where(False) == ()


def rank(store: str, me: int, world: int, results: Any) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=me, world_size=world)
    out: list[Any] = []
    for bad_rank in (*range(world), None):
        gradient = torch.ones(4)
        if me == bad_rank:
            gradient[2] = math.nan
        out.append(nonfinite_ranks(torch.tensor(1.0), [gradient]))
    out.append(nonfinite_ranks(torch.tensor(math.inf), []))
    out.append([agree(me == asked) for asked in (0, 1, 2)])
    pair = dist.new_group([0, 1])
    if me < 2:
        out.append(ranks_where(me == 1, pair))
    sharded = torch.distributed.tensor.distribute_tensor(
        torch.tensor([1.0, 2.0, math.nan]),
        torch.distributed.init_device_mesh("cpu", (world,)),
        [torch.distributed.tensor.Shard(0)],
    )
    out.append(nonfinite_ranks(torch.tensor(1.0), [sharded]))
    results.put((me, out))
    dist.destroy_process_group()


def test_one_bad_rank_is_known_to_all(tmp_path: Path) -> None:
    world, results = 3, PROCESSES.Queue()
    ranks = [PROCESSES.Process(target=rank, args=(str(tmp_path / "store"), me, world, results)) for me in range(world)]
    for process in ranks:
        process.start()
    try:
        found = dict(results.get(timeout=300) for _ in ranks)
    finally:
        for process in ranks:
            process.join(60)
            process.kill()
    common = [(0,), (1,), (2,), (), (0, 1, 2), [True, True, True]]
    assert found == {
        0: [*common, (1,), (2,)],
        1: [*common, (1,), (2,)],
        2: [*common, (2,)],
    }
