"""The part of docs/benchmarks.md on what `opportune suggest` is worth: its densities beside the best in hindsight."""

from __future__ import annotations

import json
import math
from pathlib import Path
from statistics import mean
from typing import Any

from opportune.diagnostics.suggest.forecast import EXPONENT

RESULTS = Path(__file__).parent / "results"
ALLOWED = 0.10
Row = dict[str, Any]


def section() -> str:
    """Markdown; empty until both the suggestions and the fixed densities were trained."""
    paths = [RESULTS / "suggest.json", RESULTS / "analytic-report.json"]
    if not all(path.exists() for path in paths):
        return ""
    suggestions, hindsight = (json.loads(path.read_text()) for path in paths)
    data, rows = suggestions["about"]["data"], suggestions["rows"]
    parts = []
    for variant, title in (("density", "The density alone"), ("both", "With the weighting suggested beside it")):
        groups = _groups([row for row in rows if row["variant"] == variant])
        lines = [_line(*place, group, hindsight["values"][f"{place[0]}/{data}"], hindsight) for place, group in groups]
        parts.append(f"**{title}.** {_verdict(lines)}\n\n{_table(lines)}")
    seeds = sorted({row["seed"] for row in rows})
    return f"""## What a suggestion is worth

A network is trained with uniform draws; `opportune suggest` reads its log and names a density; a new network is
trained with that, for as many steps. Its excess loss is compared with the best of the fixed densities in hindsight (the
table of the report above, same mixture, same seeds {", ".join(map(str, seeds))}) and with uniform; *expected* is what
the suggestion said it would gain on uniform. Aimed for: within 10 % of the best fixed density.

Reproduce: `python benchmarks/suggest.py --workers 2`, after the report above

{(chr(10) * 2).join(parts)}
"""


def _groups(rows: list[Row]) -> list[tuple[tuple[str, str], list[Row]]]:
    places = dict.fromkeys((row["setting"], row["objective"]) for row in rows)
    return [(place, [row for row in rows if (row["setting"], row["objective"]) == place]) for place in sorted(places)]


def _line(setting: str, objective: str, rows: list[Row], values: dict[str, Any], hindsight: dict[str, Any]) -> Row:
    seeds = [str(row["seed"]) for row in rows]
    fixed = {
        label: mean(values[label]["by_seed"][objective][seed] for seed in seeds)
        for label in hindsight["fixed"]
        if label in values and all(seed in values[label]["by_seed"][objective] for seed in seeds)
    }
    best = min(fixed, key=lambda label: fixed[label])
    got = mean(row["final"][objective] for row in rows)
    return {
        "setting": setting,
        "objective": objective,
        "suggested": "; ".join(dict.fromkeys(_named(row) for row in rows)),
        "best": best,
        "regret": got / fixed[best] - 1,
        "gained": got / mean(row["uniform"][objective] for row in rows) - 1,
        "expected": mean(math.exp(-EXPONENT * row["efolds"]) for row in rows) - 1,
    }


def _named(row: Row) -> str:
    if row["keep"]:
        return "keep uniform"
    settings = ", ".join(
        f"{name} {value:.2f}" if isinstance(value, float) else name for name, value in row["method"]["settings"].items()
    )
    weighting = f" + {row['method']['weighting']}" if row["method"].get("weighting") else ""
    return f"{row['method']['sampler']} ({settings}){weighting}"


def _verdict(lines: list[Row]) -> str:
    missed = [line for line in lines if line["regret"] > ALLOWED]
    worst = max(lines, key=lambda line: line["regret"])
    said = f"Worst: {100 * worst['regret']:+.1f} % ({worst['setting']}, {worst['objective']})."
    if not missed:
        return f"Within 10 % of the best fixed density in all {len(lines)} cases. {said}"
    return f"Within 10 % of the best fixed density in {len(lines) - len(missed)} of {len(lines)} cases. {said}"


def _table(lines: list[Row]) -> str:
    head = ["process", "loss", "suggested, by seed", "best in hindsight", "above it", "against uniform", "expected"]
    body = [
        [
            line["setting"],
            line["objective"],
            line["suggested"],
            line["best"],
            *(f"{100 * line[name]:+.1f} %" for name in ("regret", "gained", "expected")),
        ]
        for line in lines
    ]
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *body])
