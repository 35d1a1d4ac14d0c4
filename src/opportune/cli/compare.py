"""``opportune compare``: a plan in; a folder of runs, their scores and a table of them out."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from opportune.checks import closest
from opportune.cli.arguments import SHORT, toml_value, written_out
from opportune.cli.parser import Parser
from opportune.compare import Evaluate, Plan, cells_of, plans, read_plan, shipped_plan
from opportune.compare.summary import summarise
from opportune.compare.tables import to_json, to_markdown
from opportune.diagnostics.found import write_whole
from opportune.report.runs import PLAN
from opportune.train.config_file import names
from opportune.train.errors import ConfigError

_DESCRIPTION = """Train and score methods x settings x seeds, as a plan says, and compare them.

PLAN is a TOML file, the name of a plan that comes with the package, or the folder of a comparison to go on with.
Whatever is finished stays; interrupted cells go on exactly where they were. Flags of `opportune train`, such as
--data.source or --run.steps, change every cell; --evaluate.count and the like change how all are scored."""


def main(words: Sequence[str]) -> int:
    """Run ``opportune compare`` with these words; returns the exit code."""
    own, changes = _sorted_out(words)
    arguments = _parser().parse_args(own)
    plan, output = find_plan(arguments.plan, changes, arguments.output_dir)
    if arguments.dry_run:
        from opportune.compare.dry_run import describe

        print(describe(plan, cells_of(plan, output)))
        return 0
    if arguments.workers < 1:
        raise ConfigError(f"--workers={arguments.workers} must be 1 or more.")
    from opportune.compare.run import run_plan

    outcome = run_plan(plan, output, workers=arguments.workers, say=_say)
    _report(plan, output)
    for name, why in outcome.failed.items():
        _say(f"failed: {name}: {why}")
    if outcome.stopped_by is not None:
        _say(f"stopped by {outcome.stopped_by}, all is saved; go on with: opportune compare {output}")
    elif outcome.failed:
        _say(f"{len(outcome.failed)} failed; what is finished stays. Try again with: opportune compare {output}")
    return outcome.exit_code


def find_plan(given: str, changes: dict[str, Any], output: str | None) -> tuple[Plan, Path]:
    """The plan meant by a file, a name or the folder of a comparison, and the folder it is for."""
    path = Path(given)
    if path.is_dir():
        if not (path / PLAN).is_file():
            raise ConfigError(f"{path} is no folder of a comparison: there is no {PLAN} in it.")
        return read_plan(path / PLAN, changes, name=path.resolve().name), Path(output or path)
    plan = read_plan(path, changes) if path.is_file() or path.suffix else shipped_plan(given, changes)
    return plan, Path(output or Path("runs") / plan.name)


def _report(plan: Plan, output: Path) -> None:
    """Print the tables of what there is, and keep them as summary.md and summary.json."""
    tables = summarise(cells_of(plan, output), output)
    if not tables:  # stopped before the first held-out loss
        return
    text = to_markdown(plan, tables)
    write_whole(output / "summary.md", text)
    write_whole(output / "summary.json", json.dumps(to_json(plan, tables), indent=2) + "\n")
    print(text)


def _sorted_out(words: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """Our own words, and what flags of ``opportune train`` change, by section."""
    known = {f"--{name.replace('_', '-')}": name.split(".") for name in [*names(), *names(Evaluate(), "evaluate.")]}
    short = {flag: full for flag, full in SHORT.items() if flag not in ("--output-dir", "--seed")}
    own: list[str] = []
    changes: dict[str, Any] = {}
    remaining = iter(written_out(words, short))
    for word in remaining:
        section, dot, setting = word.removeprefix("--").partition(".settings.")
        if word not in known and not dot:
            if word.startswith("--") and "." in word.partition("=")[0]:  # it can only be meant for a cell
                raise ConfigError(f"{word} is unknown{closest(word, known) or '.'} See opportune train --help for all.")
            own.append(word)
            continue
        value = next(remaining, None)
        if value is None or value.startswith("--"):
            raise ConfigError(f"{word} needs a value.")
        if dot:
            changes.setdefault(section, {}).setdefault("settings", {})[setting] = toml_value(value)
        else:
            section, key = known[word]
            changes.setdefault(section, {})[key] = toml_value(value)
    for key in ("output_dir", "seed"):
        if key in changes.get("run", {}):
            raise ConfigError(
                f"--run.{key.replace('_', '-')} is set for every cell by the plan; use --output-dir or seeds."
            )
    return own, changes


def _parser() -> Parser:
    parser = Parser(prog="opportune compare", description=f"{_DESCRIPTION}\n\nplans: {', '.join(plans())}")
    parser.add_argument("plan", metavar="PLAN", help="file, name or folder")
    parser.add_argument("--output-dir", help="folder of the comparison; runs/NAME unless given")
    parser.add_argument("--workers", type=int, default=1, help="processes at a time (default 1)")
    parser.add_argument("--dry-run", action="store_true", help="say what would be run and what it costs; make no file")
    return parser


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
