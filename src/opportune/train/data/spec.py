"""A dataset in one line of text, as the configuration and the command line give it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from opportune.checks import closest, whole
from opportune.train.data.errors import DataError, NoSuchSplit
from opportune.train.data.sources import FolderSource, Source, StreamSource, TensorSource

GRAMMAR = {
    "embedded:fashion16": "10,000 + 2,000 grey 16×16 images that come with the package",
    "folder:PATH": "images in a folder and its sub-folders",
    "parquet:PATH[,PATH]": "local Parquet files with an image column",
    "hub:NAME": "a Hugging Face dataset by its hub name, or a local folder in its layout",
    "webdataset:PATTERN": "local tar shards, e.g. shards-{000..123}.tar (always a stream)",
    "latents:PATH": "latents encoded beforehand",
}
"""What a dataset may be written as. ``{split}`` anywhere in a PATH or PATTERN stands for the split's name."""


def open_source(
    spec: str,
    *,
    split: str = "train",
    size: int | tuple[int, int] | None = None,
    channels: int = 3,
    labels: bool = False,
    streaming: bool = False,
    at_least: int = 1,
    image_column: str | None = None,
    label_column: str | None = None,
    made_from: Mapping[str, str] | None = None,
    verify: bool = True,
) -> Source | StreamSource:
    """Open the dataset ``spec`` (see ``GRAMMAR``) for images of ``size`` (side, or height and width) and
    ``channels``.

    ``at_least`` is the smallest set that is of use (the global batch). ``made_from`` and ``verify`` are for
    latents, the column names for ``parquet:`` and ``hub:``. A set that does not have the split raises
    ``NoSuchSplit``.
    """
    whole("at_least", at_least, low=1)
    kind, _, what = spec.partition(":")
    kinds = {form.partition(":")[0] for form in GRAMMAR}
    if kind not in kinds or not what:
        raise DataError(_unknown(spec, kind, kinds))
    if streaming and kind not in ("hub", "parquet", "webdataset"):
        raise DataError(f"streaming=True has no effect on {spec}; only hub:, parquet: and webdataset: can be streams.")
    if (image_column or label_column) and kind not in ("hub", "parquet"):
        raise DataError(f"image_column and label_column have no effect on {spec}; only hub: and parquet: have columns.")
    if kind in ("folder", "parquet", "webdataset", "latents"):
        what = _with_split(kind, what, split)
    if kind == "embedded":
        source: Source | StreamSource = _embedded(what, split, size, channels, labels)
    elif kind == "latents":
        from opportune.train.data.latents import LatentSource

        source = LatentSource(Path(what).expanduser(), made_from=made_from, labels=labels, verify=verify)
    elif size is None:
        raise DataError(f"{spec} needs size=, the side of the images in pixels.")
    elif kind == "folder":
        source = FolderSource(Path(what).expanduser(), size=size, channels=channels, labels=labels)
    elif kind == "webdataset":
        from opportune.train.data.shards import WebDatasetStream

        source = WebDatasetStream(what, size=size, channels=channels, labels=labels)
    else:
        from opportune.train.data.hub import open_hub

        source = open_hub(
            what,
            split=split,
            size=size,
            channels=channels,
            labels=labels,
            streaming=streaming,
            data_files=[str(Path(file).expanduser()) for file in what.split(",")] if kind == "parquet" else None,
            image_column=image_column,
            label_column=label_column,
        )
    if isinstance(source, Source) and len(source) < at_least:
        raise DataError(f"{spec} holds {len(source)} images, fewer than the {at_least} of one global batch.")
    return source


def _embedded(what: str, split: str, size: int | tuple[int, int] | None, channels: int, labels: bool) -> TensorSource:
    from opportune.embedded import load_fashion16

    if what != "fashion16":
        raise DataError(f"embedded:{what} is unknown{closest(what, ['fashion16']) or '.'} Known: embedded:fashion16.")
    if size not in (None, 16, (16, 16)):
        raise DataError(f"embedded:fashion16 has 16×16 images; size={size} is not possible, leave it out or give 16.")
    if channels not in (1, 3):
        raise ValueError(f"channels={channels!r} is not allowed; give 3 (RGB) or 1 (grey).")
    if split not in ("train", "test"):
        raise NoSuchSplit(f"embedded:fashion16 has no split {split!r}; it has 'train' and 'test'.")
    images, classes = load_fashion16("train" if split == "train" else "test")
    images = images.expand(-1, channels, -1, -1).contiguous()
    names = tuple(str(label) for label in range(10)) if labels else None
    return TensorSource(images, classes if labels else None, name="embedded:fashion16", classes=names)


def _with_split(kind: str, what: str, split: str) -> str:
    """Put the split's name in; a path that does not say where it goes is the training split."""
    if "{split}" in what:
        return what.replace("{split}", split)
    if split != "train":
        raise NoSuchSplit(
            f"{kind}:{what} names no place for the split {split!r}; write {{split}} in the path, or give its own."
        )
    return what


def _unknown(spec: str, kind: str, kinds: set[str]) -> str:
    near = closest(kind, kinds)
    if Path(spec).expanduser().is_dir():
        near = f"; did you mean 'folder:{spec}'?"
    elif spec.endswith(".parquet"):
        near = f"; did you mean 'parquet:{spec}'?"
    return f"dataset {spec!r} is not understood{near or '.'} Give one of: {', '.join(GRAMMAR)}."
