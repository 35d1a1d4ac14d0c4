"""WebDataset shards: local tar files that are read from front to back, never unpacked to disk.

Members of a shard that share a name up to the first dot are one sample: ``0001.jpg`` with ``0001.cls`` (the
class as a whole number in text). Sets that lie elsewhere go through ``hub:`` with ``streaming=True``.
"""

from __future__ import annotations

import glob
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from opportune.train.data.decode import SUFFIXES, decode_image
from opportune.train.data.errors import BadImage, DataError, need
from opportune.train.data.order import mix
from opportune.train.data.sources import Example


class WebDatasetStream:
    """The samples of tar shards; the shards' order is shuffled anew in every epoch."""

    def __init__(self, pattern: str, *, size: int | tuple[int, int], channels: int = 3, labels: bool = False) -> None:
        need("webdataset", "webdataset")
        self.shards = expand(pattern)
        self.name = f"webdataset:{pattern}"
        self.size, self.channels, self.labelled = size, channels, labels
        self.classes: tuple[str, ...] | None = None

    def read(self, epoch: int, seed: int) -> Iterator[Any]:
        tariterators = need("webdataset.tariterators", "webdataset")
        for shard in np.argsort(mix(seed, epoch, np.arange(len(self.shards))), kind="stable"):
            path = self.shards[int(shard)]
            try:
                yield from tariterators.tarfile_samples(iter([{"url": path}]), select_files=_is_wanted)
            except Exception as error:  # a damaged tar raises whatever the reader met first
                raise DataError(f"{self.name}: shard {path} cannot be read ({error}); write it again.") from error

    def decode(self, item: Any) -> Example:
        name = f"{item['__url__']}: {item['__key__']}"
        ending = next((key for key in sorted(item) if _is_image(key)), None)
        if ending is None:
            raise BadImage(
                name,
                f"the sample has no image (it has {', '.join(k for k in item if k[0] != '_') or 'nothing'})",
            )
        image = decode_image(item[ending], size=self.size, channels=self.channels, name=f"{name}.{ending}")
        return Example(image, self._label(item, name), f"{name}.{ending}")

    def _label(self, item: Any, name: str) -> int | None:
        if not self.labelled:
            return None
        text = bytes(item.get("cls", b"")).strip()
        if not text.isdigit():
            raise BadImage(
                name,
                f"its .cls member is {text[:20]!r}; labels need a whole number there, or set labels=False",
            )
        return int(text)


def expand(pattern: str) -> list[str]:
    """Local tar files for a pattern with ``{000..123}``, ``*`` or ``?``, sorted; at least one, all of them present."""
    if ":" in pattern.split("/", 1)[0]:
        # The library would hand some addresses to a shell.
        raise DataError(
            f"webdataset:{pattern} is not a local path; for a set on the hub use hub:NAME with streaming=True."
        )
    shards: list[str] = []
    for each in need("braceexpand", "webdataset").braceexpand(pattern):
        shards.extend(sorted(glob.glob(each)) if glob.has_magic(each) else [each])
    missing = [shard for shard in shards if not Path(shard).is_file()]
    if missing or not shards:
        raise DataError(
            f"webdataset:{pattern} names no shard at {Path(missing[0] if missing else pattern).absolute()}."
        )
    return shards


def _is_image(ending: str) -> bool:
    return "." + ending.rsplit(".", 1)[-1].lower() in SUFFIXES


def _is_wanted(member: str) -> bool:
    """Other members (captions, vectors) are stepped over: they would only be carried to the workers."""
    return _is_image(member) or member.lower().endswith(".cls")
