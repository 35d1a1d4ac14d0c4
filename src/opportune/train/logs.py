"""The logs of a run as files of JSON lines that a resumed run continues to the byte."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from opportune.train import disk
from opportune.train.errors import RunFolderError

METRICS = "metrics.jsonl"
"""What was trained: the same for the same configuration, however often the run was interrupted."""
TIMING = "timing.jsonl"
"""How long it took: different every time, and therefore a file of its own."""


class JsonLines:
    """A file of one JSON object per line. A checkpoint keeps its length; a resumed run cuts it back to that."""

    def __init__(self, path: Path, *, length: int = 0) -> None:
        self.path = path
        path.touch()
        if path.stat().st_size < length:
            raise RunFolderError(
                f"{path} has {path.stat().st_size} bytes, and {length} when the checkpoint was saved: records are "
                "missing. Put the file back, or start a new run."
            )
        os.truncate(path, length)
        self._file = path.open("a", encoding="utf-8")

    def write(self, record: dict[str, Any]) -> None:
        """Append one record; readers see it at once."""
        line = json.dumps(record, allow_nan=True) + "\n"
        with disk.explained(self.path, len(line)):
            self._file.write(line)
            self._file.flush()

    def durable_length(self) -> int:
        """Bytes written, now on the disk."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return self._file.tell()

    def close(self) -> None:
        self._file.close()


def read_log(path: str | Path) -> list[dict[str, Any]]:
    """The records of a ``metrics.jsonl`` (of a run folder, too); a last line cut short by a crash is left out."""
    path = Path(path)
    path = path / METRICS if path.is_dir() else path
    lines = path.read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in lines[:-1] if line]
