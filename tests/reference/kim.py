"""Slow twin of the adaptive sampler of Kim et al.: plain loops and torch.distributions, written like the paper."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def f_statistic(column: Sequence[float], target: Sequence[float]) -> float:
    """F = r^2 / (1 - r^2) (n - 2) of one column of the queue against the mean gain."""
    n = len(column)
    mean_x, mean_y = sum(column) / n, sum(target) / n
    xy = sum((x - mean_x) * (y - mean_y) for x, y in zip(column, target, strict=True))
    xx = sum((x - mean_x) ** 2 for x in column)
    yy = sum((y - mean_y) ** 2 for y in target)
    if xx == 0 or yy == 0:
        return 0.0
    r2 = xy * xy / (xx * yy)
    return r2 / (1 - r2) * (n - 2)


def select(queue: Sequence[Sequence[float]], count: int, distance: int) -> list[int]:
    """The best columns one after the other, each ``distance`` or more from those taken."""
    target = [sum(row) / len(row) for row in queue]
    scores = [f_statistic([row[c] for row in queue], target) for c in range(len(queue[0]))]
    taken: list[int] = []
    while len(taken) < count:
        allowed = [c for c in range(len(scores)) if all(abs(c - other) >= distance for other in taken)]
        taken.append(max(allowed, key=lambda c: scores[c]))
    return sorted(taken)


def cell_masses(a: float, b: float, cells: int) -> Tensor:
    """Beta(a, b) at the middles of equal cells, as probabilities ``[cells]``."""
    middles = (torch.arange(cells, dtype=torch.float64) + 0.5) / cells
    one = torch.ones((), dtype=torch.float64)
    density = torch.distributions.Beta(a * one, b * one).log_prob(middles).exp()
    return density / density.sum()


def gradient_of_update(shape: Tensor, u: Tensor, advantage: Tensor, entropy_weight: float) -> Tensor:
    """d loss / d (a, b) ``[N, 2]`` of ``-mean(advantage log Beta(u) + entropy_weight H)``, in continuous u."""
    shape = shape.detach().double().requires_grad_()
    beta = torch.distributions.Beta(shape[:, 0], shape[:, 1])
    loss = -(advantage.double() * beta.log_prob(u.double()) + entropy_weight * beta.entropy()).mean()
    return torch.autograd.grad(loss, shape)[0]
