"""The readable curve: the loss on held-out images at fixed noise levels, with fixed noise.

Example ``id`` always has the same ``u`` (golden-ratio multiples, which cover [0, 1) evenly) and the same noise, from
(seed, id) alone. So the loss does not depend on the batch size, the number of ranks, or which timesteps the sampler
prefers, and two runs may be compared number by number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from opportune.distributed import gather
from opportune.objective import Objective
from opportune.random_streams import generator
from opportune.train.batches import Preparation
from opportune.train.held_out import HeldOut
from opportune.types import Draw

_GOLDEN = (5**0.5 - 1) / 2


class Validation:
    """Measures a model on held-out images.

    Args:
        held_out: the images.
        preparation: of batches, as in training.
        objective: its process and weighting are used.
        seed: of noise levels and noise.
        batch_size: images at a time on this rank.
        bins: equal parts of the noise axis.
    """

    def __init__(
        self,
        held_out: HeldOut,
        preparation: Preparation,
        objective: Objective,
        *,
        seed: int,
        batch_size: int,
        bins: int,
    ) -> None:
        self.held_out, self.preparation, self.objective = held_out, preparation, objective
        self.seed, self.batch_size, self.bins = seed, batch_size, bins
        self.u = fixed_u(held_out.ids, seed)

    def measure(self, model: nn.Module, keep_going: Callable[[], bool]) -> dict[str, Any] | None:
        """Mean raw and weighted loss and means per bin; None where ``keep_going`` said no, alike on all ranks."""
        rank, world = self.preparation.rank, self.preparation.world
        count = len(self.held_out.ids)
        share = -(-count // world)  # equal on all ranks, as a sharded model needs; the surplus is dropped below
        mine = [(i * world + rank) % count for i in range(share)]
        parts: list[Tensor] = []
        training = model.training
        model.eval()
        try:
            for start in range(0, share, self.batch_size):
                if not keep_going():
                    return None
                parts.append(self._losses(model, mine[start : start + self.batch_size]))
        finally:
            model.train(training)
        losses = gather(torch.cat(parts))[:count].double().cpu()
        return self._summary(losses[:, 0], losses[:, 1])

    @torch.no_grad()
    def _losses(self, model: nn.Module, places: list[int]) -> Tensor:
        """``[B, 2]``: raw and weighted."""
        labels = self.held_out.labels
        images = self.held_out.images[places]
        x0, conditions = self.preparation.fixed(images, None if labels is None else labels[places])
        noise = torch.stack([self._noise(self.held_out.ids[place], tuple(x0.shape[1:])) for place in places])
        process = self.objective.process
        u = self.u[places].to(x0.device)
        t, ones = process.time(u), torch.ones_like(u)
        draw = Draw(u=u, t=t, correction=ones, density=ones, shape=tuple(x0.shape), sigma=process.sigma(t))
        raw = Objective(model, process).losses(x0, draw, noise.to(x0), **conditions)
        return torch.stack([raw, self.objective.weighted(raw, draw)], dim=1)

    def _noise(self, example: int, shape: tuple[int, ...]) -> Tensor:
        return torch.randn(shape, generator=generator(self.seed, "validation noise", example))

    def _summary(self, raw: Tensor, weighted: Tensor) -> dict[str, Any]:
        place = (self.u.double() * self.bins).long().clamp_(0, self.bins - 1)
        counts = torch.zeros(self.bins, dtype=torch.float64).index_add_(0, place, torch.ones_like(raw))
        sums = torch.zeros(self.bins, dtype=torch.float64).index_add_(0, place, raw)
        return {
            "loss": float(raw.mean()),
            "weighted_loss": float(weighted.mean()),
            "bins": [float(s / n) if n else None for s, n in zip(sums, counts, strict=True)],
        }


def fixed_u(ids: list[int], seed: int) -> Tensor:
    """``[N]`` float32: the noise level of each example, from (seed, id) alone."""
    start = torch.rand((), dtype=torch.float64, generator=generator(seed, "validation u"))
    return ((start + torch.tensor(ids, dtype=torch.float64) * _GOLDEN) % 1.0).float().clamp(max=1 - 2.0**-24)
