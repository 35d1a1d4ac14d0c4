"""Loss and gradient variance over the noise axis at several stages (Kim et al., CVPR 2025, figures 2 and 6)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ..found import named_in, shortened
from ..gradient_variance import GradientVariance
from ..loss_profile import LossProfile
from ..over_training import LossOverTraining
from .axes import NOISE_AXIS, heat, legend, middle_edges, new_figure, over_noise, shades, stairs

Panel = tuple[str, list[tuple[Tensor, Tensor]]]
"""A title; values and errors of each finding."""


def draw_loss(found: Sequence[LossProfile]) -> Any:
    """Raw losses, and weighted ones where there is a weighting."""
    panels: list[Panel] = [
        (f"loss (target: {named_in(found, 'prediction')})", [(each.loss, each.loss_error) for each in found])
    ]
    if any(each.weighting for each in found):
        title = f"loss x {named_in(found, 'weighting')}"
        panels.append((title, [(each.weighted, each.weighted_error) for each in found]))
    return _panels(panels, found)


def draw_gradient(found: Sequence[GradientVariance]) -> Any:
    """Variances of the raw gradient, of the weighted one, and the squared mean."""
    panels: list[Panel] = [("gradient variance, one example", [(each.variance, each.variance_error) for each in found])]
    if any(each.weighting for each in found):
        title = f"gradient variance under {named_in(found, 'weighting')}"
        panels.append((title, [(each.weighted, each.weighted_error) for each in found]))
    panels.append(("squared mean gradient", [(each.mean_square, each.mean_square_error) for each in found]))
    return _panels(panels, found)


def draw_loss_over_training(found: Sequence[LossOverTraining]) -> Any:
    """Held-out loss as colours, steps upwards; one panel per run."""
    figure, all_axes = new_figure(len(found))
    for axes, each in zip(all_axes, found, strict=True):
        shown = each.average if bool(each.average.isfinite().all()) else each.loss
        name = "moving average of the weights" if shown is each.average else "trained weights"
        rows = middle_edges(each.steps)
        low, high = float(shown.nan_to_num(1.0).min()), float(shown.nan_to_num(0.0).max())
        norm = {"norm": "log"} if 0 < low < high else {}
        heat(figure, axes, each.edges, rows, shown, name=f"held-out loss, {name}", cmap="viridis", **norm)
        axes.set(xlabel=NOISE_AXIS, ylabel="optimizer steps", ylim=(float(rows[0]), float(rows[-1])))
        axes.set_title(shortened(each.label, 60), fontsize=10)
    return figure


def _panels(panels: list[Panel], found: Sequence[LossProfile | GradientVariance]) -> Any:
    figure, all_axes = new_figure(len(panels))
    for axes, (title, curves) in zip(all_axes, panels, strict=True):
        for each, colour, (values, error) in zip(found, shades(len(found)), curves, strict=True):
            stairs(axes, each.edges, values, error, label=each.label, colour=colour)
        positive = all(bool((values > 0).all()) for values, _ in curves)
        over_noise(axes, title, log=positive)
    legend(all_axes[0], [each.label for each in found])
    figure.suptitle("bands: one standard error", fontsize=8, color="#555555")
    return figure
