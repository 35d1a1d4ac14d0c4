"""Do two models make the same image of the same noise? (Zhang et al., 2024, arXiv 2310.05264, at every starting u)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from opportune.checks import number, whole
from opportune.generate.denoiser import Denoiser, evaluating
from opportune.objective import Network
from opportune.processes import Process
from opportune.processes.base import expand
from opportune.step import Batch

from .found import Found
from .places import mean_and_error, micro_batches, normal, part_of, unpacked

_NOISIEST = 1 - 2.0**-12  # u = 1 itself has no finite sigma on some processes


@dataclass(frozen=True, kw_only=True)
class Consistency(Found):
    """How alike two models' outputs are, from the same noisy images, per starting u (0 clean, 1 noise).

    Alike is the correlation over all values of an image, 1 for equal outputs. The nearer to clean the start, the more
    both are told by the image itself, so ``control`` stands beside it: the correlation when each model is given noise
    of its own on the same image. What is above it is due to the shared noise.

    Attributes:
        starts: ``[S]`` where generation begins.
        similarity: ``[S]`` mean over images; with its standard error, ``similarity_error``.
        control: ``[S]`` the same from different noise; with ``control_error``.
        distance: ``[S]`` root mean square difference of the outputs, same noise.
        examples: images per start.
        levels: noise levels visited from u = 1; in proportion from lower starts.
        outputs: ``[2, S, k, C, H, W]`` outputs of both models for the first k images, for pictures; not in the JSON.
    """

    figure: ClassVar[str] = "consistency"
    starts: Tensor
    similarity: Tensor
    similarity_error: Tensor
    control: Tensor
    control_error: Tensor
    distance: Tensor
    examples: int
    levels: int
    outputs: Tensor | None = field(default=None, metadata={"json": False}, repr=False)


@torch.no_grad()
def consistency(
    first: Network,
    second: Network,
    process: Process,
    batch: Batch,
    *,
    starts: Sequence[float] = (0.1, 0.3, 0.5, 0.7, 0.9, 1.0),
    levels: int = 20,
    clip: float | None = 1.0,
    pictures: int = 4,
    seed: int = 0,
    batch_size: int = 64,
    label: str = "",
) -> Consistency:
    """Noise images up to each start, and take both models down from there with the same deterministic steps.

    Args:
        first, second: trained on the same process, from other seeds or of other architectures.
        process: of both.
        batch: images neither was trained on, ``x0 [N, ...]`` or ``(x0, conditions)``.
        starts: where to begin, in (0, 1].
        levels: steps from u = 1 (DDIM's for DDPM and VP, Euler's for the others).
        clip: range images are kept in; None for latents.
        pictures: outputs to keep.
        seed: of the noise.
        batch_size: images at a time.
        label: name of this pair in pictures.
    """
    whole("levels", levels, low=1)
    for start in starts:
        number("starts", float(start), low=0, high=1, open_low=True)
    x0, conditions = unpacked(batch)
    denoisers = [Denoiser(model, process, clip=clip, dtype=x0.dtype) for model in (first, second)]
    rows: list[tuple[Tensor, Tensor, Tensor]] = []
    kept: list[Tensor] = []
    with evaluating(first), evaluating(second):
        for place, start in enumerate(starts):
            noise, other = (
                normal(tuple(x0.shape), seed=seed, purpose=purpose, number=place).to(x0)
                for purpose in ("consistency", "consistency control")
            )
            times = _times(process, min(float(start), _NOISIEST), levels)

            def made(denoiser: Denoiser, noise: Tensor, times: Tensor = times) -> Tensor:
                return torch.cat(
                    [
                        _down(denoiser, process, x0[part], noise[part], times, part_of(conditions, part, len(x0)))
                        for part in micro_batches(len(x0), batch_size)
                    ]
                )

            one, two, apart = made(denoisers[0], noise), made(denoisers[1], noise), made(denoisers[1], other)
            rows.append((_correlation(one, two), _correlation(one, apart), _distance(one, two)))
            kept.append(torch.stack([one[:pictures], two[:pictures]]))
    same, control, distance = (torch.stack(column) for column in zip(*rows, strict=True))
    (similarity, similarity_error), (apart_mean, apart_error) = mean_and_error(same), mean_and_error(control)
    return Consistency(
        label=label,
        starts=torch.tensor([float(start) for start in starts], dtype=torch.float64),
        similarity=similarity,
        similarity_error=similarity_error,
        control=apart_mean,
        control_error=apart_error,
        distance=distance.mean(dim=1),
        examples=len(x0),
        levels=levels,
        outputs=torch.stack(kept, dim=1).cpu(),
    )


def _times(process: Process, start: float, levels: int) -> Tensor:
    """``[n]`` own times from ``start`` down, evenly along u, each once; the clean image follows the last."""
    count = max(1, round(levels * start))
    u = start * torch.arange(count, 0, -1, dtype=torch.float64) / count
    times: Tensor = torch.unique_consecutive(process.time(u))
    return times


def _down(
    denoiser: Denoiser,
    process: Process,
    x0: Tensor,
    noise: Tensor,
    times: Tensor,
    conditions: dict[str, Tensor],
) -> Tensor:
    """``[B, ...]`` images at the clean end."""
    own = [time.expand(len(x0)).to(x0.device) for time in times]
    x = process.corrupt(x0, noise, own[0])
    for here, there in zip(own, [*own[1:], None], strict=True):
        image, eps = denoiser(x, here, **conditions)
        if there is None:
            return image
        alpha, sigma = (expand(c, x) for c in process.coefficients(there))
        x = alpha * image + sigma * eps
    return x


def _correlation(a: Tensor, b: Tensor) -> Tensor:
    """``[N]`` float64: of the values of two images each, over all channels and pixels."""
    a, b = (x.flatten(1).double().cpu() for x in (a, b))
    a, b = (x - x.mean(dim=1, keepdim=True) for x in (a, b))
    lengths: Tensor = a.norm(dim=1) * b.norm(dim=1)
    return (a * b).sum(dim=1) / lengths.clamp_min(torch.finfo(torch.float64).tiny)


def _distance(a: Tensor, b: Tensor) -> Tensor:
    return (a - b).flatten(1).double().square().mean(dim=1).sqrt().cpu()
