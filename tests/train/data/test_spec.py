"""One line of text opens a dataset, or says in one line why not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from tests.train.data.pictures import write_folder

from opportune.embedded import load_fashion16
from opportune.train.data import GRAMMAR, DataError, NoSuchSplit, open_source, write_latents


@pytest.mark.parametrize(("split", "count"), [("train", 10_000), ("test", 2_000)])
def test_the_embedded_images(split: str, count: int) -> None:
    grey = open_source("embedded:fashion16", split=split, channels=1, labels=True)
    images, labels = load_fashion16(split)
    assert len(grey) == count
    for index in (0, 17, count - 1):
        assert torch.equal(grey.get(index).image, images[index]) and grey.get(index).label == int(labels[index])
    colour = open_source("embedded:fashion16", split=split, channels=3, size=16)
    assert torch.equal(colour.get(5).image, images[5].expand(3, -1, -1)) and colour.get(5).label is None


def test_what_the_embedded_images_cannot_be() -> None:
    with pytest.raises(DataError, match="size=32 is not possible"):
        open_source("embedded:fashion16", size=32)
    with pytest.raises(DataError, match="did you mean 'fashion16'"):
        open_source("embedded:fashion61")
    with pytest.raises(NoSuchSplit, match="it has 'train' and 'test'"):
        open_source("embedded:fashion16", split="validation")


@pytest.mark.parametrize(
    ("spec", "hint"),
    [
        ("foldr:x", "'folder'"),
        ("parqet:x", "'parquet'"),
        ("folder:", ""),
        ("", ""),
        ("x", ""),
        ("a.parquet", "'parquet:a.parquet'"),
    ],
)
def test_an_unknown_form_lists_the_grammar_and_the_nearest(spec: str, hint: str) -> None:
    with pytest.raises(DataError, match=re.escape(f"dataset {spec!r} is not understood")) as caught:
        open_source(spec, size=8)
    message = str(caught.value)
    assert all(form in message for form in GRAMMAR) and hint in message and "\n" not in message


def test_a_bare_folder_is_recognised(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=rf"did you mean 'folder:{tmp_path}'"):
        open_source(str(tmp_path), size=8)


def test_a_split_takes_its_place_in_the_path(tmp_path: Path) -> None:
    write_folder(tmp_path / "train", 3)
    write_folder(tmp_path / "val", 2)
    spec = f"folder:{tmp_path}/{{split}}"
    assert len(open_source(spec, size=8)) == 3
    assert len(open_source(spec, size=8, split="val")) == 2
    with pytest.raises(NoSuchSplit, match="names no place for the split 'val'"):
        open_source(f"folder:{tmp_path}/train", size=8, split="val")


def test_too_few_images_for_a_batch(tmp_path: Path) -> None:
    spec = f"folder:{write_folder(tmp_path, 3)}"
    assert len(open_source(spec, size=8, at_least=3)) == 3
    with pytest.raises(DataError, match=rf"^{spec} holds 3 images, fewer than the 4 of one global batch\.$"):
        open_source(spec, size=8, at_least=4)


def test_options_without_effect_are_refused(tmp_path: Path) -> None:
    spec = f"folder:{write_folder(tmp_path, 3)}"
    with pytest.raises(DataError, match="streaming=True has no effect"):
        open_source(spec, size=8, streaming=True)
    with pytest.raises(DataError, match="have no effect"):
        open_source(spec, size=8, image_column="img")
    with pytest.raises(DataError, match="needs size="):
        open_source(spec)


def test_latents_by_name(tmp_path: Path) -> None:
    write_latents(tmp_path / "l", ((torch.zeros(4, 2, 2), None) for _ in range(3)), made_from={"encoder": "x"})
    assert len(open_source(f"latents:{tmp_path}/l", made_from={"encoder": "x"})) == 3
    with pytest.raises(DataError, match="stale"):
        open_source(f"latents:{tmp_path}/l", made_from={"encoder": "y"})


def test_a_file_in_place_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("x")
    with pytest.raises(DataError, match="is a file"):
        open_source(f"folder:{tmp_path}/x", size=8)
