"""Evaluate a probe without leaving a trace: eval mode, no gradients, every random stream put back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from ..distributed import reshard
from ..types import Draw, Probe


@contextmanager
def untouched(model: nn.Module | None, device: torch.device) -> Iterator[None]:
    """Eval mode inside; afterwards every module's own mode and the global random streams are as before.

    Modes are kept per module: a user may train with some parts (a frozen encoder, BatchNorm) in eval mode.
    """
    modes = [(module, module.training) for module in model.modules()] if model is not None else []
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        if model is not None:
            model.eval()
        try:
            yield
        finally:
            for module, mode in modes:
                module.training = mode
            if model is not None:
                reshard(model)


def losses_at(probe: Probe, draw: Draw) -> Tensor:
    """``probe(draw)`` as float32 ``[B]``, checked for its shape."""
    losses = probe(draw)
    if not isinstance(losses, Tensor) or losses.shape != draw.u.shape:
        shape = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
        raise ValueError(
            f"probe returned {shape} for a draw of {len(draw)} timesteps; it must return one loss per example, "
            f"shape ({len(draw)},): take the mean over all dimensions but the first."
        )
    return losses.float()
