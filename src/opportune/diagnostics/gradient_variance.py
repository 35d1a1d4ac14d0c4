"""How much the gradient of one example scatters, along the noise axis (Kim et al., CVPR 2025, section 4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from opportune.checks import whole
from opportune.measure import gradient_of, trainable, untouched
from opportune.measure.gradient import Gradient, gradients_apart
from opportune.objective import Objective
from opportune.random_streams import generator
from opportune.step import Batch

from .found import Found
from .places import bin_edges, draw_at, mean_and_error, normal, part_of, spread, unpacked


@dataclass(frozen=True, kw_only=True)
class GradientVariance(Found):
    """Per bin of the noise axis u (0 clean, 1 noise), each with its standard error over pairs of examples.

    Attributes:
        edges: ``[bins + 1]`` of the bins.
        variance: ``[bins]`` trace of the covariance, over data and noise, of the gradient of one example's loss at
            one noise level; averaged over the noise levels of the bin.
        variance_error: ``[bins]``.
        weighted: ``[bins]`` the same of the weighted loss: times w(u)^2.
        weighted_error: ``[bins]``.
        mean_square: ``[bins]`` squared length of the mean gradient at one noise level; unbiased, so it may come out
            below 0 where the gradient is lost in its scatter.
        mean_square_error: ``[bins]``.
        prediction: what the network predicts.
        weighting: its name, empty without one.
        pairs: of examples per bin.
    """

    figure: ClassVar[str] = "gradient"
    edges: Tensor
    variance: Tensor
    variance_error: Tensor
    weighted: Tensor
    weighted_error: Tensor
    mean_square: Tensor
    mean_square_error: Tensor
    prediction: str
    weighting: str
    pairs: int


def gradient_variance(
    objective: Objective,
    batch: Batch,
    *,
    bins: int | Sequence[float] = 20,
    pairs: int = 16,
    seed: int = 0,
    label: str = "",
) -> GradientVariance:
    """The gradient's variance from pairs of examples at one noise level; the model and its gradients stay as they are.

    Two examples g, h with data and noise of their own at the same u give ``|g - h|^2 / 2``, whose mean is the trace of
    the covariance at u whatever u is, and ``<g, h>``, whose mean is the squared length of the mean gradient. Pairs are
    independent, so the standard errors are honest; a variance from few micro-batches would need many times the work.

    Args:
        objective: model (an ``nn.Module``), process and weighting.
        batch: ``x0 [N, ...]`` or ``(x0, conditions)``, N at least 2; best 2 x ``pairs`` or more.
        bins: how many equal parts of the noise axis, or their edges.
        pairs: per bin; the cost is 2 x ``pairs`` x ``bins`` backward passes of one example.
        seed: of noise levels, noise and who is paired with whom.
        label: name of this model in pictures.
    """
    whole("pairs", pairs, low=2)  # one has no standard error
    x0, _ = unpacked(batch)
    if len(x0) < 2:
        raise ValueError(f"batch has {len(x0)} example; give 2 or more, as variances are taken from pairs.")
    if not isinstance(objective.model, nn.Module):
        raise ValueError("objective.model is no nn.Module, so it has no parameters to take gradients by.")
    edges = bin_edges(bins)
    with untouched(objective.model, x0.device), gradients_apart(objective.model):
        values = [
            _bin_of_pairs(objective, batch, low, high, pairs, seed=seed, number=number)
            for number, (low, high) in enumerate(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True))
        ]
    scatter, weighted, inner = torch.stack(values).unbind(dim=1)
    (variance, variance_error), (heavy, heavy_error) = mean_and_error(scatter), mean_and_error(weighted)
    mean_square, mean_square_error = mean_and_error(inner)
    return GradientVariance(
        label=label,
        edges=edges,
        variance=variance,
        variance_error=variance_error,
        weighted=heavy,
        weighted_error=heavy_error,
        mean_square=mean_square,
        mean_square_error=mean_square_error,
        prediction=objective.process.prediction,
        weighting=type(objective.weighting).__name__ if objective.weighting is not None else "",
        pairs=pairs,
    )


def _bin_of_pairs(
    objective: Objective, batch: Batch, low: float, high: float, pairs: int, *, seed: int, number: int
) -> Tensor:
    """``[3, pairs]`` float64: scatter, weighted scatter and inner product of each pair."""
    x0, _ = unpacked(batch)
    u = spread(pairs, low=low, high=high, seed=seed, purpose=f"gradient pairs {number}")
    order = torch.randperm(len(x0), generator=generator(seed, "gradient examples", number))
    noise = normal((2 * pairs, *x0.shape[1:]), seed=seed, purpose="gradient noise", number=number)
    rows = []
    for k in range(pairs):
        first, second = (order[(2 * k + each) % len(x0)] for each in (0, 1))
        g, weight = _gradient(objective, batch, int(first), u[k : k + 1], noise[2 * k : 2 * k + 1])
        h, _ = _gradient(objective, batch, int(second), u[k : k + 1], noise[2 * k + 1 : 2 * k + 2])
        both = [(a.float(), b.float()) for a, b in zip(g, h, strict=True) if a is not None and b is not None]
        scatter = torch.stack([(a - b).square().sum() for a, b in both]).sum().double() / 2
        inner = torch.stack([(a * b).sum() for a, b in both]).sum().double()
        rows.append(torch.stack([scatter, scatter * weight**2, inner]).cpu())
    return torch.stack(rows, dim=1)


def _gradient(objective: Objective, batch: Batch, row: int, u: Tensor, noise: Tensor) -> tuple[Gradient, float]:
    """The gradient of one example's raw loss, and what the weighting multiplies it by."""
    x0, conditions = unpacked(batch)
    one = slice(row, row + 1)
    draw = draw_at(objective.process, u, x0[one], noise)
    loss = objective.losses(x0[one], draw, **part_of(conditions, one, len(x0)))
    weight = 1.0 if objective.weighting is None else float(objective.weighting(draw.t))
    return gradient_of(loss.sum(), trainable(objective.model)), weight  # type: ignore[arg-type]
