"""The order is complete, full, shuffled, and the same however the work is divided."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opportune.train.data import DataError, Order
from opportune.train.data.order import flips, mix


def ids(order: Order, batches: range, **ranks: int) -> list[int]:
    return [number for index in batches for number in order.batch(index, **ranks).ids.tolist()]


@given(st.integers(1, 60), st.integers(1, 20), st.integers(0, 2**40))
def test_every_epoch_holds_every_example_once_and_every_batch_is_full(count: int, batch: int, seed: int) -> None:
    if batch > count:
        return
    order = Order(count, batch, seed=seed)
    row = ids(order, range(3 * count // batch + 1))
    assert len(row) == batch * (3 * count // batch + 1)
    for epoch in range(3):
        assert sorted(row[epoch * count : (epoch + 1) * count]) == list(range(count))


@pytest.mark.parametrize("world", [1, 2, 3, 4, 6, 12])
def test_ranks_together_train_the_batch_of_one_process(world: int) -> None:
    order = Order(50, 12, seed=3)
    for index in range(12):
        parts = [order.batch(index, rank=rank, world=world).ids for rank in range(world)]
        assert np.stack(parts, axis=1).reshape(-1).tolist() == order.batch(index).ids.tolist()


def test_any_batch_can_be_asked_for_at_any_time() -> None:
    forwards = [Order(37, 5, seed=1).batch(index).ids.tolist() for index in range(30)]
    order = Order(37, 5, seed=1)
    assert [order.batch(index).ids.tolist() for index in reversed(range(30))] == forwards[::-1]


def test_epochs_and_seeds_differ() -> None:
    first = ids(Order(100, 10, seed=0), range(10))
    assert first != ids(Order(100, 10, seed=0), range(10, 20))
    assert first != ids(Order(100, 10, seed=1), range(10))
    assert first != list(range(100))


def test_the_batch_size_does_not_change_the_order() -> None:
    assert ids(Order(30, 6, seed=2), range(20)) == ids(Order(30, 10, seed=2), range(12))


def test_epoch_of_each_element() -> None:
    assert Order(5, 3).batch(1).epochs.tolist() == [0, 0, 1]
    assert Order(5, 3).batch(1).positions.tolist() == [3, 4, 5]


def test_every_place_is_equally_likely() -> None:
    """Chi-square over (example, place) of 4,000 epochs of 8 examples: 49 degrees of freedom, 99.99 % below 95."""
    order, counts = Order(8, 8, seed=5), np.zeros((8, 8))
    for epoch in range(4000):
        counts[order.batch(epoch).ids, np.arange(8)] += 1
    assert ((counts - 500) ** 2 / 500).sum() < 95


def test_the_order_never_changes_between_versions() -> None:
    """A resumed run must find the order of the run that was interrupted, perhaps under another release."""
    row = ids(Order(1000, 10, seed=7), range(250))
    digest = hashlib.sha256(np.array(row, dtype="<i8").tobytes()).hexdigest()
    assert digest == "44c40e1f9dee406f08795078778cf4033acc8edd53576d83019152e1a577c605"


def slow_mix(*keys: int) -> int:
    """The hash once more, in whole numbers of any length."""
    state, word = 0, 2**64 - 1
    for key in keys:
        state = ((state ^ key) + 0x9E3779B97F4A7C15) & word
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & word
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & word
        state ^= state >> 31
    return state


@given(st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=4))
def test_the_hash_equals_its_slow_twin(keys: list[int]) -> None:
    assert int(mix(*keys)[0]) == slow_mix(*keys)
    # SplitMix64 seeded with 0 starts with this number.
    assert slow_mix(0) == 0xE220A8397B1DCDAF


def test_flips_depend_on_seed_epoch_and_id_alone_and_are_fair() -> None:
    numbers = np.arange(10_000)
    zero = np.zeros_like(numbers)
    once = flips(0, zero, numbers)
    assert np.array_equal(once[::-1], flips(0, zero, numbers[::-1].copy()))
    assert abs(once.mean() - 0.5) < 0.025
    assert abs((once == flips(0, zero + 1, numbers)).mean() - 0.5) < 0.025
    assert abs((once == flips(1, zero, numbers)).mean() - 0.5) < 0.025


def test_refusals_name_the_numbers() -> None:
    with pytest.raises(DataError, match=r"3 images .* global batch of 8"):
        Order(3, 8)
    with pytest.raises(ValueError, match=r"batch_size=8 .* world=3"):
        Order(10, 8).batch(0, rank=0, world=3)
    with pytest.raises(ValueError, match="rank=2"):
        Order(10, 8).batch(0, rank=2, world=2)
    for wrong in ({"count": 0}, {"batch_size": 0}, {"seed": -1}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            Order(**{"count": 10, "batch_size": 2, "seed": 0, **wrong})
