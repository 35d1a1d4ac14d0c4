"""JSON files of run folders, read with care: a run may be writing them, and they may come from anywhere."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from ..train.errors import RunFolderError


def read_lines(path: Path) -> tuple[list[dict[str, Any]], bool]:
    """The records of a file of JSON lines, and whether the last line was cut off (it is left out)."""
    text = _text(path)
    *lines, rest = text.split("\n")
    records = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            records.append(_record(path, number, line))
    return records, bool(rest)


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object a file holds."""
    try:
        made = json.loads(_text(path))
    except ValueError as error:
        raise RunFolderError(f"{path} is not valid JSON ({error}); remove it, or make it again.") from error
    if not isinstance(made, dict):
        raise RunFolderError(f"{path} holds a JSON {type(made).__name__}, not an object; remove it, or make it again.")
    return made


def is_number(value: Any) -> bool:
    """Whether it is a finite number (JSON's true is none)."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _record(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise RunFolderError(f"{path}, line {number} is not valid JSON ({error}); restore the file.") from error
    step = record.get("step") if isinstance(record, dict) else None
    if not isinstance(record, dict) or not isinstance(step, int) or isinstance(step, bool) or step < 0:
        raise RunFolderError(f"{path}, line {number} is no record of a step: it has step={step!r}; restore the file.")
    return record


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise RunFolderError(f"{path} is not text in UTF-8 ({error.reason}); restore the file.") from error
