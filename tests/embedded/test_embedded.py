import hashlib
import importlib.util
from pathlib import Path

import pytest
import torch

from opportune.embedded import fashion16, load_fashion16

COUNTS = {"train": 10_000, "test": 2_000}
DEBIAN = Path("/usr/share/datasets/fashion-mnist")
SCRIPT = Path(__file__).parents[2] / "scripts" / "make_embedded.py"


@pytest.mark.parametrize("split", COUNTS)
def test_shapes_types_and_range(split):
    images, labels = load_fashion16(split)
    assert images.shape == (COUNTS[split], 1, 16, 16) and images.dtype == torch.uint8
    assert labels.shape == (COUNTS[split],) and labels.dtype == torch.int64
    # the full range of grey is used, and the mean is that of clothes on black: an offset of one byte into
    # the labels, or a scaling by 255, would show here
    assert images.min() == 0 and images.max() == 255
    assert 0.25 < images.float().mean() / 255 < 0.33
    assert torch.equal(labels.unique(), torch.arange(10))


@pytest.mark.parametrize("split", COUNTS)
def test_every_ten_in_a_row_hold_each_class_once(split):
    _, labels = load_fashion16(split)
    assert torch.equal(labels.view(-1, 10), torch.arange(10).expand(COUNTS[split] // 10, 10))


def test_images_belong_to_their_labels_and_splits_agree():
    """The nearest class mean of the training split names most test images; shuffled labels would give 0.1."""
    (train, train_labels), (test, test_labels) = load_fashion16("train"), load_fashion16("test")
    means = torch.stack([train[train_labels == label].float().mean(0).flatten() for label in range(10)])
    guess = torch.cdist(test.float().flatten(1), means).argmin(1)
    assert (guess == test_labels).float().mean() > 0.6


def test_splits_share_few_images():
    """The original sets hold some look-alikes, but a split cut from the other one would share all of them."""
    train, test = ({row.numpy().tobytes() for row in load_fashion16(split)[0]} for split in COUNTS)
    assert len(train & test) < 10


def test_the_size_allowed_in_the_wheel():
    assert len(fashion16.DATA_FILE.read_bytes()) <= 2_500_000


def test_a_call_cannot_spoil_the_next():
    images, labels = load_fashion16("test")
    images.zero_(), labels.zero_()
    again, labels_again = load_fashion16("test")
    assert again.max() == 255 and labels_again.max() == 9


@pytest.mark.parametrize("damage", ["flip in header", "flip at end", "cut", "empty"])
def test_a_damaged_file_is_refused(damage, tmp_path, monkeypatch):
    blob = bytearray(fashion16.DATA_FILE.read_bytes())
    if damage.startswith("flip"):
        blob[20 if "header" in damage else -1] ^= 1
    copy = tmp_path / "fashion16.bin"
    copy.write_bytes({"cut": blob[:-1000], "empty": b""}.get(damage, blob))
    monkeypatch.setattr(fashion16, "DATA_FILE", copy)
    with pytest.raises(ValueError, match=r"fashion16\.bin is damaged: its SHA-256 is .* Reinstall it"):
        load_fashion16("train")


def test_an_unknown_split_names_the_known():
    with pytest.raises(ValueError, match=r"split='valid' is unknown: choose one of 'train', 'test'"):
        load_fashion16("valid")  # type: ignore[arg-type]


@pytest.mark.skipif(not DEBIAN.is_dir(), reason="needs Debian's package dataset-fashion-mnist")
def test_the_script_remakes_the_file(tmp_path, monkeypatch):
    """Same pixels as in the tree; the packed bytes may differ between versions of zlib."""
    spec = importlib.util.spec_from_file_location("make_embedded", SCRIPT)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    remade = tmp_path / "fashion16.bin"
    remade.write_bytes(script.build(DEBIAN))
    in_tree = [load_fashion16(split) for split in COUNTS]
    monkeypatch.setattr(fashion16, "SHA256", hashlib.sha256(remade.read_bytes()).hexdigest())
    monkeypatch.setattr(fashion16, "DATA_FILE", remade)
    for (images, labels), split in zip(in_tree, COUNTS, strict=True):
        images_again, labels_again = load_fashion16(split)
        assert torch.equal(images, images_again) and torch.equal(labels, labels_again)
