"""The part of docs/benchmarks.md on what methods cost, from benchmarks/results/overhead.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results" / "overhead.json"
_TITLES = {
    "model": "By model",
    "batch": "By batch",
    "timesteps": "By number of timesteps T",
    "ranks": "By number of ranks (DDP over gloo, two processes sharing two cores)",
}


def section() -> str:
    """Markdown; empty until measured."""
    if not RESULTS.exists():
        return ""
    rows = json.loads(RESULTS.read_text())["rows"]
    every = next(row for row in rows if row["varies"] == "method")
    parts = [_HEAD, _about(every), _methods(every), _reading()]
    for varies, title in _TITLES.items():
        parts.append(f"### {title}\n\n" + _varied([row for row in rows if row["varies"] == varies]))
    return "\n\n".join(parts) + "\n"


_HEAD = """## What a method costs per training step

Time of a training step with each method over the same step with uniform draws: 1.02 is 2 % more. All methods of a row
train one network on one batch in one process, in blocks that alternate; methods that measure now and then are charged
for it in proportion. `uniform` is the control: how far it is from 1 is what the machine adds.

- **forwards**: passes of the batch counted at the network, a step being 3 (a backward pass counts as two).
- **draw + watch**: CPU time of the method's own part over the CPU time of a step: the steadiest of the three.
- **CPU time**, **wall-clock**: of whole steps; medians over rounds with their 95 % interval.

Reproduce: `python benchmarks/overhead.py`"""


def _about(row: dict[str, Any]) -> str:
    return f"{_network(row)}, {_shape(row)}, T = {row['steps']}, DDPM, {row['rounds']} rounds:"


def _methods(row: dict[str, Any]) -> str:
    found = sorted(row["methods"].items(), key=lambda item: -item[1]["added_cpu"]["median"])
    return _table(["sampler"], [([f"`{label}`"], cost) for label, cost in found])


def _varied(rows: list[dict[str, Any]]) -> str:
    lines = [
        ([_network(row), _shape(row), str(row["steps"]), str(row["ranks"]), f"`{label}`"], cost)
        for row in rows
        for label, cost in row["methods"].items()
    ]
    return _table(["network", "batch per rank", "T", "ranks", "sampler"], lines)


def _table(names: list[str], lines: list[tuple[list[str], dict[str, Any]]]) -> str:
    head = [*names, "forwards", "draw + watch", "CPU time", "wall-clock"]
    body = [
        [
            *who,
            f"{1 + cost['forwards_per_step'] / 3:.3f}",
            _ratio(cost["added_cpu"]),
            _ratio(cost["cpu"]),
            _ratio(cost["wall"]),
        ]
        for who, cost in lines
    ]
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *body])


def _ratio(found: dict[str, float]) -> str:
    return f"{found['median']:.3f} [{found['low']:.3f}, {found['high']:.3f}]"


def _network(row: dict[str, Any]) -> str:
    return f"{row['model'].split()[0]}, {row['parameters'] / 1e6:.1f} M parameters"


def _shape(row: dict[str, Any]) -> str:
    return f"{row['batch']} × 3 × {row['size']} × {row['size']}"


def _reading() -> str:
    return (
        "Kim et al. report 1.41 in forward passes and about 1.5 measured for their method. Here the gain over the "
        "whole axis is measured by one forward pass, each example at another place, so that a measurement is a "
        "fixed number of passes whatever T, the batch and the number of ranks: 8 with the reward as published, 2 with "
        'one probe for everything (`measurement="shared"`).'
    )
