"""Two real ranks: the same training as one, stopped and poisoned on one of them, sharded, killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from tests.train.runs import StoppedAt, everything, latest, on_two, tiny

from opportune.models import count_parameters
from opportune.recipes import recipe
from opportune.train.config import HardwareConfig, TrainConfig
from opportune.train.config_file import updated
from opportune.train.data import Order
from opportune.train.errors import NonFiniteError, RanksError
from opportune.train.logs import read_log
from opportune.train.ranks import asked_for, check_ranks
from opportune.train.trained import load_trained
from opportune.train.trainer import Trainer

KIM = {"name": "kim", "settings": {"every_steps": 2, "coverage": 20, "queue_rows": 3}}
ADAPTIVE = {"name": "adaptive", "settings": {"warmup_steps": 8, "bins": 5}}
PLAIN = {"model": {"settings": {"width": 16, "depth": 1, "heads": 2, "patch_size": 4, "dropout": 0.0}}}


def run(rank: int, config: TrainConfig, resume: str | None = None) -> int:
    return Trainer(config, resume=resume).run().exit_code


def stop_on_rank_one(rank: int, config: TrainConfig, step: int) -> list[Any]:
    outcome = StoppedAt(config, stop=step if rank == 1 else -1).run()
    return [outcome.step, outcome.exit_code]


@pytest.mark.parametrize("sampler", [{"name": "uniform"}, KIM, ADAPTIVE], ids=["uniform", "kim", "adaptive"])
def test_two_ranks_resume_exactly_after_one_of_them_was_told_to_stop(sampler: dict[str, Any], tmp_path: Path) -> None:
    whole, halved = (tiny(tmp_path / name, sampler=sampler) for name in ("whole", "halved"))
    assert on_two(run, whole) == [0, 0]
    assert on_two(stop_on_rank_one, halved, 7) == [[7, 143], [7, 143]]
    assert on_two(run, halved, "latest") == [0, 0]
    assert everything(tmp_path / "halved") == everything(tmp_path / "whole")


LONG = {"run": {"steps": 60}, "validation": {"every_steps": 25}, "checkpoint": {"every_steps": 10}}


def stop_everywhere(rank: int, sampler: dict[str, Any], folder: str) -> list[int]:
    """One run to the end, and one stopped by rank 1 and resumed, for every step there is; the exit codes seen."""
    codes = [run(rank, tiny(Path(folder) / "whole", sampler=sampler, **LONG))]
    for stop in range(61):
        config = tiny(Path(folder) / f"{stop}", sampler=sampler, **LONG)
        stopped = stop_on_rank_one(rank, config, stop)
        assert stopped[0] == stop, stopped
        codes.append(run(rank, config, "latest"))
    return codes


@pytest.mark.nightly
@pytest.mark.parametrize("sampler", [{"name": "uniform"}, KIM, ADAPTIVE], ids=["uniform", "kim", "adaptive"])
def test_two_ranks_stopped_at_every_step_of_sixty(sampler: dict[str, Any], tmp_path: Path) -> None:
    assert on_two(stop_everywhere, sampler, str(tmp_path), seconds=1800) == [[0] * 62] * 2
    expected = everything(tmp_path / "whole")
    for stop in range(61):
        assert everything(tmp_path / f"{stop}") == expected, f"stopped at {stop}"


def test_one_and_two_processes_train_the_same(tmp_path: Path) -> None:
    """Same order, timesteps, noise and labels; only sums are rounded differently."""
    data = {"batch_size": 16, "accumulation": 2, "classes": 10, "label_dropout": 0.5}
    one, two = (tiny(tmp_path / name, sampler=KIM, data=data, **PLAIN) for name in ("one", "two"))
    assert Trainer(one).run().exit_code == 0
    assert on_two(run, two) == [0, 0]
    logs = [read_log(tmp_path / name) for name in ("one", "two")]
    assert [r["bins"]["count"] for r in logs[0] if r["kind"] == "train"] == [
        r["bins"]["count"] for r in logs[1] if r["kind"] == "train"
    ]
    assert [r["bins"]["gain"] is None for r in logs[0] if r["kind"] == "train"] == [
        r["bins"]["gain"] is None for r in logs[1] if r["kind"] == "train"
    ]
    for left, right in zip(*logs, strict=True):
        if left["kind"] == "validation":
            assert left["raw"]["loss"] == pytest.approx(right["raw"]["loss"], rel=1e-4)
            assert left["ema"]["bins"] == pytest.approx(right["ema"]["bins"], rel=1e-4)
        else:
            assert left["loss"] == pytest.approx(right["loss"], rel=1e-4)
            assert left["gradient_norm"] == pytest.approx(right["gradient_norm"], rel=1e-3)
    policies = [latest(tmp_path / name).part("sampler") for name in ("one", "two")]
    assert policies[0]["selection"].equal(policies[1]["selection"])
    assert policies[0]["policy.biases.0"].allclose(policies[1]["policy.biases.0"], atol=1e-3)
    weights = [latest(tmp_path / name).part("model") for name in ("one", "two")]
    for key, value in weights[0].items():
        assert value.allclose(weights[1][key], atol=3e-3), key


class Poisoned(Trainer):
    """A trainer whose data on rank 1 holds a NaN in step ``at``."""

    at = 5

    def steps(self) -> Any:
        batches = self.session.batches

        def poisoned() -> Any:
            for number, (x0, conditions) in enumerate(batches()):
                if number == self.at and self.session.rank == self.session.world - 1:
                    x0 = x0.clone()
                    x0[0, 0, 0, 0] = float("nan")
                yield x0, conditions

        self.session.batches = poisoned  # type: ignore[method-assign]
        return super().steps()

    def _take_in(self, record: Any) -> None:
        step = self.session.step
        if step == self.at:
            self.before = self._state()
        super()._take_in(record)

    def _go_on(self) -> bool:
        if self.session.step == self.at:
            self.untouched = self._state()
        if self.session.step == self.at + 1:
            self.same = self._state() == self.untouched
        return super()._go_on()

    def _state(self) -> list[Any]:
        session = self.session
        states = [session.bare.state_dict(), session.ema.module.state_dict() if session.ema else {}]
        tensors = [value for state in states for value in state.values()]
        moments = [v for s in session.bare_optimizer.state_dict()["state"].values() for v in s.values()]
        learned = {k: v for k, v in session.sampler.state_dict().items() if isinstance(v, torch.Tensor)}
        return [t.tolist() for t in (*tensors, *moments, *learned.values())] + [session.sampler.steps_watched]


def poison(rank: int, config: TrainConfig) -> list[Any]:
    trainer = Poisoned(config)
    outcome = trainer.run()
    return [outcome.exit_code, trainer.same]


def test_a_nan_on_one_rank_is_skipped_by_both_before_anything_learns_from_it(tmp_path: Path) -> None:
    config = tiny(tmp_path, sampler={"name": "second_moment", "settings": {"warmup_steps": 1}})
    assert on_two(poison, config) == [[0, True], [0, True]]
    assert sum(r["skipped_steps"] for r in read_log(tmp_path) if r["kind"] == "train") == 1


def test_too_many_nans_stop_all_ranks_naming_step_and_rank(tmp_path: Path) -> None:
    config = tiny(tmp_path, optimizer={"max_skips": 0})
    for message in on_two(poison, config):
        assert message.startswith("NonFiniteError: the loss or a gradient is not finite at step 5, rank 1")
    assert latest(tmp_path).step == 4  # the last good one


def test_a_nan_with_one_process(tmp_path: Path) -> None:
    assert poison(0, tiny(tmp_path)) == [0, True]
    with pytest.raises(NonFiniteError, match="step 5, rank 0"):
        poison(0, tiny(tmp_path / "none", optimizer={"max_skips": 0}))


def test_sharded_training_is_training(tmp_path: Path) -> None:
    """FSDP2 on two ranks gives what one process gives, resumes exactly, and its checkpoints hold whole tensors."""
    sharded = {"hardware": {"sharding": "fsdp2"}, **PLAIN}
    assert Trainer(tiny(tmp_path / "one", **PLAIN)).run().exit_code == 0
    assert on_two(run, tiny(tmp_path / "two", **sharded)) == [0, 0]
    ours, theirs = latest(tmp_path / "two"), latest(tmp_path / "one")
    for part in ("model", "ema"):
        for key, value in theirs.part(part).items():
            assert value.allclose(ours.part(part)[key], atol=2e-4), key
    halved = tiny(tmp_path / "halved", **sharded)
    assert on_two(stop_on_rank_one, halved, 7) == [[7, 143], [7, 143]]
    assert on_two(run, halved, "latest") == [0, 0]
    assert everything(tmp_path / "halved") == everything(tmp_path / "two")


def test_a_recipe_trains_sharded(tmp_path: Path) -> None:
    """fashion16 on two ranks with FSDP2: the losses of one process, and a checkpoint that one process loads."""
    short = {
        "run": {"steps": 3},
        "sampler": KIM,
        "data": {"batch_size": 8},
        "schedule": {"warm_up_steps": 1},
        "validation": {"examples": 8},
        "logs": {"every_steps": 1, "report_to": "none"},
    }
    settings = updated(updated(TrainConfig(), recipe("fashion16")), short)
    one, two = (updated(settings, {"run": {"output_dir": str(tmp_path / name)}}) for name in ("one", "two"))
    assert Trainer(one).run().exit_code == 0
    assert on_two(run, updated(two, {"hardware": {"sharding": "fsdp2"}})) == [0, 0]
    losses = [[r["raw_loss"] for r in read_log(tmp_path / n) if r["kind"] == "train"] for n in ("one", "two")]
    assert len(losses[0]) == 3 and losses[1] == pytest.approx(losses[0], rel=1e-4)
    trained = load_trained(tmp_path / "two")
    assert trained.step == 3 and count_parameters(trained.model.requires_grad_()) == 1_112_801


def test_a_killed_rank_brings_the_others_down(tmp_path: Path) -> None:
    arguments = ["--recipe", "fashion16", "--output-dir", str(tmp_path), "--steps", "100000", "--report-to", "none"]
    model = ["--model", "dit-2m", "--model.settings.width", "32", "--model.settings.depth", "1"]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    launcher = subprocess.Popen(
        [*command, "-m", "opportune", "train", *arguments, *model, "--logs.every-steps", "1", "--ranks", "2"],
        env=environment,
        stderr=subprocess.DEVNULL,
    )
    try:
        log = tmp_path / "metrics.jsonl"
        until(lambda: log.exists() and log.read_text().count('"kind": "train"') >= 2, seconds=300)
        ranks = children(launcher.pid)
        assert len(ranks) == 2
        os.kill(ranks[1], signal.SIGKILL)
        until(lambda: not any(alive(pid) for pid in ranks), seconds=60)  # half of hardware.timeout_seconds
        assert launcher.wait(timeout=300) != 0
        assert latest(tmp_path).step == 0
    finally:
        launcher.kill()


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except OSError:
        return False


def until(true: Any, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("environment", "command", "asked"),
    [
        ({}, "", None),
        ({"WORLD_SIZE": "2", "OMPI_COMM_WORLD_SIZE": "2"}, "", None),
        ({"OMPI_COMM_WORLD_SIZE": "4"}, "", 4),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, "", 8),
        ({}, "python\0/usr/bin/accelerate\0launch\0--cpu\0--num_processes\0002\0train.py", 2),
        ({}, "python\0train.py\0-n\0003", None),
    ],
)
def test_what_launchers_were_asked_for(environment: dict[str, str], command: str, asked: int | None) -> None:
    found = asked_for(environment, command)
    assert (None if found is None else found[0]) == asked


def test_fewer_ranks_than_asked_for_is_an_error() -> None:
    with pytest.raises(RanksError, match="asks for 4 or more processes, and 1 came up"):
        check_ranks(1, HardwareConfig(), {"OMPI_COMM_WORLD_SIZE": "4"})
    with pytest.raises(RanksError, match="ranks=2 were asked for, and 1 came up"):
        check_ranks(1, HardwareConfig(ranks=2), {})
    check_ranks(2, HardwareConfig(ranks=2), {"WORLD_SIZE": "2"})
    check_ranks(1, HardwareConfig(ranks=1), {"SLURM_PROCID": "0", "SLURM_NTASKS": "8"})


def bad_image_of_rank_1(rank: int, folder: str) -> int:
    config = tiny(
        Path(folder) / "run",
        data={"source": f"folder:{folder}/images", "workers": 0},
        validation={"every_steps": 0},
    )
    return Trainer(config).run().step


def test_a_rank_that_fails_alone_says_why_and_the_others_where_to_look(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    for index in range(16):
        Image.new("L", (16, 16), index).save(tmp_path / "images" / f"{index:02}.png")
    bad = f"{int(Order(16, 8, seed=3).batch(1, rank=1, world=2).ids[0]):02}.png"
    (tmp_path / "images" / bad).write_bytes(b"no image")
    ended = on_two(bad_image_of_rank_1, str(tmp_path))
    assert ended[1].startswith("RankFailed: rank 1: bad image") and bad in ended[1]
    assert ended[0].startswith("RankFailed: rank 0: another rank has ended")


def errors_of_one(rank: int, folder: str) -> list[str]:
    """What each rank is told of an error on the other, and on itself."""
    data = {"source": f"folder:{folder}/rank{rank}"}
    config = tiny(Path(folder) / "run", data=data, validation={"every_steps": 0})
    (Path(folder) / "rank0").mkdir(exist_ok=True)
    if rank == 0:
        for index in range(16):
            Image.new("L", (16, 16), index).save(Path(folder) / "rank0" / f"{index:02}.png")
    found = []
    for run in (config, tiny(Path(folder) / ("long" * 99))):
        try:
            Trainer(run).run()
        except Exception as error:
            found.append(f"{type(error).__name__}: {error}")
    return found


def test_what_one_rank_finds_at_the_start_every_rank_knows(tmp_path: Path) -> None:
    """Data that only one machine has; a folder that cannot be, which rank 0 alone tries."""
    first, second = on_two(errors_of_one, str(tmp_path))
    assert first[0].startswith("DataError: rank 1: there is no folder")  # the rank that speaks to the user
    assert second[0].startswith("DataError: there is no folder")
    assert first[1] == second[1] and first[1].startswith("OSError") and "longlong" in first[1]


def skipping(rank: int, folder: str, stop: int | None) -> int:
    """How many unreadable images the run has met, on all ranks."""
    data = {"source": f"folder:{folder}/images", "workers": 0, "on_bad": "skip", "max_bad_share": 0.5}
    config = tiny(Path(folder) / "run", run={"steps": 2}, data=data, validation={"every_steps": 0})
    if stop is None:
        return Trainer(config, resume="latest").run().skipped_images
    return StoppedAt(config, stop=stop).run().skipped_images


@pytest.mark.nightly
def test_what_every_rank_skipped_is_counted_after_a_restart_too(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    for index in range(16):
        Image.new("L", (16, 16), index).save(tmp_path / "images" / f"{index:02}.png")
    bad = int(Order(16, 8, seed=3).batch(0, rank=1, world=2).ids[0])  # of the first step, and of rank 1 alone
    (tmp_path / "images" / f"{bad:02}.png").write_bytes(b"no image")
    assert on_two(skipping, str(tmp_path), 1) == [1, 1]
    assert on_two(skipping, str(tmp_path), None) == [1, 1]
