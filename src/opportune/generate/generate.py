"""Images from a trained model, by any method that fits its process."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ..checks import closest, number, one_of, whole
from ..distributed import place
from ..models.guidance import guided
from ..processes import EDM, VE, Process
from ..random_streams import generator
from .ddim import DDIM
from .ddpm import Ancestral
from .denoiser import Denoiser, Network, evaluating, home
from .euler import Euler
from .heun import Heun
from .levels import Level, own_time
from .method import Method

_METHODS: dict[str, type[Method]] = {"ddim": DDIM, "ddpm": Ancestral, "euler": Euler, "heun": Heun}
_NATURAL = ("ddim", "euler", "heun")  # the first that fits, except:
_SECOND_ORDER = (EDM, VE)


def methods(process: Process) -> list[str]:
    """Names of the methods that fit ``process``, the one used when none is named first."""
    first = "heun" if isinstance(process, _SECOND_ORDER) else next(n for n in _NATURAL if _fits(n, process))
    return [first, *sorted(name for name in _METHODS if _fits(name, process) and name != first)]


@torch.no_grad()
def generate(
    model: Network,
    process: Process,
    shape: Sequence[int],
    *,
    method: str | None = None,
    steps: int = 50,
    seed: int = 0,
    indices: Sequence[int] | None = None,
    labels: Tensor | None = None,
    condition: Tensor | None = None,
    guidance: float = 1.0,
    clip: float | None = 1.0,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    **settings: Any,
) -> Tensor:
    """Images ``[B, C, H, W]``, float32, from noise.

    Args:
        model: called as ``model(x, time)``, with ``labels=`` and ``condition=`` where given. It runs in evaluation
            mode and is left as it was. To use averaged weights, hand over the averaged model.
        process: the one the model was trained with; its prediction and a flow's shift are taken from it.
        shape: ``(B, C, H, W)``.
        method: "ddim" or "ddpm" (ancestral) for DDPM and VP, "euler" for flow, EDM and VE, "heun" for all. None is
            ddim for DDPM and VP, heun for EDM and VE, euler for flow.
        steps: noise levels visited. The network runs once per step, with "heun" ``2 * steps - 1`` times.
        seed, indices: the noise of image i comes from (seed, indices[i]) alone, so the same picture appears whatever
            the batch, the process count or the order. Without ``indices`` they are 0 .. B-1.
        labels: ``[B]`` int64 classes.
        condition: ``[B, c, h, w]`` conditioning images.
        guidance: classifier-free guidance scale; 1 is none.
        clip: range the estimated image is kept in, [-clip, clip]; None for latents.
        device, dtype: of the network; its own unless given.
        settings: of the method: ``eta`` (ddim), ``variance`` "small" or "large" (ddpm), ``rho``, ``sigma_min`` and
            ``sigma_max`` (heun, euler).
    """
    chosen = _method(process, method, settings)
    levels = chosen.levels(process, steps)
    count = _check_shape(shape)[0]
    indices = range(count) if indices is None else indices
    if len(indices) != count:
        raise ValueError(f"indices has {len(indices)} entries for {count} images; give one per image.")
    device, dtype = home(model, device, dtype)
    conditions = _conditions(model, count, labels, condition, device)
    network = _with_guidance(model, guidance, labels)
    denoiser = Denoiser(network, process, clip=clip, dtype=dtype)
    state = torch.float64 if dtype == torch.float64 else torch.float32
    streams = [generator(whole("seed", seed, low=0), "generate", index) for index in indices]

    def noise() -> Tensor:
        # Drawn on the CPU: every device then makes the same pictures.
        return torch.stack([torch.randn(tuple(shape[1:]), generator=g) for g in streams]).to(device, state)

    def denoise(x: Tensor, level: Level) -> tuple[Tensor, Tensor]:
        return denoiser(x, own_time(process, level.t, count, device), **conditions)

    with evaluating(model):
        images = chosen.run(_scale(process, levels[0]) * noise(), levels, denoise, noise)
    return _finite(images)


def generate_many(
    model: Network,
    process: Process,
    count: int,
    image_shape: Sequence[int],
    *,
    batch_size: int = 64,
    rank: int | None = None,
    world: int | None = None,
    labels: Tensor | None = None,
    condition: Tensor | None = None,
    **settings: Any,
) -> Iterator[tuple[int, Tensor]]:
    """Yield ``(start, images [b, C, H, W])`` until images 0 .. count-1 are made: ``images[k]`` is number ``start + k``.

    Batches are dealt to the ranks in turn; the pictures are those one process would make. Ranks may get unequal
    numbers of batches, so a model whose forward pass communicates (FSDP) must be gathered first.

    Args:
        image_shape: ``(C, H, W)``.
        rank, world: this process's place, from torch.distributed unless given.
        labels, condition: of all images, ``[count]`` and ``[count, c, h, w]``.
        settings: as for :func:`generate`.
    """
    whole("count", count, low=1)
    whole("batch_size", batch_size, low=1)
    here, processes = place()
    world = processes if world is None else whole("world", world, low=1)
    rank = here if rank is None else whole("rank", rank, low=0, high=world - 1)
    for name, given in (("labels", labels), ("condition", condition)):
        if given is not None and len(given) != count:
            raise ValueError(f"{name} has {len(given)} entries for count={count} images; give one per image.")
    for start in range(rank * batch_size, count, world * batch_size):
        here_now = range(start, min(start + batch_size, count))
        part = slice(here_now.start, here_now.stop)
        yield (
            start,
            generate(
                model,
                process,
                (len(here_now), *image_shape),
                indices=here_now,
                labels=None if labels is None else labels[part],
                condition=None if condition is None else condition[part],
                **settings,
            ),
        )


def _fits(name: str, process: Process) -> bool:
    return isinstance(process, _METHODS[name].fits)


def _method(process: Process, name: str | None, settings: dict[str, Any]) -> Method:
    fitting = methods(process)
    name = fitting[0] if name is None else one_of("method", name, _METHODS)
    if name not in fitting:
        raise ValueError(f"method={name!r} does not fit {process!r}; use one of: {', '.join(fitting)}.")
    known = [field.name for field in dataclasses.fields(_METHODS[name])]
    for setting in settings:
        if setting not in known:
            raise ValueError(
                f"{setting}={settings[setting]!r} is not a setting of generate() or of method {name!r}"
                f"{closest(setting, known)}. Its settings: {', '.join(known)}."
            )
    return _METHODS[name](**settings)


def _scale(process: Process, first: Level) -> float:
    """Standard deviation of pure noise at the first level, where what is left of the image is lost in it."""
    return first.sigma if isinstance(process, (EDM, VE)) else 1.0


def _check_shape(shape: Sequence[int]) -> Sequence[int]:
    if len(shape) != 4:
        raise ValueError(f"shape={tuple(shape)} has {len(shape)} entries; give (images, channels, height, width).")
    for name, size in zip(("images", "channels", "height", "width"), shape, strict=True):
        whole(f"shape: {name}", size, low=1)
    return shape


def _conditions(
    model: Network, count: int, labels: Tensor | None, condition: Tensor | None, device: torch.device
) -> dict[str, Tensor]:
    if labels is not None:
        _check_labels(labels, count, getattr(model, "null_label", None))
    if condition is not None and (condition.ndim != 4 or len(condition) != count):
        raise ValueError(f"condition has shape {list(condition.shape)}; give [{count}, c, h, w], one per image.")
    given = {"labels": labels, "condition": condition}
    return {name: value.to(device) for name, value in given.items() if value is not None}


def _check_labels(labels: Tensor, count: int, highest: int | None) -> None:
    if tuple(labels.shape) != (count,) or labels.dtype != torch.int64:
        raise ValueError(f"labels are {labels.dtype} {list(labels.shape)}; give int64 [{count}], one class per image.")
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or (highest is not None and high > highest):
        allowed = "0 or more" if highest is None else f"0 to {highest - 1}, or {highest} for no class"
        raise ValueError(f"labels run from {low} to {high}; give classes {allowed}.")


def _with_guidance(model: Network, guidance: float, labels: Tensor | None) -> Network:
    number("guidance", guidance, low=0)
    if guidance == 1.0:
        return model
    if labels is None:
        raise ValueError(f"guidance={guidance:g} needs labels [B]; give them, or leave guidance at 1.")
    if getattr(model, "null_label", None) is None:
        raise ValueError(
            f"guidance={guidance:g} needs a model with a null class; build it with classes=<count>, or leave it at 1."
        )
    return guided(model, guidance)  # type: ignore[arg-type]


def _finite(images: Tensor) -> Tensor:
    bad = int((~torch.isfinite(images)).flatten(1).any(dim=1).sum())
    if bad:
        raise ValueError(
            f"{bad} of {len(images)} images hold NaN or infinite values: the model has diverged, or its precision is "
            "too low; try an earlier checkpoint, dtype=torch.float32, or clip=1.0."
        )
    return images.float()
