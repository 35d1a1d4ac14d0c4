"""Writing encoded latents, so that the folder is complete or not there at all."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from opportune.checks import whole
from opportune.train.data.errors import DataError, need
from opportune.train.data.latents import CHECKSUM, DTYPES, FORMAT, MANIFEST, VERSION, sha256_of
from opportune.train.disk import explained, sync_folder, write_file


def write_latents(
    folder: Path,
    examples: Iterable[tuple[Tensor, int | None]],
    *,
    made_from: Mapping[str, str],
    classes: tuple[str, ...] | None = None,
    shard_examples: int = 4096,
    overwrite: bool = False,
) -> Path:
    """Write ``(latent [C, h, w], label or None)`` pairs to ``folder``; all of one shape, type and labelling."""
    whole("shard_examples", shard_examples, low=1)
    if folder.exists() and not overwrite:
        raise DataError(f"{folder} exists already; remove it, choose another folder, or set overwrite=True.")
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)  # left by a writer that was killed
    partial.mkdir(parents=True)
    try:
        _write(partial, folder, examples, made_from, classes, shard_examples)
    except BaseException:  # Ctrl-C, too, leaves nothing half-made; a kill leaves what the next writer removes
        shutil.rmtree(partial, ignore_errors=True)
        raise
    if folder.exists():
        shutil.rmtree(folder)
    partial.rename(folder)
    sync_folder(folder.parent)
    return folder


def _write(
    partial: Path,
    folder: Path,
    examples: Iterable[tuple[Tensor, int | None]],
    made_from: Mapping[str, str],
    classes: tuple[str, ...] | None,
    shard_examples: int,
) -> None:
    writer = _Writer(partial)
    for latent, label in examples:
        writer.add(latent, label)
        if len(writer.latents) == shard_examples:
            writer.flush()
    writer.flush()
    if writer.first is None:
        raise DataError(f"there were no latents to write to {folder}.")
    manifest = {
        "format": FORMAT,
        "version": VERSION,
        "count": writer.count,
        "shape": list(writer.first.shape),
        "dtype": str(writer.first.dtype).removeprefix("torch."),
        "labelled": writer.labelled,
        "classes": list(classes) if classes else None,
        "made_from": dict(made_from),
        "shards": writer.shards,
    }
    raw = (json.dumps(manifest, indent=1, sort_keys=True) + "\n").encode()
    write_file(partial / MANIFEST, raw)
    write_file(partial / CHECKSUM, f"{sha256_of(raw)}  {MANIFEST}\n".encode())
    sync_folder(partial)


class _Writer:
    """Collects latents and writes them shard by shard."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.first: Tensor | None = None
        self.labelled = False
        self.latents: list[Tensor] = []
        self.labels: list[int] = []
        self.shards: list[dict[str, Any]] = []
        self.count = 0

    def add(self, latent: Tensor, label: int | None) -> None:
        if self.first is None:
            self.first, self.labelled = latent, label is not None
            if latent.dtype not in DTYPES.values() or latent.ndim != 3:
                raise DataError(
                    f"latents are {latent.dtype} {tuple(latent.shape)}; give [C, h, w] of {', '.join(DTYPES)}."
                )
        if latent.shape != self.first.shape or latent.dtype != self.first.dtype or (label is not None) != self.labelled:
            raise DataError(
                f"latent {self.count} is {latent.dtype} {tuple(latent.shape)} with label {label}; the first was "
                f"{self.first.dtype} {tuple(self.first.shape)} {'with' if self.labelled else 'without'} a label."
            )
        if not bool(torch.isfinite(latent).all()):
            raise DataError(f"latent {self.count} holds NaN or infinity; check the encoder and its precision.")
        self.latents.append(latent.detach().cpu())
        self.labels.append(-1 if label is None else label)
        self.count += 1

    def flush(self) -> None:
        if not self.latents:
            return
        file = f"latents-{len(self.shards):05d}.safetensors"
        tensors = {"latents": torch.stack(self.latents)}
        if self.labelled:
            tensors["labels"] = torch.tensor(self.labels, dtype=torch.int64)
        data: bytes = need("safetensors.torch", "train").save(tensors)
        with explained(self.folder / file, len(data)):
            write_file(self.folder / file, data)
        self.shards.append({"file": file, "count": len(self.latents), "sha256": sha256_of(data)})
        self.latents, self.labels = [], []
