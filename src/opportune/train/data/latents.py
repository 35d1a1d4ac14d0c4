"""Encoded latents on disk: their format, and reading them.

A latents folder holds ``latents-00000.safetensors``, ``latents-00001.safetensors``, …, ``manifest.json``
and ``manifest.sha256``:

* each shard: ``latents`` ``[n, C, h, w]`` (float32, float16 or bfloat16) and, for labelled sets, ``labels``
  ``[n]`` int64;
* the manifest: ``format`` and ``version``; ``count``; ``shape`` ``[C, h, w]``; ``dtype``; ``labelled``;
  ``classes``; ``made_from`` (text to text: which images, which encoder, which size); and for each shard its
  ``file``, ``count`` and ``sha256``.

The folder appears under its name when it is complete, by one rename; a writer that is killed leaves
``NAME.partial``.
"""

from __future__ import annotations

import hashlib
import json
import re
from bisect import bisect_right
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from opportune.distributed import place
from opportune.train.data.errors import DataError, need
from opportune.train.data.sources import Example

FORMAT, VERSION = "opportune-latents", 1
MANIFEST, CHECKSUM = "manifest.json", "manifest.sha256"
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
_SHARD_NAME = re.compile(r"latents-\d{5}\.safetensors")


class LatentSource:
    """The latents of a folder, as float32 ``[C, h, w]``; damage of any kind is found when it is opened.

    ``made_from`` are the facts the caller relies on (encoder, size, …): where the folder says otherwise it
    is stale. ``verify=False`` skips reading every shard for its checksum and for NaN; several ranks share the
    shards out, so that none waits long for the others.
    """

    def __init__(
        self,
        folder: Path,
        *,
        made_from: Mapping[str, str] | None = None,
        labels: bool = False,
        verify: bool = True,
    ) -> None:
        self.folder = folder
        self.name = f"latents:{folder}"
        self.manifest = _read_manifest(folder)
        _check_origin(folder, self.manifest["made_from"], made_from or {})
        if labels and not self.manifest["labelled"]:
            raise DataError(
                f"the latents in {folder} have no labels; encode them again with labels, or set labels=False."
            )
        self.labelled = labels
        self.classes: tuple[str, ...] | None = tuple(self.manifest["classes"]) if self.manifest["classes"] else None
        self.shape: tuple[int, ...] = tuple(self.manifest["shape"])
        self.shards: list[dict[str, Any]] = self.manifest["shards"]
        self.starts = [0]
        rank, world = place()
        for number, shard in enumerate(self.shards):
            self.starts.append(self.starts[-1] + shard["count"])
            _check_shard(folder, shard, self.manifest, verify and number % world == rank)
        self._open: dict[str, Any] = {}

    def __len__(self) -> int:
        return self.starts[-1]

    def get(self, index: int) -> Example:
        if not 0 <= index < len(self):
            raise IndexError(f"index={index} is outside 0..{len(self) - 1} of {self.name}.")
        number = bisect_right(self.starts, index) - 1
        file, offset = self.shards[number]["file"], index - self.starts[number]
        shard = self._shard(file)
        label = int(shard.get_slice("labels")[offset : offset + 1][0]) if self.labelled else None
        return Example(shard.get_slice("latents")[offset : offset + 1][0].float(), label, f"{file}[{offset}]")

    def _shard(self, file: str) -> Any:
        if file not in self._open:
            self._open[file] = need("safetensors", "train").safe_open(self.folder / file, framework="pt")
        return self._open[file]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": {}}  # open files do not travel to workers


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    if not path.is_file():
        partial = folder.with_name(folder.name + ".partial")
        why = f"; {partial} was left by an encoding that did not finish" if partial.exists() else ""
        raise DataError(f"there are no latents in {folder.absolute()} (no {MANIFEST}){why}. Encode them again.")
    try:
        raw = path.read_bytes()
        if (folder / CHECKSUM).read_text(encoding="ascii").split()[:1] != [sha256_of(raw)]:
            raise ValueError(f"its SHA-256 is not the one in {CHECKSUM}")
        manifest = json.loads(raw)
        _check_manifest(manifest)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} is damaged ({type(error).__name__}: {error}). Encode the latents again.") from error
    return dict(manifest)


def _check_manifest(manifest: Any) -> None:
    """Raise ValueError, KeyError or TypeError for anything but a manifest this version understands."""
    if manifest["format"] != FORMAT or manifest["version"] != VERSION:
        raise ValueError(
            f"format {manifest['format']!r} version {manifest['version']!r}, not {FORMAT!r} version {VERSION}"
        )
    if manifest["dtype"] not in DTYPES or len(manifest["shape"]) != 3 or not manifest["shards"]:
        raise ValueError("dtype, shape or shards are not those of latents")
    for shard in manifest["shards"]:
        if not _SHARD_NAME.fullmatch(shard["file"]):  # a path here could lead anywhere
            raise ValueError(f"{shard['file']!r} is no name of a shard")
        if shard["count"] < 1 or len(shard["sha256"]) != 64:
            raise ValueError(f"count or sha256 of {shard['file']} is wrong")
    if sum(shard["count"] for shard in manifest["shards"]) != manifest["count"]:
        raise ValueError("the shards' counts do not add up")
    for key in ("labelled", "classes", "made_from"):
        manifest[key]


def _check_origin(folder: Path, found: Mapping[str, str], wanted: Mapping[str, str]) -> None:
    for key, value in wanted.items():
        if found.get(key) != value:
            raise DataError(
                f"the latents in {folder} are stale: they were made with {key}={found.get(key)!r}, this run needs "
                f"{key}={value!r}. Encode them again."
            )


def _check_shard(folder: Path, shard: Mapping[str, Any], manifest: Mapping[str, Any], verify: bool) -> None:
    path = folder / shard["file"]
    again = "Encode the latents again."
    if not path.is_file():
        raise DataError(f"{path} is missing. {again}")
    if verify and _file_sha256(path) != shard["sha256"]:
        raise DataError(f"{path} is damaged or was changed: its SHA-256 is not the manifest's. {again}")
    try:
        with need("safetensors", "train").safe_open(path, framework="pt") as opened:
            latents = opened.get_slice("latents")
            shape = tuple(latents.get_shape())
            labels = tuple(opened.get_slice("labels").get_shape()) if manifest["labelled"] else (shard["count"],)
            finite = not verify or bool(torch.isfinite(opened.get_tensor("latents")).all())
    except Exception as error:  # the library raises its own kind and several built-in ones
        raise DataError(f"{path} cannot be read ({error}). {again}") from error
    if shape != (shard["count"], *manifest["shape"]) or labels != (shard["count"],):
        raise DataError(
            f"{path} holds shape {shape}, the manifest says {(shard['count'], *manifest['shape'])}. {again}"
        )
    if not finite:
        raise DataError(f"{path} holds NaN or infinity. {again}")


def sha256_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _file_sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
