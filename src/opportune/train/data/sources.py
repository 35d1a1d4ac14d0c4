"""Where examples come from: the two protocols, and the plain sources (tensors in memory, folders of images)."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from torch import Tensor

from opportune.checks import one_of, whole
from opportune.train.data.decode import SUFFIXES, decode_image
from opportune.train.data.errors import BadImage, DataError
from opportune.train.data.order import mix

_log = logging.getLogger(__name__)


class Example(NamedTuple):
    """One example: uint8 ``[C, H, W]`` pixels (or a float latent), its class if asked for, and a name for messages."""

    image: Tensor
    label: int | None
    name: str


@runtime_checkable
class Source(Protocol):
    """A set of examples that can be read in any order. It travels to loader workers, so it holds no open files."""

    name: str
    """What messages call this set, e.g. ``folder:photos``."""
    labelled: bool
    """Whether every example comes with a label."""
    classes: tuple[str, ...] | None
    """Class names in the order of their labels, where they are known."""

    def __len__(self) -> int: ...

    def get(self, index: int) -> Example:
        """Example ``index``; raises ``BadImage`` where it cannot be used."""
        ...


class StreamSource(Protocol):
    """A set that is read from front to back because it does not fit here.

    ``read`` is cheap (it moves undecoded bytes) and runs in the main process; ``decode`` runs in loader
    workers.
    """

    name: str
    labelled: bool
    classes: tuple[str, ...] | None

    def read(self, epoch: int, seed: int) -> Iterator[Any]:
        """The undecoded items of one epoch, in an order that depends on (seed, epoch) alone."""
        ...

    def decode(self, item: Any) -> Example:
        """Turn an item of ``read`` into an example; raises ``BadImage`` where it cannot be used."""
        ...


class InOrder:
    """Examples of a source one after the other; with ``on_bad="skip"`` without those that cannot be read.

    Args:
        source: to read.
        on_bad: "error", or "skip".
        indices: which, of a set that can be read at random; all of them unless given.
    """

    def __init__(self, source: Source | StreamSource, *, on_bad: str, indices: Iterable[int] | None = None) -> None:
        self.on_bad = one_of("on_bad", on_bad, ("error", "skip"))
        self.bad: dict[str, str] = {}
        """Name and reason of every image left out so far."""
        self._decode: Callable[[Any], Example]
        if isinstance(source, Source):
            self._decode = source.get
            self._items: Iterable[tuple[int, Any]] = (
                (i, i) for i in (range(len(source)) if indices is None else indices)
            )
        else:
            self._decode = source.decode
            self._items = enumerate(source.read(0, 0))

    def __iter__(self) -> Iterator[tuple[int, Example]]:
        """``(index, example)``."""
        for index, item in self._items:
            try:
                yield index, self._decode(item)
            except BadImage as failure:
                if self.on_bad == "error":
                    raise
                self.bad[failure.name] = failure.reason
                _log.warning("skipped %s", failure)


class TensorSource:
    """Examples that are in memory already: images ``[N, C, H, W]`` (uint8, or float latents), labels ``[N]`` int64."""

    def __init__(
        self,
        images: Tensor,
        labels: Tensor | None = None,
        *,
        name: str = "tensor",
        classes: tuple[str, ...] | None = None,
    ) -> None:
        if images.ndim != 4 or not len(images):
            raise DataError(f"images of {name} have shape {tuple(images.shape)}; give [N, C, H, W] with N ≥ 1.")
        if labels is not None and tuple(labels.shape) != (len(images),):
            raise DataError(f"labels of {name} have shape {tuple(labels.shape)}; give [{len(images)}], one per image.")
        self.images, self.labels, self.name, self.classes = images, labels, name, classes
        self.labelled = labels is not None

    def __len__(self) -> int:
        return len(self.images)

    def get(self, index: int) -> Example:
        label = None if self.labels is None else int(self.labels[index])
        return Example(self.images[index], label, f"{self.name}[{index}]")


class FolderSource:
    """Every image file in a folder and its sub-folders, sorted by path.

    With ``labels=True`` the class of an image is the name of the first-level sub-folder it lies in. Hidden
    files and files whose ending is no image format's are left out; everything else is decoded, or reported
    as bad, when its turn comes.
    """

    def __init__(self, folder: Path, *, size: int | tuple[int, int], channels: int = 3, labels: bool = False) -> None:
        self.folder, self.size, self.channels, self.labelled = folder, size, channels, labels
        self.name = f"folder:{folder}"
        self.files = image_files(folder)
        self.classes: tuple[str, ...] | None = None
        if labels:
            loose = next((file for file in self.files if "/" not in file), None)
            if loose is not None:
                raise DataError(
                    f"{folder / loose} lies in no class folder; labels need {folder}/<class>/<image>, "
                    "or set labels=False."
                )
            self.classes = tuple(sorted({file.split("/", 1)[0] for file in self.files}))
            self._label_of = {name: label for label, name in enumerate(self.classes)}

    def __len__(self) -> int:
        return len(self.files)

    def get(self, index: int) -> Example:
        file = self.files[index]
        image = decode_image(self.folder / file, size=self.size, channels=self.channels, name=str(self.folder / file))
        label = self._label_of[file.split("/", 1)[0]] if self.labelled else None
        return Example(image, label, file)


def image_files(folder: Path) -> list[str]:
    """Paths below ``folder``, with ``/`` between parts, in an order that no file system can change."""
    if not folder.exists():
        raise DataError(f"there is no folder {folder} (looked at {folder.absolute()}).")
    if not folder.is_dir():
        raise DataError(f"{folder} is a file, not a folder of images.")
    found: list[str] = []
    others, visited = 0, set()
    for place, folders, files in os.walk(folder, followlinks=True):
        real = os.path.realpath(place)
        # A link back to a parent would be walked round and round.
        folders[:] = [] if real in visited else sorted(sub for sub in folders if not sub.startswith("."))
        if real in visited:
            continue
        visited.add(real)
        prefix = Path(place).relative_to(folder)
        images = [file for file in files if Path(file).suffix.lower() in SUFFIXES and not file.startswith(".")]
        found.extend((prefix / file).as_posix() for file in images)
        others += len(files) - len(images)
    if not found:
        rest = f"; {others} other files were left out" if others else ""
        raise DataError(f"there are no images in {folder.absolute()} or its sub-folders{rest}.")
    return sorted(found)


class Subset:
    """Some examples of another source, in the order of ``ids``."""

    def __init__(self, source: Source, ids: list[int], *, name: str) -> None:
        self.source, self.ids, self.name = source, ids, name
        self.labelled, self.classes = source.labelled, source.classes

    def __len__(self) -> int:
        return len(self.ids)

    def get(self, index: int) -> Example:
        return self.source.get(self.ids[index])


def hold_out(source: Source, count: int, *, seed: int = 0) -> tuple[Source, Source]:
    """``(rest, held_out)``: set ``count`` examples apart for validation; the same ones for the same seed and size."""
    whole("count", count, low=1)
    if count >= len(source):
        raise DataError(f"cannot hold out {count} of the {len(source)} examples of {source.name}; hold out fewer.")
    shuffled = np.argsort(mix(seed, 0x686F6C64, np.arange(len(source))), kind="stable").tolist()
    held = Subset(source, sorted(shuffled[:count]), name=f"{source.name} (held out)")
    return Subset(source, sorted(shuffled[count:]), name=source.name), held
