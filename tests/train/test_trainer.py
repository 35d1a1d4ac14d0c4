"""What a run refuses, survives and leaves behind: real signals, real kills, real folders."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.train.runs import PROCESSES, everything, latest, stop_at, tiny

from opportune.processes import Flow
from opportune.train.config import TrainConfig
from opportune.train.data import DataError
from opportune.train.errors import CheckpointError, ConfigError, RunFolderError, RunLockError
from opportune.train.logs import read_log
from opportune.train.trained import load_trained
from opportune.train.trainer import Trainer
from opportune.types import StepRecord


def test_a_run_learns(tmp_path: Path) -> None:
    config = tiny(
        tmp_path,
        run={"steps": 80},
        data={"batch_size": 16},
        process={"name": "flow"},
        model={"settings": {"width": 32, "depth": 2, "heads": 2, "patch_size": 4}},
        optimizer={"learning_rate": 3e-3},
        validation={"every_steps": 40, "examples": 64, "batch_size": 64},
        checkpoint={"every_steps": 80},
    )
    outcome = Trainer(config).run()
    assert (outcome.step, outcome.exit_code, outcome.stopped_by) == (80, 0, None)
    first, *_, last = (r for r in read_log(tmp_path) if r["kind"] == "validation")
    assert last["raw"]["loss"] < 0.75 * first["raw"]["loss"]
    assert last["ema"]["loss"] < 0.75 * first["ema"]["loss"]


def test_a_trained_model_comes_back_as_it_was(tmp_path: Path) -> None:
    Trainer(tiny(tmp_path, process={"name": "flow", "settings": {"shift": 2.0}})).run()
    averaged, raw = load_trained(tmp_path), load_trained(tmp_path, weights="raw")
    assert (averaged.weights, averaged.step, averaged.shape, averaged.of_latents) == ("ema", 12, (1, 16, 16), False)
    assert isinstance(raw.process, Flow) and raw.process.shift == 2.0
    for trained, part in ((averaged, "ema"), (raw, "model")):
        for key, value in latest(tmp_path).part(part).items():
            assert trained.model.state_dict()[key].equal(value)
        assert not trained.model.training
    assert load_trained(tmp_path / "checkpoints" / "step-000008").step == 8
    with pytest.raises(RunFolderError, match="there is no run"):
        load_trained(tmp_path / "none")
    with pytest.raises(ValueError, match="Known: auto, ema, raw"):
        load_trained(tmp_path, weights="emma")


def test_a_second_run_in_the_folder_of_another_is_refused(tmp_path: Path) -> None:
    config = tiny(tmp_path, run={"steps": 2})
    Trainer(config).run()
    before = everything(tmp_path)
    with pytest.raises(RunFolderError, match=r"holds a run already, saved at step-000002. Continue it with --resume"):
        Trainer(config).run()
    assert everything(tmp_path) == before


def test_sharding_over_one_process_is_said_to_do_nothing(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="sharding='fsdp2' has no effect with one process"):
        assert Trainer(tiny(tmp_path, run={"steps": 1}, hardware={"sharding": "fsdp2"})).run().exit_code == 0


def test_resuming_nothing_is_an_error_and_makes_nothing(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="does not exist"):
        Trainer(tiny(tmp_path / "none"), resume="latest").run()
    assert not (tmp_path / "none").exists()
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunFolderError, match="holds no checkpoint"):
        Trainer(tiny(tmp_path / "empty"), resume="latest").run()
    with pytest.raises(RunFolderError, match="there is no checkpoint at"):
        Trainer(tiny(tmp_path / "empty"), resume=str(tmp_path / "step-000001")).run()
    assert list((tmp_path / "empty").iterdir()) == []


def test_a_changed_configuration_is_shown_and_needs_force(tmp_path: Path) -> None:
    stop_at(tiny(tmp_path), 4)
    changed = tiny(tmp_path, optimizer={"learning_rate": 2e-3}, checkpoint={"every_steps": 5})
    with pytest.raises(ConfigError, match=r"optimizer.learning_rate: 0.001 -> 0.002\nUse the same, or --force"):
        Trainer(changed, resume="latest").run()
    assert Trainer(changed, resume="latest", force=True).run().exit_code == 0
    assert read_log(tmp_path)[-1]["step"] == 12
    assert [r["learning_rate"] for r in read_log(tmp_path) if r["kind"] == "train"] == [1e-3, 2e-3, 2e-3, 2e-3]


def test_going_back_to_an_earlier_checkpoint_forgets_the_later_ones(tmp_path: Path) -> None:
    config = tiny(tmp_path)
    Trainer(config).run()
    before = everything(tmp_path)
    stopped = stop_later(config, resume=str(tmp_path / "checkpoints" / "step-000008"), stop=10)
    assert stopped == 10 and latest(tmp_path).step == 10
    assert Trainer(config, resume="latest").run().step == 12
    assert everything(tmp_path) == before


def stop_later(config: TrainConfig, resume: str, stop: int) -> int:
    class Stopped(Trainer):
        def _take_in(self, record: StepRecord) -> None:
            super()._take_in(record)
            if self.session.step == stop:
                os.kill(os.getpid(), signal.SIGTERM)

    return Stopped(config, resume=resume).run().step


def test_a_run_may_branch_off_into_another_folder(tmp_path: Path) -> None:
    Trainer(tiny(tmp_path / "one")).run()
    branch = tiny(tmp_path / "two", optimizer={"learning_rate": 1e-2})
    checkpoint = str(tmp_path / "one" / "checkpoints" / "step-000008")
    assert Trainer(branch, resume=checkpoint, force=True).run().step == 12
    assert {r["step"] for r in read_log(tmp_path / "two")} == {9, 10, 12}
    assert latest(tmp_path / "one").step == 12


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    class Meanwhile(Trainer):
        def _begin(self) -> None:
            with pytest.raises(RunLockError, match=f"process {os.getpid()}"):
                Trainer(self.config).run()
            super()._begin()

    assert Meanwhile(tiny(tmp_path, run={"steps": 1})).run().exit_code == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_each_signal_has_its_exit_code(number: signal.Signals, tmp_path: Path) -> None:
    class Signalled(Trainer):
        def _take_in(self, record: StepRecord) -> None:
            super()._take_in(record)
            if self.session.step == 2:
                os.kill(os.getpid(), number)

    outcome = Signalled(tiny(tmp_path)).run()
    assert (outcome.step, outcome.exit_code, outcome.stopped_by) == (2, 128 + number, number.name)
    assert latest(tmp_path).step == 2


# Where the signal comes: (what of the trainer it interrupts, which step the run has then come to).
PHASES = {"_check_folder": 0, "_begin": 0, "steps": 0, "validate": 5, "save": 4}


@pytest.mark.parametrize("phase", PHASES)
def test_a_signal_in_any_phase_ends_in_a_checkpoint_to_resume_from(phase: str, tmp_path: Path) -> None:
    class Signalled(Trainer):
        def _check_folder(self) -> None:
            super()._check_folder()
            self._reached("_check_folder")

        def _begin(self) -> None:
            self._reached("_begin")
            super()._begin()

        def steps(self) -> Any:
            self._reached("steps")
            measure, save = self.session.validation.measure, self.folder.checkpoints.save  # type: ignore[union-attr]

            def measured(*args: Any) -> Any:
                if self.session.step == 5:
                    self._reached("validate")
                return measure(*args)

            def saved(*args: Any) -> Any:
                if self.session.step == 4:
                    self._reached("save")
                return save(*args)

            self.session.validation.measure = measured  # type: ignore[method-assign, union-attr]
            self.folder.checkpoints.save = saved  # type: ignore[method-assign]
            return super().steps()

        def _reached(self, where: str) -> None:
            if where == phase:
                os.kill(os.getpid(), signal.SIGTERM)

    outcome = Signalled(tiny(tmp_path)).run()
    assert (outcome.step, outcome.exit_code) == (PHASES[phase], 143)
    assert latest(tmp_path).step == PHASES[phase]
    assert Trainer(tiny(tmp_path), resume="latest").run().step == 12


def train(folder: str, resume: str | None, told: Any) -> None:
    torch.set_num_threads(1)
    told.set()
    Trainer(tiny(Path(folder), **SLOW), resume=resume).run()


SLOW: dict[str, Any] = {"run": {"steps": 60}, "checkpoint": {"every_steps": 5}, "validation": {"every_steps": 20}}


def test_killed_at_random_it_loses_one_interval_at_most_and_ends_the_same(tmp_path: Path) -> None:
    whole, killed = str(tmp_path / "whole"), str(tmp_path / "killed")
    steps = []
    run(train, whole, None, seconds=None)
    for kill, seconds in enumerate((0.7, 1.1, 0.4)):
        done = run(train, killed, "latest" if kill else None, seconds=seconds)
        steps.append(latest(killed).step)
        logged = [r["step"] for r in read_log(killed)]
        assert steps == sorted(steps) and steps[-1] >= (logged[-1] if logged else 0) - 5
        if done:
            break
    run(train, killed, "latest", seconds=None)
    assert everything(killed) == everything(whole)


def run(target: Any, *args: Any, seconds: float | None) -> bool:
    """Run in a process of its own and kill it ``seconds`` after its first step's log; True if it ended before."""
    started = PROCESSES.Event()
    child = PROCESSES.Process(target=target, args=(*args, started))
    child.start()
    assert started.wait(300)
    if seconds is not None:
        folder = Path(args[0])
        deadline = time.monotonic() + 300
        while not (list(folder.glob("checkpoints/step-*")) and (folder / "metrics.jsonl").exists()):
            assert child.is_alive() and time.monotonic() < deadline
            time.sleep(0.01)
        time.sleep(seconds)
        if child.is_alive():
            os.kill(child.pid or 0, signal.SIGKILL)
    child.join(120)
    assert seconds is not None or child.exitcode == 0
    return child.exitcode == 0


def test_a_damaged_newest_checkpoint_costs_one_interval(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = tiny(tmp_path)
    stop_at(config, 9)
    file = tmp_path / "checkpoints" / "step-000009" / "model.safetensors"
    raw = bytearray(file.read_bytes())
    raw[-1] ^= 1
    file.write_bytes(raw)
    assert Trainer(config, resume="latest").run().step == 12
    assert "step-000009 is damaged" in caplog.text
    Trainer(tiny(tmp_path / "whole")).run()
    assert everything(tmp_path) == everything(tmp_path / "whole")


def test_a_disk_without_room_is_found_before_the_first_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opportune.train.disk.free_bytes", lambda folder: 1000)
    with pytest.raises(CheckpointError, match=r"needed \d+ bytes, free 1000 bytes"):
        Trainer(tiny(tmp_path)).run()
    assert not list(tmp_path.glob("checkpoints/step-*"))


def test_wrong_shapes_and_labels_are_found_before_any_file_is_made(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="size=32 is not possible"):
        Trainer(tiny(tmp_path / "a", data={"size": 32})).run()
    with pytest.raises(DataError, match=r"has 10 classes but data.classes=5; set data.classes to 10 or more"):
        Trainer(tiny(tmp_path / "b", data={"classes": 5})).run()
    assert list(tmp_path.iterdir()) == []


def test_a_run_writes_no_pickle(tmp_path: Path) -> None:
    """Everything a run writes is TOML, JSON or safetensors."""
    Trainer(tiny(tmp_path)).run()
    kinds = {path.suffix for path in tmp_path.rglob("*") if path.is_file()}
    assert kinds == {".toml", ".jsonl", ".safetensors", ".json", ".sha256", ".lock"}
    for path in tmp_path.rglob("*.json"):
        json.loads(path.read_text())
