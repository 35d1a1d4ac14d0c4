"""Which timesteps stand for all of them: the F-statistic over a queue of measured gains (Algorithm 2 of the paper)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

_FEWEST_ROWS = 3  # with two rows the statistic has no degrees of freedom and every column looks the same


class Queue(nn.Module):
    """The last ``rows`` measurements of the gain at every covered timestep.

    Args:
        rows: kept.
        columns: covered timesteps, equally spaced along u.
    """

    gains: Tensor
    filled: Tensor

    def __init__(self, rows: int, columns: int) -> None:
        super().__init__()
        self.register_buffer("gains", torch.zeros(rows, columns, dtype=torch.float64))
        self.register_buffer("filled", torch.zeros((), dtype=torch.int64))

    def push(self, gains: Tensor) -> None:
        """Add one row ``[columns]``; the oldest leaves when the queue is full."""
        self.gains = torch.cat([self.gains[1:], gains[None].to(self.gains)])
        self.filled = (self.filled + 1).clamp(max=self.gains.shape[0])

    def mean(self) -> Tensor:
        """``[columns]`` the usual gain at each place; 0 before there is a row."""
        return self.gains.sum(dim=0) / self.filled.clamp_min(1)

    def select(self, count: int, distance: int) -> Tensor:
        """``[count]`` columns whose gain goes best with the mean gain, ``distance`` apart; rising.

        Equally spaced while the queue is too short for the statistic, or says nothing.
        """
        columns = self.gains.shape[1]
        rows = self.gains[self.gains.shape[0] - int(self.filled) :]
        if rows.shape[0] < _FEWEST_ROWS:
            return evenly(count, columns)
        scores = f_statistic(rows, rows.mean(dim=1))
        return spaced(scores, count, distance) if bool(scores.max() > 0) else evenly(count, columns)


def f_statistic(columns: Tensor, target: Tensor) -> Tensor:
    """``[C]``: F = r^2 / (1 - r^2) * (n - 2), r the correlation of each column ``[n, C]`` with ``target`` ``[n]``.

    0 for columns that do not vary; finite for those that follow the target exactly.
    """
    x = columns.double() - columns.double().mean(dim=0)
    y = target.double() - target.double().mean()
    spread = x.square().sum(dim=0) * y.square().sum()
    # A column of equal numbers keeps rounding errors of its mean; they are not a signal.
    still = columns.max(dim=0).values == columns.min(dim=0).values
    r2 = torch.where(still | (spread <= 0), 0.0, (x * y[:, None]).sum(dim=0).square() / spread)
    r2 = torch.nan_to_num(r2).clamp(max=1 - 1e-12)
    return r2 / (1 - r2) * max(columns.shape[0] - 2, 0)


def evenly(count: int, columns: int) -> Tensor:
    """``[count]`` columns in the middles of equal parts."""
    return ((torch.arange(count, dtype=torch.float64) + 0.5) / count * columns).long()


def spaced(scores: Tensor, count: int, distance: int) -> Tensor:
    """``[count]`` columns by falling score, each ``distance`` or more from those before it; returned rising.

    Neighbours follow each other so closely that the best three would be one timestep named three times. The distance
    is lowered where ``count`` columns would not fit.
    """
    columns = scores.shape[0]
    distance = max(1, min(distance, (columns // count + 1) // 2))
    places = torch.arange(columns, device=scores.device)
    free = scores.clone()
    chosen = []
    for _ in range(count):
        best = free.argmax()
        chosen.append(best)
        free = torch.where((places - best).abs() < distance, -1.0, free)
    return torch.stack(chosen).sort().values
