"""The tables of a comparison as Markdown, which reads well in a terminal too, and as JSON."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict
from typing import Any

from .plan import Plan
from .summary import Row, Table, Value


def to_markdown(plan: Plan, tables: Sequence[Table]) -> str:
    """One table per setting and metric, columns aligned."""
    parts = [f"# {plan.title}"]
    for table in tables:
        parts.append(f"## {table.title}, {table.setting}\n\n{table.note} {_seeds(table)}\n\n{one_table(table)}")
    return "\n\n".join(parts) + "\n"


def to_json(plan: Plan, tables: Sequence[Table]) -> dict[str, Any]:
    """Everything, with the value of every seed."""
    return {"plan": plan.name, "title": plan.title, "tables": [asdict(table) for table in tables]}


def one_table(table: Table) -> str:
    """Methods down, points across; last the value at the time of the baseline's last step, and a step's cost."""
    timed = any(row.cost is not None for row in table.rows)
    head = ["method", *(f"{point:,} steps" for point in table.points), *(["equal time", "cost of a step"] * timed)]
    return aligned([head, *(_cells(row, table, timed) for row in table.rows)])


def aligned(lines: Sequence[Sequence[str]], *, left: Collection[int] = (0,)) -> str:
    """Rows of text as a Markdown table; the columns in ``left`` are text, the others numbers, which stand right."""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]

    def written(line: Sequence[str]) -> str:
        cells = (
            text.ljust(width) if column in left else text.rjust(width)
            for column, (text, width) in enumerate(zip(line, widths, strict=True))
        )
        return "| " + " | ".join(cells) + " |"

    ends = ("-" if column in left else ":" for column in range(len(widths)))
    rule = "|" + "|".join("-" * (width + 1) + end for width, end in zip(widths, ends, strict=True)) + "|"
    return "\n".join([written(lines[0]), rule, *map(written, lines[1:])])


def _cells(row: Row, table: Table, timed: bool) -> list[str]:
    values = [_shown(row.at.get(point)) for point in table.points]
    last = [_shown(row.equal_time), "" if row.cost is None else f"{row.cost:.2f}"] if timed else []
    return [f"{row.label} (baseline)" if row.baseline else row.label, *values, *last]


def _shown(value: Value | None) -> str:
    if value is None:
        return ""
    return f"{value.mean:.4g}" if value.std is None else f"{value.mean:.4g} ± {value.std:.2g}"


def _seeds(table: Table) -> str:
    seeds = ", ".join(map(str, table.seeds))
    if table.partial:
        return f"Not finished: each method stands with what it has of seeds {seeds}."
    if len(table.seeds) == 1:
        return f"One seed ({seeds}): nothing is known of the spread."
    return f"Mean ± standard deviation over seeds {seeds}."
