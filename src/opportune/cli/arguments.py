"""Command lines to configurations: recipe, then file, then flags, each over the one before."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr
from io import StringIO
from typing import Any, TypeVar

import tyro

from opportune.checks import closest
from opportune.train.config_file import names
from opportune.train.errors import ConfigError

Given = TypeVar("Given")

SHORT = {
    "--seed": "--run.seed",
    "--steps": "--run.steps",
    "--max-train-steps": "--run.steps",
    "--output-dir": "--run.output-dir",
    "--batch-size": "--data.batch-size",
    "--train-batch-size": "--data.batch-size",
    "--accumulation": "--data.accumulation",
    "--gradient-accumulation-steps": "--data.accumulation",
    "--learning-rate": "--optimizer.learning-rate",
    "--lr-warmup-steps": "--schedule.warm-up-steps",
    "--max-grad-norm": "--optimizer.max-gradient-norm",
    "--report-to": "--logs.report-to",
    "--mixed-precision": "--hardware.precision",
    "--checkpointing-steps": "--checkpoint.every-steps",
    "--resume-from-checkpoint": "--resume",
    "--sampler": "--sampler.name",
    "--weighting": "--weighting.name",
    "--process": "--process.name",
    "--model": "--model.name",
    "--ranks": "--hardware.ranks",
}
"""Flags people know from other trainers, and what they are called here."""


def written_out(words: Sequence[str], short: Mapping[str, str]) -> list[str]:
    """``short`` flags in full; ``--flag=value`` in two words; underscores as hyphens; "no-" where tyro wants it."""
    found: list[str] = []
    for word in words:
        flag, equals, value = word.partition("=")
        if flag.startswith("--"):
            flag = flag.replace("_", "-") if ".settings." not in flag else flag
            flag = re.sub(r"^--no-(.+\.)", r"--\1no-", flag)  # --no-data.flip is --data.no-flip
            found.append(short.get(flag, flag))
            found.extend([value] if equals else [])
        else:
            found.append(word)
    return found


def taken_settings(words: Sequence[str]) -> tuple[list[str], dict[str, dict[str, Any]]]:
    """Take ``--SECTION.settings.NAME VALUE`` out; values are TOML (numbers, true, [1, 2]) or else text."""
    rest: list[str] = []
    settings: dict[str, dict[str, Any]] = {}
    remaining = iter(words)
    for word in remaining:
        section, dot, name = word.removeprefix("--").partition(".settings.")
        if not word.startswith("--") or not dot:
            rest.append(word)
            continue
        value = next(remaining, None)
        if value is None or value.startswith("--"):
            raise ConfigError(f"{word} needs a value.")
        settings.setdefault(section, {}).setdefault("settings", {})[name] = toml_value(value)
    return rest, settings


def toml_value(text: str) -> Any:
    """``0.1`` is a number, ``true`` a truth value, ``[1, 2]`` a list, ``{a = 1}`` a table; everything else is text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def known_flags(words: Sequence[str], form: type) -> list[str]:
    """``words``, where every flag is one of ``form``; else a ConfigError that names the nearest."""
    flags = [f"--{name.replace('_', '-')}" for name in names(form()) if not name.endswith(".settings")]
    flags = [flag.replace("--settings.", "--") for flag in flags]  # the sections of train have no common prefix
    short = [flag for flag, full in SHORT.items() if full in flags]
    negated = [f"{head}no-{key}" for head, key in (_cut(flag) for flag in flags)]
    for word in words:
        if word.startswith("--") and word not in {*flags, *negated, "--help"}:
            raise ConfigError(f"{word} is unknown{closest(word, [*flags, *short]) or '.'} See --help for all.")
    return list(words)


def with_run(words: Sequence[str]) -> list[str]:
    """``RUN --more`` as ``--run RUN --more``."""
    words = list(words)
    return ["--run", *words] if words and not words[0].startswith("-") else words


def _cut(flag: str) -> tuple[str, str]:
    """``--data.flip`` into ``--data.`` and ``flip``: where the "no-" of a truth value goes."""
    head, dot, key = flag.rpartition(".")
    return (f"{head}{dot}", key) if dot else ("--", flag.removeprefix("--"))


def parse(form: type[Given], words: Sequence[str], *, default: Given, prog: str, description: str) -> Given:
    """``default`` changed by flags; what is wrong with them is a ConfigError."""
    said = StringIO()
    try:
        with redirect_stderr(said):
            return tyro.cli(form, default=default, args=list(words), prog=prog, description=description)
    except SystemExit as end:
        if not end.code:  # --help
            raise
        raise ConfigError(f"{_in_one_line(said.getvalue())} See {prog} --help.") from None


def _in_one_line(box: str) -> str:
    """What tyro prints: a title, then, between rules, the fault and the help of its flag."""
    fault = re.split(r"^\W*$", box, flags=re.MULTILINE)[1:2]
    text = " ".join(" ".join(fault or [box]).split()).rstrip(".") + "."
    stray = re.fullmatch(r"Unrecognized options: (.*)\.", text)
    if stray:
        return f"{stray[1]} belongs to no flag; truth values are given as --data.flip or --data.no-flip."
    return re.sub(r"Error parsing (\S+): invalid literal for int.*: ('.*')", r"\1: \2 is not a whole number", text)
