"""Which example comes when: a function of (count, batch size, seed) and the batch's number, and of
nothing else.

Positions 0, 1, 2, … run through the whole training. Position p belongs to epoch ``p // count``; every epoch
is a fresh permutation. Global batch k holds positions ``k·B … (k+1)·B − 1``, so batches run on across the
border of two epochs: every batch is full, and no example is left out. Rank r of W takes every W-th element,
starting at r: W ranks together train exactly the batch that one process would.

Nothing is drawn, so nothing must be saved: the state of the data is the number of the next batch.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from opportune.checks import whole
from opportune.train.data.errors import DataError

Ints = NDArray[np.int64]


class Places(NamedTuple):
    """Where the elements of a batch come from, three arrays ``[B]``."""

    positions: Ints
    epochs: Ints
    ids: Ints


class Order:
    """The order of ``count`` examples in global batches of ``batch_size`` (all ranks together)."""

    def __init__(self, count: int, batch_size: int, *, seed: int = 0) -> None:
        self.count = whole("count", count, low=1)
        self.batch_size = whole("batch_size", batch_size, low=1)
        self.seed = whole("seed", seed, low=0)
        if count < batch_size:
            raise DataError(f"{count} images are fewer than one global batch of {batch_size}; lower batch_size.")
        self._epochs: dict[int, Ints] = {}

    def batch(self, index: int, *, rank: int = 0, world: int = 1) -> Places:
        """The elements of global batch ``index`` (0, 1, …) that rank ``rank`` of ``world`` trains, ``[B / world]``."""
        whole("index", index, low=0)
        share(self.batch_size, rank, world)
        start = index * self.batch_size
        return self.places(np.arange(start + rank, start + self.batch_size, world, dtype=np.int64))

    def places(self, positions: Ints) -> Places:
        """Epoch and example id at each position."""
        epochs, offsets = np.divmod(positions, self.count)
        ids = np.empty_like(positions)
        for epoch in np.unique(epochs):
            here = epochs == epoch
            ids[here] = self._permutation(int(epoch))[offsets[here]]
        return Places(positions, epochs, ids)

    def _permutation(self, epoch: int) -> Ints:
        """``[count]``: the examples sorted by a hash, so it is the same with every version of every library."""
        if epoch not in self._epochs:
            while len(self._epochs) >= 2:  # a batch touches two epochs at most, unless the set is one batch long
                self._epochs.pop(min(self._epochs))
            keys = mix(self.seed, epoch, np.arange(self.count))
            self._epochs[epoch] = np.argsort(keys, kind="stable").astype(np.int64)
        return self._epochs[epoch]


def share(batch_size: int, rank: int, world: int) -> int:
    """How many examples of a global batch fall to each rank; all ranks must get the same number."""
    whole("world", world, low=1)
    whole("rank", rank, low=0, high=world - 1)
    if batch_size % world:
        raise ValueError(
            f"batch_size={batch_size} (all ranks together) does not divide by world={world}; use a multiple."
        )
    return batch_size // world


def mix(*keys: Any) -> NDArray[np.uint64]:
    """Hash whole numbers (or arrays of them, which broadcast) to 64 bits.

    SplitMix64's finalizer, chained over the keys (Steele, Lea, Flood 2014, doi:10.1145/2660193.2660195).
    """
    state = np.zeros(1, dtype=np.uint64)  # arrays wrap around silently, as wanted here; scalars would warn
    for key in keys:
        state = (state ^ np.asarray(key).astype(np.uint64)) + np.uint64(0x9E3779B97F4A7C15)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        state = state ^ (state >> np.uint64(31))
    return state


def hashed_order(count: int, seed: int) -> list[int]:
    """0 .. count-1 mixed, the same way every time: sets are often sorted by class."""
    order: list[int] = np.argsort(mix(seed, np.arange(count)), kind="stable").tolist()
    return order


def flips(seed: int, epochs: Ints, ids: Ints) -> NDArray[np.bool_]:
    """``[B]``: which examples are mirrored left to right, by (seed, epoch, id): no random stream is involved."""
    # The extra key keeps the flips apart from the order, which hashes the same numbers.
    return (mix(seed, 0x666C6970, epochs, ids) & np.uint64(1)).astype(np.bool_)
