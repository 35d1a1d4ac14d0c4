"""Logs: averages per part of the noise axis, files that continue to the byte, trackers by name."""

from __future__ import annotations

import json
import math
import resource
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.train.runs import latest, tiny

from opportune.generate import save_grid
from opportune.train.disk import replace_text
from opportune.train.errors import ConfigError, RunFolderError
from opportune.train.logs import JsonLines, read_log
from opportune.train.meters import Meters
from opportune.train.noise import LANES, batch_noise, batch_uniforms
from opportune.train.trackers import chosen, open_trackers, scalars_of
from opportune.train.trainer import Trainer
from opportune.types import Draw, StepRecord


def record(u: list[float], losses: list[float], **more: object) -> StepRecord:
    at = torch.tensor(u)
    draw = Draw(u=at, t=at, correction=torch.full_like(at, 2.0), density=torch.full_like(at, 0.5), shape=(len(u),))
    return StepRecord(step=0, draw=draw, losses=torch.tensor(losses), **more)  # type: ignore[arg-type]


def test_meters_average_by_noise_level() -> None:
    meters = Meters(4, torch.device("cpu"))
    one = record([0.1, 0.2, 0.9], [1.0, 3.0, 5.0], loss=torch.tensor(2.0), gradient_norm=torch.tensor(4.0))
    two = record([0.3, 0.99999994], [7.0, 9.0], loss=torch.tensor(4.0), gradient_norm=torch.tensor(6.0))
    probed = StepRecord(
        step=0,
        draw=one.draw,
        probe_u=torch.tensor([[0.6, 0.1]]),
        before=torch.tensor([[2.0, 1.0]]),
        after=torch.tensor([[1.5, 1.25]]),
    )
    meters.add(one, 10 * torch.tensor([1.0, 3.0, 5.0]), None)
    meters.add(two, 10 * torch.tensor([7.0, 9.0]), probed)
    meters.add(record([0.5], [math.nan], skipped=True, loss=torch.tensor(math.nan)), torch.tensor([math.nan]), None)
    found = meters.record()
    assert found["loss"] == 3.0 and found["gradient_norm"] == 5.0 and found["largest_gradient_norm"] == 6.0
    assert found["raw_loss"] == 5.0 and found["skipped_steps"] == 1
    assert found["bins"]["count"] == [2, 1, 0, 2]
    assert found["bins"]["raw_loss"] == [2.0, 7.0, None, 7.0]
    assert found["bins"]["weighted_loss"] == [20.0, 70.0, None, 70.0]
    assert found["bins"]["density"] == [0.5, 0.5, None, 0.5] and found["bins"]["correction"] == [2.0, 2.0, None, 2.0]
    assert found["bins"]["gain"] == [-0.25, None, 0.5, None]
    assert meters.record()["bins"]["count"] == [0, 0, 0, 0]


def test_meters_are_saved_half_way() -> None:
    whole, first, second = (Meters(4, torch.device("cpu")) for _ in range(3))
    steps = [
        record([0.1 * k, 0.9], [k / 3, k / 7], loss=torch.tensor(k / 3), gradient_norm=torch.tensor(1.0))
        for k in range(5)
    ]
    for step in steps:
        whole.add(step, step.losses, None)
    for step in steps[:2]:
        first.add(step, step.losses, None)
    second.load_state_dict(first.state_dict())
    for step in steps[2:]:
        second.add(step, step.losses, None)
    assert json.dumps(second.record()) == json.dumps(whole.record())


def test_a_file_is_cut_back_to_where_the_checkpoint_was(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    log = JsonLines(path)
    log.write({"step": 1})
    length = log.durable_length()
    log.write({"step": 2})
    log.close()
    path.open("a").write('{"step": 3, "half a rec')
    assert [r["step"] for r in read_log(path)] == [1, 2]
    again = JsonLines(path, length=length)
    again.write({"step": 20})
    again.close()
    assert [r["step"] for r in read_log(tmp_path)] == [1, 20]
    with pytest.raises(RunFolderError, match="records are missing"):
        JsonLines(path, length=10_000)


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """The kernel refuses longer ones, as it does where a disk is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_record_without_room_says_where_and_how_much(tmp_path: Path) -> None:
    log = JsonLines(tmp_path / "metrics.jsonl")
    log.write({"step": 1})
    with (
        files_of_at_most(100),
        pytest.raises(OSError, match=r"could not write .*metrics\.jsonl \(needed 2\d\d bytes, fr"),
    ):
        log.write({"step": 2, "text": "x" * 200})


def test_a_small_file_is_replaced_whole_or_stays(tmp_path: Path) -> None:
    path = tmp_path / "evaluation.json"
    replace_text(path, "old")
    with files_of_at_most(100), pytest.raises(OSError, match="needed 200 bytes"):
        replace_text(path, "x" * 200)
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("evaluation.json", "old")]


def test_half_a_picture_is_no_picture(tmp_path: Path) -> None:
    noise = torch.rand(1, 1, 64, 64, generator=torch.Generator().manual_seed(0))
    with files_of_at_most(100), pytest.raises(OSError, match=r"grid\.png"):
        save_grid(noise, tmp_path / "grid.png")
    assert list(tmp_path.iterdir()) == []


def test_trackers_by_name(tmp_path: Path) -> None:
    assert chosen("auto") == ["tensorboard"] and chosen("none") == []
    assert chosen("wandb, trackio") == ["wandb", "trackio"]
    with pytest.raises(ConfigError, match="did you mean 'wandb'"):
        chosen("wanbd")
    with pytest.raises(ImportError, match=r'pip install "opportune\[wandb\]"'):
        open_trackers("wandb", folder=tmp_path, project="x", config={}, step=0)


class Remembering(types.ModuleType):
    """Stands in for wandb or trackio: what a run was begun as, and what was logged."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__spec__ = ModuleSpec(name, None)
        self.begun: list[dict[str, Any]] = []
        self.logged: list[tuple[dict[str, float], int]] = []
        self.finished = 0

    def init(self, **settings: Any) -> Remembering:
        self.begun.append(settings)
        return self

    def log(self, scalars: dict[str, float], step: int) -> None:
        self.logged.append((scalars, step))

    def finish(self) -> None:
        self.finished += 1


@pytest.mark.parametrize(("library", "key"), [("wandb", "id"), ("trackio", "name")])
def test_a_tracker_knows_a_run_by_its_place(
    library: str, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracker = Remembering(library)
    monkeypatch.setitem(sys.modules, library, tracker)
    folders = [tmp_path / "uniform" / "seed0", tmp_path / "kim" / "seed0"]
    for folder in [*folders, folders[0]]:  # the third time, a run that is resumed
        (opened,) = open_trackers(library, folder=folder, project="x", config={"a": 1}, step=5)
        opened.write({"train/loss": 0.5}, 6)
        opened.close()
    first, second, again = (settings[key] for settings in tracker.begun)
    assert first != second and again == first and first.startswith("seed0-")
    assert all(settings["resume"] == "allow" and settings["project"] == "x" for settings in tracker.begun)
    assert tracker.logged == [({"train/loss": 0.5}, 6)] * 3 and tracker.finished == 3


def test_scalars_by_their_path() -> None:
    assert scalars_of({"kind": "train", "loss": 1, "bins": {"raw": [0.5, None]}}) == {"loss": 1.0, "bins/raw/00": 0.5}


def test_a_run_writes_what_it_promises(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")

    class Late(Trainer):
        def _begin(self) -> None:
            super()._begin()
            self.session.clock._since -= 1000  # as if beginning had taken so long

    config = tiny(tmp_path, logs={"report_to": "tensorboard"}, sampler={"name": "kim", "settings": {"every_steps": 2}})
    assert Late(config).run().exit_code == 0
    records = read_log(tmp_path)
    assert [r["step"] for r in records if r["kind"] == "train"] == [3, 6, 9, 12]
    assert [r["step"] for r in records if r["kind"] == "validation"] == [0, 5, 10, 12]
    train = [r for r in records if r["kind"] == "train"][-1]
    assert sum(train["bins"]["count"]) == 3 * 8
    assert any(gain is not None for r in records if r["kind"] == "train" for gain in r["bins"]["gain"])
    assert train["gradient_norm"] > 0 and train["learning_rate"] == 1e-3
    timing = [json.loads(line) for line in (tmp_path / "timing.jsonl").read_text().splitlines()]
    assert [t["step"] for t in timing] == [3, 6, 9, 12]
    assert all(0 < t["overhead_share"] < 1 and 0 <= t["data_share"] < 1 for t in timing)
    assert all(t["seconds_per_step"] < 100 for t in timing), "nothing from before the first step is counted"

    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = EventAccumulator(str(tmp_path / "tensorboard"))
    board.Reload()
    assert [e.step for e in board.Scalars("train/loss")] == [3, 6, 9, 12]
    assert board.Scalars("validation/ema/loss")[-1].value == pytest.approx(records[-1]["ema"]["loss"])
    assert latest(tmp_path).step == 12


def test_noise_is_that_of_the_global_batch_at_any_number_of_ranks() -> None:
    for size, worlds in ((24, (2, 3, 4, 6, 8, 12, 24)), (16, (16,)), (3, (1, 3))):
        whole = batch_noise((size, 2, 3), seed=1, batch=7)
        for world in worlds:
            for rank in range(world):
                mine = batch_noise((size // world, 2, 3), seed=1, batch=7, rank=rank, world=world)
                assert mine.equal(whole[rank::world]), (size, world, rank)
    many = batch_noise((LANES * 500, 3), seed=2, batch=0)
    assert abs(float(many.mean())) < 0.05 and abs(float(many.std()) - 1) < 0.05
    assert len(many.unique()) > 0.99 * many.numel()  # no lane repeats another
    assert not batch_noise((8, 4), seed=1, batch=7).equal(batch_noise((8, 4), seed=1, batch=8))
    shared = batch_uniforms(12, seed=1, purpose="x", batch=0)
    assert batch_uniforms(4, seed=1, purpose="x", batch=0, rank=2, world=3).equal(shared[2::3])
