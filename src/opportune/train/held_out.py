"""The held-out images of a run: from the data set's own split, or set apart from the training images."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from opportune.train.config import TrainConfig
from opportune.train.data import DataError, Example, InOrder, NoSuchSplit, Source, StreamSource, hold_out, open_source
from opportune.train.data.loader import as_floats
from opportune.train.data.order import hashed_order


class HeldOut(NamedTuple):
    """Images in memory, the same on every rank."""

    images: Tensor
    """``[N, C, H, W]`` float32."""
    labels: Tensor | None
    """``[N]`` int64."""
    ids: list[int]
    """Which examples of their set these are."""


def open_data(config: TrainConfig, *, verify: bool) -> tuple[Source | StreamSource, HeldOut | None]:
    """The training set, and the held-out images where validation is asked for."""
    training = _open(config, "train", at_least=config.data.batch_size, verify=verify)
    wanted = config.validation
    if not wanted.every_steps:
        return training, None
    try:
        own = _open(config, wanted.split, at_least=1, verify=verify)
    except NoSuchSplit:
        if not isinstance(training, Source):
            raise DataError(
                f"{config.data.source} is a stream without a split {wanted.split!r}, so no images can be set apart for "
                "validation; name a split (validation.split), or set validation.every_steps = 0."
            ) from None
        training, own = hold_out(training, wanted.examples, seed=wanted.seed)
        if len(training) < config.data.batch_size:
            raise DataError(
                f"{len(training)} images are left when {wanted.examples} are set apart for validation, fewer than one "
                f"batch of {config.data.batch_size}; lower validation.examples or data.batch_size."
            ) from None
    return training, _read(own, config, wanted.examples)


def first_held_out(config: TrainConfig, count: int) -> HeldOut:
    """The first ``count`` held-out images of a run, in the order of its validation; it was trained on none of them."""
    wanted = config.validation
    try:
        own = _open(config, wanted.split, at_least=1, verify=False)
    except NoSuchSplit:
        training = _open(config, "train", at_least=1, verify=False)
        if not wanted.every_steps or not isinstance(training, Source):
            raise DataError(
                f"{config.data.source} has no split {wanted.split!r} and the run set no images apart, so there are no "
                "held-out images; train with validation.every_steps of 1 or more, or on data with such a split."
            ) from None
        # As many as the run set apart, whatever is wanted now: more of them would be images it was trained on.
        _, own = hold_out(training, wanted.examples, seed=wanted.seed)
    found = _read(own, config, count)
    if len(found.ids) < count:
        raise DataError(f"{count} held-out images were asked for and {own.name} has {len(found.ids)}; ask for fewer.")
    return found


def _open(config: TrainConfig, split: str, *, at_least: int, verify: bool) -> Source | StreamSource:
    data = config.data
    return open_source(
        data.source,
        split=split,
        size=None if data.source.startswith("latents:") else data.size,
        channels=data.channels if data.source.partition(":")[0] != "latents" else 3,
        labels=data.classes is not None,
        streaming=data.streaming,
        at_least=at_least,
        image_column=data.image_column,
        label_column=data.label_column,
        verify=verify,
    )


def _read(source: Source | StreamSource, config: TrainConfig, count: int) -> HeldOut:
    """The first ``count`` readable ones, of a hashed order where there is a choice (sets are sorted)."""
    ids: list[int] = []
    examples: list[Example] = []
    order = hashed_order(len(source), config.validation.seed) if isinstance(source, Source) else None
    for example_id, example in InOrder(source, on_bad=config.data.on_bad, indices=order):
        ids.append(example_id)
        examples.append(example)
        if len(ids) == count:
            break
    if not examples:
        raise DataError(f"there are no readable held-out images in {source.name}.")
    labels = torch.tensor([example.label for example in examples]) if source.labelled else None
    return HeldOut(as_floats(torch.stack([example.image for example in examples])), labels, ids)
