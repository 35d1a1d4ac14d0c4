"""What each batch is made of, before anything is decoded: for sets read at random, and for streams.

A lot names the undecoded items of one rank's batch and says where to look for a replacement of a bad one.
The choice of a replacement depends on the item's place alone, so it is the same on every run, at any number
of loader workers and at any number of ranks:

* at random: the example at the next position of the order, then the one after that, … (it is trained at its
  own place too);
* streams: the next good item of the same global batch, going round (what comes later has not been read
  yet).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, NamedTuple, Protocol

import numpy as np

from opportune.checks import whole
from opportune.train.data.errors import DataError
from opportune.train.data.order import Ints, Order, mix, share
from opportune.train.data.sources import StreamSource

State = dict[str, int]
Spares = Callable[[int], Iterator[tuple[int, Any]]]


class Lot(NamedTuple):
    """One rank's batch of ``[b]`` items, undecoded."""

    items: list[Any]
    ids: Ints
    epochs: Ints
    spares: Spares
    """Element number -> the (id, item) pairs to try in its place, in turn."""
    after: State
    """The state of the feed once this batch is trained."""


class Feed(Protocol):
    """The lots of a training, from any of its batches on."""

    @property
    def seed(self) -> int: ...

    @property
    def count(self) -> int | None:
        """How many examples there are, where that is known."""
        ...

    def identity(self) -> State:
        """What must not change between a checkpoint and the run that resumes it."""
        ...

    def start(self) -> State:
        """The state before the first batch; ``"batches"`` counts the batches behind it."""
        ...

    def lots(self, state: State, rank: int, world: int) -> Iterator[Lot]:
        """The lots that follow ``state``, without end."""
        ...


class MapFeed:
    """Lots of a source that can be read in any order; the items are the ids themselves."""

    def __init__(self, order: Order) -> None:
        self.order, self.seed, self.count = order, order.seed, order.count

    def identity(self) -> State:
        return {"count": self.order.count, "batch_size": self.order.batch_size, "seed": self.order.seed}

    def start(self) -> State:
        return {"batches": 0}

    def lots(self, state: State, rank: int, world: int) -> Iterator[Lot]:
        index = state["batches"]
        while True:
            places = self.order.batch(index, rank=rank, world=world)
            index += 1
            yield Lot(
                places.ids.tolist(),
                places.ids,
                places.epochs,
                self._spares(places.positions),
                {"batches": index},
            )

    def _spares(self, positions: Ints) -> Spares:
        def spares(element: int) -> Iterator[tuple[int, Any]]:
            for further in range(1, self.order.count):
                one = self.order.places(positions[element : element + 1] + further)
                yield int(one.ids[0]), int(one.ids[0])

        return spares


class StreamOrder:
    """The order of a stream: its own, shuffled in a buffer of ``shuffle_buffer`` undecoded items (1: not
    shuffled).

    Every rank reads the whole stream and decodes its own share, so W ranks train what one process would. A
    resumed run reads again, without decoding, what the interrupted one had read of its epoch.
    """

    def __init__(self, batch_size: int, *, seed: int = 0, shuffle_buffer: int = 1000) -> None:
        self.batch_size = whole("batch_size", batch_size, low=1)
        self.seed = whole("seed", seed, low=0)
        self.shuffle_buffer = whole("shuffle_buffer", shuffle_buffer, low=1)


class StreamFeed:
    """Lots of a stream; ids are places in the whole training's sequence of items."""

    count = None

    def __init__(self, source: StreamSource, order: StreamOrder) -> None:
        self.source, self.order, self.seed = source, order, order.seed

    def identity(self) -> State:
        order = self.order
        return {"batch_size": order.batch_size, "seed": order.seed, "shuffle_buffer": order.shuffle_buffer}

    def start(self) -> State:
        return {"batches": 0, "epoch": 0, "epoch_start": 0}

    def lots(self, state: State, rank: int, world: int) -> Iterator[Lot]:
        size, index = self.order.batch_size, state["batches"]
        share(size, rank, world)
        items = self._items(state["epoch"], state["epoch_start"], index * size)
        while True:
            marks = list(islice(items, size))
            ids = np.arange(index * size + rank, (index + 1) * size, world, dtype=np.int64)
            epochs = np.array([epoch for epoch, _, _ in marks[rank::world]], dtype=np.int64)
            raw = [item for _, _, item in marks]
            index += 1
            last_epoch, last_start, _ = marks[-1]
            after = {"batches": index, "epoch": last_epoch, "epoch_start": last_start}
            yield Lot(raw[rank::world], ids, epochs, _others(raw, (index - 1) * size, rank, world), after)

    def _items(self, epoch: int, epoch_start: int, position: int) -> Iterator[tuple[int, int, Any]]:
        """``(epoch, position of the epoch's first item, item)`` from ``position`` on, epoch after epoch."""
        while True:
            length = 0
            for item in shuffled(self.source.read(epoch, self.seed), self.order.shuffle_buffer, self.seed, epoch):
                if epoch_start + length >= position:
                    yield epoch, epoch_start, item
                length += 1
            if length < self.order.batch_size:
                raise DataError(
                    f"{self.source.name} holds {length} examples, fewer than one global batch of "
                    f"{self.order.batch_size}; lower batch_size."
                )
            epoch, epoch_start = epoch + 1, epoch_start + length


def shuffled(items: Iterator[Any], buffer_size: int, seed: int, epoch: int) -> Iterator[Any]:
    """Fill a buffer, then hand out a hashed slot of it for every further item; the rest follows at the end."""
    buffer: list[Any] = []
    for number, item in enumerate(items):
        if len(buffer) < buffer_size:
            buffer.append(item)
            continue
        slot = int(mix(seed, epoch, number)[0] % np.uint64(buffer_size))
        buffer[slot], item = item, buffer[slot]
        yield item
    for slot in np.argsort(mix(seed, epoch, np.arange(len(buffer))), kind="stable"):
        yield buffer[slot]


def _others(raw: list[Any], start: int, rank: int, world: int) -> Spares:
    def spares(element: int) -> Iterator[tuple[int, Any]]:
        here = element * world + rank
        for further in range(1, len(raw)):
            there = (here + further) % len(raw)
            yield start + there, raw[there]

    return spares
