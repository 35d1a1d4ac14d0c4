"""Cost of ``draw`` + ``watch`` on steps where nothing is due, as a share of a training step of a 1 M-parameter UNet.

One run, interleaved: blocks of training steps and blocks of draw + watch alternate, medians are compared.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import torch
from torch import Tensor

import opportune as op
from opportune.models import build_model, count_parameters

RESULTS = Path(__file__).parent / "results" / "draw_cost.json"
SETTINGS = {
    "table": {"density": [1.0, 2.0, 1.0]},
    "stratified": {"of": "logit_normal"},
    "low_discrepancy": {"of": "logit_normal"},
    "mixture": {"of": "logit_normal", "floor": 0.1},
    "phases": {"phases": [(0, "uniform"), (10**6, "logit_normal")]},
    "clts": {"ramp_steps": 10**6},
    "curriculum": {"switch_step": 10**6},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--size", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    process = op.DDPM("linear", steps=1000)
    model = build_model("unet-1m", image_size=options.size, channels=3)
    x0 = torch.randn(options.batch, 3, options.size, options.size)
    shares = {name: _share(name, process, model, x0, options.rounds) for name in op.samplers()}
    result = {
        "parameters": count_parameters(model),
        "batch": list(x0.shape),
        "threads": 1,
        "torch": torch.__version__,
        "rounds": options.rounds,
        "methods": shares,
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")
    for name, row in sorted(shares.items(), key=lambda item: item[1]["share"]):
        print(f"{name:20s} {row['microseconds']:8.0f} us   {row['share']:.3%} of a step ({row['step_ms']:.1f} ms)")


def _share(name: str, process: op.Process, model: torch.nn.Module, x0: Tensor, rounds: int) -> dict[str, float]:
    """Medians over rounds of one training step and of ten draw + watch, alternating."""
    sampler = op.sampler(name, process, **SETTINGS.get(name, {}))
    objective = op.objective(model, process)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    losses = torch.rand(len(x0))
    steps, draws = [], []
    for _ in range(rounds):
        start = time.perf_counter()
        draw = op.sampler("uniform", process).draw(len(x0))
        objective(x0, draw).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        steps.append(time.perf_counter() - start)
        block = []
        for _ in range(10):
            sampler.steps_watched = 1_000_001  # far from any measurement, so that nothing is due
            start = time.perf_counter()
            draw = sampler.draw(x0)
            with sampler.watch(draw, losses, _never, model=model):
                pass
            block.append(time.perf_counter() - start)
        draws.append(statistics.median(block))
    step, cost = statistics.median(steps), statistics.median(draws)
    return {"microseconds": 1e6 * cost, "step_ms": 1e3 * step, "share": cost / step}


def _never(draw: op.Draw) -> Tensor:
    raise RuntimeError("a measurement was due although none should be")


if __name__ == "__main__":
    main()
