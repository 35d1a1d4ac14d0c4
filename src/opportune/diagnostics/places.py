"""Where on the noise axis a model is looked at: the same examples, noise levels and noise for every model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from opportune.checks import whole
from opportune.processes import Process
from opportune.random_streams import generator
from opportune.step import Batch
from opportune.types import Draw

_BELOW_ONE = 1 - 2.0**-24


def unpacked(batch: Batch) -> tuple[Tensor, dict[str, Any]]:
    """``(x0, conditions)`` of a batch that may come without conditions; noise of its own is left out."""
    x0, conditions = (batch, {}) if isinstance(batch, Tensor) else batch
    if not len(x0):
        raise ValueError("batch is empty; give at least one example.")
    return x0, {name: value for name, value in conditions.items() if name != "noise"}


def part_of(conditions: dict[str, Any], rows: slice | Tensor, count: int) -> dict[str, Any]:
    """The conditions of some of ``count`` examples; what is not a tensor of one row each is handed on whole."""
    return {
        name: value[rows] if isinstance(value, Tensor) and value.ndim and len(value) == count else value
        for name, value in conditions.items()
    }


def bin_edges(bins: int | Sequence[float] | Tensor) -> Tensor:
    """``[bins + 1]`` float64 from 0 (clean) to 1 (noise): equal parts of the noise axis, or edges as they are given."""
    if isinstance(bins, int):
        return torch.linspace(0, 1, whole("bins", bins, low=1) + 1, dtype=torch.float64)
    edges = torch.as_tensor(bins, dtype=torch.float64)
    if edges.ndim != 1 or len(edges) < 2 or not bool((edges.diff() > 0).all()) or edges[0] < 0 or edges[-1] > 1:
        raise ValueError(f"bins={edges.tolist()} is not a row of rising edges in [0, 1]; e.g. bins=[0, 0.01, 0.1, 1].")
    return edges


def spread(count: int, *, low: float, high: float, seed: int, purpose: str) -> Tensor:
    """``[count]`` float64 in [low, high): one in each of ``count`` equal parts of it, in random order."""
    source = generator(seed, purpose)
    order = torch.randperm(count, generator=source)
    jitter = torch.rand(count, generator=source, dtype=torch.float64)
    return low + (high - low) * (order + jitter) / count


def draw_at(process: Process, u: Tensor, x0: Tensor, noise: Tensor) -> Draw:
    """A probe: ``u`` ``[B]`` and ``noise`` ``[B, ...]`` for the examples ``x0`` ``[B, ...]``, drawn by nobody."""
    u = u.to(x0.device, torch.float32).clamp(0, _BELOW_ONE)
    t, ones = process.time(u), torch.ones_like(u)
    return Draw(
        u=u, t=t, correction=ones, density=ones, shape=tuple(x0.shape), sigma=process.sigma(t), noise=noise.to(x0)
    )


def micro_batches(count: int, size: int) -> Iterator[slice]:
    """``count`` examples, ``size`` at a time."""
    whole("batch_size", size, low=1)
    for start in range(0, count, size):
        yield slice(start, min(start + size, count))


def normal(shape: tuple[int, ...], *, seed: int, purpose: str, number: int) -> Tensor:
    """Standard normal noise on the CPU, decided by its arguments alone."""
    return torch.randn(shape, generator=generator(seed, purpose, number))


def mean_and_error(values: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and its standard error over the last dimension; the error of a single value is NaN."""
    count = values.shape[-1]
    mean = values.mean(dim=-1)
    if count < 2:
        return mean, torch.full_like(mean, torch.nan)
    return mean, values.std(dim=-1) / count**0.5
