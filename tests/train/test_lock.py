"""Two real processes, one folder."""

import fcntl
import json
import os
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from tests.train.scenarios import PROCESSES, running, wait_for

from opportune.train.errors import RunLockError
from opportune.train.lock import RunLock


def contend(folder: str, start: Any, results: Any) -> None:
    start.wait()
    try:
        with RunLock(folder):
            results.put((os.getpid(), "won"))
            time.sleep(60)
    except RunLockError as error:
        results.put((os.getpid(), str(error)))


def hold(folder: str, ready: str) -> None:
    with RunLock(folder):
        Path(ready).write_text(str(os.getpid()))
        time.sleep(60)


def hold_with_a_forked_child(folder: str, ready: str) -> None:
    with RunLock(folder):
        child = os.fork()
        if child:
            Path(ready).write_text(str(child))
        time.sleep(60)


def test_exactly_one_of_two_wins_and_the_loser_names_it(tmp_path: Path) -> None:
    for _ in range(20):
        start, results = PROCESSES.Event(), PROCESSES.Queue()
        with (
            running(contend, str(tmp_path), start, results) as one,
            running(contend, str(tmp_path), start, results) as other,
        ):
            start.set()
            answers = dict(results.get(timeout=120) for _ in range(2))
            assert set(answers) == {one.pid, other.pid}
            winners = [pid for pid, answer in answers.items() if answer == "won"]
            assert len(winners) == 1
            (loser,) = (answer for answer in answers.values() if answer != "won")
            assert f"process {winners[0]} on {socket.gethostname()}" in loser
            assert str(tmp_path) in loser
        # both were killed without a chance to clean up: the next round, and this, take the lock at once
        with RunLock(tmp_path):
            pass


def test_a_forked_child_does_not_keep_a_dead_parents_lock(tmp_path: Path) -> None:
    with running(hold_with_a_forked_child, str(tmp_path), str(tmp_path / "ready")) as holder:
        orphan = int(wait_for(tmp_path / "ready"))
        try:
            with pytest.raises(RunLockError):
                RunLock(tmp_path).__enter__()
            holder.kill()
            holder.join()
            os.kill(orphan, 0)  # still there
            with RunLock(tmp_path):
                pass
        finally:
            os.kill(orphan, 9)


def test_a_started_program_does_not_keep_the_lock(tmp_path: Path) -> None:
    with RunLock(tmp_path):
        child = subprocess.Popen(["sleep", "60"], close_fds=False)
    try:
        with RunLock(tmp_path):
            pass
    finally:
        child.kill()
        child.wait()


def test_a_fork_does_not_free_the_parents_lock(tmp_path: Path) -> None:
    with RunLock(tmp_path):
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
        with pytest.raises(RunLockError, match=str(os.getpid())):
            RunLock(tmp_path).__enter__()


def test_free_after_leaving_even_by_an_exception(tmp_path: Path) -> None:
    lock = RunLock(tmp_path / "new" / "folder")
    for _ in range(2):
        with pytest.raises(ZeroDivisionError), lock:
            1 / 0  # noqa: B018
    with lock, pytest.raises(RunLockError, match="already holds"):
        lock.__enter__()
    with lock:
        pass


def test_the_name_of_a_dead_holder_is_not_given(tmp_path: Path) -> None:
    """A killed run leaves its name in the file; the next one to lose must not be sent after it."""
    with running(hold, str(tmp_path), str(tmp_path / "ready")) as dead:
        wait_for(tmp_path / "ready")
    stale = json.loads((tmp_path / "run.lock").read_text())
    assert stale["pid"] == dead.pid
    with RunLock(tmp_path):
        (tmp_path / "run.lock").write_text(json.dumps(stale))  # as between winning and writing the name
        with pytest.raises(RunLockError, match="has not written its name"):
            RunLock(tmp_path).__enter__()


@pytest.mark.parametrize("text", ["", "{", "[]", "[" * 9999, '{"pid": {}, "host": 3, "since": null}', "\0\xff"])
def test_any_nonsense_in_the_file_is_survived(tmp_path: Path, text: str) -> None:
    with RunLock(tmp_path):
        (tmp_path / "run.lock").write_text(text)
        with pytest.raises(RunLockError, match="is in use by"):
            RunLock(tmp_path).__enter__()


def test_a_link_in_place_of_the_lock_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("precious")
    (tmp_path / "run.lock").symlink_to(tmp_path / "target")
    with pytest.raises(OSError, match="symbolic links"):
        RunLock(tmp_path).__enter__()
    assert (tmp_path / "target").read_text() == "precious"


def test_a_lock_whose_file_was_removed_meanwhile_is_taken_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that could not begin removes its file: whoever had opened that one would hold a lock nobody else sees."""
    flock, removed = fcntl.flock, []

    def removed_before(fd: int, operation: int) -> None:
        if not removed:
            removed.append((tmp_path / "run.lock").unlink())
        flock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", removed_before)
    with RunLock(tmp_path), pytest.raises(RunLockError):
        RunLock(tmp_path).__enter__()
