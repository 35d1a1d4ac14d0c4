"""Real processes killed while they save, real disks that fill up, and every system call of a save made to fail."""

import os
import random
import re
import resource
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks import faults
from tests.train.runs import latest, tiny
from tests.train.scenarios import (
    PROCESSES,
    Traced,
    assert_sound,
    digest,
    needs_strace,
    parts_at,
    running,
    save_forever,
    wait_for,
)

from opportune.train.checkpoint import Checkpoints
from opportune.train.errors import CheckpointError
from opportune.train.trainer import Trainer

WRITING = ("mkdir", "openat", "flock", "write", "fsync", "rename", "unlink", "rmdir", "close")
"""The system calls through which a save changes the disk."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Steps 1 and 2 are saved: with keep=2 saving step 3 also deletes step 1."""
    checkpoints = Checkpoints(tmp_path / "run")
    for step in (1, 2):
        checkpoints.save(step, parts_at(step))
    return checkpoints.folder


# --- kill -9 ---------------------------------------------------------------------------------------------------


def kill_while_saving(folder: Path, kills: int, seed: int) -> None:
    chance = random.Random(seed)
    done = folder.with_suffix(".done")
    for _ in range(kills):
        done.unlink(missing_ok=True)
        with running(save_forever, str(folder)):
            wait_for(done)
            time.sleep(chance.uniform(0, 0.05))
        completed = int(done.read_text())
        # the save after the last one reported may be complete too, but nothing else
        assert_sound(folder, steps={completed, completed + 1})
        assert len(Checkpoints(folder).list()) <= 3


def test_kill_9_while_saving(tmp_path: Path) -> None:
    kill_while_saving(tmp_path / "run", kills=25, seed=0)


def test_kill_9_of_a_real_training_again_and_again() -> None:
    """A sample of what ``benchmarks/faults.py`` does a hundred times."""
    found = faults.measure(3, "kim", 0, steps=30, longest_seconds=2.0)
    assert found["kills"] == 3 and found["finished"] >= 1
    assert (found["corrupt"], found["mismatches"], found["lost_too_much"], found["leftover_folders"]) == (0, 0, 0, 0)
    assert found["most_steps_lost"] <= found["save_every_steps"]


@pytest.mark.nightly
def test_kill_9_while_saving_many_times(tmp_path: Path) -> None:
    kill_while_saving(tmp_path / "run", kills=500, seed=1)


# --- every system call -----------------------------------------------------------------------------------------


def copies(folder: Path) -> Iterator[Path]:
    """A fresh copy of ``folder`` each time."""
    copy = folder.with_name("copy")
    while True:
        shutil.copytree(folder, copy)
        yield copy
        shutil.rmtree(copy)


def calls_of_a_save(folder: Path, tmp_path: Path) -> Counter[str]:
    fresh = next(copies(folder))
    traced = Traced(tmp_path, fresh, 3)
    assert traced.message == "saved"
    shutil.rmtree(fresh)
    return Counter(name for name, _ in traced.calls())


def injected(folder: Path, tmp_path: Path, call: str, fault: str) -> Iterator[tuple[int, Path, Traced]]:
    """A save of step 3 with ``fault`` at the 1st, 2nd, ... ``call``, until no call is left that it could hit."""
    for when, fresh in enumerate(copies(folder), start=1):
        options = f"trace={call}", f"inject={call}:{fault}:when={when}"
        traced = Traced(tmp_path, fresh, 3, "-e", options[0], "-e", options[1])
        hit = traced.log.read_text().count("(INJECTED)") or traced.exit_code == -9
        yield when, fresh, traced
        if not hit:
            shutil.rmtree(fresh)
            return


def killed_at_every(call: str, folder: Path, tmp_path: Path) -> int:
    killed = 0
    for when, fresh, traced in injected(folder, tmp_path, call, "signal=KILL"):
        if traced.exit_code == -9:
            killed += 1
            # when the death came late (closing a file after the rename), step 3 is there; never less than step 2
            assert_sound(fresh, steps={2, 3})
        else:
            assert traced.message == "saved", (call, when, traced.message)
            assert_sound(fresh, steps={3})
        newest = Checkpoints(fresh).latest()
        Checkpoints(fresh).save(4, parts_at(4))  # and the run goes on
        assert newest is not None and Checkpoints(fresh).latest().step == 4
    return killed


@needs_strace
@pytest.mark.parametrize("call", ["mkdir", "fsync", "rename", "rmdir", "unlink"])
def test_kill_9_at_every_call_of_a_kind(call: str, folder: Path, tmp_path: Path) -> None:
    # parts 3 + manifest 2 + two folders are fsynced; the new one and the discarded one renamed
    at_least = {"mkdir": 1, "fsync": 7, "rename": 2, "rmdir": 1, "unlink": 5}[call]
    assert killed_at_every(call, folder, tmp_path) >= at_least


@needs_strace
@pytest.mark.nightly
def test_kill_9_at_every_system_call(folder: Path, tmp_path: Path) -> None:
    seen = calls_of_a_save(folder, tmp_path)
    assert set(WRITING) <= set(seen)
    total = 0
    for call in seen:
        total += killed_at_every(call, folder, tmp_path)
    assert total >= 90
    print(f"{total} points")


# --- failing calls ---------------------------------------------------------------------------------------------


def failed_at_every(call: str, error: str, reason: str, folder: Path, tmp_path: Path) -> int:
    refused = 0
    for when, fresh, traced in injected(folder, tmp_path, call, f"error={error}"):
        assert traced.exit_code == 0, (call, error, when)
        if traced.message.startswith("CheckpointError"):
            refused += 1
            if "INJECTED" in traced.log.read_text():
                assert reason in traced.message
                assert re.search(r"needed \d+ bytes, free (\d+|an unknown number of) bytes", traced.message)
                assert str(fresh) in traced.message
            assert_sound(fresh, steps={2, 3})
        else:
            assert traced.message == "saved", (call, error, when, traced.message)
            assert_sound(fresh, steps={3})
        step_2 = fresh / "step-000002"
        assert digest(Checkpoints(fresh).load(step_2).parts()) == digest(parts_at(2))
    return refused


@needs_strace
@pytest.mark.parametrize(
    ("call", "error", "reason"),
    [
        ("write", "ENOSPC", "No space left on device"),
        ("fsync", "EIO", "Input/output error"),
        ("mkdir", "EDQUOT", "quota exceeded"),
    ],
)
def test_a_failing_call_is_an_error_and_harms_nothing(
    call: str, error: str, reason: str, folder: Path, tmp_path: Path
) -> None:
    at_least = {"write": 5, "fsync": 7, "mkdir": 1}[call]
    assert failed_at_every(call, error, reason, folder, tmp_path) >= at_least


@needs_strace
@pytest.mark.nightly
@pytest.mark.parametrize("error", ["ENOSPC", "EIO", "EDQUOT", "EROFS", "EACCES", "EMFILE"])
@pytest.mark.parametrize("call", WRITING)
def test_every_call_failing_in_every_way(call: str, error: str, folder: Path, tmp_path: Path) -> None:
    failed_at_every(call, error, "", folder, tmp_path)


@needs_strace
def test_a_write_that_lies_about_its_length_is_noticed(folder: Path, tmp_path: Path) -> None:
    refused = 0
    for when, fresh, traced in injected(folder, tmp_path, "write", "retval=7"):
        if traced.message.startswith("CheckpointError"):
            refused += 1
            assert "short write" in traced.message
        else:
            assert traced.message == "saved", (when, traced.message)
        assert_sound(fresh, steps={2, 3})
    assert refused >= 5


@needs_strace
def test_order_of_writes_survives_power_loss(folder: Path, tmp_path: Path) -> None:
    """write -> fsync(file), all files -> fsync(staging) -> rename -> fsync(parent) -> only then delete the oldest."""
    fresh = next(copies(folder))
    traced = Traced(tmp_path, fresh, 3)
    assert traced.message == "saved"
    events = list(disk_events(traced.calls(), fresh))
    renamed = events.index(("rename", ".staging->step-000003"))
    files = [name for what, name in events if what == "write"]
    assert len(files) == len(set(files)) == 5 and files[-1] == ".staging/manifest.json"
    for name in files:
        assert events.index(("write", name)) < events.index(("fsync", name)) < renamed
    all_fsynced = max(events.index(("fsync", name)) for name in files)
    assert all_fsynced < events.index(("fsync", ".staging")) < renamed
    after = events[renamed + 1 :]
    assert after[0] == ("fsync", ".")
    assert after[1] == ("rename", "step-000001->.discarded")
    assert {what for what, _ in after[2:]} == {"unlink", "rmdir"}
    assert all(what not in ("unlink", "rmdir") for what, _ in events[:renamed])


def disk_events(calls: list[tuple[str, str]], folder: Path) -> Iterator[tuple[str, str]]:
    """(what, on which path within ``folder``) for every call that changes the disk, with short names."""
    for name, rest in calls:
        if name not in ("write", "fsync", "rename", "unlink", "rmdir") or str(folder) not in rest:
            continue
        paths = re.findall(re.escape(str(folder)) + r"([^>\"]*)", rest)
        short = [re.sub(r"\.(staging|discarded)-step-\d+-\d+", r".\1", path).lstrip("/") or "." for path in paths]
        yield name, "->".join(short)


# --- disks that are really full --------------------------------------------------------------------------------


def save_with_small_files(folder: str, limit: int, result: str) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    try:
        Checkpoints(folder).save(3, parts_at(3))
        text = "saved"
    except CheckpointError as error:
        text = str(error)
    # the limit is for this process's files, so the answer has to stay below it
    Path(result).write_text(text[:limit])
    os._exit(0)


@pytest.mark.parametrize("limit", [10, 100, 300, 410, 700])
def test_a_file_size_limit(folder: Path, tmp_path: Path, limit: int) -> None:
    """A real partial write at every place: in the first file, in a later one, in the manifest."""
    result = tmp_path / "result"
    child = PROCESSES.Process(target=save_with_small_files, args=(str(folder), limit, str(result)))
    child.start()
    child.join(120)
    assert child.exitcode == 0
    text = result.read_text()
    assert text == f"could not write checkpoint {folder / 'step-000003'}: File too large (needed "[: len(text)] or (
        "File too large" in text and "needed" in text
    )
    assert assert_sound(folder, steps={2}) == 2
    assert sorted(path.name for path in folder.iterdir()) == ["step-000001", "step-000002"]


SMALL_DISK = """
import sys
from pathlib import Path
import torch
from opportune.train.checkpoint import Checkpoints
from opportune.train.errors import CheckpointError
from tests.train.scenarios import digest, parts_at

folder = Path(sys.argv[1])
checkpoints = Checkpoints(folder / "run")
checkpoints.save(1, parts_at(1))

def refused(what, action):
    try:
        action()
    except CheckpointError as error:
        print(what, error)
    else:
        sys.exit(f"{what} was not refused")
    assert digest(checkpoints.latest().parts()) == digest(parts_at(1))
    assert [path.name for path in checkpoints.folder.iterdir()] == ["step-000001"]

big = {"model": {"weight": torch.zeros(3 * 2**18)}}
before = checkpoints.folder.stat().st_mtime_ns
refused("too big:", lambda: checkpoints.save(2, big))
assert checkpoints.folder.stat().st_mtime_ns == before  # noticed before anything was written
refused("not for long:", lambda: checkpoints.check_space({"model": {"weight": torch.zeros(2**18)}}))
files = []
try:
    while True:  # use up the inodes: there is space, but no room for a file
        files.append(folder / f"filler{len(files)}")
        files[-1].touch()
except OSError:
    files.pop()
for spare in range(4):
    refused(f"{spare} inodes:", lambda: checkpoints.save(2, parts_at(2)))
    files.pop().unlink()
for file in files:
    file.unlink()
(folder / "filler").write_bytes(bytes(2**21 - 2**17 - 2**16))
refused("full:", lambda: checkpoints.save(2, {"model": {"weight": torch.zeros(2**16)}}))
(folder / "filler").unlink()
checkpoints.save(2, parts_at(2))
assert checkpoints.latest().step == 2
print("done")
"""


def test_a_small_disk_that_fills_up(tmp_path: Path) -> None:
    """A real file system of 2 MiB: the message names path, needed and free bytes; the earlier one stays."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = f"mount -t tmpfs -o size=2m,nr_inodes=64 tmpfs '{place}' && exec \"$@\""
    inside = ["unshare", "-rm", "sh", "-c", mount, "sh"]
    if shutil.which("unshare") is None or subprocess.run([*inside, "true"], capture_output=True).returncode:
        pytest.skip("this machine does not let an ordinary user mount a file system of its own")
    command = [*inside, sys.executable, "-c", SMALL_DISK, str(place)]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert ran.returncode == 0, ran.stderr
    lines = dict(line.split(": ", 1) for line in ran.stdout.splitlines() if ": " in line)
    assert set(lines) == {"too big", "not for long", "full", "0 inodes", "1 inodes", "2 inodes", "3 inodes"}
    for line in lines.values():
        assert "No space left on device" in line and str(place / "run") in line and "Free space" in line
        needed, free = map(int, re.search(r"needed (\d+) bytes, free (\d+) bytes", line).groups())  # type: ignore[union-attr]
        assert "step-000001" in line
    needed, free = map(int, re.search(r"needed (\d+) bytes, free (\d+) bytes", lines["too big"]).groups())  # type: ignore[union-attr]
    assert free <= 2**21 and needed >= 3 * 2**20
    needed, _ = map(int, re.search(r"needed (\d+) bytes, free (\d+) bytes", lines["not for long"]).groups())  # type: ignore[union-attr]
    assert needed >= 2 * 2**20  # one exists, keep=2 and the one being written: room for two more


def test_a_run_that_cannot_save_its_start_leaves_nothing_behind(tmp_path: Path) -> None:
    """Space that no count of free bytes shows is missing: a limit, as a quota. What was there stays; a retry works."""
    config = tiny(tmp_path / "runs" / "one", run={"steps": 1})
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "other").touch()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, limits[1]))
    try:
        with pytest.raises(CheckpointError, match=r"File too large \(needed \d+ bytes, free \d+ bytes"):
            Trainer(config).run()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["other"]
    assert Trainer(config).run().step == 1


def test_no_run_begins_without_room_for_what_its_optimizer_will_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Adam's moments, which are half of a checkpoint, are made by the first step."""
    Trainer(tiny(tmp_path / "one", run={"steps": 1})).run()
    saved = latest(tmp_path / "one")
    held = sum(file.stat().st_size for file in saved.path.iterdir())
    monkeypatch.setattr("opportune.train.disk.free_bytes", lambda folder: 3 * held)
    with pytest.raises(CheckpointError, match="No space left on device"):
        Trainer(tiny(tmp_path / "two", run={"steps": 1})).run()
    assert not (tmp_path / "two").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder(folder: Path) -> None:
    folder.chmod(0o555)
    try:
        with pytest.raises(CheckpointError, match="Make the folder writable"):
            Checkpoints(folder).save(3, parts_at(3))
    finally:
        folder.chmod(0o755)
    assert Checkpoints(folder).latest().step == 2


def test_the_steps_of_the_fault_tests_differ() -> None:
    """If two steps had the same state, a wrong one would go unnoticed above."""
    assert len({digest(parts_at(step)) for step in range(50)}) == 50
