"""What every sampler costs per training step beside uniform draws, by model, batch, number of timesteps and ranks.

    python benchmarks/overhead.py            # writes benchmarks/results/overhead.json; under ten minutes on two cores
    python benchmarks/overhead.py --quick --output /tmp/overhead.json

Within a row all methods train one model on one batch in one process, in blocks that alternate; a method that measures
now and then is charged for it in proportion (``opportune.diagnostics.overhead``). Ratios by the clock on the wall, by
CPU time, and in forward passes counted at the model.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
import tempfile
import time
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported: ranks side by side share two cores
ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.multiprocessing as mp  # noqa: E402

import opportune as op  # noqa: E402
from opportune.diagnostics import overhead  # noqa: E402
from opportune.models import build_model, count_parameters  # noqa: E402

RESULTS = Path(__file__).parent / "results" / "overhead.json"

# Wrappers and schedules need to be told what they go around and when they end.
SETTINGS: dict[str, dict[str, Any]] = {
    "table": {"density": [1.0, 2.0, 1.0]},
    "stratified": {"of": "logit_normal"},
    "low_discrepancy": {"of": "logit_normal"},
    "mixture": {"of": "logit_normal", "floor": 0.1},
    "phases": {"phases": [(0, "uniform"), (10**6, "logit_normal")]},
    "clts": {"ramp_steps": 10**6},
    "curriculum": {"switch_step": 10**6},
}
CHEAP = "kim (shared probe)"
LEARNING = {"uniform": ("uniform", {}), "adaptive": ("adaptive", {}), "kim": ("kim", {})} | {
    CHEAP: ("kim", {"measurement": "shared"})
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "UNet 1 M": ("unet-1m", {}),
    "UNet 10 M": ("unet-4m", {"widths": (96, 192, 192)}),
    "UNet 36 M": ("ddpm-cifar10", {}),
    "DiT 2 M": ("dit-2m", {}),
}


@dataclass(frozen=True, kw_only=True)
class Row:
    """One comparison."""

    model: str = "UNet 1 M"
    size: int = 16
    batch: int = 32
    steps: int = 1000
    ranks: int = 1
    every_method: bool = False
    rounds: int = 8
    varies: str = ""


FULL = [
    Row(every_method=True, batch=64, varies="method"),
    Row(varies="model"),
    Row(model="UNet 10 M", size=8, varies="model"),
    Row(model="UNet 36 M", size=8, varies="model"),
    Row(model="DiT 2 M", varies="model"),
    Row(batch=16, varies="batch"),
    Row(batch=128, varies="batch", rounds=6),
    Row(steps=100, varies="timesteps"),
    Row(steps=4000, varies="timesteps"),
    Row(batch=16, ranks=2, varies="ranks"),
]
QUICK = [
    Row(every_method=True, batch=16, size=8, rounds=3, varies="method"),
    Row(model="DiT 2 M", batch=16, size=8, rounds=3, varies="model"),
    Row(steps=4000, batch=16, size=8, rounds=3, varies="timesteps"),
    Row(batch=8, ranks=2, size=8, rounds=3, varies="ranks"),
]


def main() -> None:
    """Measure every row and write the file."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument(
        "--quick", action="store_true", help="small models, few rounds: does it run, not what it costs"
    )
    options.add_argument("--output", type=Path, default=RESULTS)
    chosen = options.parse_args()
    rows = []
    for row in QUICK if chosen.quick else FULL:
        start = time.perf_counter()
        rows.append(measured(row))
        print(f"{row} {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
        for label, found in rows[-1]["methods"].items():
            print(
                f"  {label:28s} wall {found['wall']['median']:.4f}  cpu {found['cpu']['median']:.4f}  added "
                f"{found['added_cpu']['median']:.4f}  forwards {1 + found['forwards_per_step'] / 3:.4f}",
                file=sys.stderr,
                flush=True,
            )
    about = {"torch": torch.__version__, "threads_per_process": 1, "quick": chosen.quick}
    chosen.output.parent.mkdir(parents=True, exist_ok=True)
    chosen.output.write_text(json.dumps({"about": about, "rows": rows}, indent=1) + "\n")


def measured(row: Row) -> dict[str, Any]:
    """A row and what every method cost in it, of rank 0."""
    if row.ranks == 1:
        return _measure(row)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_rank, args=(row, port, folder), nprocs=row.ranks, join=True)
        found: dict[str, Any] = json.loads((Path(folder) / "found.json").read_text())
    return found


def _rank(rank: int, row: Row, port: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=row.ranks)
    try:
        found = _measure(row)
        if rank == 0:
            (Path(folder) / "found.json").write_text(json.dumps(found))
    finally:
        dist.destroy_process_group()


def _measure(row: Row) -> dict[str, Any]:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    process = op.DDPM("linear", steps=row.steps)
    name, settings = MODELS[row.model]
    model = build_model(name, image_size=row.size, channels=3, **settings)
    x0 = torch.randn(row.batch, 3, row.size, row.size)
    wanted = LEARNING | {name: (name, SETTINGS.get(name, {})) for name in op.samplers() if row.every_method}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what a sampler says of a setting that has no effect on so short a run
        samplers = {label: op.sampler(name, process, **given) for label, (name, given) in wanted.items()}
        found = overhead(samplers, op.objective(model, process), x0, rounds=row.rounds)
    return {
        **asdict(row),
        "parameters": count_parameters(model),
        "methods": {label: asdict(each) for label, each in found.items()},
    }


if __name__ == "__main__":
    main()
