"""What a probe can tell about gradients, without touching ``.grad``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor, nn

from ..types import Draw, Probe
from .loss import losses_at

Gradient = list[Tensor | None]


def trainable(model: nn.Module) -> list[nn.Parameter]:
    """The parameters gradients are taken with respect to."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    if not parameters:
        raise ValueError("model has no parameter that requires a gradient; hand watch() the model that is trained.")
    if any(type(p.data).__name__ == "DTensor" for p in parameters):
        raise ValueError(
            "model is sharded (DTensor parameters), where a probe's gradient cannot be taken apart from the "
            "training gradient; choose a sampler that asks for losses only (see op.samplers())."
        )
    return parameters


def gradient_of(loss: Tensor, parameters: Sequence[nn.Parameter], *, keep: bool = False) -> Gradient:
    """d loss / d parameters, leaving ``.grad`` alone (so also DDP's buckets); None where unused."""
    found: Gradient = []
    if loss.requires_grad:
        found = list(torch.autograd.grad(loss, parameters, retain_graph=keep, allow_unused=True))
    if all(part is None for part in found):
        raise ValueError(
            "probe returned losses that do not depend on the model's parameters, so they have no gradient; evaluate "
            "the model that is handed to watch(), and leave out detach() and no_grad()."
        )
    return found


@contextmanager
def gradients_apart(model: nn.Module) -> Iterator[None]:
    """Gradients on, and DDP kept from preparing its all-reduce for a backward that never comes."""
    no_sync = getattr(model, "no_sync", nullcontext)
    with no_sync(), torch.enable_grad():
        yield


def moments(probe: Probe, draw: Draw, model: nn.Module) -> tuple[Tensor, Tensor]:
    """Losses ``[B]``, and ``[2]``: |E g|^2 (unbiased) and tr Cov(g) of an example's gradient g at the draw's timesteps.

    From the mean gradients a, b of the two halves of the batch: ``E<a, b> = |E g|^2`` because the halves are
    independent, and ``E|a - b|^2 = tr Cov (1/n_a + 1/n_b)``. NaN for a single example, which has no halves: the last
    batch of an epoch must neither end the run nor leave the other ranks waiting for this one. The price is one forward
    and two backward passes.
    """
    parameters = trainable(model)
    with gradients_apart(model):
        losses = losses_at(probe, draw)
        if len(draw) < 2:
            return losses.detach(), losses.new_full((2,), torch.nan)
        halves = losses[0::2], losses[1::2]
        a = gradient_of(halves[0].mean(), parameters, keep=True)
        b = gradient_of(halves[1].mean(), parameters)
    pairs = [(x.float(), y.float()) for x, y in zip(a, b, strict=True) if x is not None and y is not None]
    inner = torch.stack([(x * y).sum() for x, y in pairs]).sum()
    apart = torch.stack([(x - y).square().sum() for x, y in pairs]).sum()
    scale = 1 / halves[0].numel() + 1 / halves[1].numel()
    return losses.detach(), torch.stack([inner, apart / scale]).detach()
