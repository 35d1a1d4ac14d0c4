"""What all figures share: matplotlib, imported only here and only when something is drawn, and the noise axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ..found import shortened

NOISE_AXIS = "← clean  ·  u  ·  more noise →"
NOISIER = "u (more noise →)"
"""Within a longer label, or upwards."""
GRID = "#e4e7eb"
_IN_AXES = 5  # entries of a legend that fit beside the curves
_LABEL, _TITLE = 40, 44  # characters


def matplotlib_part(name: str) -> Any:
    """``matplotlib.<name>``, or one line that names the extra to install."""
    from importlib import import_module

    try:
        return import_module(f"matplotlib.{name}")
    except ImportError as error:
        raise ImportError('pictures need matplotlib; run: pip install "opportune[plot]"') from error


def new_figure(
    columns: int, *, rows: int = 1, width: float = 5.2, height: float = 3.6, widths: Sequence[float] | None = None
) -> tuple[Any, list[Any]]:
    """A figure and its axes, row by row; ``widths``: of the columns beside each other."""
    figure = matplotlib_part("figure").Figure(figsize=(width * columns + 0.6, height * rows), layout="constrained")
    return figure, list(figure.subplots(rows, columns, squeeze=False, width_ratios=widths).flat)


def shades(count: int) -> list[Any]:
    """Colours of ``count`` stages in their order, from light to dark; of a single one, dark."""
    colours = matplotlib_part("cm").viridis
    return [colours(0.05 + 0.8 * (count - 1 - place) / max(count - 1, 1)) for place in range(count)]


def over_noise(axes: Any, title: str, *, log: bool = False) -> None:
    """Titles and limits of a plot over the noise axis."""
    axes.set(xlim=(0, 1))
    axes.set_title(title, fontsize=11)
    axes.set_xlabel(NOISE_AXIS)
    if log:
        axes.set_yscale("log")
    plain(axes)


def plain(axes: Any) -> None:
    """No frame, and light lines to read heights by."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(True, axis="y", color=GRID, lw=0.8)
    axes.set_axisbelow(True)


def headed(label: str, title: str) -> str:
    """A title below the name of what it is about."""
    return f"{shortened(label, _TITLE)}\n{title}" if label else title


def stairs(axes: Any, edges: Tensor, values: Tensor, error: Tensor, *, label: str, colour: Any) -> None:
    """Bins as stairs, with a band of one standard error."""
    low, high = values - error, values + error
    axes.stairs(values.tolist(), edges.tolist(), baseline=None, label=label or None, color=colour, lw=1.6)
    spread = {"color": colour, "alpha": 0.2, "lw": 0, "step": "post"}
    axes.fill_between(edges.tolist(), _ended(low), _ended(high), **spread)


def legend(axes: Any, labels: Sequence[str]) -> None:
    """A legend where there is something to tell apart; beside the picture where it would cover the curves."""
    if not any(labels):
        return
    handles, found = axes.get_legend_handles_labels()
    named = [shortened(label, _LABEL) for label in found]
    if len(found) <= _IN_AXES:
        axes.legend(handles, named, frameon=False, fontsize=9)
    else:
        axes.figure.legend(handles, named, frameon=False, fontsize=9, loc="outside right upper")


def heat(
    figure: Any,
    axes: Any,
    columns: Tensor,
    rows: Tensor,
    values: Tensor,
    *,
    name: str,
    extend: str = "neither",
    **shown: Any,
) -> Any:
    """``values`` ``[rows, columns]`` as colours between edges of both axes; NaN stays empty. Returns the colour bar."""
    mesh = axes.pcolormesh(columns.tolist(), rows.tolist(), values.numpy(), **shown)
    return figure.colorbar(mesh, ax=axes, label=name, extend=extend)


def middle_edges(at: Tensor) -> Tensor:
    """``[n + 1]`` edges around ``[n]`` rising positions, half-way between them; the first and the last end it."""
    if len(at) == 1:
        return at.new_tensor([0.0, 2 * float(at[0]) or 1.0])
    return at.new_tensor([float(at[0]), *((at[1:] + at[:-1]) / 2).tolist(), float(at[-1])])


def _ended(values: Tensor) -> list[float]:
    return [*values.tolist(), float(values[-1])]
