"""Files that survive a crash, and reading files somebody else may have prepared.

A file is durable once it *and* the folder that names it have been fsynced; a rename inside one file system is
atomic. Reads never follow a symbolic link, never block on a pipe or device, and never take more bytes than
allowed.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from opportune.train.errors import CheckpointError

_CHUNK = 16 * 2**20
SPACE_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def make_folder(folder: Path) -> None:
    """Create ``folder`` and its missing parents, each of them durable."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    try:
        os.mkdir(folder)
    except FileExistsError:
        if not folder.is_dir():
            raise
    sync_folder(folder.parent)


def write_file(path: Path, data: bytes) -> None:
    """Create ``path`` with ``data`` and fsync it. The name itself is durable only after ``sync_folder``."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    try:
        rest = memoryview(data)
        while rest:
            written = os.write(fd, rest[:_CHUNK])
            if written == 0:
                raise OSError(errno.EIO, "the disk took no bytes", str(path))
            rest = rest[written:]
        os.fsync(fd)
        size = os.fstat(fd).st_size
        if size != len(data):
            raise OSError(errno.EIO, f"short write: {size} of {len(data)} bytes arrived", str(path))
    finally:
        os.close(fd)


def sync_folder(folder: Path) -> None:
    """Make the names inside ``folder`` durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def free_bytes(folder: Path) -> int:
    """Bytes an ordinary user can still write where ``folder`` is, or will be."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    space = os.statvfs(folder)
    return space.f_bavail * space.f_frsize


@contextmanager
def explained(path: Path, needed: int) -> Iterator[None]:
    """Around writing ``needed`` bytes to ``path``: where there is no room, the error says so, and what to do."""
    try:
        yield
    except OSError as error:
        if error.errno not in SPACE_ERRORS:
            raise
        space = f"needed {needed} bytes, free {free_bytes(path)} bytes"
        raise OSError(
            error.errno,
            f"{os.strerror(error.errno)}: could not write {path} ({space}). "
            "Free space, raise the quota or file size limit, or use an output folder on another disk",
        ) from error


def replace_text(path: Path, text: str) -> None:
    """Write a small file whole or not at all; the one that was there stays until then."""
    new = path.with_name(f".{path.name}.new")
    try:
        with explained(path, len(text)):
            new.write_text(text, encoding="utf-8")
            new.replace(path)
    finally:
        new.unlink(missing_ok=True)


def read_chunks(path: Path, *, expected_bytes: int | None = None, max_bytes: int | None = None) -> Iterator[bytes]:
    """The contents of a regular file, in pieces, after its size was found to be as expected or allowed."""
    with _open_regular(path) as fd:
        size = os.fstat(fd).st_size
        if expected_bytes is not None and size != expected_bytes:
            raise CheckpointError(f"{path.name} has {size} bytes instead of {expected_bytes}")
        if max_bytes is not None and size > max_bytes:
            raise CheckpointError(f"{path.name} has {size} bytes, more than the {max_bytes} allowed")
        while size > 0:
            chunk = os.read(fd, min(size, _CHUNK))
            if not chunk:
                raise CheckpointError(f"{path.name} became shorter while it was read")
            size -= len(chunk)
            yield chunk


@contextmanager
def _open_regular(path: Path) -> Iterator[int]:
    try:
        # NONBLOCK: opening a pipe would otherwise wait for a writer that never comes
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        raise CheckpointError(f"{path.name} is missing") from None
    except OSError as error:
        what = "is a symbolic link" if error.errno == errno.ELOOP else f"cannot be opened: {error.strerror}"
        raise CheckpointError(f"{path.name} {what}") from error
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise CheckpointError(f"{path.name} is not a regular file")
        yield fd
    except OSError as error:
        raise CheckpointError(f"{path.name} cannot be read: {error.strerror}") from error
    finally:
        os.close(fd)


def remove_folder(folder: Path) -> None:
    """Delete a flat folder of files. A sub-folder in it makes this fail: nothing of ours has one."""
    with os.scandir(folder) as entries:
        for entry in list(entries):
            os.unlink(entry.path)
    os.rmdir(folder)
