"""One checkpoint on the disk: checking every byte of it, and reading its parts.

Nothing is handed to a parser before its SHA-256 was found to be right, and no parser here can run code.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

import safetensors.torch
from torch import Tensor

from opportune.train import disk
from opportune.train.errors import CheckpointError
from opportune.train.manifest import (
    CHECKSUM,
    MANIFEST,
    MAX_MANIFEST_BYTES,
    Manifest,
    Part,
    checksum_line,
    part_file,
)
from opportune.train.state import Json, State, decode

_STEP = re.compile(r"step-(\d{6,18})", re.ASCII)


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose files were found intact. Parts are read, and checked again, when asked for."""

    path: Path
    manifest: Manifest

    @property
    def step(self) -> int:
        """The step it was saved at."""
        return self.manifest.step

    @property
    def made_with(self) -> dict[str, Json]:
        """Library versions and torch threads of its writer: with others, results may differ."""
        return self.manifest.made_with

    @property
    def names(self) -> tuple[str, ...]:
        """The parts it has."""
        return tuple(self.manifest.parts)

    def part(self, name: str) -> State:
        """The state of part ``name``, its tensors on the CPU."""
        if name not in self.manifest.parts:
            raise CheckpointError(
                f"checkpoint {self.path} has no part {name!r}; it has {', '.join(self.names)}. "
                "Resume from a checkpoint that has it, or start a new run"
            )
        try:
            return _read_part(self.path, name, self.manifest.parts[name])
        except CheckpointError as error:
            raise CheckpointError(f"checkpoint {self.path} is damaged: {error}") from error

    def parts(self) -> dict[str, State]:
        """All parts; needs memory for all of them at once."""
        return {name: self.part(name) for name in self.names}

    def fingerprints(self) -> dict[str, str]:
        """SHA-256 per part over tensors, numbers and structure: equal where two states are, bit for bit."""
        return {name: _fingerprint(part) for name, part in self.manifest.parts.items()}


def open_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """Check every byte of the checkpoint at ``path`` against its manifest and return it."""
    folder = Path(path)
    try:
        return Checkpoint(folder, _verified(folder))
    except FileNotFoundError:
        raise CheckpointError(f"there is no checkpoint at {folder}") from None
    except NotADirectoryError:
        raise CheckpointError(f"{folder} is not a checkpoint: it is a file, not a folder") from None
    except (CheckpointError, OSError) as error:
        raise CheckpointError(f"checkpoint {folder} is damaged: {error}") from error


def _verified(folder: Path) -> Manifest:
    if folder.is_symlink():
        raise CheckpointError("it is a symbolic link")
    present = set(os.listdir(folder))
    raw = b"".join(disk.read_chunks(folder / MANIFEST, max_bytes=MAX_MANIFEST_BYTES))
    line = checksum_line(raw)
    if b"".join(disk.read_chunks(folder / CHECKSUM, max_bytes=4096)) != line:
        raise CheckpointError(f"{MANIFEST} does not match {CHECKSUM}")
    manifest = Manifest.from_bytes(raw)
    if _STEP.fullmatch(folder.name) and folder.name != folder_name(manifest.step):
        raise CheckpointError(f"the folder's name says {folder.name}, its manifest step {manifest.step}")
    extra = sorted(present - {MANIFEST, CHECKSUM} - {part_file(name) for name in manifest.parts})
    if extra:
        raise CheckpointError(f"{extra[0][:80]!r} does not belong to it")
    for name, part in manifest.parts.items():
        digest = hashlib.sha256()
        for chunk in disk.read_chunks(folder / part_file(name), expected_bytes=part.bytes):
            digest.update(chunk)
        _check_digest(name, part, digest.hexdigest())
    return manifest


def _read_part(folder: Path, name: str, part: Part) -> State:
    data = b"".join(disk.read_chunks(folder / part_file(name), expected_bytes=part.bytes))
    _check_digest(name, part, hashlib.sha256(data).hexdigest())
    try:
        tensors: dict[str, Tensor] = safetensors.torch.load(data)
    except MemoryError:
        raise
    except Exception as error:  # safetensors raises a dozen types on a file that somebody crafted
        raise CheckpointError(f"{part_file(name)} is not a safetensors file: {str(error)[:200]}") from error
    return decode(part.state, tensors)


def _check_digest(name: str, part: Part, digest: str) -> None:
    if digest != part.sha256:
        raise CheckpointError(f"{part_file(name)} has SHA-256 {digest[:12]}... instead of {part.sha256[:12]}...")


def _fingerprint(part: Part) -> str:
    structure = json.dumps(part.state, separators=(",", ":"))
    return hashlib.sha256(f"{part.sha256} {structure}".encode("ascii")).hexdigest()


def folder_name(step: int) -> str:
    """The name of the folder that holds the checkpoint of ``step``."""
    if type(step) is not int or not 0 <= step < 10**18:
        raise ValueError(f"step must be an int in [0, 10**18), got {step!r}")
    return f"step-{step:06d}"


def step_of(path: Path) -> int | None:
    """The step in the name of a checkpoint's folder; None when it is not one."""
    match = _STEP.fullmatch(path.name)
    step = int(match[1]) if match else None
    return step if step is not None and folder_name(step) == path.name and path.is_dir() else None
