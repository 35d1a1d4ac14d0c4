"""What training in one bin does to all (Kim et al., CVPR 2025, figure 4), and the whole matrix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..interdependence import Interdependence
from .axes import NOISIER, headed, heat, new_figure, over_noise, shades, stairs

_CURVES = 4
_EXTEND = {(False, False): "neither", (True, False): "min", (False, True): "max", (True, True): "both"}


def draw_interdependence(found: Sequence[Interdependence]) -> Any:
    """Per stage, curves of a few rows to the left and the matrix to the right, in per cent of the loss before."""
    figure, all_axes = new_figure(2, rows=len(found), height=4.0)
    for each, left, right in zip(found, all_axes[0::2], all_axes[1::2], strict=True):
        share = 100 * each.relative
        error = 100 * each.change_error / each.before
        bins = len(each.before)
        rows = sorted({round(place * (bins - 1) / (_CURVES - 1)) for place in range(_CURVES)})
        for row, colour in zip(rows, shades(len(rows)), strict=True):
            name = f"u {float(each.edges[row]):.2g}-{float(each.edges[row + 1]):.2g}"
            stairs(left, each.edges, share[row], error[row], label=f"trained {name}", colour=colour)
        every, every_error = 100 * each.everywhere / each.before, 100 * each.everywhere_error / each.before
        stairs(left, each.edges, every, every_error, label="trained everywhere", colour="#999999")
        left.axhline(0, color="#555555", lw=0.8)
        over_noise(left, headed(each.label, f"loss change after {each.steps} steps, % (below 0: better)"))
        left.legend(frameon=False, fontsize=9)
        reach = float(share.abs().quantile(0.95)) or 1.0
        beyond = (bool((share < -reach).any()), bool((share > reach).any()))
        colours = {"cmap": "RdBu_r", "vmin": -reach, "vmax": reach}
        heat(figure, right, each.edges, each.edges, share, name="loss change, %", extend=_EXTEND[beyond], **colours)
        right.set(xlabel=f"measured at {NOISIER}", ylabel=f"trained at {NOISIER}")
        right.set_title(headed(each.label, "every bin on every bin"), fontsize=11)
        right.set_aspect("equal")
        if bins <= 10:
            middles = ((each.edges[1:] + each.edges[:-1]) / 2).tolist()
            for row in range(bins):
                for column in range(bins):
                    value = float(share[row, column])
                    colour = "white" if abs(value) > 0.6 * reach else "black"
                    place = (middles[column], middles[row])
                    told = f"{value:+.0f}" if abs(value) >= 0.5 else "0"
                    right.text(*place, told, ha="center", va="center", fontsize=9 if bins <= 6 else 7, color=colour)
    return figure
