"""A stopped and resumed run is the uninterrupted run, to the bit: weights, EMA, optimizer, sampler, logs."""

from __future__ import annotations

import tarfile
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pytest
from tests.train.runs import everything, stop_at, tiny

from opportune.train.trainer import Trainer

KINDS: dict[str, dict[str, Any]] = {
    "uniform": {},
    "kim": {"sampler": {"name": "kim", "settings": {"every_steps": 2, "coverage": 20, "queue_rows": 3}}},
    "adaptive": {"sampler": {"name": "adaptive", "settings": {"warmup_steps": 8, "bins": 5}}},
    "accumulation": {
        "data": {"accumulation": 2},
        "process": {"settings": {"steps": 4}},
        "sampler": {"name": "second_moment", "settings": {"warmup_steps": 4, "refresh_steps": 2, "history": 1}},
    },
    "workers": {
        "sampler": {"name": "adaptive", "settings": {"warmup_steps": 8, "bins": 5}},
        "data": {"workers": 2, "flip": True, "classes": 10},
    },
    "everything": {
        "sampler": {"name": "stratified", "settings": {"of": "mixture"}},
        "weighting": {"name": "learned_uncertainty"},
        "optimizer": {"momentum_decay": "mdlrc"},
        "schedule": {"name": "cosine", "warm_up_steps": 3},
        "process": {"name": "edm"},
        "model": {
            "name": "unet",
            "settings": {"widths": [8, 8], "group_count": 4, "blocks_per_level": 1, "dropout": 0.1},
        },
        "hardware": {"channels_last": True, "precision": "bf16"},
        "data": {"low_resolution_factor": 2},
    },
}


@cache
def uninterrupted(kind: str) -> dict[str, Any]:
    folder = Path(mkdtemp())
    assert Trainer(tiny(folder, **KINDS[kind])).run().exit_code == 0
    return everything(folder)


# 0: before the first step. 4: a checkpoint was due. 5: validation was due, and is interrupted by the stop.
# 7: between two records and in the middle of warm-ups. 11: the last step but one. 12: the last.
@pytest.mark.parametrize(("kind", "stop"), [("uniform", k) for k in (0, 4, 5, 7, 11, 12)] + [
    ("kim", 6), ("kim", 7), ("adaptive", 5), ("adaptive", 9), ("accumulation", 7), ("workers", 7), ("everything", 7),
])  # fmt: skip
def test_a_resumed_run_is_the_uninterrupted_one(kind: str, stop: int, tmp_path: Path) -> None:
    config = tiny(tmp_path, **KINDS[kind])
    stopped = stop_at(config, stop)
    assert stopped.step == stop
    if stop < 12:
        assert (stopped.exit_code, stopped.stopped_by) == (143, "SIGTERM")
    resumed = Trainer(config, resume="latest").run()
    assert (resumed.step, resumed.exit_code) == (12, 0)
    assert everything(tmp_path) == uninterrupted(kind)


def test_a_run_on_a_stream_of_shards_resumes_exactly(tmp_path: Path) -> None:
    """Classes and held-out images from tar files, shuffled in a buffer, over the borders of epochs, with workers."""
    pytest.importorskip("webdataset")
    for split, count in (("train", 40), ("test", 8)):
        folder = pictures(tmp_path / split, count)
        for shard in range(2):
            with tarfile.open(tmp_path / f"{split}-{shard}.tar", "w") as tar:
                for file in sorted(folder.glob("*.png"))[shard::2]:
                    file.with_suffix(".cls").write_text(str(int(file.stem) % 10))
                    for member in (file, file.with_suffix(".cls")):
                        tar.add(member, member.name)
    data = {"source": f"webdataset:{tmp_path}/{{split}}-*.tar", "classes": 10, "shuffle_buffer": 7, "workers": 2}
    whole, halved = (tiny(tmp_path / name, data=data, validation={"examples": 8}) for name in ("whole", "halved"))
    assert Trainer(whole).run().exit_code == 0
    assert stop_at(halved, 7).step == 7  # 56 images in: the second epoch
    Trainer(halved, resume="latest").run()
    assert everything(tmp_path / "halved") == everything(tmp_path / "whole")


LONG = {"run": {"steps": 60}, "validation": {"every_steps": 25}, "checkpoint": {"every_steps": 10}}


@pytest.mark.nightly
@pytest.mark.parametrize("kind", KINDS)
def test_stopping_at_every_step_of_sixty(kind: str, tmp_path: Path) -> None:
    changes = {name: {**LONG.get(name, {}), **KINDS[kind].get(name, {})} for name in {*LONG, *KINDS[kind]}}
    # 60 steps of 168 images: the border of the first epoch is crossed at step 21.
    changes["data"] = {**changes.get("data", {}), "source": f"folder:{pictures(tmp_path / 'pictures', 184)}"}
    changes["data"].pop("classes", None)
    if kind in ("uniform", "kim", "adaptive"):
        changes["data"]["workers"] = 2
    assert Trainer(tiny(tmp_path / "whole", **changes)).run().exit_code == 0
    expected = everything(tmp_path / "whole")
    for stop in range(61):
        config = tiny(tmp_path / f"{stop}", **changes)
        assert stop_at(config, stop).step == stop
        Trainer(config, resume="latest").run()
        assert everything(tmp_path / f"{stop}") == expected, f"stopped at {stop}"


def pictures(folder: Path, count: int) -> Path:
    """Grey 16x16 images of noise."""
    from PIL import Image

    folder.mkdir()
    numbers = np.random.default_rng(0)
    for index in range(count):
        Image.fromarray(numbers.integers(0, 256, (16, 16), dtype=np.uint8)).save(folder / f"{index:03}.png")
    return folder
