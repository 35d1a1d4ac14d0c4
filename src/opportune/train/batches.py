"""From the loader's batches to what the objective takes: on the device, with noise, labels and conditions.

Everything drawn here comes from (seed, batch number, example), so it is the same at any number of ranks and after any
restart.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from opportune.checks import closest
from opportune.models import drop_labels
from opportune.train.config import TrainConfig
from opportune.train.data import DataError, LatentSource, Loader, Source, StreamSource
from opportune.train.data.sources import Subset
from opportune.train.noise import batch_noise, batch_uniforms

Prepared = tuple[Tensor, dict[str, Any]]


class Preparation:
    """Turns ``Batch`` into ``(x0, conditions)``; ``conditions["noise"]`` is what the batch is corrupted with."""

    def __init__(
        self, config: TrainConfig, source: Source | StreamSource, *, device: torch.device, rank: int, world: int
    ) -> None:
        self.config, self.device, self.rank, self.world = config, device, rank, world
        self._moments = _moments(source)
        wanted, found = config.data.classes, source.classes
        if wanted is not None and found is not None and len(found) > wanted:
            raise DataError(
                f"{config.data.source} has {len(found)} classes but data.classes={wanted}; set data.classes to "
                f"{len(found)} or more."
            )

    def training(self, loader: Loader) -> Iterator[Prepared]:
        """Training batches without end, from the loader's position on."""
        number = loader.position
        for batch in loader:
            x0 = self._images(batch.images, number)
            conditions: dict[str, Any] = {"noise": self._noise(tuple(x0.shape), number, "train noise")}
            if self.config.data.classes is not None:
                conditions["labels"] = self._dropped(self.labels(batch.labels), number).to(self.device)
            conditions |= self.shrunken(x0)
            number += 1
            yield self._layout(x0), conditions

    def fixed(self, images: Tensor, labels: Tensor | None) -> Prepared:
        """A batch for validation: the mean of a latent, every label kept, no noise of its own."""
        x0 = (self._from_moments(images) if self._moments else images).to(self.device)
        self._check_shape(x0)
        conditions: dict[str, Any] = {}
        if self.config.data.classes is not None:
            conditions["labels"] = self.labels(labels).to(self.device)
        return self._layout(x0), conditions | self.shrunken(x0)

    def labels(self, labels: Tensor | None) -> Tensor:
        """Checked labels ``[B]``."""
        classes = self.config.data.classes or 0
        if labels is None:
            raise DataError(f"data.classes={classes} but {self.config.data.source} comes without labels; remove it.")
        if int(labels.min()) < 0 or int(labels.max()) >= classes:
            raise DataError(
                f"labels run from {int(labels.min())} to {int(labels.max())} but data.classes={classes}; set "
                f"data.classes to {int(labels.max()) + 1} or more."
            )
        return labels

    def shrunken(self, x0: Tensor) -> dict[str, Tensor]:
        """The low-resolution image a super-resolution model sees, ``[B, C, h, w]``."""
        by = self.config.data.low_resolution_factor
        return {"condition": F.avg_pool2d(x0, by)} if by else {}

    def _images(self, images: Tensor, number: int) -> Tensor:
        if self._moments is not None:
            half = (images.shape[0], images.shape[1] // 2, *images.shape[2:])
            images = self._from_moments(images, batch_noise(half, **self._place(number), purpose="latent noise"))
        x0 = images.to(self.device, non_blocking=True)
        self._check_shape(x0)
        return x0

    def _noise(self, shape: tuple[int, ...], number: int, purpose: str) -> Tensor:
        noise = batch_noise(shape, **self._place(number), device=self.device, purpose=purpose)
        return self._layout(noise)

    def _dropped(self, labels: Tensor, number: int) -> Tensor:
        data = self.config.data
        if not data.label_dropout or data.classes is None:
            return labels
        uniforms = batch_uniforms(len(labels), purpose="label dropout", **self._place(number))
        return drop_labels(labels, data.label_dropout, uniforms, null_label=data.classes)

    def _place(self, number: int) -> dict[str, Any]:
        return {"seed": self.config.run.seed, "batch": number, "rank": self.rank, "world": self.world}

    def _from_moments(self, moments: Tensor, noise: Tensor | None = None) -> Tensor:
        scaling, shift = self._moments or (1.0, 0.0)
        mean, log_variance = moments.chunk(2, dim=1)
        if noise is not None:
            mean = mean + torch.exp(0.5 * log_variance.clamp(-30.0, 20.0)) * noise
        return (mean - shift) * scaling

    def _layout(self, images: Tensor) -> Tensor:
        last = self.config.hardware.channels_last
        return images.to(memory_format=torch.channels_last) if last else images

    def _check_shape(self, x0: Tensor) -> None:
        data = self.config.data
        wanted = (data.channels, data.size, data.size)
        if tuple(x0.shape[1:]) != wanted:
            channels, height, width = x0.shape[1:]
            raise DataError(
                f"{data.source} gives images of {channels} channels and {height} x {width}, the configuration says "
                f"{data.channels} and {data.size} x {data.size}; set data.channels={channels} and data.size={height}."
            )


def _moments(source: Source | StreamSource) -> tuple[float, float] | None:
    """Scaling and shift where the source holds an encoder's means and log variances; None for anything else."""
    while isinstance(source, Subset):
        source = source.source
    if not isinstance(source, LatentSource):
        return None
    made_from = source.manifest["made_from"]
    content = made_from.get("content", "latents")
    if content not in ("latents", "moments"):
        raise DataError(
            f"{source.name} holds {content!r}{closest(content, ['latents', 'moments']) or '.'} Known: latents, moments."
        )
    return (float(made_from["scaling"]), float(made_from["shift"])) if content == "moments" else None
