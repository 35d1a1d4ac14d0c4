"""Steps per second of our training loop beside two others, at the same model, batch and precision.

    python benchmarks/throughput.py --output benchmarks/results/throughput.json

* plain: what a person writes by hand in PyTorch: draw t, corrupt, loss, backward, clip, AdamW, EMA.
* accelerate: the same in the style of diffusers' unconditional example: Accelerator, ``accumulate``, DDPMScheduler,
  EMAModel, a cosine learning-rate schedule.
* ours: ``Trainer`` with logs, guard against NaN, averages per noise level, order and noise from the seed.

The loops take turns in one process, so that a busy machine slows all alike. Reported: the median over rounds of the
time of each loop over ours, with a bootstrap interval.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import statistics
import tempfile
import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from pathlib import Path

import torch
from accelerate import Accelerator
from diffusers import DDPMScheduler
from diffusers.optimization import get_scheduler
from diffusers.training_utils import EMAModel
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from opportune.embedded import load_fashion16
from opportune.models import build_model
from opportune.train.config import TrainConfig
from opportune.train.config_file import updated
from opportune.train.trainer import Trainer

BATCH, RATE, DECAY = 64, 2e-4, 0.9999


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--rounds", type=int, default=60)
    options.add_argument("--model", default="unet-1m")
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--output", type=Path)
    chosen = options.parse_args()
    torch.set_num_threads(chosen.threads)
    found = measure(chosen.rounds, chosen.model)
    found["threads"] = chosen.threads
    print(json.dumps(found, indent=2))
    if chosen.output:
        chosen.output.parent.mkdir(parents=True, exist_ok=True)
        chosen.output.write_text(json.dumps(found, indent=2) + "\n")


def measure(rounds: int, model: str, steps_each: int = 3) -> dict[str, object]:
    """Let the loops take turns; ratios above 1 mean that ours is faster."""
    with tempfile.TemporaryDirectory() as folder:
        loops = {"ours": ours(model, Path(folder)), "plain": plain(model), "accelerate": accelerate(model)}
        for loop in loops.values():
            for _ in range(3):
                next(loop)
        times: dict[str, list[float]] = {name: [] for name in loops}
        shuffle = random.Random(0)
        for _ in range(rounds):
            for name in shuffle.sample(sorted(loops), len(loops)):
                start = time.perf_counter()
                for _ in range(steps_each):
                    next(loops[name])
                times[name].append((time.perf_counter() - start) / steps_each)
        for loop in loops.values():
            loop.close()
    found: dict[str, object] = {
        "model": model,
        "batch": BATCH,
        "rounds": rounds,
        "median_seconds_per_step": {name: statistics.median(values) for name, values in times.items()},
    }
    for name in ("plain", "accelerate"):
        ratios = [other / mine for other, mine in zip(times[name], times["ours"], strict=True)]
        found[f"ours_over_{name}"] = {"median": statistics.median(ratios), "interval_95": interval(ratios)}
    return found


def interval(values: list[float], repeats: int = 2000) -> tuple[float, float]:
    """Bootstrap interval of the median."""
    stream = random.Random(0)
    medians = sorted(statistics.median(stream.choices(values, k=len(values))) for _ in range(repeats))
    return medians[int(0.025 * repeats)], medians[int(0.975 * repeats)]


def images() -> Iterator[torch.Tensor]:
    pixels = load_fashion16("train")[0].float().div(127.5).sub(1)
    while True:
        for (batch,) in DataLoader(TensorDataset(pixels), batch_size=BATCH, shuffle=True, drop_last=True):
            yield batch


def plain(model: str) -> Generator[None, None, None]:
    """By hand."""
    network = build_model(model, image_size=16, channels=1)
    average = copy.deepcopy(network).requires_grad_(False)
    optimizer = torch.optim.AdamW(network.parameters(), lr=RATE, weight_decay=0.0, fused=True)
    signal = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000), dim=0)
    for x0 in images():
        t = torch.randint(0, 1000, (len(x0),))
        noise = torch.randn_like(x0)
        a = signal[t].view(-1, 1, 1, 1)
        loss = F.mse_loss(network(a.sqrt() * x0 + (1 - a).sqrt() * noise, t), noise)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            torch._foreach_lerp_(list(average.parameters()), list(network.parameters()), 1 - DECAY)
        yield


def accelerate(model: str) -> Generator[None, None, None]:
    """As diffusers' unconditional example does it."""
    accelerator = Accelerator(cpu=True)
    network = build_model(model, image_size=16, channels=1)
    average = EMAModel(network.parameters(), decay=DECAY, use_ema_warmup=True, foreach=True)
    optimizer = torch.optim.AdamW(network.parameters(), lr=RATE, weight_decay=0.0)
    scheduler = get_scheduler("cosine", optimizer, num_warmup_steps=10, num_training_steps=100_000)
    noises = DDPMScheduler(1000)
    network, optimizer, scheduler = accelerator.prepare(network, optimizer, scheduler)
    for x0 in images():
        noise = torch.randn(x0.shape)
        t = torch.randint(0, noises.config.num_train_timesteps, (len(x0),)).long()
        with accelerator.accumulate(network):
            loss = F.mse_loss(network(noises.add_noise(x0, noise, t), t).float(), noise.float())
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(network.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        average.step(network.parameters())
        loss.detach().item()  # the example logs the loss of every step
        yield


def ours(model: str, folder: Path) -> Generator[None, None, None]:
    """The trainer's own loop, one step at a time."""
    config = updated(
        TrainConfig(),
        {
            "run": {"output_dir": str(folder), "steps": 100_000},
            "data": {"batch_size": BATCH},
            "model": {"name": model},
            "optimizer": {"learning_rate": RATE},
            "ema": {"decay": DECAY},
            "validation": {"every_steps": 0},
            "logs": {"report_to": "none"},
            "hardware": {"device": "cpu"},
        },
    )
    trainer = Trainer(config)
    with ExitStack() as stack:
        trainer.open(stack)
        for _ in trainer.steps():
            yield


if __name__ == "__main__":
    main()
