"""Features of real images, kept on disk so that they are computed once: safetensors and JSON."""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor


class FeatureCache:
    """A folder of feature tables, one per data set, extractor and number of images.

    A table that is damaged, or belongs to something else, is computed again with a warning, never used.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def get(self, *, data: str, features: str, count: int, compute: Callable[[], Tensor]) -> Tensor:
        """Features `[N, D]` of the first `count` images of `data`; `compute` is called if missing."""
        wanted = {"data": data, "features": features, "count": count}
        key = hashlib.sha256(json.dumps(wanted, sort_keys=True).encode()).hexdigest()[:32]
        table, note = self.folder / f"{key}.safetensors", self.folder / f"{key}.json"
        if note.exists():
            problem, found = _read(table, note, wanted)
            if found is not None:
                return found
            warnings.warn(f"{table} cannot be used ({problem}); its features are computed again.", stacklevel=3)
        computed = compute()
        self.folder.mkdir(parents=True, exist_ok=True)
        content = _library().save({"features": computed.contiguous()})
        _replace(table, content)
        # Last, and with the hash: a table without a matching note is never read.
        _replace(note, json.dumps({**wanted, "sha256": hashlib.sha256(content).hexdigest()}, indent=2).encode())
        return computed


def _read(table: Path, note: Path, wanted: dict[str, Any]) -> tuple[str, Tensor | None]:
    try:
        noted = json.loads(note.read_text())
        content = table.read_bytes()
    except (OSError, ValueError) as error:
        return str(error), None
    if noted != {**wanted, "sha256": hashlib.sha256(content).hexdigest()}:
        return "its contents do not match its description", None
    features: Tensor = _library().load(content)["features"]
    return "", features


def _replace(path: Path, content: bytes) -> None:
    # The process id keeps ranks that write the same table out of each other's way.
    staging = path.with_name(f"{path.name}.{os.getpid()}.partial")
    staging.write_bytes(content)
    os.replace(staging, path)


def _library() -> Any:
    try:
        import safetensors.torch
    except ImportError as error:
        raise ImportError(f'cache_folder needs safetensors: pip install "opportune[train]" ({error})') from error
    return safetensors.torch
