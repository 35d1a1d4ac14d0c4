"""The policy: a small network on x0 -> (a, b) of a Beta density over u, held exactly on equal cells."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import (
    adaptive_avg_pool1d,
    adaptive_avg_pool2d,
    adaptive_avg_pool3d,
    linear,
    relu,
    softplus,
)

from ...random_streams import generator

FEATURES = 256
"""Most numbers of an example the policy sees."""
CELLS = 256
"""Equal cells of u on which a Beta density is held."""
_LARGEST = 1e6
LOWEST, HIGHEST = 0.05, 50.0
"""Bounds of a and b: below, the entropy runs to minus infinity; above, one spike is all that is ever drawn."""


def features(x: Tensor) -> Tensor:
    """``[B, ...]`` of any shape and dtype -> ``[B, F]`` float32 with F of at most 256: pooled where larger.

    Images ``[B, C, H, W]`` are pooled to at most 8 x 8 per channel, video to 4 x 8 x 8, sequences to 16 x 16.
    """
    x = x.detach().float()
    if x.ndim == 3:
        x = adaptive_avg_pool2d(x[:, None], (min(x.shape[1], 16), min(x.shape[2], 16)))
    elif x.ndim == 4:
        x = adaptive_avg_pool2d(x, (min(x.shape[2], 8), min(x.shape[3], 8)))
    elif x.ndim >= 5:
        x = x.flatten(4)
        x = adaptive_avg_pool3d(x, (min(x.shape[2], 4), min(x.shape[3], 8), min(x.shape[4], 8)))
    x = x.reshape(x.shape[0], -1)
    if x.shape[1] > FEATURES:
        x = adaptive_avg_pool1d(x[:, None], FEATURES)[:, 0]
    # Bounded so far out that no data in use is touched: beyond it the network would overflow to NaN.
    return torch.nan_to_num(x, nan=0.0, posinf=0.0, neginf=0.0).clamp(-_LARGEST, _LARGEST)


class Policy(nn.Module):
    """Two hidden layers -> (a, b) between 0.05 and 50 -> log masses of 256 cells. Starts as the uniform density.

    The Beta density at the middle of each cell, normalised over the cells, *is* the policy: drawing, log-probability
    and entropy are then exact sums, and gradients need no special functions.
    """

    log_u: Tensor

    def __init__(self, *, hidden: int, seed: int) -> None:
        super().__init__()
        stream = generator(seed, "policy")
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for rows, columns in ((hidden, FEATURES), (hidden, hidden), (2, hidden)):
            bound = math.sqrt(6 / columns)
            start = torch.empty(rows, columns, dtype=torch.float32).uniform_(-bound, bound, generator=stream)
            # No gradients outside improve(): a sampler handed to an optimizer or a DDP wrapper by mistake is inert.
            self.weights.append(nn.Parameter(start, requires_grad=False))
            self.biases.append(nn.Parameter(torch.zeros(rows, dtype=torch.float32), requires_grad=False))
        self.weights[-1].zero_()
        self.biases[-1].fill_(_raw(1.0))
        middles = (torch.arange(CELLS, dtype=torch.float64) + 0.5) / CELLS
        log_u = torch.stack([middles.log(), (-middles).log1p()]).float()
        self.register_buffer("log_u", log_u, persistent=False)

    def shape(self, context: Tensor) -> Tensor:
        """``[B, F] -> [B, 2]``: a and b of each example."""
        first, second, last = self.weights
        with torch.autocast(context.device.type, enabled=False):  # also where the loop around us is in half precision
            hidden = relu(linear(context, first[:, : context.shape[1]], self.biases[0]))
            hidden = relu(linear(hidden, second, self.biases[1]))
            rise = softplus(linear(hidden, last, self.biases[2]))
        # Bends towards the cap without ever going flat: a policy near its bound can still be pulled back.
        return LOWEST + rise / (1 + rise / (HIGHEST - LOWEST))

    def forward(self, context: Tensor) -> Tensor:
        """``[B, F] -> [B, 256]``: log-probability of each cell for each example."""
        return log_masses(self.shape(context), self.log_u)


def log_masses(shape: Tensor, log_u: Tensor) -> Tensor:
    """ln of the cell masses ``[B, cells]`` of Beta(a, b), ``shape`` ``[B, 2]``: (a - 1) ln u + (b - 1) ln(1 - u)."""
    with torch.autocast(shape.device.type, enabled=False):
        return torch.log_softmax((shape - 1) @ log_u, dim=1)


def entropy(log_mass: Tensor) -> Tensor:
    """``[B, cells] -> [B]`` differential entropy over u: 0 for uniform, negative for everything else."""
    return -(log_mass.exp() * log_mass).sum(dim=1) - math.log(log_mass.shape[1])


def _raw(value: float) -> float:
    """What the last layer must give for a = ``value``."""
    rise = (value - LOWEST) / (1 - (value - LOWEST) / (HIGHEST - LOWEST))
    return math.log(math.expm1(rise))
