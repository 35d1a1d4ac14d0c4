"""The learning rate as a function of the step alone: nothing to save, nothing to restore."""

from __future__ import annotations

import math

import torch

from opportune.train.config import ScheduleConfig


def factor(schedule: ScheduleConfig, step: int, steps: int) -> float:
    """What the learning rate is multiplied by in step ``step`` (0, 1, ...) of ``steps``."""
    warm_up = schedule.warm_up_steps
    if step < warm_up:
        return (step + 1) / (warm_up + 1)
    if schedule.name == "constant":
        return 1.0
    done = min(1.0, (step - warm_up) / max(1, steps - warm_up - 1))
    left = 1 - done if schedule.name == "linear" else (1 + math.cos(math.pi * done)) / 2
    return schedule.final_share + (1 - schedule.final_share) * left


def set_learning_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    """For all parameter groups, before a step."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
