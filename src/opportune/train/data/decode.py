"""One image file, row or picture in; one uint8 tensor of a fixed size out.

The steps, in this order:

1. The header is read, and an image above the pixel limit is refused *before* any pixel is decoded.
2. EXIF orientation is applied.
3. Deep greys (16-bit, 32-bit, floating point) are scaled to 8 bits, not clipped; see ``_to_8_bits``.
4. Transparent pixels are laid over white; palettes, CMYK and the like become RGB (or grey for
   ``channels=1``). Colour profiles are ignored.
5. The largest centred box of the wanted shape is cut out and resized with an antialiased bicubic filter. An
   image that already has the wanted size keeps its exact bytes.

Of an animation the first frame is used. The file name plays no part in finding the format. Formats whose
readers run other programs (EPS) or are of no use for photographs are refused.
"""

from __future__ import annotations

import io
import stat
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import IO

import numpy as np
import torch
from torch import Tensor

try:
    from PIL import Image, ImageFile, ImageOps, UnidentifiedImageError
except ImportError as error:
    raise ImportError('reading images needs Pillow; run: pip install "opportune[train]"') from error

from opportune.checks import whole
from opportune.train.data.errors import BadImage

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "DIB", "TIFF", "PPM", "JPEG2000", "AVIF", "ICO", "QOI", "DDS")
SUFFIXES = frozenset({
    ".png", ".apng", ".jpg", ".jpeg", ".jpe", ".jfif", ".mpo", ".webp", ".gif", ".bmp", ".dib", ".tif", ".tiff",
    ".pbm", ".pgm", ".ppm", ".pnm", ".jp2", ".j2k", ".jpx", ".avif", ".avifs", ".ico", ".qoi", ".dds", ".tga",
    ".heic", ".heif", ".jxl",
})  # fmt: skip
"""File endings taken for images in a folder. The last few cannot be read: they are reported, not passed over."""
PIXEL_LIMIT = 100_000_000
"""Largest image accepted, in pixels of the file: a 100-megapixel RGB image takes 300 MB while it is decoded."""

_DEEP_MODES = ("I;16", "I;16L", "I;16B", "I;16N", "I", "F")


def decode_image(
    source: bytes | Path | Image.Image,
    *,
    size: int | tuple[int, int],
    channels: int = 3,
    name: str,
    pixel_limit: int = PIXEL_LIMIT,
) -> Tensor:
    """``[C, H, W]`` uint8, or ``BadImage(name, reason)`` for anything that is not a complete, readable image.

    ``size`` is the side of a square or ``(height, width)``; ``channels`` is 3 (RGB) or 1 (grey, by luma).
    """
    height, width = (size, size) if isinstance(size, int) else size
    whole("size (height)", height, low=1)
    whole("size (width)", width, low=1)
    if channels not in (1, 3):
        raise ValueError(f"channels={channels!r} is not allowed; give 3 (RGB) or 1 (grey).")
    try:
        with _strict_pillow(), _stream(source, name) as stream:
            picture = source if isinstance(source, Image.Image) else _identify(stream, name)
            _check_pixels(picture, name, pixel_limit)
            if picture.format == "PNG" and picture is not source:
                # Reading alone skips the checksums of the pixel data: a flipped bit there could pass
                # unnoticed.
                picture.verify()
                picture = _identify(stream, name)
            if picture.format in ("JPEG", "MPO"):
                # The JPEG reader can shrink while it decodes; twice the wanted size is left for the
                # antialiased resize.
                picture.draft(None, (2 * max(height, width), 2 * max(height, width)))
            picture = _flatten(_to_8_bits(ImageOps.exif_transpose(picture)), "RGB" if channels == 3 else "L")
            picture = _crop_and_resize(picture, height, width)
    except (BadImage, MemoryError):
        raise
    except Exception as error:  # Pillow's readers raise nearly every built-in error on damaged files
        raise BadImage(name, f"cannot be decoded ({type(error).__name__}: {error})") from error
    pixels = torch.from_numpy(np.array(picture, dtype=np.uint8))
    return pixels.reshape(height, width, channels).permute(2, 0, 1).contiguous()


@contextmanager
def _strict_pillow() -> Iterator[None]:
    """Truncated files fail here even where another library has told Pillow to fill them up with grey."""
    before = ImageFile.LOAD_TRUNCATED_IMAGES
    ImageFile.LOAD_TRUNCATED_IMAGES = False
    try:
        with warnings.catch_warnings():
            # Pillow warns below and above our own limit, and about oddities in files it can read.
            warnings.simplefilter("ignore")
            yield
    finally:
        ImageFile.LOAD_TRUNCATED_IMAGES = before


@contextmanager
def _stream(source: bytes | Path | Image.Image, name: str) -> Iterator[IO[bytes]]:
    """The file's bytes as a stream, if it is a regular, readable file that is not empty."""
    if isinstance(source, Path):
        _check_file(source, name)
        try:
            stream: IO[bytes] = source.open("rb")
        except OSError as error:
            raise BadImage(name, error.strerror or str(error)) from error
    else:
        stream = io.BytesIO(source if isinstance(source, bytes) else b"-")
    with stream:
        if not stream.read(1):
            raise BadImage(name, "empty (0 bytes)")
        yield stream


def _check_file(path: Path, name: str) -> None:
    """Say what is wrong with a path before it is opened: opening a named pipe would wait for ever."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError as error:
        dangling = path.is_symlink()
        raise BadImage(name, "a symlink to a file that does not exist" if dangling else "no such file") from error
    except OSError as error:
        raise BadImage(name, error.strerror or str(error)) from error
    if stat.S_ISDIR(mode):
        raise BadImage(name, "a directory, not a file")
    if not stat.S_ISREG(mode):
        raise BadImage(name, "not a regular file")


@cache
def _readable() -> tuple[str, ...]:
    """Those of ``FORMATS`` that this build of Pillow reads."""
    Image.init()
    return tuple(kind for kind in FORMATS if kind in Image.OPEN)


def _identify(stream: IO[bytes], name: str) -> Image.Image:
    """Read the header; no pixel is decoded yet."""
    stream.seek(0)
    try:
        return Image.open(stream, formats=_readable())
    except Image.DecompressionBombError as error:
        raise BadImage(name, f"too many pixels ({error})") from error
    except UnidentifiedImageError as error:
        stream.seek(0)
        start = stream.read(12)
        raise BadImage(
            name, f"not an image of a supported kind, or its header is damaged (it starts with {start!r})"
        ) from error


def _check_pixels(picture: Image.Image, name: str, pixel_limit: int) -> None:
    width, height = picture.size
    if width < 1 or height < 1:
        raise BadImage(name, f"has no pixels ({width}×{height})")
    if width * height > pixel_limit:
        raise BadImage(name, f"too many pixels: {width}×{height} is above the limit of {pixel_limit:,}")


def _to_8_bits(picture: Image.Image) -> Image.Image:
    """Scale deep greys to 0..255 by the first range that holds all values of the image; others pass
    unchanged.

    Whole numbers: 0..65535 or 0..2³¹−1. Floating point: 0..1, 0..255 or 0..65535. Values outside all of
    these are stretched from the image's own minimum and maximum.
    """
    if picture.mode not in _DEEP_MODES:
        return picture
    values = np.asarray(picture).astype(np.float64)
    if not np.isfinite(values).all():
        raise ValueError("holds NaN or infinite pixels")
    low, high = float(values.min()), float(values.max())
    ranges = (1.0, 255.0, 65535.0) if picture.mode == "F" else (65535.0, 2.0**31 - 1)
    top = next((top for top in ranges if high <= top), None)
    if low < 0 or top is None:
        values, top = values - low, max(high - low, 1e-30)
    return Image.fromarray(np.round(values * (255.0 / top)).astype(np.uint8))


def _flatten(picture: Image.Image, mode: str) -> Image.Image:
    """RGB or grey, transparent parts laid over white."""
    if picture.has_transparency_data:
        picture = picture.convert("RGBA")
        white = Image.new("RGBA", picture.size, "white")
        picture = Image.alpha_composite(white, picture).convert("RGB")
    return picture if picture.mode == mode else picture.convert(mode)


def _crop_and_resize(picture: Image.Image, height: int, width: int) -> Image.Image:
    """Cut the largest centred box with the wanted height : width, and resize it (antialiased)."""
    scale = min(picture.width / width, picture.height / height)
    box_width, box_height = width * scale, height * scale
    left, top = (picture.width - box_width) / 2, (picture.height - box_height) / 2
    # Rounding must not push the box past the edge.
    box = (left, top, min(left + box_width, picture.width), min(top + box_height, picture.height))
    return picture.resize((width, height), Image.Resampling.BICUBIC, box=box)
