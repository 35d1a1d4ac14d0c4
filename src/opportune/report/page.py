"""The report: one HTML file that needs nothing else, from run folders.

Pages run no script: what can be chosen is chosen by CSS, and a content security policy forbids scripts and every
request. So nothing that stands in a run folder can do more than be read.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..diagnostics.found import plain, write_whole
from ..diagnostics.plots.palette import look
from ..train.errors import ConfigError
from .arrange import Setting, arrange
from .comparable import check_held_out, check_scores
from .draw import draw, inline
from .estimate import Estimate
from .figure_data import Figure, figures_of
from .metrics import metrics_of
from .outcome import Outcome, outcomes
from .overhead import costs
from .pictures import Picture, encoded, grids_of
from .reproduce import difference_table, evaluation_commands, more_than_the_method, plans, recipe
from .runs import Run, read_runs
from .words import choice_text, duration, headline, mean_text, reach_text, share_text

COLOURS = 8


@dataclass(frozen=True, kw_only=True)
class Report:
    """A written report: the file, its size, and the sentences at its head."""

    path: Path
    bytes: int
    headlines: tuple[str, ...]
    notes: tuple[str, ...]


def write_report(
    paths: Sequence[str | Path],
    output: str | Path = "report.html",
    *,
    baseline: str | None = None,
    frechet: bool = True,
    data: bool = False,
) -> Report:
    """Compare the runs in ``paths`` and write the report.

    Args:
        paths: run folders, or folders of comparisons.
        output: file to write, at once or not at all.
        baseline: label the others are measured against; left out, what the plan or the samplers say.
        frechet: compare Fréchet distances; they must have been measured with the same number of images.
        data: also write every figure and its numbers into ``<output stem>_data/``.
    """
    target = Path(output)
    if target.is_dir():
        raise ConfigError(f"--output {target} is a folder; name a file, e.g. {target / 'report.html'}.")
    runs = read_runs(paths)
    settings = arrange(runs, baseline)
    notes = [_left_out(runs)] if not all(run.started for run in runs) else []
    parts = []
    for number, setting in enumerate(settings):
        check_held_out(setting)
        note = check_scores(setting, frechet=frechet)
        parts.append(_setting(setting, f"s{number}", frechet=frechet, note=note))
    page = _rendered(settings, parts, notes, _file_names(settings))
    write_whole(target, page)
    if data:
        _write_data(target.with_name(f"{target.stem}_data"), parts)
    several = len(settings) > 1
    headlines = tuple(
        f"{part['setting'].name}: {line}" if several else str(line) for part in parts for line in part["headlines"]
    )
    notes += [_unfinished(run) for part in parts for run in part["unfinished"]]  # the page says it in its place
    return Report(path=target, bytes=len(page.encode()), headlines=headlines, notes=tuple(notes))


def _setting(setting: Setting, key: str, *, frechet: bool, note: str | None) -> dict[str, Any]:
    """What the template shows of one setting."""
    metrics = metrics_of(setting, frechet=frechet)
    found = {metric.key: outcomes(setting, metric) for metric in metrics}
    figures = figures_of(setting, metrics)
    grids, shown = grids_of(setting)
    unfinished = [run for run in setting.runs if not run.finished]
    return {
        "key": key,
        "setting": setting,
        "headlines": [headline(setting, metric, found[metric.key]) for metric in metrics],
        "choice": choice_text(setting),
        "metrics": [(metric, found[metric.key]) for metric in metrics],
        "scores": [(run, each.step, each.scores) for run in setting.runs for each in run.evaluations[-1:]],
        "figures": {name: [_drawn(figure, key) for figure in group] for name, group in figures.items()},
        "grids": grids,
        "shown": shown,
        "diagnoses": [(run, path) for run in setting.runs for path in sorted((run.path / "diagnostics").glob("*.png"))],
        "costs": costs(setting),
        "measured": any(cost.measured for cost in costs(setting)),
        "frechet": frechet,
        "unfinished": unfinished,
        "more": more_than_the_method(setting),
        "score_note": note,
        "partly_paired": _partly_paired(found),
        "data": {"results": plain(found), "costs": plain(costs(setting))},
    }


def _drawn(figure: Figure, key: str) -> dict[str, Any]:
    name = f"{key}-{figure.key}"
    svg = draw(figure)
    return {"figure": figure, "name": name, "file": svg, "svg": inline(svg, name), "json": plain(figure)}


def _rendered(
    settings: Sequence[Setting], parts: Sequence[dict[str, Any]], notes: Sequence[str], files: dict[int, str]
) -> str:
    from opportune import __version__

    methods = {method.number: method for setting in settings for method in setting.methods}
    runs = [run for setting in settings for run in setting.runs]
    pictures = encoded(
        list(dict.fromkeys([file for part in parts for grid in part["grids"] for file in grid.files.values()]))
        + [file for part in parts for _, file in part["diagnoses"]]
    )
    template = _environment(pictures).get_template("report.html")
    page: str = template.render(
        methods=[methods[number] for number in sorted(methods)],
        looks={number: look(number) for number in methods},
        colours=[look(number) for number in range(COLOURS)],
        parts=parts,
        runs=runs,
        notes=notes,
        recipes=[(setting, [recipe(method, files[id(method)]) for method in setting.methods]) for setting in settings],
        plans=plans(runs),
        evaluations=[command for run in runs if run.comparison is None for command in evaluation_commands(run)],
        environments=_environments(runs),
        configs=[(setting, *difference_table(setting.methods)) for setting in settings],
        several=len(settings) > 1,
        report_command=shlex.join(
            ["opportune", "report", *dict.fromkeys(str(run.comparison or run.path) for run in runs)]
        ),
        made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        version=__version__,
    )
    return page


def _environment(pictures: dict[Path, Picture]) -> Any:
    try:
        import jinja2
        from markupsafe import Markup
    except ImportError as error:
        raise ImportError('a report needs jinja2: pip install "opportune[report]".') from error
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("opportune.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"mean": mean_text, "share": share_text, "reach": reach_text, "duration": _durations}
    made.filters["drawing"] = Markup  # SVG of our own, in which no text of a run stands
    made.globals |= {"picture": pictures.__getitem__}
    return made


def _durations(found: Estimate | None) -> str:
    if found is None or found.low is None or found.high is None:
        return duration(found.mean if found else None)
    return f"{duration(found.mean)} ± {duration(found.high - found.mean)}"


def _environments(runs: Sequence[Run]) -> list[tuple[dict[str, Any], list[Run]]]:
    """What runs were made with, and which; one entry where all are alike."""
    groups: dict[str, tuple[dict[str, Any], list[Run]]] = {}
    for run in runs:
        hardware = run.config.get("hardware", {})
        found = {**run.environment, **{key: hardware.get(key) for key in ("device", "precision", "ranks")}}
        found = {key: value for key, value in found.items() if value is not None}
        groups.setdefault(json.dumps(found, sort_keys=True, default=str), (found, []))[1].append(run)
    return list(groups.values())


def _left_out(runs: Sequence[Run]) -> str:
    names = [run.path.name for run in runs if not run.started]
    return f"{len(names)} of {len(runs)} runs have not begun and are left out: {', '.join(names)}."


def _unfinished(run: Run) -> str:
    return f"{run.path} is unfinished, at step {run.reached:,} of {run.steps:,}, and not counted in any mean."


def _partly_paired(found: dict[str, list[Outcome]]) -> list[str]:
    """Methods compared by fewer seeds than they have, or by none that matches."""
    told = []
    for group in found.values():
        for outcome in group:
            if outcome.reaches and not outcome.paired:
                told.append(f"{outcome.label} shares no seed with the baseline and is compared with its mean.")
            elif outcome.reaches and len(outcome.reaches) < len(outcome.seeds):
                told.append(f"{outcome.label} is compared by {len(outcome.reaches)} of its {len(outcome.seeds)} seeds, "
                            "those the baseline has too.")  # fmt: skip
    return list(dict.fromkeys(told))


def _file_names(settings: Sequence[Setting]) -> dict[int, str]:
    """A file for each method's configuration, by the identity of the method."""
    names: dict[int, str] = {}
    for setting in settings:
        for method in setting.methods:
            said = f"{setting.name} {method.label}" if len(settings) > 1 else method.label
            name = re.sub(r"[^a-z0-9]+", "-", said.lower()).strip("-")[:60] or f"method-{method.number}"
            taken = list(names.values())
            names[id(method)] = f"{name}.toml" if f"{name}.toml" not in taken else f"{name}-{len(taken)}.toml"
    return names


def _write_data(folder: Path, parts: Sequence[dict[str, Any]]) -> None:
    """Every figure as SVG with its numbers beside it, and the tables' numbers."""
    for part in parts:
        for drawn in (drawn for group in part["figures"].values() for drawn in group):
            write_whole(folder / f"{drawn['name']}.svg", drawn["file"])
            write_whole(folder / f"{drawn['name']}.json", json.dumps(drawn["json"], indent=1, allow_nan=False) + "\n")
        write_whole(folder / f"{part['key']}-results.json", json.dumps(part["data"], indent=1, allow_nan=False) + "\n")
