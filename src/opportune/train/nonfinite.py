"""NaN or inf in a loss or a gradient: found on any rank, known to all, before anything learns from it."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.utils import get_total_norm

from opportune.train.agree import ranks_where
from opportune.train.errors import NonFiniteError


def nonfinite_ranks(
    loss: Tensor, gradients: Iterable[Tensor | None], group: dist.ProcessGroup | None = None
) -> tuple[int, ...]:
    """The ranks whose loss (any shape) or gradients hold a NaN or an inf; empty when the step may go ahead.

    Call it on every rank after ``backward`` and, with a gradient scaler, after ``unscale_``; give it
    ``(p.grad for p in model.parameters())``. One fused pass over the gradients, one transfer, one all-reduce.
    """
    tensors = [_local(t.detach()) for t in (loss, *gradients) if t is not None]
    return ranks_where(not _finite([t for t in tensors if t.numel()]), group)


class SkipBudget:
    """How many steps in a row may be skipped because they are not finite; any finite step refills it."""

    def __init__(self, limit: int) -> None:
        if limit < 0:
            raise ValueError(f"limit must be >= 0 (0 stops at the first non-finite step), got {limit}")
        self.limit = limit
        self.consecutive = 0
        self.total = 0

    def skip(self, step: int, ranks: tuple[int, ...]) -> bool:
        """True when ``step`` must be skipped on all ranks; an error when that is one too many in a row."""
        if not ranks:
            self.consecutive = 0
            return False
        self.consecutive += 1
        self.total += 1
        if self.consecutive > self.limit:
            named = ", ".join(str(rank) for rank in ranks)
            raise NonFiniteError(
                f"the loss or a gradient is not finite at step {step}, rank {named}, the "
                f"{self.consecutive}. in a row ({self.limit} may be skipped). Nothing learned from it. "
                "Lower the learning rate, clip gradients, use bf16 instead of fp16, or look for NaN in your data"
            )
        return True

    def state_dict(self) -> dict[str, int]:
        return {"consecutive": self.consecutive, "total": self.total}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.consecutive, self.total = state["consecutive"], state["total"]


def _finite(tensors: list[Tensor]) -> bool:
    # the maximum norm cannot overflow, so a large but finite gradient is not called infinite
    groups: dict[torch.dtype, list[Tensor]] = {}
    for tensor in tensors:
        groups.setdefault(tensor.dtype, []).append(tensor)
    flags = [get_total_norm(group, norm_type=math.inf).isfinite() for group in groups.values()]
    return not flags or bool(torch.stack([flag.to(flags[0].device) for flag in flags]).all())


def _local(tensor: Tensor) -> Tensor:
    # looked up, not imported: only a program that shards has loaded this, and loading takes seconds
    sharding = sys.modules.get("torch.distributed.tensor")
    local: Tensor = tensor.to_local() if sharding and isinstance(tensor, sharding.DTensor) else tensor
    return local
