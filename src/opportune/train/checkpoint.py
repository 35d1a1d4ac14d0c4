"""The checkpoints of a run: no kill -9, full disk or bad sector ever costs more than the newest one.

A checkpoint is a folder ``step-000123`` with one safetensors file per *part* (``model``, ``ema``,
``optimizer``, ``scheduler``, ``sampler``, ``data``, ``rng-rank0``, ...), ``manifest.json`` and
``manifest.sha256``. One process writes it; ranks with a state of their own hand it to that process as one
more part.

It is written to a staging folder, every file fsynced, the manifest last; then the folder is renamed to its
final name and the rename fsynced. Older checkpoints are deleted only after that, and only while ``keep``
valid ones remain. So at every instant after the first save there is a valid checkpoint on the disk, and a
folder named ``step-*`` is complete.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import safetensors.torch
from torch import Tensor

from opportune.train import disk
from opportune.train.errors import CheckpointError
from opportune.train.manifest import CHECKSUM, MANIFEST, Manifest, Part, checksum_line, made_with, part_file
from opportune.train.saved import Checkpoint, folder_name, open_checkpoint, step_of
from opportune.train.staging import remove_unless_locked, staging_folder
from opportune.train.state import Json, State, encode

_log = logging.getLogger(__name__)
_LEFTOVER = re.compile(r"\.(staging|discarded)-step-\d{6,18}-\d+", re.ASCII)
_FILE = re.compile(r"manifest\.json|manifest\.sha256|[a-z0-9][a-z0-9_-]{0,63}\.safetensors", re.ASCII)
# what safetensors' header, the manifest and the file system's blocks add, at most
_BYTES_PER_TENSOR = 512
_BYTES_PER_FILE = 8192

_Encoded = tuple[str, Json, dict[str, Tensor]]


class Checkpoints:
    """The checkpoints of one run, in ``folder``. Whoever saves holds the run's lock (``RunLock``).

    ``keep`` valid ones stay. Before an older one is deleted those to keep are read and checked, which takes
    about as long as computing the SHA-256 of their bytes. Those of every ``keep_every``-th step stay as well,
    for whoever evaluates them; 0 keeps none for that.
    """

    def __init__(self, folder: str | os.PathLike[str], keep: int = 2, keep_every: int = 0) -> None:
        if keep < 1:
            raise ValueError(f"keep must be >= 1, got {keep}; 2 (the default) survives damage to the newest")
        self.folder = Path(folder)
        self.keep = keep
        self.keep_every = keep_every

    def save(self, step: int, parts: Mapping[str, State]) -> Path:
        """Write the checkpoint of ``step``, delete what is then too old, and return the new, durable folder.

        Saving the same state twice at one step does nothing; another state at a step already saved, or a step
        before a valid later one, is an error. When anything fails the staging folder is gone and what was
        saved earlier is as it was.
        """
        final = self.folder / folder_name(step)
        if not parts:
            raise CheckpointError("a checkpoint needs at least one part, got none")
        encoded = {name: (part_file(name), *encode(state)) for name, state in parts.items()}
        needed = _bytes_needed(encoded.values())
        with self._explained(final, needed):
            self._check_free(needed)
            disk.make_folder(self.folder)
            self.clean()
            self._check_not_before_a_later_one(step)
            staging = self.folder / f".staging-{final.name}-{os.getpid()}"
            with staging_folder(staging):
                manifest = _write(staging, step, encoded)
                if not self._already_saved(final, manifest):
                    os.rename(staging, final)
            disk.sync_folder(self.folder)
        self._prune(newest=final)
        return final

    def thin(self) -> None:
        """Delete what is too old, as after saving: for when ``keep`` or ``keep_every`` has become smaller."""
        saved = self.list()
        if saved and _is_valid(saved[-1]):
            self._prune(newest=saved[-1])

    def check_space(self, parts: Mapping[str, State], *, later_bytes: int = 0) -> None:
        """Refuse a run whose ``keep`` + 1 checkpoints do not fit on the disk; for before the first step.

        ``later_bytes`` is what a checkpoint will hold on top of ``parts`` once the run has begun.
        """
        one = later_bytes + _bytes_needed((part_file(name), *encode(state)) for name, state in parts.items())
        needed = max(1, self.keep + 1 - len(self.list())) * one
        with self._explained(self.folder, needed):
            self._check_free(needed)

    def list(self) -> list[Path]:
        """The folders named ``step-*``, oldest first, damaged or not."""
        try:
            return _steps_in(self.folder)
        except OSError as error:
            raise CheckpointError(f"cannot list checkpoints in {self.folder}: {error.strerror}") from error

    def latest(self) -> Checkpoint | None:
        """The newest valid checkpoint; damaged ones are skipped with a warning. None when there are none."""
        reasons = []
        for path in reversed(self.list()):
            try:
                return self.load(path)
            except CheckpointError as error:
                _log.warning("%s; trying the one before it", error)
                reasons.append(str(error))
        if reasons:
            raise CheckpointError(
                f"none of the {len(reasons)} checkpoints in {self.folder} is valid: {'; '.join(reasons)}. "
                "Restore one from a backup, or start a new run in another folder"
            )
        return None

    def load(self, path: str | os.PathLike[str]) -> Checkpoint:
        """The checkpoint at ``path``, after checking every byte of it."""
        return open_checkpoint(path)

    def forget_after(self, step: int) -> None:
        """Delete the checkpoints later than ``step``, for a run that goes back there and on."""
        for path in reversed(self.list()):
            if (step_of(path) or 0) > step:
                self._discard_if_ours(path)

    def clean(self) -> None:
        """Remove what dead writers left behind. A folder whose writer is alive is locked, and stays."""
        for path in self.folder.iterdir() if self.folder.is_dir() else ():
            if _LEFTOVER.fullmatch(path.name) and not path.is_symlink():
                try:
                    remove_unless_locked(path)
                except OSError as error:
                    _log.warning("left-over folder %s could not be removed: %s", path, error)

    def _check_not_before_a_later_one(self, step: int) -> None:
        for path in _steps_in(self.folder):
            if (step_of(path) or 0) > step and _is_valid(path):
                raise CheckpointError(
                    f"cannot save step {step} beside the later {path}: resuming would mix two runs. "
                    "Delete the later checkpoints (forget_after), or resume into another folder"
                )

    def _already_saved(self, final: Path, manifest: bytes) -> bool:
        if not final.exists():
            return False
        try:
            saved = open_checkpoint(final)
        except CheckpointError as error:
            if not _is_ours(final):
                raise CheckpointError(f"{error}. Some of its files are not ours: move the folder away") from error
            _log.warning("%s; replacing it", error)
            _discard(final)
            return False
        if saved.manifest == Manifest.from_bytes(manifest):
            return True
        raise CheckpointError(
            f"{final} already holds another state of step {saved.step}. "
            "Delete it (forget_after), or resume into another folder"
        )

    def _prune(self, newest: Path) -> None:
        """Delete what is older than the newest ``keep`` valid ones. Failing here does not stop a run."""
        try:
            older = [path for path in self.list() if path != newest]
            valid = [newest]
            while older and len(valid) < self.keep:
                path = older.pop()
                if _is_valid(path):
                    valid.append(path)
            for path in older:
                step = step_of(path)
                if not (step and self.keep_every and step % self.keep_every == 0):
                    self._discard_if_ours(path)
        except (OSError, CheckpointError) as error:
            _log.warning("%s is saved, but an older checkpoint could not be deleted: %s", newest, error)

    def _discard_if_ours(self, path: Path) -> None:
        if _is_ours(path):
            _discard(path)
        else:
            _log.warning("%s has files that are not ours and is left alone; delete it by hand", path)

    def _check_free(self, needed: int) -> None:
        if disk.free_bytes(self.folder) < needed:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.folder))

    @contextmanager
    def _explained(self, final: Path, needed: int) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise CheckpointError(
                f"could not write checkpoint {final}: {error.strerror or error} "
                f"(needed {needed} bytes, free {self._free()} bytes). {_remedy(error)} {self._earlier(final)}"
            ) from error

    def _free(self) -> int | str:
        try:
            return disk.free_bytes(self.folder)
        except OSError:
            return "an unknown number of"

    def _earlier(self, final: Path) -> str:
        try:
            names = [path.name for path in self.list() if path != final]
        except CheckpointError:
            return "The folder cannot be read."
        return f"Untouched: {', '.join(names)}." if names else "There is no earlier checkpoint."


def _steps_in(folder: Path) -> list[Path]:
    if not folder.exists():
        return []
    found = [(step, path) for path in folder.iterdir() if (step := step_of(path)) is not None]
    return [path for _, path in sorted(found)]


def _write(staging: Path, step: int, encoded: Mapping[str, _Encoded]) -> bytes:
    """Write all files into ``staging``, the manifest last; returns the manifest."""
    parts = {}
    for name, (file, structure, tensors) in encoded.items():
        data = safetensors.torch.save(tensors)
        disk.write_file(staging / file, data)
        parts[name] = Part(len(data), hashlib.sha256(data).hexdigest(), structure)
    manifest = Manifest(step, made_with(), parts).to_bytes()
    disk.write_file(staging / CHECKSUM, checksum_line(manifest))
    disk.write_file(staging / MANIFEST, manifest)
    disk.sync_folder(staging)
    return manifest


def _discard(folder: Path) -> None:
    """Delete a checkpoint: first its name, in one step, then its files."""
    away = folder.with_name(f".discarded-{folder.name}-{os.getpid()}")
    os.rename(folder, away)
    disk.remove_folder(away)


def _is_ours(folder: Path) -> bool:
    """True when it is a real folder with nothing in it but files of a name and kind we write."""
    if folder.is_symlink():
        return False
    with os.scandir(folder) as entries:
        return all(_FILE.fullmatch(entry.name) and entry.is_file(follow_symlinks=False) for entry in entries)


def _is_valid(folder: Path) -> bool:
    try:
        open_checkpoint(folder)
    except CheckpointError as error:
        _log.warning("%s; it does not count as one to keep", error)
        return False
    return True


def _bytes_needed(encoded: Iterable[_Encoded]) -> int:
    total = 2 * _BYTES_PER_FILE
    for _, structure, tensors in encoded:
        total += _BYTES_PER_FILE + len(json.dumps(structure))
        total += sum(tensor.nbytes + _BYTES_PER_TENSOR for tensor in tensors.values())
    return total


def _remedy(error: OSError) -> str:
    if error.errno in disk.SPACE_ERRORS:
        return "Free space, raise the quota or file size limit, or use an output folder on another disk."
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "Make the folder writable for this user."
    return "Check that the folder still exists and the disk is healthy."
