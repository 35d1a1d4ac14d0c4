from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from opportune.generate import save_folder, save_grid


def test_a_folder_holds_the_pictures_under_their_numbers(tmp_path: Path) -> None:
    grey = torch.tensor([-1.0, 0.0, 1.0, 2.0]).view(4, 1, 1, 1).expand(4, 1, 3, 5)
    paths = save_folder(grey, tmp_path / "new", start=8)
    assert [p.name for p in paths] == ["000008.png", "000009.png", "000010.png", "000011.png"]
    for path, value in zip(paths, (0, 128, 255, 255), strict=True):
        picture = Image.open(path)
        assert picture.mode == "L" and picture.size == (5, 3) and set(np.asarray(picture).ravel()) == {value}


def test_colours_and_eight_bit_values_come_back_exactly(tmp_path: Path) -> None:
    images = torch.randint(0, 256, (2, 3, 4, 6), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    for images_in in (images, images.float() / 127.5 - 1):
        for path, want in zip(save_folder(images_in, tmp_path), images, strict=True):
            assert np.array_equal(np.asarray(Image.open(path)), want.permute(1, 2, 0).numpy())


def test_a_grid_is_filled_row_by_row(tmp_path: Path) -> None:
    images = torch.arange(5, dtype=torch.uint8).view(5, 1, 1, 1).expand(5, 1, 4, 3)
    sheet = np.asarray(Image.open(save_grid(images, tmp_path / "a" / "grid.png", columns=3)))
    assert sheet.shape == (4 * 2 + 2, 3 * 3 + 2 * 2)
    corners = [[int(sheet[r * 6, c * 5]) for c in range(3)] for r in range(2)]
    assert corners == [[0, 1, 2], [3, 4, 255]]
    assert (sheet[4:6] == 255).all() and (sheet[:, 3:5] == 255).all()
    assert Image.open(save_grid(images, tmp_path / "b.png")).size == (13, 10)  # 3 columns, 2 rows
    assert Image.open(save_grid(images[:1], tmp_path / "c.png", columns=8)).size == (3, 4)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.zeros(2, 4, 8, 8), "decode latents first"),
        (torch.zeros(0, 3, 8, 8), "images have shape"),
        (torch.zeros(3, 8, 8), "images have shape"),
        (torch.full((1, 1, 2, 2), float("nan")), "4 NaN or infinite values of 4"),
        (torch.zeros(1, 1, 2, 2, dtype=torch.int32), "torch.int32"),
    ],
)
def test_what_is_no_picture_is_refused(images: torch.Tensor, message: str, tmp_path: Path) -> None:
    for save in (lambda: save_grid(images, tmp_path / "x.png"), lambda: save_folder(images, tmp_path)):
        with pytest.raises(ValueError, match=message):
            save()
    assert not list(tmp_path.iterdir())
