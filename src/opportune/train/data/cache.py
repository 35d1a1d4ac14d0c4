"""Decoding many items at once, and keeping what was decoded where it fits into memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from opportune.train.data.errors import BadImage
from opportune.train.data.order import Ints
from opportune.train.data.sources import Example, Source, TensorSource


class Decoded(NamedTuple):
    """``[b]`` items, decoded; those in ``failures`` (by number) hold zeros.

    Arrays, not tensors: loader workers send arrays through a pipe, while tensors would need shared memory,
    of which containers often have too little, and the process dies with a bus error.
    """

    images: NDArray[Any] | None
    """``[b, C, H, W]``; None if every item failed."""
    labels: Ints
    failures: dict[int, BadImage]


class Decoder:
    """Decodes items one by one."""

    def __init__(self, decode: Callable[[Any], Example]) -> None:
        self.one = decode

    def many(self, items: Sequence[Any]) -> Decoded:
        images: NDArray[Any] | None = None
        labels = np.full(len(items), -1, dtype=np.int64)
        failures: dict[int, BadImage] = {}
        for number, item in enumerate(items):
            try:
                image, label, _ = self.one(item)
            except BadImage as error:
                failures[number] = error
                continue
            if images is None:
                images = np.zeros((len(items), *image.shape), dtype=image.numpy().dtype)
            images[number] = image.numpy()
            labels[number] = -1 if label is None else label
        return Decoded(images, labels, failures)


class CachingDecoder(Decoder):
    """Decodes every example of a source once, and gathers whole batches from memory after that."""

    def __init__(self, source: Source) -> None:
        super().__init__(self._get)
        self.source = source
        self.images: Tensor | None = None
        self.labels = torch.full((len(source),), -1, dtype=torch.int64)
        self.known = np.zeros(len(source), dtype=np.bool_)
        self.bad: dict[int, BadImage] = {}
        if isinstance(source, TensorSource):
            self.images = source.images
            self.labels = self.labels if source.labels is None else source.labels
            self.known[:] = True

    def many(self, items: Sequence[Any]) -> Decoded:
        ids = np.asarray(items, dtype=np.int64)
        for index in ids[~self.known[ids]].tolist():
            self._remember(index)
        failures = (
            {number: self.bad[index] for number, index in enumerate(items) if index in self.bad} if self.bad else {}
        )
        if self.images is None:
            return Decoded(None, np.full(len(items), -1, dtype=np.int64), failures)
        where = torch.from_numpy(ids)
        return Decoded(self.images[where].numpy(), self.labels[where].numpy(), failures)

    def _get(self, index: int) -> Example:
        if not self.known[index]:
            self._remember(index)
        if index in self.bad or self.images is None:
            raise self.bad[index]
        label = int(self.labels[index])
        return Example(self.images[index], None if label < 0 else label, f"{self.source.name}[{index}]")

    def _remember(self, index: int) -> None:
        if self.known[index]:
            return
        try:
            image, label, _ = self.source.get(index)
        except BadImage as error:
            self.bad[index] = error
        else:
            if self.images is None:
                self.images = torch.zeros((len(self.source), *image.shape), dtype=image.dtype)
            self.images[index] = image
            self.labels[index] = -1 if label is None else label
        self.known[index] = True


def bytes_when_decoded(source: Source, *, tries: int = 100) -> int | None:
    """Memory the whole set would take, judged by its first good example; None if the first ``tries`` are all bad."""
    for index in range(min(tries, len(source))):
        try:
            image = source.get(index).image
        except BadImage:
            continue
        return len(source) * image.numel() * image.element_size()
    return None
