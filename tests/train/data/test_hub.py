"""Hugging Face datasets, through the real library: local Parquet, image folders, streams."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.train.data.pictures import encoded, flat_picture, write_folder

from opportune.train.data import BadImage, DataError, Loader, NoSuchSplit, Order, StreamOrder, open_source


def write_parquet(file: Path, rows: list[bytes | None], *, first: int = 0, column: str = "img") -> Path:
    """The hub's own layout: a struct of bytes and path with the library's schema, and a class."""
    features = datasets.Features({column: datasets.Image(), "label": datasets.ClassLabel(names=["a", "b", "c"])})
    cells = [raw and {"bytes": raw, "path": f"{first + index}.png"} for index, raw in enumerate(rows)]
    labels = [index % 3 for index in range(len(rows))]
    datasets.Dataset.from_dict({column: cells, "label": labels}, features=features).to_parquet(file)
    return file


@pytest.fixture
def parquet(tmp_path: Path) -> Path:
    return write_parquet(tmp_path / "train.parquet", [flat_picture(index) for index in range(10)])


def number_of(image) -> int:
    return int(image[0, 0, 0])


@pytest.mark.parametrize("streaming", [False, True])
def test_parquet_of_the_hub(parquet: Path, streaming: bool) -> None:
    source = open_source(f"parquet:{parquet}", size=8, labels=True, streaming=streaming)
    assert source.classes == ("a", "b", "c") and source.labelled
    if streaming:
        examples = [source.decode(item) for item in source.read(0, 0)]
    else:
        examples = [source.get(index) for index in range(len(source))]
    assert [number_of(example.image) for example in examples] == list(range(10))
    assert [example.label for example in examples] == [index % 3 for index in range(10)]


def test_several_files_are_one_set(tmp_path: Path, parquet: Path) -> None:
    more = write_parquet(tmp_path / "more.parquet", [flat_picture(index) for index in range(10, 14)], first=10)
    source = open_source(f"parquet:{parquet},{more}", size=8)
    assert [number_of(source.get(index).image) for index in range(len(source))] == list(range(14))


def test_our_decoder_runs_not_the_librarys(tmp_path: Path) -> None:
    """Of a 16-bit image the library's decoder would make 254 of 255 white; of a torn one, an error without a name."""
    deep = np.linspace(0, 65535, 64).reshape(8, 8).astype(np.uint16)
    torn = flat_picture(1)[:70]
    file = write_parquet(tmp_path / "x.parquet", [encoded(deep), torn, None])
    source = open_source(f"parquet:{file}", size=8, channels=1)
    assert np.array_equal(source.get(0).image[0].numpy(), np.round(deep / 257))
    with pytest.raises(BadImage, match=rf"parquet:{file}\[1\] \(1\.png\)"):
        source.get(1)
    with pytest.raises(BadImage, match=r"\[2\]: the row holds no image"):
        source.get(2)


def test_parquet_without_the_hubs_schema(tmp_path: Path) -> None:
    rows = [flat_picture(index) for index in range(3)]
    pq.write_table(pa.table({"pic": rows, "cls": [2, 0, -1], "text": ["x", "y", "z"]}), tmp_path / "x.parquet")
    source = open_source(f"parquet:{tmp_path}/x.parquet", size=8, labels=True)
    assert [number_of(source.get(index).image) for index in range(2)] == [0, 1]
    assert [source.get(index).label for index in range(2)] == [2, 0] and source.classes is None
    with pytest.raises(BadImage, match="label is -1"):
        source.get(2)


def test_columns_must_be_clear(tmp_path: Path) -> None:
    raw = [flat_picture(0)]
    pq.write_table(pa.table({"left": raw, "right": raw, "n": [1], "m": [2]}), tmp_path / "x.parquet")
    spec = f"parquet:{tmp_path}/x.parquet"
    with pytest.raises(
        DataError, match=r"holds images; its columns are left, right, n, m\. Name one with image_column"
    ):
        open_source(spec, size=8)
    with pytest.raises(DataError, match="label_column"):
        open_source(spec, size=8, image_column="left", labels=True)
    with pytest.raises(DataError, match="no column 'rihgt'"):
        open_source(spec, size=8, image_column="rihgt")
    source = open_source(spec, size=8, image_column="right", label_column="m", labels=True)
    assert source.get(0).label == 2


def test_files_that_cannot_be_opened(tmp_path: Path, parquet: Path) -> None:
    raw = parquet.read_bytes()
    (tmp_path / "cut.parquet").write_bytes(raw[:-50])
    (tmp_path / "empty.parquet").write_bytes(b"")
    (tmp_path / "inside.parquet").write_bytes(b"PAR1" + bytes(200) + b"PAR1")
    reasons = {
        "none": "no file",
        "cut": "not a complete Parquet",
        "empty": "not a complete",
        "inside": "cannot be opened",
    }
    for file, reason in reasons.items():
        with pytest.raises(DataError, match=reason) as caught:
            open_source(f"parquet:{tmp_path}/{file}.parquet", size=8)
        assert f"{tmp_path}/{file}.parquet" in str(caught.value) and "\n" not in str(caught.value)


def test_a_local_folder_in_the_librarys_layout(tmp_path: Path) -> None:
    """Class folders below split folders, which the library finds by itself; one file is damaged."""
    write_folder(tmp_path / "set/train", 6, bad=(4,))
    write_folder(tmp_path / "set/test", 4)
    train = open_source(f"hub:{tmp_path}/set", size=8, labels=True)
    test = open_source(f"hub:{tmp_path}/set", split="test", size=8, labels=True)
    assert (len(train), len(test)) == (6, 4) and train.classes == ("cat", "dog")
    assert [number_of(train.get(index).image) for index in (0, 1, 2)] == [1, 3, 5]
    assert [train.get(index).label for index in (0, 3)] == [0, 1]
    with pytest.raises(BadImage, match=r"dog/0004\.png"):
        train.get(5)
    with pytest.raises(NoSuchSplit, match="no split 'validation'"):
        open_source(f"hub:{tmp_path}/set", split="validation", size=8)


def test_a_name_the_hub_does_not_know_is_one_line() -> None:
    program = (
        "from opportune.train.data import *\n"
        "try: open_source('hub:nobody/nothing', size=8)\n"
        "except DataError as error: print(str(error))\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env={**os.environ, "HF_HUB_OFFLINE": "1"}
    )
    assert run.stdout.startswith("hub:nobody/nothing cannot be opened: ") and run.stdout.count("\n") == 1


@pytest.mark.parametrize("workers", [0, 2])
def test_parquet_through_the_loader(parquet: Path, workers: int) -> None:
    source = open_source(f"parquet:{parquet}", size=8, labels=True)
    batch = next(iter(Loader(source, Order(10, 4, seed=1), workers=workers)))
    red = ((batch.images[:, 0, 0, 0] + 1) * 127.5).round().long()
    assert red.tolist() == batch.ids.tolist() and batch.labels.tolist() == [index % 3 for index in red.tolist()]


def test_a_stream_of_files_through_the_loader(tmp_path: Path) -> None:
    for part in range(3):
        rows = [flat_picture(number) for number in range(part * 5, part * 5 + 5)]
        write_parquet(tmp_path / f"{part}.parquet", rows, first=part * 5)
    spec = "parquet:" + ",".join(str(tmp_path / f"{part}.parquet") for part in range(3))
    source = open_source(spec, size=8, streaming=True)
    batches = iter(Loader(source, StreamOrder(5, seed=2, shuffle_buffer=4), workers=0))
    epochs = []
    for _ in range(3):
        images = [next(batches).images for _ in range(3)]
        epochs.append([round((float(image[0, 0, 0]) + 1) * 127.5) for batch in images for image in batch])
    assert all(sorted(epoch) == list(range(15)) for epoch in epochs)
    assert epochs[0] != epochs[1] and epochs[0] != list(range(15))
    files_first = {epoch[0] // 5 for epoch in epochs} | {epoch[-1] // 5 for epoch in epochs}
    assert len(files_first) > 1
