"""The moving average of the weights (Polyak & Juditsky, 1992), which is what images are generated with."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.optim.swa_utils import get_ema_multi_avg_fn


class Ema:
    """Keeps ``average`` at the moving average of ``model``; both hold the same parameters, sharded alike.

    Args:
        model: the one that is trained.
        average: a second instance; takes over the model's values now.
        decay: share of the old average kept per step.
        warm_up: use min(decay, (1 + n) / (10 + n)) after n updates, so that the untrained start is soon forgotten.
    """

    def __init__(self, model: nn.Module, average: nn.Module, *, decay: float, warm_up: bool) -> None:
        self.module = average.eval().requires_grad_(False)
        self.decay, self.warm_up = decay, warm_up
        self.updates = 0
        self._averaged: list[Any] = list(average.parameters())
        # The parameters themselves: wrapping a model for several ranks may give them new memory.
        self._trained: list[Any] = list(model.parameters())
        self._buffers = list(zip(average.buffers(), model.buffers(), strict=True))
        with torch.no_grad():
            for mine, theirs in zip(self._averaged, self._trained, strict=True):
                mine.copy_(theirs)
            for mine, theirs in self._buffers:
                mine.copy_(theirs)

    @torch.no_grad()
    def update(self) -> None:
        """After an optimizer step."""
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates)) if self.warm_up else self.decay
        get_ema_multi_avg_fn(decay)(self._averaged, self._trained, self.updates)
        for mine, theirs in self._buffers:
            mine.copy_(theirs)
        self.updates += 1
