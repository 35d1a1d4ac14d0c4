"""How alike two models' images are, per starting u, with the images themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..consistency import Consistency
from ..found import shortened
from .axes import NOISIER, new_figure, plain
from .palette import look


def draw_consistency(found: Sequence[Consistency]) -> Any:
    """Similarity over starts, and pairs of images of the first finding that kept some."""
    shown = next((each for each in found if _drawable(each)), None)
    figure, all_axes = new_figure(1 if shown is None else 2, height=4.2, widths=None if shown is None else (1.5, 1))
    axes = all_axes[0]
    for place, each in enumerate(found):
        colour = look(place + 1).light
        pair = f"{shortened(each.label, 40)}: " if len(found) > 1 else ""
        same, other = f"{pair}same noise", f"{pair}other noise"
        axes.errorbar(each.starts, each.similarity, each.similarity_error, color=colour, marker="o", label=same)
        axes.errorbar(each.starts, each.control, each.control_error, color=colour, ls=":", marker="x", label=other)
    axes.set(xlabel=f"where both start: {NOISIER}", xlim=(0, 1.03))
    axes.set_title("correlation of two models' images", fontsize=11)
    plain(axes)
    axes.legend(frameon=False, fontsize=9)
    figure.suptitle(shortened(found[0].label, 90) if len(found) == 1 else "", fontsize=9)
    if shown is not None and shown.outputs is not None:
        _pictures(all_axes[1], shown, shown.outputs)
    return figure


def _drawable(found: Consistency) -> bool:
    return found.outputs is not None and found.outputs.shape[2] > 0 and found.outputs.shape[3] in (1, 3)


def _pictures(axes: Any, found: Consistency, outputs: Tensor) -> None:
    """Columns are starts; rows are pairs: the first model above the second."""
    _, starts, count, _, height, width = outputs.shape
    gap = max(1, height // 16)
    pair = 2 * height + 4 * gap  # of which one gap is between the two models, and three are below
    sheet = torch.ones(count * pair, starts * (width + gap), 3)
    for image in range(count):
        for start in range(starts):
            for model in (0, 1):
                top = image * pair + model * (height + gap)
                picture = ((outputs[model, start, image] + 1) / 2).clamp(0, 1).permute(1, 2, 0)
                sheet[top : top + height, start * (width + gap) : start * (width + gap) + width] = picture
    axes.imshow(sheet.numpy(), interpolation="nearest")
    axes.set_xticks([(start + 0.5) * (width + gap) for start in range(starts)])
    axes.set_xticklabels([f"{float(u):g}" for u in found.starts])
    axes.set(yticks=[], xlabel=f"where both start: {NOISIER}")
    axes.set_title("upper: first model, lower: second", fontsize=11)
