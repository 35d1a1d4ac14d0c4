"""A small model and a few training steps, enough to bring a sampler into the middle of its life."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..objective import Objective
from ..processes import Process
from ..random_streams import generator
from ..samplers import Sampler
from ..step import training_steps
from ..types import StepRecord


class ToyNetwork(nn.Module):
    """A two-layer network with dropout on ``[B, D]``, so that train and eval mode differ."""

    def __init__(self, dimensions: int = 4, *, seed: int = 0) -> None:
        super().__init__()
        self.hidden = nn.Linear(dimensions + 1, 32)
        self.drop = nn.Dropout(0.1)
        self.out = nn.Linear(32, dimensions)
        source = generator(seed, "toy network")
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(0.3 * torch.randn(parameter.shape, generator=source))

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        told = torch.sin(time.float())[:, None].to(x.dtype)
        return self.out(self.drop(torch.tanh(self.hidden(torch.cat([x, told], dim=1)))))  # type: ignore[no-any-return]


def batches(count: int, *, size: int = 16, dimensions: int = 4, seed: int = 0) -> list[Tensor]:
    """``count`` batches ``[size, dimensions]`` that depend on the seed alone."""
    source = generator(seed, "toy data")
    return [0.5 * torch.randn(size, dimensions, generator=source) + 0.2 for _ in range(count)]


def train(
    sampler: Sampler, process: Process, steps: int, *, network: nn.Module | None = None, size: int = 16
) -> list[StepRecord]:
    """Train the toy network for ``steps`` optimizer steps under the sampler; the records of each."""
    network = network if network is not None else ToyNetwork()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.02)
    data = batches(steps * sampler.accumulation, size=size)
    return list(
        training_steps(Objective(network, process), sampler, optimizer, data, accumulation=sampler.accumulation)
    )
