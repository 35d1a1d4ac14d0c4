"""Findings as pictures: ``draw`` makes a matplotlib figure, ``save`` writes the JSON and the picture beside it."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..consistency import Consistency
from ..density_map import DensityMap
from ..found import Found, write_json, write_whole
from ..gradient_variance import GradientVariance
from ..increment import ProcessIncrement
from ..interdependence import Interdependence
from ..loss_profile import LossProfile
from ..over_training import DensityOverTraining, LossOverTraining
from .axes import matplotlib_part
from .consistency import draw_consistency
from .density import draw_density, draw_density_over_training
from .increment import draw_increment
from .interdependence import draw_interdependence
from .profiles import draw_gradient, draw_loss, draw_loss_over_training

_DRAWN: dict[type[Found], Callable[[Sequence[Any]], Any]] = {
    Consistency: draw_consistency,
    DensityMap: draw_density,
    DensityOverTraining: draw_density_over_training,
    GradientVariance: draw_gradient,
    Interdependence: draw_interdependence,
    LossOverTraining: draw_loss_over_training,
    LossProfile: draw_loss,
    ProcessIncrement: draw_increment,
}

__all__ = ["draw", "matplotlib_part", "save"]


def draw(found: Found | Sequence[Found]) -> Any:
    """A matplotlib figure of findings of one kind: several stages, or several runs, in one picture."""
    every = [found] if isinstance(found, Found) else list(found)
    if not every or len({type(each) for each in every}) != 1 or type(every[0]) not in _DRAWN:
        kinds = sorted({type(each).__name__ for each in every})
        raise ValueError(f"found holds {', '.join(kinds) or 'nothing'}; give one or more findings of one kind.")
    return _DRAWN[type(every[0])](every)


def save(found: Found | Sequence[Found], folder: str | Path, *, picture: bool = True, name: str = "") -> list[Path]:
    """Write ``<figure>.json``, and ``<figure>.png`` beside it; returns their paths. Files there are replaced.

    Args:
        found: of one kind: several stages, or several runs, in one picture.
        folder: made where there is none.
        picture: False for the data alone, which needs no matplotlib.
        name: of the files, without ending; left out, that of the figure.
    """
    every = [found] if isinstance(found, Found) else list(found)
    data = write_json(every, folder, name=name)
    if not picture:
        return [data]
    memory = io.BytesIO()
    draw(every).savefig(memory, dpi=130, format="png")
    path = data.with_suffix(".png")
    write_whole(path, memory.getvalue())
    return [data, path]
