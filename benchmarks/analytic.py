"""Distance to the optimal denoiser of methods x noise processes x data x seeds.

    python benchmarks/analytic.py --plan quick --workers 2
    python benchmarks/analytic.py --plan grid --workers 1 --out runs/analytic --results my-results

Plans: smoke, quick, grid, learning, full, or a TOML file (see benchmarks/_plans.py). Finished cells are kept in --out,
one JSON each, and are not run again; stop and start at will. Writes <results>.json, .md and .png.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

for _variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_variable] = "1"  # before torch is imported: two-thread runs side by side slow each other down
ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
from benchmarks import _cell, _plans, _pool, _report  # noqa: E402
from benchmarks._regret import Table  # noqa: E402

import opportune as op  # noqa: E402


def main(arguments: list[str] | None = None) -> int:
    """Run a plan; returns 1 if a cell failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plan", default="quick", help="name or .toml file")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes; 0 runs in this one")
    parser.add_argument("--out", type=Path, default=Path("runs/analytic"), help="folder of finished cells")
    parser.add_argument("--results", type=Path, help="default benchmarks/results/analytic-<plan>")
    parser.add_argument("--only", nargs="*", default=[], help="keep settings, data and methods containing these words")
    parser.add_argument("--seeds", type=int, nargs="*", help="instead of the plan's")
    parser.add_argument("--report-only", action="store_true", help="run nothing, report what is finished")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    plan = dict(_plans.read(given.plan))
    if given.seeds:
        plan["seeds"] = given.seeds
    cells, left_out = _plans.cells(plan)
    cells = [c for c in cells if all(word in _words(c) for word in given.only)]
    if left_out:
        print(f"not installed, left out: {', '.join(left_out)}", file=sys.stderr)
    if given.report_only:
        loaded = [_pool.load(given.out / f"{_cell.key(c)}.json") for c in cells]
        results, failures = [found for found in loaded if found is not None], []
    else:
        results, failures = _pool.work(cells, folder=given.out, run=_cell.run, key=_cell.key, workers=given.workers)
    if results:
        name = Path(given.plan).stem
        write(_relabel(results, cells), given.results or ROOT / f"benchmarks/results/analytic-{name}", name)
    for cell, problem in failures:
        print(f"failed: {cell}: {problem}", file=sys.stderr)
    return 1 if failures else 0


def write(results: list[dict], base: Path, name: str) -> None:
    """``<base>.json``, ``.md`` and ``.png``."""
    table, title = Table(results), f"Distance to the optimum: {name}"
    base.parent.mkdir(parents=True, exist_ok=True)
    versions = {"opportune": op.__version__, "torch": torch.__version__, "cells": len(results)}
    content = {"plan": name, "about": versions, **_report.summary(table)}
    base.with_suffix(".json").write_text(json.dumps(content, indent=1) + "\n")
    base.with_suffix(".md").write_text(_report.markdown(table, title))
    _report.figure(table, base.with_suffix(".png"), title)
    print(f"{len(results)} cells -> {base}.json .md .png", file=sys.stderr)


def _words(cell: dict) -> str:
    return f"{cell['setting']} {cell['data']} {cell['method']['label']}"


def _relabel(results: list[dict], cells: list[dict]) -> list[dict]:
    """Labels are the plan's, not those under which a cell was run first."""
    specs = {_cell.key(cell): cell for cell in cells}
    return [{**result, "spec": specs[_cell.key(result["spec"])]} for result in results]


if __name__ == "__main__":
    raise SystemExit(main())
