"""Folders, tensors, and setting examples apart."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.train.data.pictures import flat_picture, write_folder

from opportune.train.data import BadImage, DataError, FolderSource, TensorSource, hold_out


def number_of(source, index: int) -> int:
    image = source.get(index).image
    return int(image[0, 0, 0]) + 256 * int(image[1, 0, 0])


def test_a_folder_is_read_in_path_order_with_its_classes(tmp_path: Path) -> None:
    source = FolderSource(write_folder(tmp_path, 6), size=8, labels=True)
    assert source.classes == ("cat", "dog")
    assert [number_of(source, index) for index in range(6)] == [1, 3, 5, 0, 2, 4]
    assert [source.get(index).label for index in range(6)] == [0, 0, 0, 1, 1, 1]
    assert source.get(0).name == "cat/0001.png"
    assert source.get(0).image.shape == (3, 8, 8)


def test_labels_are_not_given_unasked(tmp_path: Path) -> None:
    source = FolderSource(write_folder(tmp_path, 2), size=8)
    assert source.get(0).label is None and not source.labelled


def test_nested_folders_equal_names_endings_and_hidden_files(tmp_path: Path) -> None:
    for number, file in enumerate(["a/x.png", "a/deep/er/x.png", "b/x.PNG", "b/ü x.jpeg"]):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_bytes(flat_picture(number))
    for file in ("a/notes.txt", "a/._x.png", ".hidden.png"):
        (tmp_path / file).write_bytes(b"no image")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git/x.png").write_bytes(b"no image")
    (tmp_path / "a/round").symlink_to(tmp_path / "a")
    source = FolderSource(tmp_path, size=8, labels=True)
    assert source.files == ["a/deep/er/x.png", "a/x.png", "b/x.PNG", "b/ü x.jpeg"]
    assert [source.get(index).label for index in range(4)] == [0, 0, 1, 1]


def test_a_linked_folder_is_read(tmp_path: Path) -> None:
    write_folder(tmp_path / "disk", 4)
    (tmp_path / "data").mkdir()
    (tmp_path / "data/pets").symlink_to(tmp_path / "disk")
    assert FolderSource(tmp_path / "data", size=8).files[0] == "pets/cat/0001.png"


def test_a_folder_named_like_an_image_is_walked_into(tmp_path: Path) -> None:
    (tmp_path / "x.png").mkdir()
    (tmp_path / "x.png/y.png").write_bytes(flat_picture(1))
    assert FolderSource(tmp_path, size=8).files == ["x.png/y.png"]


def test_bad_files_are_named_when_their_turn_comes(tmp_path: Path) -> None:
    write_folder(tmp_path, 4, bad=(2,))
    (tmp_path / "dog/zz.png").symlink_to(tmp_path / "nowhere.png")
    (tmp_path / "dog/zz.heic").write_bytes(b"\0\0\0\x18ftypheic" + b"\0" * 64)
    source = FolderSource(tmp_path, size=8)
    assert len(source) == 6
    for index, name in ((3, "0002.png"), (4, "zz.heic"), (5, "zz.png")):
        with pytest.raises(BadImage) as caught:
            source.get(index)
        assert caught.value.name == str(tmp_path / "dog" / name)


def test_a_file_that_vanishes_is_bad_not_fatal(tmp_path: Path) -> None:
    source = FolderSource(write_folder(tmp_path, 2), size=8)
    (tmp_path / "cat/0001.png").unlink()
    with pytest.raises(BadImage, match="no such file"):
        source.get(0)


def test_folders_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text").mkdir()
    (tmp_path / "text/a.txt").write_text("a")
    cases = {"none": "no folder", "empty": "no images", "text": "1 other files", "text/a.txt": "is a file"}
    for folder, reason in cases.items():
        with pytest.raises(DataError, match=reason) as caught:
            FolderSource(tmp_path / folder, size=8)
        assert str(tmp_path / folder) in str(caught.value) and "\n" not in str(caught.value)


def test_labels_need_class_folders(tmp_path: Path) -> None:
    (write_folder(tmp_path, 2) / "loose.png").write_bytes(flat_picture(9))
    with pytest.raises(DataError, match=r"loose\.png lies in no class folder"):
        FolderSource(tmp_path, size=8, labels=True)


def test_tensors_in_memory() -> None:
    images = torch.arange(2 * 3 * 4 * 4, dtype=torch.uint8).view(2, 3, 4, 4)
    source = TensorSource(images, torch.tensor([5, 6]))
    assert torch.equal(source.get(1).image, images[1]) and source.get(1).label == 6
    with pytest.raises(DataError, match=r"\[N, C, H, W\]"):
        TensorSource(images[0])
    with pytest.raises(DataError, match="one per image"):
        TensorSource(images, torch.tensor([5]))


def test_holding_out_splits_without_loss_and_the_same_each_time(tmp_path: Path) -> None:
    source = FolderSource(write_folder(tmp_path, 20), size=8, labels=True)
    rest, held = hold_out(source, 6, seed=1)
    parts = [sorted(number_of(part, index) for index in range(len(part))) for part in (rest, held)]
    assert len(parts[1]) == 6 and sorted(parts[0] + parts[1]) == list(range(20))
    assert held.labelled and held.classes == ("cat", "dog")
    again = hold_out(source, 6, seed=1)[1]
    other = hold_out(source, 6, seed=2)[1]
    assert [number_of(again, index) for index in range(6)] == [number_of(held, index) for index in range(6)]
    assert sorted(number_of(other, index) for index in range(6)) != parts[1]
    with pytest.raises(DataError, match="20 of the 20"):
        hold_out(source, 20)
