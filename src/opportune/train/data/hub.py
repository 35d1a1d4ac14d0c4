"""Hugging Face ``datasets``: hub names, local Parquet files and dataset folders; at random or as a stream.

The library's own decoder is switched off, so that ours runs: its errors name the row, and deep, rotated or
damaged images are treated the same wherever they come from.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from inspect import signature
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from opportune.train.data.decode import decode_image
from opportune.train.data.errors import BadImage, DataError, NoSuchSplit, need
from opportune.train.data.order import mix
from opportune.train.data.sources import Example

IMAGE_COLUMNS = ("image", "img", "jpg", "png", "picture", "photo")
LABEL_COLUMNS = ("label", "labels", "class", "cls", "fine_label")


class Columns(NamedTuple):
    """Which columns hold the picture and its class, and the names of the classes."""

    image: str
    label: str | None
    classes: tuple[str, ...] | None


class _Rows:
    """A dataset of the library, and which of its columns are read."""

    def __init__(
        self, dataset: Any, columns: Columns, *, name: str, size: int | tuple[int, int], channels: int
    ) -> None:
        self.dataset, self.columns, self.name = dataset, columns, name
        self.size, self.channels = size, channels
        self.labelled, self.classes = columns.label is not None, columns.classes


class HubSource(_Rows):
    """A dataset on disk (memory-mapped by the library), read row by row in any order."""

    def __len__(self) -> int:
        return len(self.dataset)

    def get(self, index: int) -> Example:
        return decode_row(self.dataset[index], self.columns, f"{self.name}[{index}]", self.size, self.channels)


class HubStream(_Rows):
    """The same, read from front to back without downloading or converting the whole set first."""

    def read(self, epoch: int, seed: int) -> Iterator[Any]:
        # A buffer of one shuffles the order of the files alone; the rows are shuffled by our own buffer.
        options = {"seed": int(mix(seed, epoch)[0] >> np.uint64(33)), "buffer_size": 1}
        if "max_buffer_input_shards" in signature(self.dataset.shuffle).parameters:
            options["max_buffer_input_shards"] = 1  # newer versions would mix files in threads, waiting 5 s at the end
        shuffled = self.dataset.shuffle(**options)
        for number, row in enumerate(shuffled):
            yield (
                number,
                {key: row[key] for key in (self.columns.image, self.columns.label) if key is not None},
            )

    def decode(self, item: Any) -> Example:
        number, row = item
        return decode_row(row, self.columns, f"{self.name}, row {number} of the stream", self.size, self.channels)


def open_hub(
    what: str,
    *,
    split: str,
    size: int | tuple[int, int],
    channels: int,
    labels: bool,
    streaming: bool,
    data_files: list[str] | None = None,
    image_column: str | None = None,
    label_column: str | None = None,
) -> HubSource | HubStream:
    """Open hub dataset (or local dataset folder) ``what``, or the Parquet files ``data_files``."""
    datasets = need("datasets", "train")
    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    name = f"parquet:{what}" if data_files else f"hub:{what}"
    for file in data_files or []:
        _check_parquet(Path(file), name)
    try:
        if data_files:
            # Files named by the user are the split; inside the library it is always called "train".
            dataset = datasets.load_dataset("parquet", data_files=data_files, split="train", streaming=streaming)
        else:
            dataset = datasets.load_dataset(what, split=split, streaming=streaming)
    except Exception as error:  # the library and what lies below it raise some twenty kinds
        first_line = (str(error).splitlines() or [type(error).__name__])[0]
        if "split" in first_line and ("Unknown" in first_line or "Bad" in first_line):
            raise NoSuchSplit(f"{name} has no split {split!r}: {first_line}") from error
        raise DataError(f"{name} cannot be opened: {first_line}") from error
    features = dataset.features or _features_of_first_row(dataset, name)
    columns = find_columns(features, name=name, labels=labels, image_column=image_column, label_column=label_column)
    if type(features[columns.image]).__name__ == "Image":
        dataset = dataset.cast_column(columns.image, datasets.Image(decode=False))
    if not streaming and len(dataset) == 0:
        raise DataError(f"{name} has no rows.")
    kind = HubStream if streaming else HubSource
    return kind(dataset, columns, name=name, size=size, channels=channels)


def find_columns(
    features: Mapping[str, Any],
    *,
    name: str,
    labels: bool,
    image_column: str | None,
    label_column: str | None,
) -> Columns:
    """The named columns, or the only ones that can be meant."""
    image = image_column or _only([key for key, kind in features.items() if _holds_images(kind)], IMAGE_COLUMNS)
    if image is None or image not in features:
        raise DataError(
            f"{name} has no {'column ' + repr(image) if image else 'single column that holds images'}; "
            f"its columns are {', '.join(features)}. Name one with image_column."
        )
    if not labels:
        return Columns(image, None, None)
    label = label_column or _only([key for key, kind in features.items() if _holds_classes(kind)], LABEL_COLUMNS)
    if label is None or label not in features:
        raise DataError(
            f"{name} has no {'column ' + repr(label) if label else 'single column that holds classes'}; "
            f"its columns are {', '.join(features)}. Name one with label_column, or set labels=False."
        )
    names = getattr(features[label], "names", None)
    return Columns(image, label, tuple(names) if names else None)


def decode_row(
    row: Mapping[str, Any], columns: Columns, place: str, size: int | tuple[int, int], channels: int
) -> Example:
    """A row whose image column holds ``{"bytes", "path"}``, bare bytes or a path."""
    cell = row[columns.image]
    raw, path = (cell.get("bytes"), cell.get("path")) if isinstance(cell, Mapping) else (cell, None)
    name = f"{place} ({path})" if path else place
    if raw is None and path is None:
        raise BadImage(name, "the row holds no image")
    image = decode_image(bytes(raw) if raw is not None else Path(str(path)), size=size, channels=channels, name=name)
    if columns.label is None:
        return Example(image, None, name)
    label = row[columns.label]
    if label is None or int(label) < 0:
        raise BadImage(name, f"the row's label is {label!r}, not a class")
    return Example(image, int(label), name)


def _check_parquet(file: Path, name: str) -> None:
    if not file.is_file():
        raise DataError(f"{name}: there is no file {file} (looked at {file.absolute()}).")
    with file.open("rb") as stream:
        start = stream.read(4)
        stream.seek(max(file.stat().st_size - 4, 0))
        if start != b"PAR1" or stream.read(4) != b"PAR1":
            raise DataError(f"{name}: {file} is not a complete Parquet file; write or download it again.")


def _features_of_first_row(dataset: Any, name: str) -> Mapping[str, Any]:
    """Some streams learn their columns only by reading a little."""
    resolved = dataset._resolve_features() if hasattr(dataset, "_resolve_features") else dataset
    if not resolved.features:
        raise DataError(f"{name} does not say which columns it has; name its files with parquet: instead.")
    features: Mapping[str, Any] = resolved.features
    return features


def _only(candidates: list[str], preferred: tuple[str, ...]) -> str | None:
    if len(candidates) == 1:
        return candidates[0]
    return next((key for key in preferred if key in candidates), None)


def _holds_images(kind: Any) -> bool:
    if type(kind).__name__ == "Image":
        return True
    if isinstance(kind, Mapping):
        return set(kind) == {"bytes", "path"}
    return getattr(kind, "dtype", None) in ("binary", "large_binary")


def _holds_classes(kind: Any) -> bool:
    return type(kind).__name__ == "ClassLabel" or getattr(kind, "dtype", None) in (
        "int64",
        "int32",
        "int16",
        "int8",
        "uint8",
    )
