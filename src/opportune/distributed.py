"""Ranks: where this process stands, and how records are gathered. The only file of the core that talks to others.

Example ``i`` of rank ``r`` among ``W`` is global example ``i * W + r``. Samplers draw for the global batch from one
seeded stream and keep every W-th number, so ranks differ, and one process with the whole batch draws the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

_group: list[Any] = []


@contextmanager
def data_parallel_group(group: Any) -> Iterator[None]:
    """Within this context ranks are counted in ``group`` instead of the whole world.

    Needed where some ranks share one batch (tensor, pipeline or context parallelism).
    """
    _group.append(group)
    try:
        yield
    finally:
        _group.pop()


def place() -> tuple[int, int]:
    """``(rank, world_size)``; ``(0, 1)`` outside distributed runs."""
    if not (dist.is_available() and dist.is_initialized()):
        return 0, 1
    group = _group[-1] if _group else None
    return dist.get_rank(group), dist.get_world_size(group)


def largest(value: int, device: torch.device) -> int:
    """The largest of one whole number per rank; the same on every rank. ``device`` is where ranks talk."""
    if place()[1] == 1:
        return value
    shared = torch.tensor(value, device=device)
    dist.all_reduce(shared, op=dist.ReduceOp.MAX, group=_group[-1] if _group else None)
    return int(shared)


def reshard(model: nn.Module) -> None:
    """Let FSDP2 drop the whole weights it gathered for a forward pass that no backward pass follows, as a probe is.

    It keeps those of the outermost module until a backward pass. They would be used again after the optimizer has moved
    the shards: by the measurement after the step, and by the next training step.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return
    from torch.distributed.fsdp import FSDPModule  # here, as importing it takes long

    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def gather(local: Tensor) -> Tensor:
    """Concatenate ``[n, ...]`` tensors of all ranks, interleaved so that the order is that of the global batch.

    Ranks may hold different ``n`` (the last batch of an epoch). Returns the same tensor on every rank.
    """
    rank, world = place()
    if world == 1:
        return local
    group = _group[-1] if _group else None
    local = local.detach().contiguous()
    sizes = torch.zeros(world, dtype=torch.int64, device=local.device)
    sizes[rank] = local.shape[0]
    dist.all_reduce(sizes, group=group)
    counts = sizes.tolist()
    longest = max(counts)
    if local.shape[0] < longest:
        pad = local.new_zeros((longest - local.shape[0], *local.shape[1:]))
        local = torch.cat([local, pad])
    parts = [torch.empty_like(local) for _ in range(world)]
    dist.all_gather(parts, local, group=group)
    together = torch.stack(parts, dim=1).flatten(0, 1)  # row i * W + r is example i of rank r
    if min(counts) == longest:
        return together
    keep = torch.stack([torch.arange(longest, device=local.device) < n for n in counts], dim=1).flatten()
    return together[keep]
