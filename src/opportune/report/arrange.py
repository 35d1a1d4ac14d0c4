"""Runs in order: settings apart, and in each its methods, the baseline first, with their seeds.

A label stands for one configuration in which nothing but the seed varies, so that a mean over its runs is a mean over
seeds. Runs of one label that differ in more get the difference into their label.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from ..checks import closest
from ..train.config_file import FREE
from ..train.errors import ConfigError
from .runs import Run

_VARIES = FREE | {"run.seed", "logs.every_steps", "logs.bins"}


@dataclass(frozen=True, kw_only=True)
class Method:
    """One method in one setting; ``number`` is the same wherever the label occurs, and so are colour and line."""

    label: str
    number: int
    baseline: bool
    runs: tuple[Run, ...]

    @property
    def finished(self) -> tuple[Run, ...]:
        """The runs that came to their end: only these are counted in means."""
        return tuple(run for run in self.runs if run.finished)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What may be compared with each other: same process, same data."""

    name: str
    methods: tuple[Method, ...]

    @property
    def baseline(self) -> Method | None:
        """What the others are measured against."""
        return next((method for method in self.methods if method.baseline), None)

    @property
    def runs(self) -> tuple[Run, ...]:
        return tuple(run for method in self.methods for run in method.runs)


def arrange(runs: Sequence[Run], baseline: str | None = None) -> list[Setting]:
    """The settings of ``runs`` in the order of their appearance.

    Args:
        runs: finished or not; what has recorded nothing is left out.
        baseline: label to measure the others against; left out, what the runs say (uniform, if no plan says otherwise).
    """
    runs = _told_apart([run for run in runs if run.started])
    if not runs:
        raise ConfigError("none of the runs has recorded anything yet; train first.")
    labels = list(dict.fromkeys(run.label for run in runs))
    if baseline is not None and baseline not in labels:
        raise ConfigError(f"--baseline {baseline!r} is no label of these runs{closest(baseline, labels) or '.'} "
                          f"Labels: {', '.join(map(repr, labels))}.")  # fmt: skip
    chosen = {name: _baseline(name, group, baseline) for name, group in _grouped(runs, "setting").items()}
    labels.sort(key=lambda label: label not in chosen.values())  # baselines first, else as they came
    return [
        Setting(
            name=name,
            methods=tuple(
                Method(label=label, number=labels.index(label), baseline=label == chosen[name], runs=_by_seed(group))
                for label, group in sorted(_grouped(runs_of, "label").items(), key=lambda item: labels.index(item[0]))
            ),
        )
        for name, runs_of in _grouped(runs, "setting").items()
    ]


def flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """``{"section.key": value}``; the settings of methods one by one."""
    found: dict[str, Any] = {}
    for section, values in config.items():
        for key, value in values.items() if isinstance(values, Mapping) else []:
            if key == "settings" and isinstance(value, Mapping):
                found |= {f"{section}.settings.{name}": each for name, each in value.items()}
            else:
                found[f"{section}.{key}"] = value
    return found


def differing(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """The settings that matter and are not the same in all, seeds and logging apart."""
    flats = [flat(config) for config in configs]
    names = dict.fromkeys(name for each in flats for name in each)
    return [
        name for name in names if name not in _VARIES and any(each.get(name) != flats[0].get(name) for each in flats)
    ]


def _told_apart(runs: list[Run]) -> list[Run]:
    """Labels made to differ where configurations do."""
    made = []
    for run in runs:
        alike = [other.config for other in runs if (other.setting, other.label) == (run.setting, run.label)]
        values = flat(run.config)
        told = ", ".join(f"{name}={values.get(name)}" for name in differing(alike))
        made.append(replace(run, label=f"{run.label} ({told})") if told else run)
    return made


def _baseline(setting: str, runs: list[Run], asked: str | None) -> str | None:
    """The label of the baseline of one setting."""
    if asked is not None:
        return asked if any(run.label == asked for run in runs) else None
    found = list(dict.fromkeys(run.label for run in runs if run.baseline))
    if len(found) > 1 and "uniform" in found:
        return "uniform"
    if len(found) > 1:
        raise ConfigError(f"{', '.join(map(repr, found))} could all be the baseline of {setting!r}; choose one with "
                          "--baseline LABEL.")  # fmt: skip
    return found[0] if found else None


def _by_seed(runs: list[Run]) -> tuple[Run, ...]:
    ordered = sorted(runs, key=lambda run: run.seed)
    for one, other in pairwise(ordered):
        if one.seed == other.seed:
            raise ConfigError(
                f"{one.path} and {other.path} are one run twice: {one.name}, same configuration; leave one out."
            )
    return tuple(ordered)


def _grouped(runs: Sequence[Run], key: str) -> dict[str, list[Run]]:
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(getattr(run, key), []).append(run)
    return groups
