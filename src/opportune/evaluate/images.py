"""Bring images of any of the accepted kinds to 8-bit RGB, the one form every extractor is fed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

Images = Tensor | Iterable[Tensor]
"""One tensor `[N, C, H, W]`, or an iterable of batches `[B, C, H, W]`; uint8 in 0–255 or float in [-1, 1]."""


def batches(images: Images, *, batch_size: int, limit: int | None = None) -> Iterator[Tensor]:
    """Yield batches of at most `batch_size`, and at most `limit` images in all."""
    left = limit
    for chunk in [images] if isinstance(images, Tensor) else images:
        if not isinstance(chunk, Tensor) or chunk.ndim != 4:
            shape = list(chunk.shape) if isinstance(chunk, Tensor) else type(chunk).__name__
            raise ValueError(f"images came as {shape}; give tensors [N, C, H, W] or an iterable of them.")
        for batch in chunk.split(batch_size):
            if left is not None:
                if left <= 0:
                    return
                batch = batch[:left]
                left -= len(batch)
            yield batch


def to_rgb8(images: Tensor) -> Tensor:
    """`[B, 1 or 3, H, W]`, uint8 or float in [-1, 1], as uint8 RGB `[B, 3, H, W]`.

    Generated images are rounded to 8 bits like the real ones were, so that no metric sees the difference.
    Values outside [-1, 1] are clamped, as saving them would.
    """
    if images.ndim != 4 or images.shape[1] not in (1, 3):
        raise ValueError(
            f"images have shape {list(images.shape)}; give [B, 1, H, W] or [B, 3, H, W] "
            "(decode latents first, drop an alpha channel)."
        )
    if images.dtype != torch.uint8:
        images = _to_8_bits(images)
    return images.expand(-1, 3, -1, -1)


def resize(images: Tensor, size_px: int) -> Tensor:
    """8-bit images as float 0–255 of `size_px` × `size_px`, by antialiased bicubic interpolation."""
    images = images.float()
    if images.shape[-2:] == (size_px, size_px):
        return images
    size = (size_px, size_px)
    resized = F.interpolate(images, size=size, mode="bicubic", antialias=True, align_corners=False)
    return resized.clamp(0.0, 255.0)  # bicubic overshoots at edges


def _to_8_bits(images: Tensor) -> Tensor:
    if not images.is_floating_point():
        raise ValueError(f"images are {images.dtype}; give uint8 in 0–255 or float in [-1, 1].")
    images = images.float()
    bad = int((~torch.isfinite(images)).sum())
    if bad:
        raise ValueError(f"images hold {bad} NaN or infinite values of {images.numel()}; the model has diverged.")
    largest = float(images.abs().amax()) if images.numel() else 0.0
    if largest > 16.0:
        raise ValueError(
            f"float images reach {largest:g}; they must be in [-1, 1]. "
            "For values in 0–255 give uint8: images.to(torch.uint8)."
        )
    return ((images + 1.0) * 127.5).round().clamp(0.0, 255.0).to(torch.uint8)
