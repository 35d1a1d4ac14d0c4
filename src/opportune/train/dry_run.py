"""What a configuration would do and cost, without making a file or, for large models, any memory."""

from __future__ import annotations

import copy
import os
import time

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from opportune.models import ImageModel, count_parameters
from opportune.objective import Objective
from opportune.train import parts
from opportune.train.config import TrainConfig
from opportune.train.config_file import to_toml

MEASURED_UP_TO = 1e12
"""Operations of a training step above which it is not tried out."""


def describe(config: TrainConfig) -> str:
    """The resolved configuration, parameters, memory for what lasts, and the cost of a step."""
    model = parts.model_on_meta(config)
    trained = count_parameters(model)
    operations = 3 * config.data.batch_size * forward_operations(config, model)
    world = config.hardware.ranks or int(os.environ.get("WORLD_SIZE", "1"))
    lines = [
        to_toml(config),
        f"# parameters: {trained:,}",
        *_memory(config, trained, world),
        f"# a step: {operations / 1e12:.4g} TFLOP (three forward passes of {config.data.batch_size} images)",
    ]
    if operations <= MEASURED_UP_TO:
        seconds = step_seconds(config)
        lines.append(
            f"# measured here: {seconds:.3g} s per step on {torch.get_num_threads()} CPU threads, "
            f"{seconds * config.run.steps / 3600:.2g} h for {config.run.steps:,} steps on one such process"
        )
    else:
        lines.append("# too large to try out here: divide by the speed of your hardware, half of its peak at best")
    return "\n".join(lines)


def _memory(config: TrainConfig, trained: int, world: int) -> list[str]:
    """Bytes of what stays in memory on each rank; activations come on top."""
    shards = world if config.hardware.sharding == "fsdp2" else 1
    each = {"weights": 1, "gradients": 1, "optimizer (two moments)": 2, "EMA": int(config.ema.enabled)}
    total = 4 * trained * sum(each.values()) / shards
    parts_of = ", ".join(f"{name} {_size(4 * trained * times / shards)}" for name, times in each.items() if times)
    disk = 4 * trained * (sum(each.values()) - 1)
    return [
        f"# memory per rank: {_size(total)} and the activations ({parts_of})",
        f"# disk: {_size(disk)} per checkpoint, {_size((config.checkpoint.keep + 1) * disk)} at most",
    ]


def forward_operations(config: TrainConfig, model: ImageModel) -> float:
    """Floating-point operations of one image's forward pass, counted on a model without memory."""
    data = config.data
    with torch.device("meta"), torch.no_grad(), FlopCounterMode(display=False) as counter:
        x = torch.empty(1, data.channels, data.size, data.size)
        condition = torch.empty_like(x) if data.low_resolution_factor else None
        model(x, torch.zeros(1), None, condition)
    return float(counter.get_total_flops())


def step_seconds(config: TrainConfig, repeats: int = 3) -> float:
    """Median time of a training step of random images on this machine's CPU."""
    data = config.data
    process = parts.make_process(config)
    sampler, weighting = parts.make_sampler(config, process), parts.make_weighting(config, process)
    model: nn.Module = parts.make_model(config)
    average = copy.deepcopy(model)
    objective = Objective(model, process, weighting)
    optimizer = parts.make_optimizer(config, model, weighting)
    x0 = torch.randn(data.batch_size // data.accumulation, data.channels, data.size, data.size)
    conditions = {"condition": x0} if data.low_resolution_factor else {}
    times = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        for _ in range(data.accumulation):
            draw = sampler.draw(x0)
            objective.weighted(objective.losses(x0, draw, **conditions), draw).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for kept, new in zip(average.parameters(), model.parameters(), strict=True):
                kept.lerp_(new, 0.1)
        times.append(time.perf_counter() - start)
    return sorted(times[1:])[repeats // 2]


def _size(count: float) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"
