"""The order in which a plan names settings and methods: folders sort by name, which says nothing to a reader."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path


def place_in(plan: Path) -> Callable[[str, str], tuple[int, int]]:
    """``place(setting, label)`` to sort by; what ``plan`` does not name comes last."""
    try:
        given = tomllib.loads(plan.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # a missing or damaged plan costs the order and nothing else
        given = {}
    named, listed = given.get("settings"), given.get("methods")
    settings = list(named) if isinstance(named, Mapping) else []
    methods = [each.get("label") for each in listed if isinstance(each, Mapping)] if isinstance(listed, list) else []
    return lambda setting, label: (_place(settings, setting), _place(methods, label))


def _place(names: Sequence[object], name: str) -> int:
    return names.index(name) if name in names else len(names)
