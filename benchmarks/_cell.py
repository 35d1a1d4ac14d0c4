"""One cell of the benchmark: train one network with one method on one setting and measure how far it is from optimal.

A cell is a plain dict, so that it can be hashed, stored and sent to another process. Cells that differ in the method
alone share the initial weights, the data and the noise, step by step.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
import warnings
from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
from benchmarks._generate import generate
from benchmarks._network import ResidualMLP
from torch import Tensor

import opportune as op
from opportune.testing import analytic

VERSION = 1
"""Raise it when results of older cells are no longer comparable: their files are then ignored."""

SETTINGS: dict[str, tuple[Any, dict[str, Any]]] = {
    "linear": (op.DDPM, {"schedule": "linear"}),
    "cosine": (op.DDPM, {"schedule": "cosine"}),
    "quadratic": (op.DDPM, {"schedule": "quadratic"}),
    "flow": (op.Flow, {}),
    "edm": (op.EDM, {}),
}

# What choices are made on ("tune") and what they are reported on never share a mixture.
DATA: dict[str, tuple[Any, dict[str, Any]]] = {
    "tune-modes16": (analytic.modes, {"dimension": 16, "count": 40, "std": 0.05, "seed": 1}),
    "tune-lowrank32": (analytic.low_rank, {"dimension": 32, "rank": 4, "count": 6, "seed": 2}),
    "report-gaussian16": (analytic.anisotropic, {"dimension": 16, "decay": 2.0, "seed": 11}),
    "report-modes2": (analytic.modes, {"dimension": 2, "count": 12, "std": 0.1, "seed": 12}),
    "report-modes16": (analytic.modes, {"dimension": 16, "count": 40, "std": 0.05, "seed": 13}),
    "report-modes64": (analytic.modes, {"dimension": 64, "count": 40, "std": 0.05, "seed": 14}),
    "report-ring64": (analytic.ring, {"dimension": 64, "count": 48, "std": 0.05, "seed": 15}),
}

DEFAULTS: dict[str, Any] = {
    "steps": 3000,
    "batch": 128,
    "lr": 2e-3,
    "ema": 0.995,
    "width": 128,
    "blocks": 3,
    "pairs": 16_384,
    "generated": 2048,
}

_EVALUATIONS = (100, 200, 300, 400, 500, 650, 800, 1000, 1250, 1500, 1750, 2000, 2250, 2500, 2750, 3000)
_CHUNK = 100  # batches of data made at a time


def cell(setting: str, data: str, method: dict[str, Any], seed: int, **budget: Any) -> dict[str, Any]:
    """Description of one run; ``budget`` overrides :data:`DEFAULTS`.

    ``before = { data = "...", steps = n }`` makes it a fine-tune: the network is first trained on those data with
    uniform draws, the same for every method, and the run begins from its averaged weights.
    """
    unknown = set(budget) - set(DEFAULTS) - {"before"}
    if setting not in SETTINGS or data not in DATA or unknown:
        raise ValueError(
            f"setting={setting!r}, data={data!r}, budget {sorted(unknown)}: known settings {sorted(SETTINGS)}, "
            f"data {sorted(DATA)}, budget {sorted(DEFAULTS)}."
        )
    return {"setting": setting, "data": data, "method": method, "seed": seed, **DEFAULTS, **budget}


def key(spec: dict[str, Any]) -> str:
    """A file name for the cell: readable, and unique through a hash of everything that decides the result."""
    method = {k: v for k, v in spec["method"].items() if k not in ("label", "fixed")}
    deciding = {**spec, "method": method, "version": VERSION}
    deciding["_setting"] = SETTINGS[spec["setting"]][1]
    deciding["_data"] = DATA[spec["data"]][1]
    if "before" in spec:
        deciding["_before"] = DATA[spec["before"]["data"]][1]
    digest = hashlib.sha256(json.dumps(deciding, sort_keys=True).encode()).hexdigest()[:12]
    return f"{spec['setting']}-{spec['data']}-{method['sampler']}-{spec['seed']}-{digest}"


def make_process(setting: str) -> op.Process:
    """The process of a setting."""
    made, arguments = SETTINGS[setting]
    process: op.Process = made(**arguments)
    return process


def make_data(name: str, process: op.Process) -> analytic.GaussianMixture:
    """The data by name, at the standard deviation the process expects (1, or EDM's sigma_data)."""
    made, arguments = DATA[name]
    data: analytic.GaussianMixture = made(**arguments).standardised()
    return data.scaled(process.sigma_data) if isinstance(process, op.EDM) else data


def make_method(method: dict[str, Any], process: op.Process, seed: int) -> tuple[op.Sampler, Any]:
    """``(sampler, weighting or None)`` of a method's description."""
    sampler = op.sampler(method["sampler"], process, seed=seed, **method.get("settings", {}))
    name = method.get("weighting")
    return sampler, op.weighting(name, process, **method.get("weighting_settings", {})) if name else None


class _Judge:
    """Everything that stays the same for one setting and data, whatever the method and the seed."""

    def __init__(self, setting: str, data: str, pairs: int, generated: int) -> None:
        process = make_process(setting)
        self.mixture = make_data(data, process)
        self.process = process
        self.coarse = analytic.HeldOut(process, self.mixture, pairs=min(4096, pairs), seed=900)
        self.fine = analytic.HeldOut(process, self.mixture, pairs=pairs, seed=901)
        self.fresh = self.mixture.sample(32_768, seed=902)
        self.noise = torch.randn(generated, self.mixture.dimension, generator=torch.Generator().manual_seed(903))
        self.bounds = self.mixture.bounds()
        self.unit = math.sqrt(self.mixture.variance())
        self.floor = analytic.sliced_wasserstein(self.mixture.sample(generated, seed=904), self.fresh) / self.unit

    def wasserstein(self, network: ResidualMLP) -> float:
        made = generate(network, self.process, self.noise, self.bounds)
        return analytic.sliced_wasserstein(made, self.fresh) / self.unit


_judge = cache(_Judge)


def evaluations(steps: int) -> list[int]:
    """Steps at which a run of ``steps`` is measured: spread as in a run of 3,000."""
    return sorted({max(1, round(at * steps / 3000)) for at in _EVALUATIONS})


def run(spec: dict[str, Any]) -> dict[str, Any]:
    """Train and measure one cell; everything in the answer is JSON."""
    torch.set_flush_denormal(True)  # a converged unit would otherwise slow a step tenfold
    judge = _judge(spec["setting"], spec["data"], spec["pairs"], spec["generated"])
    process, mixture, seed = judge.process, judge.mixture, spec["seed"]
    scale = 250.0 if isinstance(process, op.EDM) else 1.0
    shape = {"width": spec["width"], "blocks": spec["blocks"], "time_scale": scale, "seed": seed}
    network, average = ResidualMLP(mixture.dimension, **shape), ResidualMLP(mixture.dimension, **shape)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sampler, weighting = make_method(spec["method"], process, seed)
    torch.manual_seed(1_000_003 + seed)
    if "before" in spec:
        _pretrain(network, average, process, spec)
    optimizer = torch.optim.AdamW(network.parameters(), lr=spec["lr"], fused=True)
    batches = _batches(mixture, spec["batch"], seed)
    steps = op.training_steps(op.Objective(network, process, weighting), sampler, optimizer, batches)

    weights, averaged = network.flat.detach(), average.flat.detach()
    curve: dict[str, list[Any]] = {k: [] for k in ("step", "own", "eps", "vlb", "seconds", "density")}
    spent, done = 0.0, 0
    for stop in evaluations(spec["steps"]):
        began = time.process_time()
        for _ in range(stop - done):
            next(steps)
            averaged.lerp_(weights, 1 - spec["ema"])
        spent, done = spent + time.process_time() - began, stop
        excess = judge.coarse.measure(average)
        for name, value in (("own", excess.own), ("eps", excess.eps), ("vlb", excess.vlb)):
            curve[name].append(_plain(value))
        curve["step"].append(stop)
        curve["seconds"].append(round(spent, 4))
        curve["density"].append([round(float(v), 4) for v in _density(sampler)])
    last = judge.fine.measure(average)
    final = {"own": last.own, "eps": last.eps, "vlb": last.vlb, "sw": judge.wasserstein(average)}
    return {
        "spec": spec,
        "final": {name: _plain(value) for name, value in final.items()},
        "sw_floor": judge.floor,  # of fresh data: what a perfect model would get
        "profile": [_plain(value) for value in last.profile.tolist()],
        "curve": curve,
        "ms_per_step": 1000 * spent / max(1, done),
    }


def _pretrain(network: ResidualMLP, average: ResidualMLP, process: op.Process, spec: dict[str, Any]) -> None:
    """Train on other data with uniform draws; leaves the averaged weights in both networks."""
    before = spec["before"]
    optimizer = torch.optim.AdamW(network.parameters(), lr=spec["lr"], fused=True)
    batches = _batches(make_data(before["data"], process), spec["batch"], spec["seed"] + 500)
    steps = op.training_steps(
        op.Objective(network, process), op.sampler("uniform", process, seed=spec["seed"]), optimizer, batches
    )
    weights, averaged = network.flat.detach(), average.flat.detach()
    for _ in range(before["steps"]):
        next(steps)
        averaged.lerp_(weights, 1 - spec["ema"])
    weights.copy_(averaged)


def _batches(mixture: analytic.GaussianMixture, batch: int, seed: int) -> Iterator[Tensor]:
    """Fresh examples for ever: no example is met twice, so nothing can be learned by heart."""
    chunk = 0
    while True:
        yield from mixture.sample(_CHUNK * batch, seed=(seed + 1) * 1_000_000 + chunk).split(batch)
        chunk += 1


def _density(sampler: op.Sampler, bins: int = 32) -> Tensor:
    fine = (torch.arange(bins * 16) + 0.5) / (bins * 16)
    return sampler.density(fine).reshape(bins, 16).mean(dim=1)


def _plain(value: float) -> float | None:
    return value if math.isfinite(value) else None
