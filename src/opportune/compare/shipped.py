"""The plans that come with the package."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

from opportune.checks import one_of
from opportune.train.errors import ConfigError

from .plan import Layers, Plan, parse_plan


def plans() -> list[str]:
    """Their names."""
    return sorted(file.name.removesuffix(".toml") for file in _folder().iterdir() if file.name.endswith(".toml"))


def shipped_plan(name: str, overrides: Layers | None = None) -> Plan:
    """The plan called ``name``, its cells changed by ``overrides``."""
    try:
        one_of("plan", name, plans())
    except ValueError as error:
        raise ConfigError(f"{error} Or give a file.") from error
    text = (_folder() / f"{name}.toml").read_text(encoding="utf-8")
    return parse_plan(text, name=name, folder=Path(), overrides=overrides)


def _folder() -> Any:
    return files(__package__) / "plans"
