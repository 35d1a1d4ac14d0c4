"""Every kind of image becomes the right pixels, or a BadImage that says what is wrong."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageFile
from tests.train.data.pictures import encoded, png, ramp

from opportune.train.data import BadImage, decode_image

RGB = ramp(24, 32)
GREY16 = np.linspace(0, 65535, 24 * 32).reshape(24, 32).astype(np.uint16)
FULL = (24, 32)


def decoded(source, *, size=FULL, channels=3, **more) -> np.ndarray:
    image = decode_image(source, size=size, channels=channels, name="it", **more)
    assert image.dtype == torch.uint8 and image.is_contiguous()
    return image.permute(1, 2, 0).numpy()


def error_of(found: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.abs(found.astype(float) - wanted).mean())


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "PPM", "QOI"])
def test_exact_kinds_keep_their_bytes(kind: str) -> None:
    assert np.array_equal(decoded(encoded(RGB, kind)), RGB)


@pytest.mark.parametrize("kind", ["JPEG", "WEBP", "AVIF", "JPEG2000"])
def test_lossy_kinds_come_close(kind: str) -> None:
    assert error_of(decoded(encoded(RGB, kind)), RGB) < 3


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_16_bit_grey_is_scaled_not_clipped(kind: str) -> None:
    found = decoded(encoded(GREY16, kind), channels=1)[..., 0]
    assert error_of(found, GREY16 / 257) < 0.5
    assert np.array_equal(found, np.round(GREY16 / 257))


def test_16_bit_rgb_is_scaled() -> None:
    deep = np.stack([GREY16, GREY16[::-1], GREY16[:, ::-1]], axis=-1)
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in deep)
    assert error_of(decoded(png(rows, 32, 24, depth=16, colour=2)), deep / 257) < 1


def test_16_bit_pgm_is_scaled() -> None:
    raw = b"P5\n32 24\n65535\n" + GREY16.astype(">u2").tobytes()
    assert error_of(decoded(raw, channels=1)[..., 0], GREY16 / 257) < 0.5


@pytest.mark.parametrize("top", [1.0, 255.0, 65535.0, 7e6])
def test_float_tiff_is_scaled_by_the_range_that_holds_it(top: float) -> None:
    values = (GREY16 / 65535 * top).astype(np.float32)
    assert error_of(decoded(encoded(values, "TIFF"), channels=1)[..., 0], GREY16 / 257) < 0.5


def test_float_tiff_below_zero_is_stretched() -> None:
    values = (GREY16 / 65535 * 6 - 2).astype(np.float32)
    assert error_of(decoded(encoded(values, "TIFF"), channels=1)[..., 0], GREY16 / 257) < 0.5


def test_a_dark_deep_image_stays_dark() -> None:
    assert decoded(encoded((GREY16 // 8), "PNG"), channels=1).max() == 32


def test_32_bit_tiff_is_scaled() -> None:
    values = (GREY16.astype(np.int64) * 32767).astype(np.int32)
    assert error_of(decoded(encoded(values, "TIFF"), channels=1)[..., 0], GREY16 / 257) < 1


def test_nan_pixels_are_refused() -> None:
    values = np.zeros(FULL, dtype=np.float32)
    values[3, 4] = np.nan
    with pytest.raises(BadImage, match="NaN"):
        decoded(encoded(values, "TIFF"))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["PNG", "TIFF", "WEBP"])
def test_exif_orientation_is_applied(orientation: int, kind: str) -> None:
    turned = {
        1: RGB, 2: RGB[:, ::-1], 3: RGB[::-1, ::-1], 4: RGB[::-1], 5: RGB.transpose(1, 0, 2),
        6: np.rot90(RGB, -1), 7: RGB[::-1, ::-1].transpose(1, 0, 2), 8: np.rot90(RGB),
    }[orientation]  # fmt: skip
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"lossless": True, "exact": True} if kind == "WEBP" else {}
    found = decoded(encoded(RGB, kind, exif=exif, **options), size=turned.shape[:2])
    assert np.array_equal(found, turned)


def test_exif_orientation_of_a_16_bit_image_is_applied() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    found = decoded(encoded(GREY16, "PNG", exif=exif), size=(32, 24), channels=1)[..., 0]
    assert np.array_equal(found, np.round(np.rot90(GREY16, -1) / 257))


def test_cmyk_becomes_rgb() -> None:
    assert error_of(decoded(encoded(Image.fromarray(RGB).convert("CMYK"), "TIFF")), RGB) < 2
    assert error_of(decoded(encoded(Image.fromarray(RGB).convert("CMYK"), "JPEG")), RGB) < 4


def test_1_bit_becomes_black_and_white() -> None:
    bits = np.asarray(Image.fromarray(RGB).convert("1"))
    assert np.array_equal(decoded(encoded(bits), channels=1)[..., 0], bits * 255)


def test_palette_becomes_rgb() -> None:
    palette = Image.fromarray(RGB).convert("P", palette=Image.Palette.ADAPTIVE)
    assert np.array_equal(decoded(encoded(palette)), np.asarray(palette.convert("RGB")))


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_transparent_pixels_are_laid_over_white(mode: str) -> None:
    picture = Image.fromarray(RGB).convert(mode)
    alpha = np.full(FULL, 255, dtype=np.uint8)
    alpha[:, :10], alpha[:, 10:20] = 0, 128
    picture.putalpha(Image.fromarray(alpha))
    opaque = np.asarray(Image.fromarray(RGB).convert("L" if mode == "LA" else "RGB").convert("RGB"))
    share = alpha[..., None] / 255
    assert error_of(decoded(encoded(picture)), opaque * share + 255 * (1 - share)) < 1


def test_a_transparent_palette_entry_is_laid_over_white() -> None:
    picture = Image.new("P", (4, 4), 0)
    picture.putpalette([10, 20, 30, 40, 50, 60])
    picture.putpixel((0, 0), 1)
    found = decoded(encoded(picture, transparency=0), size=4)
    assert found[0, 0].tolist() == [40, 50, 60] and found[1, 1].tolist() == [255, 255, 255]


def test_the_first_frame_of_an_animation_is_used() -> None:
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "lime")]
    raw = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert decoded(raw, size=8)[0, 0].tolist() == [255, 0, 0]


def test_the_name_of_a_file_does_not_matter(tmp_path: Path) -> None:
    (tmp_path / "is_a_png.jpg").write_bytes(encoded(RGB))
    assert np.array_equal(decoded(tmp_path / "is_a_png.jpg"), RGB)


def test_an_open_picture_is_taken_and_left_as_it_was() -> None:
    picture = Image.fromarray(RGB)
    assert np.array_equal(decoded(picture), RGB)
    assert np.array_equal(np.asarray(picture), RGB)


def test_grey_is_luma() -> None:
    red = np.zeros((8, 8, 3), dtype=np.uint8)
    red[..., 0] = 255
    assert decoded(encoded(red), size=8, channels=1).max() == 76


@pytest.mark.parametrize("shape", [(1, 1), (1, 5000), (5000, 1), (3, 4)])
def test_extreme_shapes(shape: tuple[int, int]) -> None:
    assert decoded(encoded(np.full((*shape, 3), 77, dtype=np.uint8)), size=16).tolist() == [[[77] * 3] * 16] * 16


def test_an_icc_profile_does_no_harm() -> None:
    from PIL import ImageCms

    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    assert np.array_equal(decoded(encoded(RGB, icc_profile=profile)), RGB)


def test_the_crop_is_centred() -> None:
    wide = np.zeros((10, 30, 3), dtype=np.uint8)
    wide[:, 10:20] = 255
    assert decoded(encoded(wide), size=10).min() == 255
    assert decoded(encoded(wide.transpose(1, 0, 2)), size=10).min() == 255
    assert decoded(encoded(wide), size=(5, 15)).shape == (5, 15, 3)


def test_shrinking_is_antialiased() -> None:
    stripes = np.zeros((64, 64, 3), dtype=np.uint8)
    stripes[:, ::2] = 255
    inside = decoded(encoded(stripes), size=16)[:, 1:-1]
    assert np.abs(inside.astype(int) - 127).max() < 8


def test_a_large_jpeg_is_shrunk_like_a_large_png() -> None:
    big = ramp(600, 800)
    png_pixels, jpeg_pixels = (decoded(encoded(big, kind), size=32) for kind in ("PNG", "JPEG"))
    assert error_of(jpeg_pixels, png_pixels.astype(float)) < 2


def test_the_pixel_limit_is_checked_before_decoding() -> None:
    bomb = png(b"\0" * 1000, 40_000, 40_000, depth=1, colour=0)  # far too little data for its size: decoding would fail
    with pytest.raises(BadImage, match="too many pixels"):
        decoded(bomb)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(BadImage, match=r"too many pixels: 12000×12000 is above the limit of 100,000,000"):
            decoded(png(b"\0" * 1000, 12_000, 12_000, depth=1, colour=0))
    with pytest.raises(BadImage, match="above the limit of 700"):
        decoded(encoded(RGB), pixel_limit=700)
    assert decoded(encoded(RGB), pixel_limit=24 * 32).shape == (24, 32, 3)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF"])
@pytest.mark.parametrize("lenient", [False, True])
def test_truncated_files_are_bad_whatever_pillow_was_told(kind: str, lenient: bool, monkeypatch) -> None:
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", lenient)
    rng = np.random.default_rng(0)
    raw = encoded(rng.integers(0, 255, (24, 32, 3), dtype=np.uint8), kind)
    for keep in (0.1, 0.5, 0.9):
        with pytest.raises(BadImage, match="it"):
            decoded(raw[: int(len(raw) * keep)])
    assert ImageFile.LOAD_TRUNCATED_IMAGES is lenient


def test_no_flipped_bit_of_a_png_passes_for_another_picture() -> None:
    raw = encoded(RGB)
    passed = 0
    for place in range(len(raw)):
        damaged = bytearray(raw)
        damaged[place] ^= 4
        try:
            passed += not np.array_equal(decoded(bytes(damaged)), RGB)
        except BadImage:
            continue
    assert passed == 0


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "empty"),
        (b"<!DOCTYPE html><html>404</html>", "DOCTYPE"),
        (b"\0" * 500, "not an image"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n", "not an image"),
        (b"\0\0\0\x18ftypheic" + b"\0" * 64, "ftypheic"),
    ],
)
def test_what_is_no_image_is_named(raw: bytes, reason: str, tmp_path: Path) -> None:
    (tmp_path / "x.png").write_bytes(raw)
    for source in (raw, tmp_path / "x.png"):
        with pytest.raises(BadImage, match=reason) as caught:
            decode_image(source, size=8, name="some/x.png")
        assert caught.value.name == "some/x.png"
        assert str(caught.value).startswith("bad image some/x.png: ")


def test_paths_that_are_no_files(tmp_path: Path) -> None:
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "link.png").symlink_to(tmp_path / "gone.png")
    (tmp_path / "loop.png").symlink_to(tmp_path / "loop.png")
    os.mkfifo(tmp_path / "pipe.png")
    reasons = {
        "folder.png": "directory", "link.png": "symlink", "loop.png": "symbolic links",
        "pipe.png": "not a regular file", "none.png": "no such file",
    }  # fmt: skip
    for file, reason in reasons.items():
        with pytest.raises(BadImage, match=reason):
            decode_image(tmp_path / file, size=8, name=file)


def test_an_unreadable_file() -> None:
    program = (
        "import os, sys, pathlib\n"
        "from opportune.train.data import BadImage, decode_image\n"
        "if os.getuid() == 0: os.setuid(65534)\n"
        "try: decode_image(pathlib.Path(sys.argv[1]), size=8, name='x')\n"
        "except BadImage as error: print(error.reason)\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        file = Path(folder) / "x.png"
        file.write_bytes(encoded(RGB))
        file.chmod(0)
        run = subprocess.run([sys.executable, "-c", program, str(file)], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "Permission denied"


def test_wrong_settings_are_the_callers_fault_not_the_images() -> None:
    with pytest.raises(ValueError, match="channels=4") as caught:
        decode_image(encoded(RGB), size=8, channels=4, name="x")
    assert not isinstance(caught.value, BadImage)
    with pytest.raises(ValueError, match="size"):
        decode_image(encoded(RGB), size=0, name="x")


def test_the_error_survives_the_way_from_a_worker() -> None:
    error = pickle.loads(pickle.dumps(BadImage("a.png", "torn")))
    assert (error.name, error.reason, str(error)) == ("a.png", "torn", "bad image a.png: torn")
