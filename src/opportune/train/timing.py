"""Where the time of a step goes: waiting for data, the sampler's share, and the rest.

Host clocks, without waiting for the device: on a GPU the sampler's share is what it costs the host.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from torch import Tensor, nn

from opportune.samplers import Sampler
from opportune.samplers.base import Watch
from opportune.types import Draw, Probe

Item = TypeVar("Item")


class Clock:
    """Seconds since the last record, by what they were spent on."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Count from now on."""
        self.data = 0.0
        self.sampler = 0.0
        self.aside = 0.0
        """Validation and checkpoints, which are no part of a step."""
        self.steps = 0
        self._since = time.perf_counter()

    def waiting(self, items: Iterator[Item]) -> Generator[Item, None, None]:
        """Hand on ``items``, counting the time until each comes."""
        while True:
            start = time.perf_counter()
            item = next(items, None)
            self.data += time.perf_counter() - start
            if item is None:
                return
            yield item

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Time inside is no part of the steps."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.aside += time.perf_counter() - start

    def record(self, examples_per_step: int) -> dict[str, Any]:
        """Averages since the last call; starts again."""
        total = max(time.perf_counter() - self._since - self.aside, 1e-9)
        steps = max(self.steps, 1)
        made = {
            "seconds_per_step": total / steps,
            "examples_per_second": examples_per_step * steps / total,
            "data_share": self.data / total,
            "overhead_share": self.sampler / total,
        }
        self.restart()
        return made


class TimedSampler:
    """A sampler as the training loop uses it, with the time it takes on a clock."""

    def __init__(self, sampler: Sampler, clock: Clock) -> None:
        self._sampler, self._clock = sampler, clock

    @property
    def accumulation(self) -> int:
        return self._sampler.accumulation

    @property
    def steps_watched(self) -> int:
        return self._sampler.steps_watched

    def draw(self, x: Tensor | int) -> Draw:
        """See :meth:`Sampler.draw`."""
        start = time.perf_counter()
        made = self._sampler.draw(x)
        self._clock.sampler += time.perf_counter() - start
        return made

    @contextmanager
    def watch(
        self,
        draw: Draw | Sequence[Draw],
        losses: Tensor | Sequence[Tensor] | None = None,
        probe: Probe | None = None,
        *,
        model: nn.Module | None = None,
    ) -> Iterator[Watch]:
        """See :meth:`Sampler.watch`."""
        start = time.perf_counter()
        watched = self._sampler.watch(draw, losses, probe, model=model)
        with watched as watching:
            self._clock.sampler += time.perf_counter() - start
            yield watching
            start = time.perf_counter()
        self._clock.sampler += time.perf_counter() - start
