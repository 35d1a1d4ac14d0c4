"""The manifest of a checkpoint: which files belong to it, how long they are, and their SHA-256.

``manifest.json`` describes the parts; ``manifest.sha256`` is its own checksum in the format of ``sha256sum
-c``, so that damage to the manifest is found before anything parses it. File names are never read from the
manifest: part ``ema`` is the file ``ema.safetensors``, and part names match a strict pattern, so no manifest
can point outside its folder.
"""

from __future__ import annotations

import hashlib
import json
import math
import platform
import re
from dataclasses import dataclass
from importlib import metadata
from typing import Any, NoReturn

import safetensors
import torch

from opportune.train.errors import CheckpointError
from opportune.train.state import Json

FORMAT = "opportune-checkpoint"
VERSION = 1
MANIFEST = "manifest.json"
CHECKSUM = "manifest.sha256"
MAX_MANIFEST_BYTES = 16 * 2**20
PART_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}", re.ASCII)
_SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)


@dataclass(frozen=True)
class Part:
    """One file of a checkpoint: its length, its SHA-256, and the structure its tensors are put back into."""

    bytes: int
    sha256: str
    state: Json


@dataclass(frozen=True)
class Manifest:
    """What a checkpoint consists of. ``made_with``: the versions and thread count that decided its bits."""

    step: int
    made_with: dict[str, Json]
    parts: dict[str, Part]

    def to_bytes(self) -> bytes:
        parts: dict[str, Json] = {
            name: {"bytes": part.bytes, "sha256": part.sha256, "state": part.state} for name, part in self.parts.items()
        }
        whole = {
            "format": FORMAT,
            "version": VERSION,
            "step": self.step,
            "made_with": self.made_with,
            "parts": parts,
        }
        text = json.dumps(whole, separators=(",", ":"), allow_nan=False) + "\n"
        if len(text) > MAX_MANIFEST_BYTES:
            raise CheckpointError(
                f"the manifest would have {len(text)} bytes, more than the {MAX_MANIFEST_BYTES} allowed; "
                "keep long lists of numbers in tensors"
            )
        return text.encode("ascii")

    @staticmethod
    def from_bytes(raw: bytes) -> Manifest:
        return _manifest(_strict_json(raw))


def part_file(name: str) -> str:
    """The file name of part ``name``."""
    if not PART_NAME.fullmatch(name):
        raise CheckpointError(f"part name {name[:80]!r} is not allowed; use 1 to 64 of a-z, 0-9, '_' and '-'")
    return f"{name}.safetensors"


def checksum_line(manifest: bytes) -> bytes:
    """The contents of ``manifest.sha256``."""
    return f"{hashlib.sha256(manifest).hexdigest()}  {MANIFEST}\n".encode("ascii")


def made_with() -> dict[str, Json]:
    """What decides the bits of a run besides its config: for the record, and for warning of a change."""
    return {**_VERSIONS, "torch_threads": torch.get_num_threads()}


def _versions() -> dict[str, Json]:
    try:
        own = metadata.version("opportune")
    except metadata.PackageNotFoundError:
        own = "not installed"
    return {
        "opportune": own,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "safetensors": str(safetensors.__version__),
    }


# found once: an upgrade under a running process changes the installed version, not the one that runs
_VERSIONS = _versions()


def _strict_json(raw: bytes) -> Any:
    """JSON as the standard has it: no duplicate keys, no NaN, no number outside float64."""
    try:
        return json.loads(
            raw.decode("ascii"),
            object_pairs_hook=_unique,
            parse_float=_finite,
            parse_constant=_no_constant,
        )
    except CheckpointError:
        raise
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{MANIFEST} is not the JSON we write: {str(error)[:200]}") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        raise CheckpointError(f"{MANIFEST} has a duplicate key among {[key[:40] for key, _ in pairs[:5]]}")
    return out


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise CheckpointError(f"{MANIFEST} has a number out of range: {text[:40]}")
    return value


def _no_constant(text: str) -> NoReturn:
    raise CheckpointError(f"{MANIFEST} has {text}, which is not JSON")


def _manifest(whole: Any) -> Manifest:
    if not isinstance(whole, dict) or whole.get("format") != FORMAT:
        raise CheckpointError(f"{MANIFEST} does not describe an {FORMAT}")
    if type(whole.get("version")) is not int or whole["version"] != VERSION:
        raise CheckpointError(
            f"{MANIFEST} has format version {str(whole.get('version'))[:40]}; "
            f"this opportune reads version {VERSION}: use the opportune that wrote it, or a newer one"
        )
    _keys("", whole, {"format", "version", "step", "made_with", "parts"})
    step, made, parts = whole["step"], whole["made_with"], whole["parts"]
    if not _natural(step) or not isinstance(made, dict) or not isinstance(parts, dict) or not parts:
        raise CheckpointError(f"{MANIFEST} has a step, made_with or parts of the wrong type")
    return Manifest(step=step, made_with=made, parts={name: _part(name, part) for name, part in parts.items()})


def _part(name: str, part: Any) -> Part:
    part_file(name)
    if not isinstance(part, dict):
        raise CheckpointError(f"{MANIFEST} has a part {name!r} that is not an object")
    _keys(f"part {name!r}: ", part, {"bytes", "sha256", "state"})
    if not _natural(part["bytes"]) or not isinstance(part["sha256"], str) or not _SHA256.fullmatch(part["sha256"]):
        raise CheckpointError(f"{MANIFEST}, part {name!r}: bytes must be an integer >= 0, sha256 64 hex digits")
    return Part(bytes=part["bytes"], sha256=part["sha256"], state=part["state"])


def _keys(where: str, found: dict[str, Any], wanted: set[str]) -> None:
    if set(found) != wanted:
        wrong = sorted(key[:40] for key in set(found) ^ wanted)[:5]
        raise CheckpointError(f"{MANIFEST}, {where}missing or unknown keys {wrong}")


def _natural(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**63
