"""The loss along the noise axis: raw, and as the objective weights it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from opportune.measure import losses_at, untouched
from opportune.objective import Objective
from opportune.step import Batch
from opportune.types import Draw

from .found import Found
from .places import bin_edges, draw_at, mean_and_error, micro_batches, normal, part_of, spread, unpacked


@dataclass(frozen=True, kw_only=True)
class LossProfile(Found):
    """Mean losses per bin of the noise axis u (0 clean, 1 noise), each with its standard error over examples.

    Attributes:
        edges: ``[bins + 1]`` of the bins.
        loss: ``[bins]`` the MSE of the process's own target.
        loss_error: ``[bins]``.
        weighted: ``[bins]`` times the weighting; the same as ``loss`` without one.
        weighted_error: ``[bins]``.
        prediction: what the network predicts.
        weighting: its name, empty without one.
        examples: losses per bin.
    """

    figure: ClassVar[str] = "loss"
    edges: Tensor
    loss: Tensor
    loss_error: Tensor
    weighted: Tensor
    weighted_error: Tensor
    prediction: str
    weighting: str
    examples: int


def loss_profile(
    objective: Objective,
    batch: Batch,
    *,
    bins: int | Sequence[float] = 20,
    seed: int = 0,
    batch_size: int = 64,
    label: str = "",
) -> LossProfile:
    """The loss of every example of ``batch`` once in every bin; the model stays as it is.

    Args:
        objective: model, process and weighting: ``op.objective(model, process, weighting)``.
        batch: examples the model was not trained on, ``x0 [N, ...]`` or ``(x0, conditions)``.
        bins: how many equal parts of the noise axis, or their edges.
        seed: of noise levels and noise. Two models measured with one seed differ by the models alone.
        batch_size: examples at a time.
        label: name of this model in pictures.
    """
    edges = bin_edges(bins)
    raw, weighted = binned_losses(objective, batch, edges, seed=seed, batch_size=batch_size)
    (loss, loss_error), (heavy, heavy_error) = mean_and_error(raw), mean_and_error(weighted)
    return LossProfile(
        label=label,
        edges=edges,
        loss=loss,
        loss_error=loss_error,
        weighted=heavy,
        weighted_error=heavy_error,
        prediction=objective.process.prediction,
        weighting=type(objective.weighting).__name__ if objective.weighting is not None else "",
        examples=raw.shape[1],
    )


@torch.no_grad()
def binned_losses(
    objective: Objective, batch: Batch, edges: Tensor, *, seed: int, batch_size: int
) -> tuple[Tensor, Tensor]:
    """``(raw, weighted)``, both ``[bins, N]`` float64 on the CPU: example i of bin b always at the same u and noise."""
    x0, conditions = unpacked(batch)
    model = objective.model if isinstance(objective.model, nn.Module) else None
    raw: list[Tensor] = []
    weighted: list[Tensor] = []
    with untouched(model, x0.device):
        for number, (low, high) in enumerate(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)):
            u = spread(len(x0), low=low, high=high, seed=seed, purpose=f"loss profile {number}")
            noise = normal(tuple(x0.shape), seed=seed, purpose="loss profile", number=number)
            parts = [
                _losses(objective, x0[rows], draw_at(objective.process, u[rows], x0[rows], noise[rows]), **given)
                for rows in micro_batches(len(x0), batch_size)
                for given in [part_of(conditions, rows, len(x0))]
            ]
            raw.append(torch.cat([part[0] for part in parts]))
            weighted.append(torch.cat([part[1] for part in parts]))
    return torch.stack(raw), torch.stack(weighted)


def _losses(objective: Objective, x0: Tensor, draw: Draw, **conditions: object) -> tuple[Tensor, Tensor]:
    raw = losses_at(objective.probe(x0, **conditions), draw)
    return raw.double().cpu(), objective.weighted(raw, draw).double().cpu()
