"""Published settings by name, one TOML file each: what ``opportune train --recipe NAME`` starts from.

Every method is selectable in every recipe: ``--sampler.name``, ``--weighting.name`` and the other flags come after it.
"""

from __future__ import annotations

import tomllib
from importlib.resources import files
from typing import Any

from opportune.checks import one_of


def recipes() -> list[str]:
    """Names of all recipes."""
    return sorted(file.name.removesuffix(".toml") for file in _folder().iterdir() if file.name.endswith(".toml"))


def recipe(name: str) -> dict[str, Any]:
    """The settings of a recipe that differ from the defaults, by section."""
    return tomllib.loads(recipe_text(name))


def recipe_text(name: str) -> str:
    """The file itself, with its comments."""
    text: str = (_folder() / f"{one_of('recipe', name, recipes())}.toml").read_text(encoding="utf-8")
    return text


def _folder() -> Any:
    return files(__package__)
