"""Training steps of one model on one batch, timed by two clocks, with the forward passes counted at the model."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from opportune.distributed import place
from opportune.objective import Objective
from opportune.samplers import Sampler


@dataclass(kw_only=True)
class Times:
    """Seconds of a step by the clock on the wall and by CPU time: all of it, and what draw and watch added."""

    wall: float = 0.0
    cpu: float = 0.0
    added_wall: float = 0.0
    added_cpu: float = 0.0

    @staticmethod
    def mixed(parts: Sequence[tuple[float, Times]]) -> Times:
        """The sum of ``share * times``."""
        columns = zip(*(tuple(share * value for value in astuple(times)) for share, times in parts), strict=True)
        wall, cpu, added_wall, added_cpu = map(sum, columns)
        return Times(wall=wall, cpu=cpu, added_wall=added_wall, added_cpu=added_cpu)

    @staticmethod
    def mean(times: Sequence[Times]) -> Times:
        """The average."""
        return Times.mixed([(1 / len(times), each) for each in times])


class TrainingBench:
    """Trains the objective's model, which is its own from now on, with AdamW on ``x0``; over all ranks where several.

    Attributes:
        forwards: passes of the whole batch through the model so far; a backward pass counts as two forward passes.
    """

    def __init__(self, objective: Objective, x0: Tensor, conditions: dict[str, Any], learning_rate: float) -> None:
        model: Any = objective.model
        model.train()
        model.register_forward_hook(self._count)
        if place()[1] > 1:
            model = nn.parallel.DistributedDataParallel(model)
        self.model, self.x0, self.conditions = model, x0, conditions
        self.objective = Objective(model, objective.process, objective.weighting)
        trained = [p for p in model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(trained, lr=learning_rate)
        self.forwards = 0.0

    def step(self, sampler: Sampler) -> Times:
        """One training step."""
        spent = Times()
        with self._clock() as whole:
            with self._clock() as drawing:
                draw = sampler.draw(self.x0)
            raw = self.objective.losses(self.x0, draw, **self.conditions)
            self.objective.weighted(raw, draw).mean().backward()
            with self._clock() as before:
                probe = self.objective.probe(self.x0, **self.conditions)
                measurement = sampler.begin_step(draw, raw.detach(), probe, model=self.model)
            self.optimizer.step()
            with self._clock() as after:
                sampler.end_step(measurement)
            self.optimizer.zero_grad(set_to_none=True)
        spent.wall, spent.cpu = whole
        spent.added_wall, spent.added_cpu = (sum(parts) for parts in zip(drawing, before, after, strict=True))
        return spent

    def _count(self, module: nn.Module, inputs: Any, output: Tensor) -> None:
        share = output.shape[0] / self.x0.shape[0]
        self.forwards += share
        if output.requires_grad:
            output.register_hook(lambda gradient: self._count_backward(share))

    def _count_backward(self, share: float) -> None:
        self.forwards += 2 * share

    @contextmanager
    def _clock(self) -> Iterator[list[float]]:
        """Becomes ``[wall, cpu]`` seconds."""
        spent: list[float] = []
        self._wait()
        start = time.perf_counter(), time.process_time()
        yield spent
        self._wait()
        spent += [time.perf_counter() - start[0], time.process_time() - start[1]]

    def _wait(self) -> None:
        if self.x0.device.type != "cpu":
            torch.accelerator.synchronize(self.x0.device)


def moved_to(sampler: Sampler, step: int) -> None:
    """Set the clocks of a sampler, and of those within it, to ``step`` optimizer steps."""
    for each in sampler.modules():
        if isinstance(each, Sampler):
            each.steps_watched = each.draws_made = step
