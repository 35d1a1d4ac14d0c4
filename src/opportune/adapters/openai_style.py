"""The ``ScheduleSampler`` of improved- and guided-diffusion (also in DiT, PixArt, SiT ...), drawn by one of ours.

::

    schedule_sampler = ScheduleSampler(op.sampler("second_moment", process, weighting="vlb"))
    t, weights = schedule_sampler.sample(len(x), device)
    losses = ...                                                   # [B], raw
    schedule_sampler.update_with_local_losses(t, losses.detach())  # their loops do so for loss-aware samplers
    (losses * weights).mean().backward()

Unlike the original it needs no ``torch.distributed`` on one device, saves its state, and its warm-up ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..samplers import Sampler
from ..types import Draw


class ScheduleSampler:
    """``sample`` and ``update_with_local_losses`` of the original, for every method that learns from losses or nothing.

    Their training loops call ``update_with_local_losses`` only for their own class: replace that ``isinstance`` check,
    as it does no harm to a method that learns nothing. Under micro-batches make the sampler with ``accumulation``.

    Args:
        sampler: one that needs no probe (``sampler.needs`` is "nothing" or "losses"), on a discrete process.
    """

    def __init__(self, sampler: Sampler) -> None:
        if not isinstance(sampler, Sampler):
            raise ValueError(f"sampler={sampler!r} is not a sampler; give e.g. op.sampler('adaptive', process).")
        if sampler.needs not in ("nothing", "losses"):
            raise ValueError(
                f"sampler={type(sampler).__name__} measures before and after the optimizer's step, of which this "
                "interface knows nothing; use sampler.watch(...) or op.attach(sampler, optimizer)."
            )
        self.sampler = sampler
        self._draws: list[Draw] = []
        self._losses: list[Tensor] = []

    def sample(self, batch_size: int, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
        """``(t [B], weights [B])``: the timesteps, and what each loss is to be multiplied with."""
        draw = self.sampler.draw(torch.empty(batch_size, device=device))
        del self._draws[len(self._losses) :]  # drawn, but no losses came
        self._draws.append(draw)
        return draw.t, draw.correction

    def update_with_local_losses(self, local_ts: Tensor, local_losses: Tensor) -> None:
        """Hand over the raw losses ``[B]`` of the timesteps last sampled, on every rank; records are gathered here."""
        if len(self._draws) == len(self._losses) or not torch.equal(local_ts, self._draws[-1].t):
            raise ValueError(
                "local_ts are not the timesteps last sampled; call sample(), then this once with the losses at them."
            )
        self._losses.append(local_losses.detach())
        if len(self._losses) == self.sampler.accumulation:
            with self.sampler.watch(self._draws, self._losses):
                self._draws, self._losses = [], []

    def state_dict(self) -> dict[str, Any]:
        """The sampler's, between optimizer steps."""
        return self.sampler.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where ``state`` was taken."""
        self.sampler.load_state_dict(state)
        self._draws, self._losses = [], []
