"""What is drawn, how much it counts and the product, at stages and over training (Kim et al., figures 5 and 6)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..density_map import DensityMap, ceiling, ratio_scale
from ..over_training import DensityOverTraining
from .axes import NOISE_AXIS, headed, heat, legend, matplotlib_part, new_figure, over_noise, shades
from .palette import look

_ROWS = 60
_DASHES = ("-", (0, (6, 3)), (0, (2, 2)), (0, (8, 2, 2, 2)))  # what lies below shows through the gaps
_EMPTY = "#d0d0d0"


def draw_density(found: Sequence[DensityMap]) -> Any:
    """Density and, where there is a weighting or a correction, it as an equivalent density and the effective one."""
    names = {each.weighted_by for each in found if each.weighted_by}
    panels = [("density p(u)", [each.density for each in found])]
    if names:
        title = f"{names.pop() if len(names) == 1 else 'weighting'} w(u), scaled to mean 1"
        panels.append((title, [each.weighting / each.weighting.mean() for each in found]))
    if len(panels) > 1 or any(each.unbiased for each in found):
        panels.append(("effective density p(u)·w(u)", [each.effective for each in found]))
    figure, all_axes = new_figure(len(panels))
    for axes, (title, curves) in zip(all_axes, panels, strict=True):
        for place, (each, colour, values) in enumerate(zip(found, _colours(found), curves, strict=True)):
            edges = torch.linspace(0, 1, len(values) + 1).tolist()
            line = {"color": colour, "lw": 1.8, "linestyle": _DASHES[place % len(_DASHES)]}
            axes.stairs(values.tolist(), edges, baseline=None, label=each.label or None, **line)
        tops, cut = zip(*map(ceiling, curves), strict=True)
        highest = f" (cut; highest {max(float(values.max()) for values in curves):.3g})" if any(cut) else ""
        over_noise(axes, title + highest)
        axes.set_ylim(0, 1.12 * max(1.0, *tops))
        axes.axhline(1, color="#8a9099", lw=0.9, zorder=0)
    legend(all_axes[0], [each.label for each in found])
    processes = dict.fromkeys(each.process for each in found)
    figure.suptitle(next(iter(processes)) if len(processes) == 1 else "", fontsize=9)
    return figure


def draw_density_over_training(found: Sequence[DensityOverTraining]) -> Any:
    """Per run: density over the steps, and what the objective was made of, with the scatter of the draws."""
    figure, all_axes = new_figure(2, rows=len(found))
    shown = [_as_drawn(each) for each in found]
    scale = ratio_scale(value for tables in shown for table in tables for value in table[table > 1].tolist())
    norm = matplotlib_part("colors").LogNorm
    for each, left, right, tables in zip(found, all_axes[0::2], all_axes[1::2], shown, strict=True):
        names = ("density p(u)", "effective density p(u)·w(u), as drawn")
        for axes, values, name in zip((left, right), tables, names, strict=True):
            within = values.clamp(min=1 / scale, max=scale)
            colours = {"cmap": "RdBu_r", "norm": norm(1 / scale, scale)}
            bar = heat(figure, axes, each.edges, _row_edges(each.steps), within, name="1 is uniform", **colours)
            bar.set_ticks([1 / scale, 1, scale], labels=[f"≤ {1 / scale:g}", "1", f"≥ {scale:g}"])
            bar.ax.minorticks_off()
            axes.set_facecolor(_EMPTY)
            axes.set(xlabel=NOISE_AXIS, ylabel="optimizer steps", xlim=(0, 1))
            axes.set_title(headed(each.label, name), fontsize=10)
            if not bool(values.isfinite().any()):
                told = "the weighting learns; the log\nholds none of its past values"
                axes.text(0.5, 0.5, told, transform=axes.transAxes, ha="center", va="center")
    figure.suptitle("grey: nothing was drawn there" if any(bool(t[0].isnan().any()) for t in shown) else "", fontsize=9)
    return figure


def _as_drawn(found: DensityOverTraining) -> tuple[Tensor, Tensor]:
    """Density and effective density ``[rows, bins]``, NaN where nothing was drawn."""
    drawn = _pooled(found.drawn) > 0
    density, effective = (_pooled(values).where(drawn, torch.nan) for values in (found.density, found.effective))
    return density, effective


def _colours(found: Sequence[DensityMap]) -> list[Any]:
    """Methods at one step are told apart by hue, stages by shade."""
    if len(found) > 1 and len({each.step for each in found}) == 1:
        return [look(place).light for place in range(len(found))]
    return shades(len(found))


def _pooled(values: Tensor) -> Tensor:
    """``[rows, ...]`` with at most ``_ROWS`` rows: means of neighbours, which also average the scatter of the draws."""
    return torch.stack([part.nanmean(dim=0) for part in _groups(values)])


def _row_edges(steps: Tensor) -> Tensor:
    """``[rows + 1]`` steps between which each row was drawn: a record tells of what came since the one before."""
    return torch.stack([torch.zeros_like(steps[0]), *(part[-1] for part in _groups(steps))])


def _groups(values: Tensor) -> Sequence[Tensor]:
    parts: Sequence[Tensor] = values.split(-(-len(values) // _ROWS))
    return parts
