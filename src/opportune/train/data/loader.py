"""Batches, ready to train on, from any batch number on.

The same batches come out at any number of loader workers, and W ranks get the shares of what one process
would get. Nothing is drawn from a random stream: not even the seed that PyTorch's loader takes from the
global one.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from opportune.checks import number, one_of, whole
from opportune.train.data.cache import CachingDecoder, Decoded, Decoder, bytes_when_decoded
from opportune.train.data.errors import BadImage, DataError
from opportune.train.data.lots import Feed, Lot, MapFeed, StreamFeed, StreamOrder
from opportune.train.data.order import Ints, Order, flips, share
from opportune.train.data.sources import Example, Source, StreamSource, TensorSource
from opportune.train.data.workers import in_workers

log = logging.getLogger(__name__)


class Batch(NamedTuple):
    """One rank's share of a global batch."""

    images: Tensor
    """``[B, C, H, W]`` float32: pixels in [-1, 1], latents as they were written."""
    labels: Tensor | None
    """``[B]`` int64, where the source has labels."""
    ids: Tensor
    """``[B]`` int64: which examples these are (for streams: their place in the whole training's sequence)."""


class Loader:
    """Iterate over it for batches without end, starting at the position it was left or loaded at.

    ``workers`` None chooses: none where the decoded set fits into ``cache_bytes`` (each example is then
    decoded once and kept), else up to four processes. ``flip`` mirrors half of the images, chosen by (seed,
    epoch, id).

    ``on_bad="error"`` stops at the first bad image; ``"skip"`` trains another one in its place, notes it in
    ``bad`` and stops when more than ``max_bad_share`` of the set (of a stream: of what was read, 1,000 at
    least) turn out bad on this rank.
    """

    def __init__(
        self,
        source: Source | StreamSource,
        order: Order | StreamOrder,
        *,
        rank: int = 0,
        world: int = 1,
        workers: int | None = None,
        flip: bool = False,
        on_bad: Literal["error", "skip"] = "error",
        max_bad_share: float = 0.05,
        cache_bytes: int = 512 * 2**20,
        pin: bool = False,
        timeout_seconds: float = 300.0,
    ) -> None:
        self.source, self.rank, self.world = source, rank, world
        self.batch_size = share(order.batch_size, rank, world)
        self.flip, self.pin = flip, pin
        self.on_bad = one_of("on_bad", on_bad, ("error", "skip"))
        self.max_bad_share = number("max_bad_share", max_bad_share, low=0.0, high=1.0)
        self.timeout_seconds = number("timeout_seconds", timeout_seconds, low=1.0)
        self._feed = _feed(source, order)
        self._decoder, self.workers = _decoder(source, workers, cache_bytes, world)
        self._state = self._feed.start()
        self.bad: dict[str, str] = {}
        """Name and reason of every bad image skipped so far."""

    @property
    def position(self) -> int:
        """How many batches were handed out since the start of the training."""
        return self._state["batches"]

    def state_dict(self) -> dict[str, Any]:
        """Whole numbers and text (JSON can hold it): the place of the next batch, and the bad images met so far."""
        return {**self._state, "made_with": self._feed.identity(), "bad": dict(self.bad)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go to the place of ``state``; iterators made before are not affected. Ranks and workers may have changed."""
        for key, value in self._feed.identity().items():
            if state["made_with"].get(key) != value:
                raise DataError(
                    f"the checkpoint was made with {key}={state['made_with'].get(key)}, this run has {key}={value} for "
                    f"{self.source.name}; the order of the data would change. Use the same, or start a new run."
                )
        self._state = {key: int(state[key]) for key in self._feed.start()}
        self.bad = dict(state["bad"])

    def __iter__(self) -> Iterator[Batch]:
        for lot, decoded in self._decoded():
            batch = self._batch(lot, decoded)
            self._state = lot.after
            yield batch

    def _decoded(self) -> Iterator[tuple[Lot, Decoded]]:
        lots = self._feed.lots(dict(self._state), self.rank, self.world)
        if self.workers == 0:
            return ((lot, self._decoder.many(lot.items)) for lot in lots)
        return in_workers(self._decoder, lots, self.workers, self.timeout_seconds, self.source.name)

    def _batch(self, lot: Lot, decoded: Decoded) -> Batch:
        images, labels, ids = decoded.images, decoded.labels, lot.ids
        if decoded.failures:
            images, labels, ids = self._replace(lot, decoded)
        if images is None:
            raise DataError(f"no image of a batch of {self.source.name} could be read.")
        pixels = torch.from_numpy(images)
        if self.flip:
            pixels = self._flipped(pixels, lot.epochs, ids)
        batch = Batch(
            as_floats(pixels),
            torch.from_numpy(labels) if self.source.labelled else None,
            torch.from_numpy(ids),
        )
        if not self.pin:
            return batch
        return Batch(*(None if tensor is None else tensor.pin_memory() for tensor in batch))  # type: ignore[arg-type]

    def _flipped(self, pixels: Tensor, epochs: Ints, ids: Ints) -> Tensor:
        if pixels.is_floating_point():
            raise DataError(
                f"flip=True cannot mirror the latents of {self.source.name}; set flip=False, or encode both."
            )
        mirrored = torch.from_numpy(flips(self._feed.seed, epochs, ids))
        return torch.where(mirrored[:, None, None, None], pixels.flip(-1), pixels)

    def _replace(self, lot: Lot, decoded: Decoded) -> tuple[NDArray[Any] | None, Ints, Ints]:
        """Put another example in the place of every bad one, or raise."""
        images, labels, ids = decoded.images, decoded.labels.copy(), lot.ids.copy()
        for element, failure in sorted(decoded.failures.items()):
            self._note(failure)
            ids[element], example = self._spare(lot, element)
            pixels = example.image.numpy()
            if images is None:
                images = np.zeros((len(ids), *pixels.shape), dtype=pixels.dtype)
            images[element] = pixels
            labels[element] = -1 if example.label is None else example.label
        return images, labels, ids

    def _spare(self, lot: Lot, element: int) -> tuple[int, Example]:
        for index, item in lot.spares(element):
            try:
                return index, self._decoder.one(item)
            except BadImage as failure:
                self._note(failure)
        everything = "a whole batch of " if self._feed.count is None else ""
        raise DataError(f"no image of {everything}{self.source.name} can be read; {self._examples()}.")

    def _note(self, failure: BadImage) -> None:
        """Count a bad image, or raise where it must not be skipped."""
        if self.on_bad == "error":
            raise failure
        if failure.name in self.bad:
            return
        self.bad[failure.name] = failure.reason
        log.warning("skipped %s", failure)
        total = self._feed.count or max(1000, self.position * self.batch_size)
        if len(self.bad) > self.max_bad_share * total:
            raise DataError(
                f"{len(self.bad)} of {total} images of {self.source.name} cannot be read, more than "
                f"max_bad_share={self.max_bad_share:g} allows; {self._examples()}. Repair or remove them, or raise it."
            )

    def _examples(self) -> str:
        first = [f"{name} ({reason})" for name, reason in list(self.bad.items())[:3]]
        return "the first: " + "; ".join(first)


def as_floats(pixels: Tensor) -> Tensor:
    """uint8 0..255 to float32 -1..1; floats (latents) keep their values."""
    return pixels.float() if pixels.is_floating_point() else pixels.float().div_(127.5).sub_(1.0)


def _feed(source: Source | StreamSource, order: Order | StreamOrder) -> Feed:
    if isinstance(order, StreamOrder):
        if isinstance(source, Source):
            raise ValueError(f"{source.name} can be read at random; give it an Order, not a StreamOrder.")
        return StreamFeed(source, order)
    if not isinstance(source, Source):
        raise ValueError(f"{source.name} is a stream; give it a StreamOrder, not an Order.")
    if order.count != len(source):
        raise ValueError(f"order.count={order.count} differs from the {len(source)} examples of {source.name}.")
    return MapFeed(order)


def _decoder(source: Source | StreamSource, workers: int | None, cache_bytes: int, world: int) -> tuple[Decoder, int]:
    """How items are decoded, and in how many worker processes."""
    whole("cache_bytes", cache_bytes, low=0)
    if workers is not None:
        whole("workers", workers, low=0)
    chosen = min(4, max(1, len(os.sched_getaffinity(0)) // world)) if workers is None else workers
    if not isinstance(source, Source):
        return Decoder(source.decode), chosen
    if isinstance(source, TensorSource):
        return CachingDecoder(source), workers or 0
    if not workers:
        needed = bytes_when_decoded(source)
        if needed is not None and needed <= cache_bytes:
            return CachingDecoder(source), 0
    return Decoder(source.get), chosen
