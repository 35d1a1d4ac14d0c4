"""How a step is carried out on this hardware: ranks, precision, clipping, what is refused (a ``step.Engine``)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from opportune.distributed import place
from opportune.train.agree import ranks_where
from opportune.train.nonfinite import SkipBudget, nonfinite_ranks

_SCALER_SKIPS = 60
"""A GradScaler halves its scale at each skip; float16 has no more halvings than this."""


class AcceleratedEngine:
    """Implements :class:`opportune.step.Engine` over Accelerate.

    Args:
        accelerator: of this process.
        model: prepared (DDP), sharded, or plain.
        apart: parameters outside the model that are trained too (a weighting's); their gradients are averaged here.
        max_norm: of the gradient; 0 measures without clipping.
        max_skips: non-finite steps in a row that are skipped.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        model: nn.Module,
        *,
        apart: Iterable[nn.Parameter] = (),
        max_norm: float = 0.0,
        max_skips: int = 10,
    ) -> None:
        self.accelerator, self.model, self.max_norm = accelerator, model, max_norm
        self.apart = [parameter for parameter in apart if parameter.requires_grad]
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.budget = SkipBudget(max_skips)
        self.scaler_budget = SkipBudget(_SCALER_SKIPS)
        self.step_number = 0
        """Of the step in progress, for messages."""

    def micro_batch(self, *, last: bool) -> AbstractContextManager[Any]:
        if last or place()[1] == 1:
            return nullcontext()
        if hasattr(self.model, "set_requires_gradient_sync"):
            return _unsynchronised(self.model)
        held: AbstractContextManager[Any] = self.accelerator.no_sync(self.model)
        return held

    def backward(self, loss: Tensor) -> None:
        self.accelerator.backward(loss)

    def clip(self) -> Tensor | None:
        """Length of the whole gradient, after averaging over ranks and unscaling; clipped where asked for."""
        self._average_apart()
        if self.accelerator.scaler is not None:
            self.accelerator.unscale_gradients()
        trained = [p for p in (*self.parameters, *self.apart) if p.grad is not None]
        norm = _norm([p.grad for p in trained if p.grad is not None])
        if self.max_norm > 0 and trained:
            clip_grads_with_norm_(trained, self.max_norm, norm)
        return norm

    def allow(self, loss: Tensor, gradient_norm: Tensor | None) -> bool:
        """False on every rank alike where a loss or gradient of any rank is NaN or infinite."""
        bad_loss = not bool(torch.isfinite(loss))
        bad_norm = gradient_norm is not None and not bool(torch.isfinite(gradient_norm))
        scaled = self.accelerator.scaler is not None
        if not ranks_where(bad_loss or (bad_norm and not scaled)):
            self.budget.skip(self.step_number, ())
            return True
        # Only the loss tells whose fault it was: gradients are averaged over ranks by now.
        culprits = ranks_where(bad_loss)
        if not culprits:
            # The length of large but finite gradients may overflow; then only their length is lost.
            culprits = nonfinite_ranks(loss, (p.grad for p in (*self.parameters, *self.apart)))
        return not self.budget.skip(self.step_number, culprits)

    def step(self, optimizer: torch.optim.Optimizer) -> bool:
        optimizer.step()
        skipped = bool(self.accelerator.optimizer_step_was_skipped)
        self.scaler_budget.skip(self.step_number, tuple(range(place()[1])) if skipped else ())
        return not skipped

    def state_dict(self) -> dict[str, Any]:
        """The skips so far, and the GradScaler's scale."""
        scaler = self.accelerator.scaler
        return {
            "budget": self.budget.state_dict(),
            "scaler_budget": self.scaler_budget.state_dict(),
            "scaler": None if scaler is None else scaler.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.budget.load_state_dict(state["budget"])
        self.scaler_budget.load_state_dict(state["scaler_budget"])
        if self.accelerator.scaler is not None and state["scaler"] is not None:
            self.accelerator.scaler.load_state_dict(state["scaler"])

    def _average_apart(self) -> None:
        world = place()[1]
        if world == 1:
            return
        for parameter in self.apart:
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)
                parameter.grad /= world


def _norm(gradients: list[Tensor]) -> Tensor:
    sharded = [g for g in gradients if hasattr(g, "full_tensor")]
    plain = [g for g in gradients if not hasattr(g, "full_tensor")]
    parts = [get_total_norm(plain)] if plain else []
    if sharded:
        total: Any = get_total_norm(sharded)
        parts.append(total.full_tensor() if hasattr(total, "full_tensor") else total)
    return parts[0] if len(parts) == 1 else torch.stack(parts).norm()


@contextmanager
def _unsynchronised(model: Any) -> Iterator[None]:
    """FSDP2's gradients stay on their rank inside."""
    model.set_requires_gradient_sync(False)
    try:
        yield
    finally:
        model.set_requires_gradient_sync(True)
