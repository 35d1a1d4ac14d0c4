"""Streams: WebDataset shards, the shuffle buffer, resuming, ranks, workers, bad samples."""

from __future__ import annotations

import io
import json
import tarfile
from itertools import islice, pairwise
from pathlib import Path

import pytest
import torch
from tests.train.data.pictures import flat_picture

from opportune.train.data import BadImage, DataError, Loader, Order, StreamOrder, open_source
from opportune.train.data.lots import shuffled

COUNT, SIZE = 22, 6


def write_tar(file: Path, members: dict[str, bytes]) -> Path:
    with tarfile.open(file, "w") as tar:
        for name, raw in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(raw)
            tar.addfile(info, io.BytesIO(raw))
    return file


def write_shards(folder: Path, *, bad: tuple[int, ...] = ()) -> str:
    """22 samples in 3 shards of 8, 8 and 6."""
    folder.mkdir(exist_ok=True)
    for shard in range(3):
        members = {}
        for number in range(shard * 8, min(shard * 8 + 8, COUNT)):
            raw = flat_picture(number)
            members[f"{number:04d}.png"] = raw[:60] if number in bad else raw
            members[f"{number:04d}.cls"] = f"{number % 5}\n".encode()
            members[f"{number:04d}.txt"] = b"a caption"
        write_tar(folder / f"s-{shard:03d}.tar", members)
    return f"webdataset:{folder}/s-{{000..002}}.tar"


@pytest.fixture
def spec(tmp_path: Path) -> str:
    return write_shards(tmp_path / "shards")


def loader_of(spec: str, *, buffer: int = 5, **more) -> Loader:
    source = open_source(spec, size=8, labels=True)
    return Loader(source, StreamOrder(SIZE, seed=4, shuffle_buffer=buffer), **{"workers": 0, "flip": True, **more})


def take(loader: Loader, count: int) -> list:
    return list(islice(iter(loader), count))


def same(found: list, wanted: list) -> bool:
    return len(found) == len(wanted) and all(
        torch.equal(one, other) for a, b in zip(found, wanted, strict=True) for one, other in zip(a, b, strict=True)
    )


def numbers(batches: list) -> list[int]:
    return [round((float(image[0, 0, 0]) + 1) * 127.5) for batch in batches for image in batch.images]


def test_samples_with_their_classes(spec: str) -> None:
    source = open_source(spec, size=8, labels=True)
    examples = [source.decode(item) for item in source.read(0, 0)]
    found = sorted((int(example.image[0, 0, 0]), example.label) for example in examples)
    assert found == [(number, number % 5) for number in range(COUNT)]
    assert examples[0].name.endswith(".png") and ".tar: " in examples[0].name


def test_every_epoch_holds_every_sample_once_in_an_order_of_its_own(spec: str) -> None:
    row = numbers(take(loader_of(spec), 11))  # 66 examples: three epochs of 22, none of them a whole number of batches
    epochs = [row[start : start + COUNT] for start in (0, 22, 44)]
    assert all(sorted(epoch) == list(range(COUNT)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]


def test_a_buffer_of_one_keeps_the_order_of_the_shards(spec: str) -> None:
    row = numbers(take(loader_of(spec, buffer=1), 11))[:COUNT]
    parts = [row[:8], row[8:16], row[16:]]
    assert sorted(row) == list(range(COUNT)) and row == [*sorted(row[:6]), *row[6:]]
    assert all(b - a == 1 or a % 8 == 7 or a == COUNT - 1 for a, b in pairwise(row)), parts


@pytest.mark.parametrize("size", [1, 2, 7, 100])
def test_the_shuffle_loses_and_invents_nothing(size: int) -> None:
    for count in (0, 1, 5, 50):
        row = list(shuffled(iter(range(count)), size, 1, 2))
        assert sorted(row) == list(range(count))
        assert (row == list(range(count))) == (size == 1 or count <= 1) or count <= 5
    assert list(shuffled(iter(range(50)), 7, 1, 2)) != list(shuffled(iter(range(50)), 7, 1, 3))


@pytest.mark.parametrize("bad", [(), (0, 3, 9, 10, 21)])
def test_workers_and_ranks_do_not_matter(tmp_path: Path, bad: tuple[int, ...]) -> None:
    spec = write_shards(tmp_path / "shards", bad=bad)
    options = {"on_bad": "skip"}
    wanted = take(loader_of(spec, **options), 9)
    assert set(numbers(wanted)).isdisjoint(bad)
    for workers in (1, 2, 4):
        assert same(take(loader_of(spec, workers=workers, **options), 9), wanted)
    for world in (2, 3):
        for rank in range(world):
            mine = take(loader_of(spec, rank=rank, world=world, **options), 9)
            assert same(mine, [[part[rank::world] for part in batch] for batch in wanted])


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("stop", [0, 1, 3, 4, 8, 11])  # 11 batches of 6 are exactly 3 epochs of 22
def test_a_resumed_stream_goes_on_as_if_nothing_had_happened(tmp_path: Path, workers: int, stop: int) -> None:
    spec = write_shards(tmp_path / "shards", bad=(2, 20))
    wanted = take(loader_of(spec, on_bad="skip"), 14)
    first = loader_of(spec, on_bad="skip", workers=workers)
    before = take(first, stop)
    second = loader_of(spec, on_bad="skip", workers=1 - workers // 2)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert same(before + take(second, 14 - stop), wanted)
    assert second.position == 14


def test_a_checkpoint_of_another_shuffle_is_refused(spec: str) -> None:
    with pytest.raises(DataError, match="shuffle_buffer=5, this run has shuffle_buffer=6"):
        loader_of(spec, buffer=6).load_state_dict(loader_of(spec).state_dict())


def test_bad_samples_are_named(tmp_path: Path) -> None:
    members = {"a.png": flat_picture(0), "a.cls": b"x", "b.cls": b"1", "c.png": flat_picture(1)[:50], "c.cls": b"1"}
    write_tar(tmp_path / "x.tar", members)
    source = open_source(f"webdataset:{tmp_path}/x.tar", size=8, labels=True)
    for item, reason in zip(source.read(0, 0), ("b'x'; labels need", "has no image", "damaged|decoded"), strict=True):
        with pytest.raises(BadImage, match=reason) as caught:
            source.decode(item)
        assert caught.value.name.startswith(f"{tmp_path}/x.tar: ")
    with pytest.raises(BadImage):
        next(iter(Loader(source, StreamOrder(2), workers=0)))


def test_a_stream_without_one_good_sample_is_an_error_not_a_loop(tmp_path: Path) -> None:
    spec = write_shards(tmp_path / "shards", bad=tuple(range(COUNT)))
    with pytest.raises(DataError, match="no image of a whole batch of webdataset:"):
        take(loader_of(spec, on_bad="skip", max_bad_share=1.0), 1)
    with pytest.raises(DataError, match="more than max_bad_share=0 allows"):
        take(loader_of(spec, on_bad="skip", max_bad_share=0.0), 1)


def test_a_stream_shorter_than_a_batch_is_an_error_not_a_loop(tmp_path: Path) -> None:
    for count in (0, 3):
        file = write_tar(tmp_path / f"{count}.tar", {f"{number}.png": flat_picture(number) for number in range(count)})
        source = open_source(f"webdataset:{file}", size=8)
        with pytest.raises(DataError, match=rf"holds {count} examples, fewer than one global batch of 6"):
            next(iter(Loader(source, StreamOrder(SIZE), workers=0)))


def test_nothing_in_a_shard_is_unpacked_or_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    (tmp_path / "secret.png").write_bytes(flat_picture(99))
    with tarfile.open(inside / "x.tar", "w") as tar:
        for name, kind, target in (
            ("link.png", tarfile.SYMTYPE, "../secret.png"),
            ("hard.png", tarfile.LNKTYPE, "/etc/passwd"),
        ):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, target
            tar.addfile(info)
        for name in ("../../evil.png", "/abs/evil.png", "good.png"):
            info = tarfile.TarInfo(name)
            info.size = len(flat_picture(1))
            tar.addfile(info, io.BytesIO(flat_picture(1)))
    monkeypatch.chdir(inside)
    before = sorted(tmp_path.rglob("*"))
    source = open_source("webdataset:x.tar", size=8)
    pictures = [int(source.decode(item).image[0, 0, 0]) for item in source.read(0, 0)]
    assert pictures == [1, 1, 1] and sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("address", ["pipe:touch hacked", "http://localhost/x.tar", "{pipe:touch hacked,x.tar}"])
def test_addresses_are_refused(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match="not a local path"):
        open_source(f"webdataset:{address}", size=8)
    assert not list(tmp_path.glob("hacked"))


def test_missing_and_torn_shards(tmp_path: Path, spec: str) -> None:
    for pattern in ("none-{0..3}.tar", "none-*.tar", "shards/s-{000..003}.tar"):
        with pytest.raises(DataError, match="names no shard at") as caught:
            open_source(f"webdataset:{tmp_path}/{pattern}", size=8)
        assert str(tmp_path) in str(caught.value)
    shard = tmp_path / "shards/s-001.tar"
    shard.write_bytes(shard.read_bytes()[:2000])
    with pytest.raises(DataError, match=rf"shard {shard} cannot be read"):
        take(loader_of(spec), 4)


def test_a_star_finds_all_shards(tmp_path: Path, spec: str) -> None:
    assert len(open_source(f"webdataset:{tmp_path}/shards/*.tar", size=8).shards) == 3


def test_a_stream_needs_a_stream_order(spec: str) -> None:
    with pytest.raises(ValueError, match="give it a StreamOrder"):
        Loader(open_source(spec, size=8), Order(10, 2))
