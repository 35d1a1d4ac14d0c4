"""Save images as PNG files: a grid to look at, or a folder of single files."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..checks import whole

_GAP_PX = 2
_WHITE = 255


def save_grid(images: Tensor, path: str | Path, columns: int | None = None) -> Path:
    """Write ``images`` ``[N, 1 or 3, H, W]``, float in [-1, 1] or uint8, as one PNG with white gaps, row by row.

    ``columns``: images per row; about as many as rows unless given. Returns the path.
    """
    pictures = _eight_bits(images)
    count, channels, height, width = pictures.shape
    columns = math.ceil(math.sqrt(count)) if columns is None else whole("columns", columns, low=1)
    columns = min(columns, count)
    rows = math.ceil(count / columns)
    size = (channels, rows * (height + _GAP_PX) - _GAP_PX, columns * (width + _GAP_PX) - _GAP_PX)
    sheet = torch.full(size, _WHITE, dtype=torch.uint8)
    for index, picture in enumerate(pictures):
        top, left = (index // columns) * (height + _GAP_PX), (index % columns) * (width + _GAP_PX)
        sheet[:, top : top + height, left : left + width] = picture
    return _write(sheet, Path(path))


def save_folder(images: Tensor, folder: str | Path, start: int = 0) -> list[Path]:
    """Write each of ``images`` ``[N, 1 or 3, H, W]`` as ``000000.png`` and on, numbered from ``start``.

    The numbers are those :func:`generate_many` yields, so several processes fill one folder together.
    """
    whole("start", start, low=0)
    pictures = _eight_bits(images)
    return [_write(picture, Path(folder) / f"{start + k:06d}.png") for k, picture in enumerate(pictures)]


def _eight_bits(images: Tensor) -> Tensor:
    if images.ndim != 4 or images.shape[1] not in (1, 3) or len(images) == 0:
        raise ValueError(
            f"images have shape {list(images.shape)}; give [N, 1, H, W] or [N, 3, H, W] (decode latents first)."
        )
    images = images.detach().cpu()
    if images.dtype == torch.uint8:
        return images
    if not images.is_floating_point():
        raise ValueError(f"images are {images.dtype}; give uint8 in 0-255 or float in [-1, 1].")
    bad = int((~torch.isfinite(images)).sum())
    if bad:
        raise ValueError(f"images hold {bad} NaN or infinite values of {images.numel()}; the model has diverged.")
    return ((images.float() + 1) * 127.5).round().clamp(0, 255).to(torch.uint8)


def _write(picture: Tensor, path: Path) -> Path:
    pixels = picture[0] if picture.shape[0] == 1 else picture.permute(1, 2, 0)
    path.parent.mkdir(parents=True, exist_ok=True)
    image = _pillow().fromarray(pixels.contiguous().numpy())
    try:
        image.save(path)
    except OSError as error:
        path.unlink(missing_ok=True)  # half a picture
        raise OSError(error.errno, error.strerror, str(path)) from error
    return path


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError(f'saving images needs Pillow: pip install "opportune[train]" ({error})') from error
    return Image
