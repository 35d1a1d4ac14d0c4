"""The training loop as a generator: read this file first.

Draw timesteps, compute per-example losses, correct and weight them, go down the gradient, let the sampler watch.
Everything a particular set-up does differently (mixed precision, several ranks, a check of the gradients) is an
:class:`Engine`; the order of events is here, once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from .checks import whole
from .objective import Objective
from .samplers import Sampler
from .types import Draw, StepRecord

Batch = Tensor | tuple[Tensor, dict[str, Any]]
"""``x0 [B, ...]``, or ``(x0, conditions)`` with the keyword arguments of the model (labels, text)."""


class Engine(Protocol):
    """What may differ between set-ups."""

    def micro_batch(self, *, last: bool) -> AbstractContextManager[Any]:
        """Around forward and backward of one micro-batch (gradient synchronisation, autocast)."""

    def backward(self, loss: Tensor) -> None:
        """Accumulate gradients of a scalar loss."""

    def clip(self) -> Tensor | None:
        """Clip the gradients; returns their length before, or None if it is not known."""

    def allow(self, loss: Tensor, gradient_norm: Tensor | None) -> bool:
        """Whether to step; False discards this step's gradients (non-finite values) on every rank alike."""

    def step(self, optimizer: torch.optim.Optimizer) -> bool:
        """Step the optimizer; returns False if it was skipped (a GradScaler found infinities)."""


class PlainEngine:
    """One process, full precision.

    Args:
        parameters: whose gradients are clipped; None does not clip.
        max_norm: of the gradient.
    """

    def __init__(self, parameters: Iterable[nn.Parameter] = (), *, max_norm: float | None = None) -> None:
        self._parameters = list(parameters)
        self._max_norm = max_norm

    def micro_batch(self, *, last: bool) -> AbstractContextManager[Any]:
        return nullcontext()

    def backward(self, loss: Tensor) -> None:
        loss.backward()

    def clip(self) -> Tensor | None:
        if self._max_norm is None:
            return None
        return torch.nn.utils.clip_grad_norm_(self._parameters, self._max_norm)

    def allow(self, loss: Tensor, gradient_norm: Tensor | None) -> bool:
        return True

    def step(self, optimizer: torch.optim.Optimizer) -> bool:
        optimizer.step()
        return True


def training_steps(
    objective: Objective,
    sampler: Sampler,
    optimizer: torch.optim.Optimizer,
    batches: Iterable[Batch],
    *,
    accumulation: int = 1,
    engine: Engine | None = None,
) -> Iterator[StepRecord]:
    """Train on ``batches``, yielding a :class:`StepRecord` after each optimizer step; stop by leaving the loop.

    Args:
        objective: model, process and weighting.
        sampler: any sampler; made with the same ``accumulation``.
        optimizer: of the model's parameters.
        batches: ``x0 [B, ...]`` or ``(x0, conditions)``.
        accumulation: micro-batches per optimizer step; an incomplete last group is not trained on.
        engine: mixed precision, ranks, clipping; plain by default.
    """
    whole("accumulation", accumulation, low=1)
    if sampler.accumulation != accumulation:
        raise ValueError(
            f"accumulation={accumulation} but the sampler was made with accumulation={sampler.accumulation}; "
            "its schedules and strata would be off. Give both the same."
        )
    engine = engine or PlainEngine()
    model = objective.model if isinstance(objective.model, nn.Module) else None
    supply = iter(batches)
    while len(group := _take(supply, accumulation)) == accumulation:
        draws: list[Draw] = []
        losses: list[Tensor] = []
        total = torch.zeros(())
        for index, (x0, conditions) in enumerate(group):
            with engine.micro_batch(last=index == accumulation - 1):
                draw = sampler.draw(x0)
                raw = objective.losses(x0, draw, **conditions)
                loss = objective.weighted(raw, draw).mean() / accumulation
                engine.backward(loss)
            draws.append(draw)
            losses.append(raw.detach())
            total = total.to(loss.device) + loss.detach()
        norm = engine.clip()
        step, stepped = sampler.steps_watched, False
        if engine.allow(total, norm):
            x0, conditions = group[-1]
            with sampler.watch(draws, losses, objective.probe(x0, **conditions), model=model) as watching:
                stepped = engine.step(optimizer)
                if not stepped:
                    watching.skip()
        optimizer.zero_grad(set_to_none=True)
        yield StepRecord(
            step=step,
            draw=Draw.cat(draws),
            losses=torch.cat(losses),
            loss=total,
            gradient_norm=norm,
            skipped=not stepped,
        )


def _take(supply: Iterator[Batch], count: int) -> list[tuple[Tensor, dict[str, Any]]]:
    group: list[tuple[Tensor, dict[str, Any]]] = []
    while len(group) < count and (batch := next(supply, None)) is not None:
        group.append((batch, {}) if isinstance(batch, Tensor) else batch)
    return group
