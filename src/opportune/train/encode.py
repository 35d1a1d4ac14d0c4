"""Images to latents, once: what ``data.source = "latents:PATH"`` trains on.

What is kept is the encoder's mean and log variance, so that training draws a fresh latent each time it sees an image.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor

from opportune.models import LatentSpace
from opportune.train.data import Example, InOrder, Source, StreamSource, write_latents
from opportune.train.data.loader import as_floats

Told = Callable[[int], None]


def encode_latents(
    source: Source | StreamSource,
    space: LatentSpace,
    folder: str | Path,
    *,
    encoder: str,
    batch_size: int = 16,
    device: torch.device | str = "cpu",
    on_bad: str = "error",
    overwrite: bool = False,
    told: Told = lambda done: None,
) -> int:
    """Encode every image of ``source`` in its order and write the folder, complete or not at all.

    Returns the number of images left out, each named in a warning.

    Args:
        source: of images ``[C, H, W]`` whose sides the autoencoder can halve.
        space: the autoencoder.
        folder: to make.
        encoder: name of the autoencoder, kept with the latents.
        batch_size: images at a time.
        device: to encode on.
        on_bad: ``"error"`` or ``"skip"`` images that cannot be read.
        overwrite: replace the folder.
        told: called with the number of images done.
    """
    space = space.to(device)
    examples = InOrder(source, on_bad=on_bad)
    made_from = {
        "images": source.name,
        "encoder": encoder,
        "content": "moments",
        "scaling": repr(space.scaling),
        "shift": repr(space.shift),
    }
    write_latents(
        Path(folder),
        _encoded(iter(examples), space, batch_size, torch.device(device), told),
        made_from=made_from,
        classes=source.classes,
        overwrite=overwrite,
    )
    return len(examples.bad)


def _encoded(
    examples: Iterator[tuple[int, Example]], space: LatentSpace, batch_size: int, device: torch.device, told: Told
) -> Iterator[tuple[Tensor, int | None]]:
    done = 0
    while batch := [example for _, example in islice(examples, batch_size)]:
        images = as_floats(torch.stack([example.image for example in batch])).to(device)
        for moments, example in zip(space.moments(images).cpu(), batch, strict=True):
            yield moments, example.label
        done += len(batch)
        told(done)
