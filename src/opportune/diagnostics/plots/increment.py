"""The process increment and its three areas (Wang et al., CVPR 2025, 2405.17403)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..increment import ProcessIncrement
from .axes import legend, new_figure, over_noise, shades

_AREA_COLOURS = ("#fde0c5", "#d5e8d4", "#dae3f3")


def draw_increment(found: Sequence[ProcessIncrement]) -> Any:
    """Variance of the increment, of the chain's own step, and the growth that cuts the axis into areas."""
    figure, all_axes = new_figure(3)
    for each, colour in zip(found, shades(len(found)), strict=True):
        levels = [(place + 0.5) / each.levels for place in range(each.levels)]
        for axes, values in zip(all_axes, (each.variance, each.step_variance), strict=False):
            axes.plot(each.u.tolist(), values.tolist(), color=colour, lw=1.6, label=each.label or None)
        all_axes[2].plot(levels, each.growth.tolist(), color=colour, lw=1.6, label=each.label or None)
    titles = ("variance of the increment, Ψ", "variance of one noising step", "growth: d(1 - ᾱ)/du")
    for axes, title in zip(all_axes, titles, strict=True):
        over_noise(axes, title)
        if len(found) == 1:
            axes.set_ymargin(0.14)  # room above the curve for the areas' names
            _areas(axes, found[0])
    all_axes[1].set_yscale("log")
    if len(found) > 1:
        legend(all_axes[0], [each.label for each in found])
    figure.suptitle(found[0].process if len(found) == 1 else "", fontsize=9)
    return figure


def _areas(axes: Any, found: ProcessIncrement) -> None:
    for (name, (low, high)), colour in zip(found.areas.items(), _AREA_COLOURS, strict=True):
        axes.axvspan(low, high, color=colour, lw=0, zorder=0)
        if high - low > 0.02:
            place = {"transform": axes.get_xaxis_transform(), "ha": "center", "fontsize": 8.5}
            if high - low > 0.2:
                axes.text((low + high) / 2, 0.98, name, va="top", **place)
            else:  # upright, and where no curve comes: all three are high, or at their end, in a narrow area
                axes.text((low + high) / 2, 0.15, name, va="bottom", rotation=90, **place)
