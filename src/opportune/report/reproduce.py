"""How to make the runs again, and how their configurations differ."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..train.run_folder import CONFIG
from .arrange import Method, Setting, differing, flat
from .runs import PLAN, Run

_OF_THE_METHOD = ("sampler.", "weighting.", "optimizer.momentum_decay")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One method: its configuration as TOML, the name of a file to keep it in, and a command per seed."""

    label: str
    file: str
    toml: str
    commands: tuple[str, ...]


def recipe(method: Method, file: str) -> Recipe:
    """What to write and to type to train every seed of ``method`` again."""
    first = method.runs[0]
    commands = []
    for run in method.runs:
        words = ["opportune", "train", "--config", file]
        words += ["--seed", str(run.config["run"]["seed"]), "--output-dir", str(run.path)]
        commands.append(shlex.join(words))
    text = (first.path / CONFIG).read_text(encoding="utf-8")
    return Recipe(label=method.label, file=file, toml=text.strip() + "\n", commands=tuple(commands))


def evaluation_commands(run: Run) -> list[str]:
    """What gave the scores and the pictures of a run, where it was done by hand."""
    found = []
    for each in run.evaluations[-1:]:
        words = ["opportune", "evaluate", str(run.path), "--count", str(each.scores.n_generated)]
        found.append(shlex.join([*words, "--features", each.scores.features]))
    if run.samples:
        found.append(shlex.join(["opportune", "generate", str(run.path)]))
    return found


def plans(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """Folder and plan of every comparison the runs come from."""
    folders = dict.fromkeys(run.comparison for run in runs if run.comparison is not None)
    files = [(str(folder), folder / PLAN) for folder in folders]
    return [(folder, file.read_text(encoding="utf-8")) for folder, file in files if file.is_file()]


def difference_table(methods: Sequence[Method]) -> tuple[list[str], list[list[str]]]:
    """Settings that are not the same in all methods, and their values: one row per setting, one column per method."""
    names = differing([method.runs[0].config for method in methods])
    flats = [flat(method.runs[0].config) for method in methods]
    return names, [[_shown(each.get(name)) for each in flats] for name in names]


def more_than_the_method(setting: Setting) -> list[str]:
    """Settings beyond sampler, weighting and momentum decay in which methods of one setting differ."""
    names = differing([method.runs[0].config for method in setting.methods])
    return [name for name in names if not name.startswith(_OF_THE_METHOD)]


def _shown(value: Any) -> str:
    return "not set" if value is None else value if isinstance(value, str) else json.dumps(value)
