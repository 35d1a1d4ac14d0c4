"""Small objectives whose answers are known, and one that writes down what it was asked."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import opportune as op
from opportune.objective import Objective
from opportune.testing.toy import ToyNetwork, batches


def toy(process, weighting=None, *, seed=0):
    """A two-layer network with dropout on ``[B, 4]``."""
    return op.objective(ToyNetwork(seed=seed), process, weighting)


def data(count=16, *, seed=1):
    return batches(1, size=count, seed=seed)[0]


class Recorder(Objective):
    """Keeps every ``(x0, draw, conditions)`` it is asked for."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.asked = []

    def losses(self, x0, draw, noise=None, **conditions):
        self.asked.append((x0, draw, conditions))
        return super().losses(x0, draw, noise, **conditions)


class Table(nn.Module):
    """eps = theta[bin of t] * x_t: every bin of the axis has a parameter of its own.

    ``leans`` adds theta[0], without a gradient, to the last bin: training the first moves the last, never the reverse.
    """

    def __init__(self, bins: int, timesteps: int, *, leans: bool = False) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.zeros(bins))
        self.bins, self.timesteps, self.leans = bins, timesteps, leans

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        place = time * self.bins // self.timesteps
        scale = self.theta[place]
        if self.leans:
            scale = scale + torch.where(place == self.bins - 1, self.theta[0].detach(), 0.0)
        return scale[:, None] * x
