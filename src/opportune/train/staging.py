"""The folder a checkpoint is written in: locked while its writer lives, gone when it does not become a checkpoint."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from opportune.train import disk
from opportune.train.errors import CheckpointError


@contextmanager
def staging_folder(folder: Path) -> Iterator[None]:
    """A locked staging folder, gone afterwards unless it was renamed."""
    os.mkdir(folder)
    try:
        with _folder_lock(folder) as locked:
            if not locked:
                raise CheckpointError(f"another process saves into {folder.parent}; two runs must not share it")
            yield
    finally:
        if folder.exists():
            disk.remove_folder(folder)


@contextmanager
def _folder_lock(folder: Path) -> Iterator[bool]:
    """Hold a lock on ``folder`` that the kernel frees when we die; False when somebody alive has it."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            locked = True
        except BlockingIOError:
            locked = False
        yield locked
    finally:
        os.close(fd)


def remove_unless_locked(folder: Path) -> None:
    """Delete what a dead writer left; a folder somebody alive writes to stays."""
    with _folder_lock(folder) as locked:
        if locked:
            disk.remove_folder(folder)
