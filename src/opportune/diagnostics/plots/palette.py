"""Colours and lines: one per method, the same in every figure, told apart without seeing colour too."""

from __future__ import annotations

from typing import NamedTuple

# Okabe & Ito, 2008, "Color Universal Design"; the first, for the baseline, is grey. Dark: the same hues, lighter.
_LIGHT = ("#5c6066", "#0072b2", "#d55e00", "#00805e", "#b0578f", "#a87500", "#3a8fc4", "#7a4fb5")
_DARK = ("#b4b9c0", "#5cb3f0", "#ff8a4c", "#3fcfa0", "#eaa3cf", "#f0bd4f", "#9bd7fb", "#b99af0")
_DASHES = ("", "6 2", "2 2", "8 2 2 2")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")


class Look(NamedTuple):
    """How a method is drawn; ``light`` and ``dark`` are its colours, ``dash`` as SVG writes it."""

    light: str
    dark: str
    dash: str
    marker: str


def look(number: int) -> Look:
    """The look of method ``number``: 8 colours, and another dash each time they are used up."""
    place, rounds = number % len(_LIGHT), number // len(_LIGHT)
    return Look(_LIGHT[place], _DARK[place], _DASHES[rounds % len(_DASHES)], _MARKERS[place])
