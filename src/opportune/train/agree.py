"""Ranks agree: what one rank found, every rank knows, before any of them acts on it."""

from __future__ import annotations

import torch
import torch.distributed as dist


def ranks_where(flag: bool, group: dist.ProcessGroup | None = None) -> tuple[int, ...]:
    """The ranks (within ``group``) whose ``flag`` is set, the same answer on all of them, by one all-reduce.

    Every rank must call it. Without torch.distributed the only rank is 0.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return (0,) if flag else ()
    on_gpu = dist.get_backend(group) == dist.Backend.NCCL
    device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
    flags = torch.zeros(dist.get_world_size(group), dtype=torch.int32, device=device)
    flags[dist.get_rank(group)] = int(flag)
    dist.all_reduce(flags, group=group)
    return tuple(int(rank) for rank in flags.nonzero().flatten())


def agree(flag: bool, group: dist.ProcessGroup | None = None) -> bool:
    """True on every rank when ``flag`` is set on any of them."""
    return bool(ranks_where(flag, group))
