"""Curriculum sampling for flow matching (Sun, 2026, arXiv 2603.12517)."""

from __future__ import annotations

from typing import Unpack

from ..checks import whole
from ..processes import Process
from .base import Common
from .phases import PhasedSampler

DEFAULT_SWITCH_STEP = 50_000


class Curriculum(PhasedSampler):
    """Logit-normal until ``switch_step``, then uniform: structure first, the ends of the noise axis later.

    Larger ``mean`` is more noise in the first phase. The first phase re-targets the objective, the second is the
    process's own. The public text gives no figure for the switch; 50,000, or half of the run, is this library's.

    Args:
        mean, std: of logit(u) in the first phase.
        switch_step: first optimizer step that is drawn uniformly; default 50,000.
        total_steps: of the run; sets switch_step to half of it.
    """

    def __init__(
        self,
        process: Process,
        *,
        mean: float = 0.0,
        std: float = 1.0,
        switch_step: int | None = None,
        total_steps: int | None = None,
        **common: Unpack[Common],
    ) -> None:
        self.switch_step = _switch(switch_step, total_steps)
        first = {"mean": mean, "std": std}
        super().__init__(process, [(0, "logit_normal", first), (self.switch_step, "uniform")], **common)


def _switch(switch_step: int | None, total_steps: int | None) -> int:
    if switch_step is not None and total_steps is not None:
        raise ValueError(
            f"switch_step={switch_step} and total_steps={total_steps} are both given; give one of them "
            "(total_steps sets switch_step to half of it)."
        )
    if total_steps is not None:
        return max(1, whole("total_steps", total_steps, low=1) // 2)
    return whole("switch_step", DEFAULT_SWITCH_STEP if switch_step is None else switch_step, low=1)
