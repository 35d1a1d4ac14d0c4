"""Pictures of run folders as data URIs: checked, re-encoded and small, as the report is one file."""

from __future__ import annotations

import base64
import io
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..train.errors import RunFolderError
from .arrange import Method, Setting
from .runs import Run

MAX_STEPS = 8
"""Of the grids shown; evenly chosen where there are more."""
BUDGET_BYTES = 3_000_000
"""For all pictures of a report together, as base64; sides are shrunken until they fit."""
_SIDES = (768, 512, 384, 256, 128)
_LARGE_PNG = 120_000


@dataclass(frozen=True, kw_only=True)
class Picture:
    """An image for the page; ``small`` pictures are enlarged without smoothing."""

    uri: str
    width: int
    height: int

    @property
    def small(self) -> bool:
        return self.width <= 320


@dataclass(frozen=True, kw_only=True)
class Grids:
    """The pictures of one step, one per method by number; ``step`` is None where nothing tells."""

    step: int | None
    files: dict[int, Path]


def grids_of(setting: Setting) -> tuple[list[Grids], dict[int, Run]]:
    """Grids at equal steps, and the run each method is shown by: the first seed all have, else its first."""
    shown = {method.number: run for method in setting.methods if (run := _shown(method, setting))}
    by_step: dict[int | None, dict[int, Path]] = {}
    for number, run in shown.items():
        for step, file in run.samples:
            by_step.setdefault(step, {})[number] = file
    steps = sorted(step for step in by_step if step is not None)
    kept: list[int | None] = [*_spread(steps), *([None] if None in by_step else [])]
    return [Grids(step=step, files=by_step[step]) for step in kept], shown


def encoded(paths: Sequence[Path]) -> dict[Path, Picture]:
    """The files as pictures; all are shrunken alike until they fit the budget together."""
    made: dict[Path, Picture] = {}
    for side in _SIDES:
        made = {path: _encode(path, side) for path in paths}
        if sum(len(picture.uri) for picture in made.values()) <= BUDGET_BYTES:
            return made
    size = sum(len(picture.uri) for picture in made.values())
    raise RunFolderError(
        f"{len(paths)} pictures take {size / 1e6:.1f} MB even when they are small; report fewer runs at a time."
    )


def _shown(method: Method, setting: Setting) -> Run | None:
    runs = [run for run in method.runs if run.samples]
    seeds = [{run.seed for run in each.runs if run.samples} for each in setting.methods]
    shared = set.intersection(*(each for each in seeds if each)) if any(seeds) else set()
    return next((run for run in runs if run.seed in shared), runs[0] if runs else None)


def _spread(steps: list[int]) -> list[int]:
    if len(steps) <= MAX_STEPS:
        return steps
    return [steps[round(index * (len(steps) - 1) / (MAX_STEPS - 1))] for index in range(MAX_STEPS)]


def _encode(path: Path, side: int) -> Picture:
    image = _opened(path)
    if max(image.size) > side:
        image.thumbnail((side, side))
    file = io.BytesIO()
    image.save(file, format="PNG")
    kind = "png"
    if file.tell() > _LARGE_PNG:
        file, kind = io.BytesIO(), "jpeg"
        image.convert("RGB").save(file, format="JPEG", quality=85)
    text = base64.b64encode(file.getvalue()).decode("ascii")
    return Picture(uri=f"data:image/{kind};base64,{text}", width=image.width, height=image.height)


def _opened(path: Path) -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError('a report needs Pillow: pip install "opportune[report]".') from error
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path) as image:
                return image.convert("L" if image.mode in ("1", "L", "I;16") else "RGB")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise RunFolderError(f"{path} cannot be read as a picture ({error}); remove it, or make it again.") from error
