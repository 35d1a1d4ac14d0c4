"""Images of a trained model, and the real ones to compare them with."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from opportune.checks import number, whole
from opportune.distributed import gather, place
from opportune.generate import generate_many, methods
from opportune.models import LatentSpace
from opportune.train.batches import Preparation
from opportune.train.data import DataError, InOrder, NoSuchSplit, Source, TensorSource, open_source
from opportune.train.data.loader import as_floats
from opportune.train.data.order import hashed_order
from opportune.train.errors import ConfigError
from opportune.train.held_out import first_held_out
from opportune.train.trained import Trained


@dataclass(frozen=True, kw_only=True)
class ImageSettings:
    """How images are made."""

    steps: int = 50
    """Noise levels visited."""
    method: str | None = None
    """ddpm, ddim, heun or euler; left out, what fits the process best."""
    guidance: float = 1.0
    """Classifier-free guidance scale; 1 is none."""
    label: int | None = None
    """Class of all images; left out, all classes in turn."""
    seed: int = 0
    """Of the noise."""
    batch_size: int = 64
    """Images at a time."""
    autoencoder: str | None = None
    """Hub name or folder of the autoencoder, to decode latents."""
    count: int = 64
    """Images."""


def conditions_of(trained: Trained, settings: ImageSettings) -> dict[str, Any]:
    """What the images are to show, one row per image: ``labels``, and ``condition`` where the model enlarges images.

    Small images come from the held-out ones, with their classes.
    """
    check_choices(trained, settings)
    data = trained.config.data
    conditions: dict[str, Any] = {}
    if data.low_resolution_factor:
        _, conditions = held_out_images(trained, settings.count)
    elif data.classes is not None:
        conditions["labels"] = torch.arange(settings.count) % data.classes
    if settings.label is not None:
        conditions["labels"] = torch.full((settings.count,), settings.label)
    return conditions


def held_out_images(trained: Trained, count: int) -> tuple[Tensor, dict[str, Any]]:
    """The first ``count`` held-out images ``[N, C, H, W]`` and what the model is told of them, as in validation."""
    images, labels, _ = first_held_out(trained.config, count)
    source = TensorSource(images, name=trained.config.data.source)
    preparation = Preparation(trained.config, source, device=torch.device("cpu"), rank=0, world=1)
    return preparation.fixed(images, labels)


def make_images(trained: Trained, settings: ImageSettings, conditions: dict[str, Any]) -> Tensor:
    """``[count, C, H, W]`` in [-1, 1], decoded where the model makes latents; conditions of ``conditions_of``.

    Ranks (see ``ranks.joined``) make a share each; the images of all of them are returned on every rank.
    """
    space = _space(trained, settings.autoencoder)
    _, world = place()
    if settings.count < world:
        raise ConfigError(f"count={settings.count} images are fewer than the {world} ranks; start fewer ranks.")
    made = [
        (start, part.cpu() if space is None else space.decode(part).cpu())
        for start, part in generate_many(
            trained.model,
            trained.process,
            settings.count,
            trained.shape,
            batch_size=min(settings.batch_size, settings.count // world),  # so that every rank has one batch or more
            **conditions,
            method=settings.method,
            steps=settings.steps,
            seed=settings.seed,
            guidance=settings.guidance,
            clip=None if trained.of_latents else 1.0,
        )
    ]
    numbers = gather(torch.cat([torch.arange(start, start + len(part)) for start, part in made]))
    return gather(torch.cat([part for _, part in made]))[numbers.argsort()]


def check_choices(trained: Trained, settings: ImageSettings) -> None:
    """What can be known to be wrong before anything is generated, as a ConfigError."""
    try:
        for name in ("count", "steps", "batch_size"):
            whole(name, getattr(settings, name), low=1)
        whole("seed", settings.seed, low=0)
        number("guidance", settings.guidance, low=0)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    if settings.autoencoder is not None and not trained.of_latents:
        raise ConfigError(f"autoencoder={settings.autoencoder!r} has no use: this model makes images, not latents.")
    fitting, classes = methods(trained.process), trained.config.data.classes
    if settings.method is not None and settings.method not in fitting:
        raise ConfigError(f"method={settings.method!r} does not fit this model; use {', '.join(fitting)}.")
    if settings.label is not None and (classes is None or not 0 <= settings.label < classes):
        of = "has no classes" if classes is None else f"has the classes 0 to {classes - 1}"
        raise ConfigError(f"label={settings.label}, and the model {of}.")


def device_of(name: str) -> torch.device:
    """The device meant by ``auto``, ``cpu`` or ``cuda``."""
    if name not in ("auto", "cpu", "cuda"):
        raise ConfigError(f"device={name!r} is unknown. Known: auto, cpu, cuda.")
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device='cuda' but no CUDA device is visible; use auto or cpu.")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def _space(trained: Trained, name: str | None) -> LatentSpace | None:
    if not trained.of_latents:
        return None
    if name is None:
        raise ConfigError("this model makes latents; name the autoencoder that decodes them: --autoencoder NAME.")
    return _loaded(name, next(trained.model.parameters()).device)


@cache
def _loaded(name: str, device: torch.device) -> LatentSpace:
    return LatentSpace.load(name).to(device)


def side_of(trained: Trained, settings: ImageSettings) -> int:
    """Side in pixels of the images ``make_images`` makes."""
    space = _space(trained, settings.autoencoder)
    return trained.config.data.size * (1 if space is None else space.downsampling)


def real_images(
    trained: Trained, count: int, *, of: str | None = None, split: str = "train", size: int | None = None
) -> Tensor:
    """Up to ``count`` real images ``[N, C, H, W]``, of a hashed order as sets are often sorted.

    Those that cannot be read are an error, or left out, as in training (``data.on_bad``).

    Args:
        trained: the model they are to be compared with; its own data set unless ``of`` names another.
        count: how many at most.
        of: a source, such as ``folder:photos``.
        split: which part of it.
        size: of the images in pixels; the side of what the model makes unless given (latents are smaller).
    """
    data = trained.config.data
    spec = of or data.source
    if spec.startswith("latents:"):
        raise ConfigError(f"{spec} holds latents; name the real images with --real, e.g. --real folder:photos.")
    try:
        source = open_source(
            spec,
            split=split,
            size=size or data.size,
            channels=3 if trained.of_latents else data.channels,
            image_column=data.image_column,
        )
    except NoSuchSplit as error:
        raise DataError(f"{error} Choose another with --split.") from error
    if not isinstance(source, Source):
        raise ConfigError(f"{spec} is a stream; scores need images that can be read at random.")
    readable = InOrder(source, on_bad=data.on_bad, indices=hashed_order(len(source), 0))
    images = [as_floats(example.image) for _, example in islice(readable, count)]
    if not images:
        raise DataError(f"no image of {spec} can be read.")
    return torch.stack(images)
