"""The noise of training batches: from (seed, batch number, example), whatever the number of ranks.

Example i of rank r among W is global example ``i * W + r``. The global batch is dealt out to :data:`LANES` lanes
(example j to lane ``j mod LANES``), each with a generator of its own, so that neither one generator per example nor the
noise of all ranks on each rank is needed: at W = 1, 2, 4 or 8 ranks nothing is drawn in vain.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from opportune.random_streams import generator

LANES = 8


def batch_noise(
    shape: tuple[int, ...],
    *,
    seed: int,
    batch: int,
    rank: int = 0,
    world: int = 1,
    device: torch.device | str = "cpu",
    purpose: str = "train noise",
) -> Tensor:
    """Standard normal ``[B, ...]`` float32: this rank's share of the noise of global batch number ``batch``."""
    made = torch.empty(shape, device=device)
    # Example i of this rank is in lane (i * world + rank) mod LANES: the same lane again every `stride` examples.
    stride, jump = LANES // math.gcd(world, LANES), world // math.gcd(world, LANES)
    for first in range(min(stride, shape[0])):
        place, lane = divmod(first * world + rank, LANES)
        stream = generator(seed, purpose, batch, lane, device=device)
        length = len(range(lane, shape[0] * world, LANES))
        whole = torch.randn(length, *shape[1:], generator=stream, device=device)
        made[first::stride] = whole[place::jump]
    return made


def batch_uniforms(count: int, *, seed: int, purpose: str, batch: int, rank: int = 0, world: int = 1) -> Tensor:
    """``[count]`` float32 in [0, 1): this rank's share of the global batch's."""
    return torch.rand(count * world, generator=generator(seed, purpose, batch))[rank::world]
