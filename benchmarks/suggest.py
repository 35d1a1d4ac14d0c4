"""How far the suggested fixed density is from the best one in hindsight, and whether the expected gain came true.

    python benchmarks/suggest.py --workers 1 --seeds 100 101

Trains uniformly on a report mixture, suggests from that run's log, trains the suggestion with the same budget, once the
density alone and once with the weighting suggested beside it. The page compares both with the fixed densities of
``benchmarks/results/analytic-report.json`` (same mixture, seeds and budget). Finished cells are kept in --out,
one JSON each; stop and start at will. Writes ``benchmarks/results/suggest.json``.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

for _variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_variable] = "1"  # before torch is imported: two-thread runs side by side slow each other down
ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
from benchmarks import _cell, _plans, _pool  # noqa: E402
from benchmarks._network import ResidualMLP  # noqa: E402

import opportune as op  # noqa: E402
from opportune.diagnostics.suggest import Suggestion, suggest  # noqa: E402
from opportune.train.meters import Meters  # noqa: E402

BINS, EVERY_STEPS = 20, 50  # as `opportune train` logs by default
DATA = "report-modes16"
OBJECTIVES = ("own", "vlb")
RESULTS = ROOT / "benchmarks" / "results"


def main(arguments: list[str] | None = None) -> int:
    """Run what is missing and write the results; returns 1 if a cell failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=1, help="processes; 0 runs in this one")
    parser.add_argument("--seeds", type=int, nargs="*", default=[100, 101, 102])
    parser.add_argument("--settings", nargs="*", default=list(_cell.SETTINGS))
    parser.add_argument("--variants", nargs="*", default=["density", "both"], help="density alone, with the weighting")
    parser.add_argument("--out", type=Path, default=Path("runs/suggest"), help="folder of finished cells")
    parser.add_argument("--results", type=Path, default=RESULTS / "suggest.json")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    failures: list[tuple[str, str]] = []
    for seed in given.seeds:  # seed by seed, so that a run cut short has whole comparisons
        specs = [_cell.cell(setting, DATA, _plans.UNIFORM, seed) for setting in given.settings]
        logs, failed = _pool.work(specs, folder=given.out, run=logged, key=log_key, workers=given.workers)
        failures += failed
        wanted = [(log, objective, variant) for variant in given.variants for log in logs for objective in OBJECTIVES]
        cells = [suggested(log, objective, variant) for log, objective, variant in wanted]
        _, failed = _pool.work(cells, folder=given.out, run=_cell.run, key=_cell.key, workers=given.workers)
        failures += failed
        for (log, objective, variant), cell in zip(wanted, cells, strict=True):
            result = _pool.load(given.out / f"{_cell.key(cell)}.json")
            if result is not None:
                rows.append(_row(log, objective, variant, result))
    if rows:
        given.results.parent.mkdir(parents=True, exist_ok=True)
        about = {"opportune": op.__version__, "torch": torch.__version__, "data": DATA}
        given.results.write_text(json.dumps({"about": about, "rows": rows}, indent=1) + "\n")
        print(f"{len(rows)} rows -> {given.results}", file=sys.stderr)
    for name, problem in failures:
        print(f"failed: {name}: {problem}", file=sys.stderr)
    return 1 if failures else 0


def logged(spec: dict[str, Any]) -> dict[str, Any]:
    """Train a cell and keep what ``metrics.jsonl`` would hold of it, and the final distances to the optimum."""
    torch.set_flush_denormal(True)
    judge = _cell._judge(spec["setting"], spec["data"], spec["pairs"], spec["generated"])
    process, mixture, seed = judge.process, judge.mixture, spec["seed"]
    scale = 250.0 if isinstance(process, op.EDM) else 1.0
    shape = {"width": spec["width"], "blocks": spec["blocks"], "time_scale": scale, "seed": seed}
    network, average = ResidualMLP(mixture.dimension, **shape), ResidualMLP(mixture.dimension, **shape)
    sampler, weighting = _cell.make_method(spec["method"], process, seed)
    optimizer = torch.optim.AdamW(network.parameters(), lr=spec["lr"], fused=True)
    torch.manual_seed(1_000_003 + seed)
    objective = op.Objective(network, process, weighting)
    batches = _cell._batches(mixture, spec["batch"], seed)
    meters, records = Meters(BINS, torch.device("cpu")), []
    weights, averaged = network.flat.detach(), average.flat.detach()
    for record in op.training_steps(objective, sampler, optimizer, batches):
        averaged.lerp_(weights, 1 - spec["ema"])
        meters.add(record, objective.weighted(record.losses, record.draw), None)
        if (record.step + 1) % EVERY_STEPS == 0:
            records.append({"kind": "train", "step": record.step + 1, **meters.record()})
        if record.step + 1 == spec["steps"]:
            break
    last = judge.fine.measure(average)
    final = {"own": last.own, "eps": last.eps, "vlb": last.vlb}
    return {"spec": spec, "records": records, "final": final, "profile": last.profile.tolist()}


def log_key(spec: dict[str, Any]) -> str:
    """A file name for the log of a cell."""
    return f"log-{_cell.key(spec)}"


def found(log: dict[str, Any], objective: str) -> Suggestion:
    """What is suggested from a log."""
    return suggest(_cell.make_process(log["spec"]["setting"]), log["records"], objective=objective)


def suggested(log: dict[str, Any], objective: str, variant: str) -> dict[str, Any]:
    """The cell that trains the suggestion; uniform again where it says to keep that."""
    suggestion, spec = found(log, objective), log["spec"]
    method: dict[str, Any] = dict(_plans.UNIFORM)
    choice = suggestion.choice
    if choice is not None:
        method = {"label": f"suggested[{objective}]", "sampler": choice.sampler, "settings": choice.settings}
        name, settings = suggestion.weighting
        if variant == "both" and name != "none":
            method |= {"weighting": name, "weighting_settings": settings}
    return _cell.cell(spec["setting"], spec["data"], method, spec["seed"])


def _row(log: dict[str, Any], objective: str, variant: str, result: dict[str, Any]) -> dict[str, Any]:
    suggestion, spec = found(log, objective), result["spec"]
    choice = suggestion.choice
    efolds = 0.0 if choice is None else choice.efolds
    return {
        "setting": spec["setting"],
        "seed": spec["seed"],
        "objective": objective,
        "variant": variant,
        "keep": suggestion.keep,
        "method": spec["method"],
        "efolds": efolds + (suggestion.weighting_efolds if variant == "both" else 0.0),
        "uniform": log["final"],
        "final": result["final"],
    }


if __name__ == "__main__":
    raise SystemExit(main())
