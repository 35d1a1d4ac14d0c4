"""``watch`` for loops that cannot be edited: the optimizer's own step hooks call it.

Hooks fire once per real optimizer step: not between micro-batches, and not when a GradScaler skips. They survive
``accelerator.prepare`` and ``load_state_dict``, not ``copy.deepcopy`` of the optimizer: attach again after that.

Lightning hands forward and backward to the optimizer as a closure, so that the last micro-batch is observed inside
``step``: there the measurement before the step is taken when the closure has run for the first time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn

from .measure import Measurement
from .samplers import Sampler
from .types import Draw, Probe

_KEPT = 64  # micro-batches remembered while the optimizer does not step, or as many as it accumulates


class Attachment:
    """Connects a sampler to an optimizer. Hand it each micro-batch with :meth:`observe`."""

    def __init__(self, sampler: Sampler, optimizer: torch.optim.Optimizer, model: nn.Module | None) -> None:
        self.sampler, self.model = sampler, model
        self._draws: list[Draw] = []
        self._losses: list[Tensor] = []
        self._probe: Probe | None = None
        self._measurement: Measurement | None = None
        self._hooks = (
            optimizer.register_step_pre_hook(self._before),
            optimizer.register_step_post_hook(self._after),
        )

    def observe(self, draw: Draw, losses: Tensor, probe: Probe | None = None) -> None:
        """Call once per micro-batch, before the optimizer steps.

        Args:
            draw: what the micro-batch was trained at.
            losses: ``[B]`` its raw per-example losses.
            probe: ``probe(draw) -> losses [B]`` of this micro-batch; kept until the step, with the data it holds.
        """
        self._draws.append(draw)
        self._losses.append(losses.detach())
        self._probe = probe
        kept = max(_KEPT, self.sampler.accumulation)
        del self._draws[:-kept], self._losses[:-kept]

    def detach(self) -> None:
        """Remove the hooks from the optimizer."""
        for hook in self._hooks:
            hook.remove()

    def _before(
        self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        if kwargs.get("closure") is not None:
            return args, {**kwargs, "closure": self._measuring(kwargs["closure"])}
        if len(args) > 1 and callable(args[1]):  # args[0] is the optimizer
            return (args[0], self._measuring(args[1]), *args[2:]), kwargs
        self._begin()
        return None

    def _measuring(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        begun = False

        @wraps(closure)
        def measured() -> Any:
            nonlocal begun
            loss = closure()
            if not begun:  # LBFGS evaluates again after it has moved the weights
                begun = True
                self._begin()
            return loss

        return measured

    def _begin(self) -> None:
        if not self._draws:
            if self.sampler.needs != "nothing":
                self.sampler.warn_once(
                    f"{type(self.sampler).__name__} is attached to an optimizer that stepped without observe(): it "
                    "learns nothing. Call attachment.observe(draw, losses, probe) for each batch."
                )
            return
        self._measurement = self.sampler.begin_step(self._draws, self._losses, self._probe, model=self.model)

    def _after(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if not self._draws:
            return
        # Fused optimizers are called by a GradScaler in any case and told by this attribute not to move.
        skipped = getattr(optimizer, "found_inf", None)
        if skipped is None or not bool(skipped):
            self.sampler.end_step(self._measurement)
        self._draws, self._losses, self._probe, self._measurement = [], [], None, None


def attach(sampler: Sampler, optimizer: Any, *, model: nn.Module | None = None) -> Attachment:
    """Let ``sampler`` watch every real step of ``optimizer`` (a wrapper with ``.optimizer``, as Accelerate's, too)."""
    if not isinstance(sampler, Sampler):
        raise ValueError(f"sampler={sampler!r} is not a sampler; give e.g. op.sampler('adaptive', process).")
    while not isinstance(optimizer, torch.optim.Optimizer) or not _has_hooks(optimizer):
        inner = getattr(optimizer, "optimizer", None)
        if inner is None:
            raise ValueError(f"optimizer={type(optimizer).__name__} is not a torch optimizer and wraps none.")
        optimizer = inner
    return Attachment(sampler, optimizer, model)


def _has_hooks(optimizer: torch.optim.Optimizer) -> bool:
    return hasattr(optimizer, "_optimizer_step_pre_hooks")
