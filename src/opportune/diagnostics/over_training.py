"""What the log of a run already tells: losses and densities per bin of the noise axis, step by step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from opportune.processes import Process
from opportune.weightings import Weighting

from .density_map import bar_means
from .found import Found
from .places import bin_edges

Records = Iterable[Mapping[str, Any]]
"""Records of ``metrics.jsonl``, as ``opportune.train.logs.read_log`` gives them."""


@dataclass(frozen=True, kw_only=True)
class LossOverTraining(Found):
    """Losses on held-out images at fixed noise levels and noise, per record of the log.

    Attributes:
        edges: ``[bins + 1]`` of the bins of u (0 clean, 1 noise).
        steps: ``[R]`` optimizer steps done.
        loss: ``[R, bins]`` raw loss of the weights that are trained.
        average: ``[R, bins]`` of their moving average; NaN where there is none.
    """

    figure: ClassVar[str] = "loss_over_training"
    edges: Tensor
    steps: Tensor
    loss: Tensor
    average: Tensor


@dataclass(frozen=True, kw_only=True)
class DensityOverTraining(Found):
    """What was drawn, and how much it counted, per record of the log.

    Attributes:
        edges: ``[bins + 1]`` of the bins of u (0 clean, 1 noise).
        steps: ``[R]`` optimizer steps done.
        density: ``[R, bins]`` mean of the density the sampler declared for what it drew there; uniform is 1. NaN in
            bins nothing was drawn from.
        drawn: ``[R, bins]`` how often each bin was drawn, as a density: what the declared one should look like, with
            the scatter of the draws.
        weighting: ``[bins]`` the weighting as an equivalent density: w(u) scaled to mean 1; ones without one.
        effective: ``[R, bins]`` drawn x correction x weighting, scaled to mean 1: what the objective was made of. NaN
            throughout where the weighting learns, whose past values no log holds.
    """

    figure: ClassVar[str] = "density_over_training"
    edges: Tensor
    steps: Tensor
    density: Tensor
    drawn: Tensor
    weighting: Tensor
    effective: Tensor


def loss_over_training(records: Records, *, label: str = "") -> LossOverTraining | None:
    """From the validation records of a log; None where it has none (validation was off, or is yet to come)."""
    found = [record for record in records if record.get("kind") == "validation" and "raw" in record]
    if not found:
        return None
    loss = _table([record["raw"]["bins"] for record in found])
    average = _table([record["ema"]["bins"] if "ema" in record else [None] * loss.shape[1] for record in found])
    return LossOverTraining(
        label=label, edges=bin_edges(loss.shape[1]), steps=_steps(found), loss=loss, average=average
    )


def density_over_training(
    records: Records, process: Process, weighting: Weighting | None = None, *, label: str = ""
) -> DensityOverTraining | None:
    """From the training records of a log; None where it has none yet.

    Args:
        records: of ``metrics.jsonl``.
        process: of the run.
        weighting: of the run; None is weight 1 on the process's own target.
        label: name of this run in pictures.
    """
    found = [record for record in records if record.get("kind") == "train" and sum(record["bins"]["count"])]
    if not found:
        return None
    density, correction, count = (
        _table([record["bins"][name] for record in found]) for name in ("density", "correction", "count")
    )
    bins = density.shape[1]
    weight = _weights(process, weighting, bins)
    learns = weighting is not None and any(True for _ in weighting.parameters())
    drawn = count * bins / count.sum(dim=1, keepdim=True)
    # Not the declared density: its mean over what was drawn leans to where in the bin it is high.
    effective = drawn * correction.nan_to_num(0.0) * weight
    effective = effective / effective.mean(dim=1, keepdim=True)
    return DensityOverTraining(
        label=label,
        edges=bin_edges(bins),
        steps=_steps(found),
        density=density,
        drawn=drawn,
        weighting=weight,
        effective=torch.full_like(effective, torch.nan) if learns else effective,
    )


@torch.no_grad()
def _weights(process: Process, weighting: Weighting | None, bins: int) -> Tensor:
    if weighting is None:
        return torch.ones(bins, dtype=torch.float64)
    middles = (torch.arange(process.cells, dtype=torch.float64) + 0.5) / process.cells
    weights = bar_means(weighting(process.time(middles)).double(), bins)
    return weights / weights.mean()


def _table(rows: list[list[float | None]]) -> Tensor:
    if len({len(row) for row in rows}) > 1:
        raise ValueError("records have different numbers of bins; give those of one run.")
    return torch.tensor([[torch.nan if v is None else v for v in row] for row in rows], dtype=torch.float64)


def _steps(records: list[Mapping[str, Any]]) -> Tensor:
    return torch.tensor([record["step"] for record in records], dtype=torch.float64)
