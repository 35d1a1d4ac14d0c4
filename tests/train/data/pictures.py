"""Real image files for the tests, made on the spot."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image


def ramp(height: int = 24, width: int = 32) -> np.ndarray:
    """A smooth RGB picture whose four corners differ: ``[H, W, 3]`` uint8."""
    y, x = np.mgrid[0:height, 0:width]
    red = 255 * x / max(width - 1, 1)
    green = 255 * y / max(height - 1, 1)
    return np.stack([red, green, 128 + 0 * red], axis=-1).round().astype(np.uint8)


def encoded(picture: Any, kind: str = "PNG", **options: Any) -> bytes:
    """The bytes of a file of that kind."""
    if not isinstance(picture, Image.Image):
        picture = Image.fromarray(picture)
    stream = io.BytesIO()
    picture.save(stream, kind, **options)
    return stream.getvalue()


def flat_picture(number: int, size: int = 8) -> bytes:
    """A PNG that tells which example it is: its red value is ``number``, its left half is darker."""
    pixels = np.zeros((size, size, 3), dtype=np.uint8)
    pixels[..., 0] = number % 256
    pixels[..., 1] = number // 256
    pixels[:, size // 2 :, 2] = 200
    return encoded(pixels)


def write_folder(folder: Path, count: int, *, bad: tuple[int, ...] = ()) -> Path:
    """``count`` numbered pictures in two class folders; those in ``bad`` are cut short."""
    for number in range(count):
        place = folder / ("cat" if number % 2 else "dog")
        place.mkdir(parents=True, exist_ok=True)
        raw = flat_picture(number)
        (place / f"{number:04d}.png").write_bytes(raw[: len(raw) // 2] if number in bad else raw)
    return folder


def png(rows: bytes, width: int, height: int, *, depth: int, colour: int) -> bytes:
    """A PNG from raw filtered rows, for kinds Pillow cannot write (16-bit RGB, absurd sizes)."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body
