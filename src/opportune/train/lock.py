"""One run per folder: a lock the kernel holds for us, and takes back when we die."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
import weakref
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from opportune.train import disk
from opportune.train.errors import RunLockError

LOCK = "run.lock"

_live: weakref.WeakSet[RunLock] = weakref.WeakSet()


class RunLock:
    """Context manager: the only process that uses ``folder``, or ``RunLockError`` naming the one that does.

    The lock is ``flock`` on ``run.lock``: it is free again the moment its holder is dead, however it died;
    the file stays. Forked children (loader workers) do not keep it alive.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.path = Path(folder) / LOCK
        self._fd: int | None = None

    def __enter__(self) -> RunLock:
        if self._fd is not None:
            raise RunLockError(f"this process already holds {self.path}")
        fd = self._locked()
        while not _is_at(self.path, fd):  # somebody gave up the run, and removed it, between our two calls
            os.close(fd)
            fd = self._locked()
        self._fd = fd
        _live.add(self)
        with suppress(OSError):  # on a full disk it stays nameless; what cannot be done without is written later
            _write_holder(fd)
        return self

    def _locked(self) -> int:
        disk.make_folder(self.path.parent)
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            raise RunLockError(
                f"{self.path.parent} is in use by {_holder(self.path)}. "
                "Wait for that run, stop it, or choose another output folder"
            ) from None
        except BaseException:
            os.close(fd)
            raise
        return fd

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._fd is not None:
            os.ftruncate(self._fd, 0)
            self._close()

    def _close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def _is_at(path: Path, fd: int) -> bool:
    try:
        return os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(fd))
    except FileNotFoundError:
        return False


def _write_holder(fd: int) -> None:
    holder = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
    os.ftruncate(fd, 0)
    os.pwrite(fd, json.dumps(holder).encode(), 0)


def _holder(path: Path, patience_seconds: float = 1.0) -> str:
    """Who holds it. The winner writes its name just after it wins, so an empty or dead name is read again."""
    deadline = time.monotonic() + patience_seconds
    while True:
        holder = _read_holder(path)
        if holder and (holder["host"] != socket.gethostname() or _alive(holder["pid"])):
            return f"process {holder['pid']} on {holder['host']}, since {holder['since']}"
        if time.monotonic() > deadline:
            return "a process that has not written its name"
        time.sleep(0.01)


def _read_holder(path: Path) -> dict[str, str] | None:
    try:
        holder = json.loads(path.read_bytes()[:4096])
    except (OSError, ValueError, RecursionError):
        return None
    wanted = {"pid", "host", "since"}
    complete = isinstance(holder, dict) and wanted <= set(holder)
    return {key: str(holder[key])[:100] for key in wanted} if complete else None


def _alive(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except (ProcessLookupError, ValueError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def _forget_in_child() -> None:
    # closing the child's copy leaves the parent's lock in place; keeping it would outlive a killed parent
    for lock in list(_live):
        lock._close()


os.register_at_fork(after_in_child=_forget_in_child)
