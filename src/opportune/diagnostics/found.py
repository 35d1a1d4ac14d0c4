"""What a diagnosis found, as values: written to JSON and read back apart from any drawing."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Found:
    """Base of every finding: fields are tensors, numbers and text.

    Attributes:
        label: which model, stage or run this is, as legends name it.
    """

    figure: ClassVar[str]
    """Name of the files it is written to, and of its kind."""
    label: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Its fields as JSON holds them; what is not finite is null (a bin nothing fell into)."""
        fields = [field for field in dataclasses.fields(self) if field.metadata.get("json", True)]
        return {field.name: plain(getattr(self, field.name)) for field in fields}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """The inverse of :meth:`to_dict`; tensors come back as float64."""
        fields: dict[str, Any] = {name: _tensor(v) if isinstance(v, list) else v for name, v in values.items()}
        return cls(**fields)


def write_json(found: Sequence[Found], folder: str | Path, *, name: str = "") -> Path:
    """Write findings of one kind (one per stage or run) to ``folder``, in one step; returns the path.

    Args:
        found: the findings.
        folder: made where there is none.
        name: of the file, without ``.json``; left out, that of the figure.
    """
    if not found or len({type(each) for each in found}) != 1:
        kinds = sorted({type(each).__name__ for each in found})
        raise ValueError(f"found holds {', '.join(kinds) or 'nothing'}; give one or more findings of one kind.")
    path = Path(folder) / f"{name or found[0].figure}.json"
    text = json.dumps({"figure": found[0].figure, "found": [each.to_dict() for each in found]}, indent=1)
    write_whole(path, text + "\n")
    return path


def read_json(path: str | Path) -> list[Found]:
    """What :func:`write_json` wrote (``opportune diagnose`` does), to be drawn again or looked at."""
    kinds = {kind.figure: kind for kind in Found.__subclasses__()}
    try:
        values = json.loads(Path(path).read_text(encoding="utf-8"))
        kind = kinds[values["figure"]]
        return [kind.from_dict(each) for each in values["found"]]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} holds no findings of {', '.join(sorted(kinds))} ({error!r}); make it again with "
            "`opportune diagnose`."
        ) from error


def write_whole(path: Path, content: str | bytes) -> None:
    """Replace ``path`` in one step, so that whoever reads it sees the old or the new file and never half of one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        new.write_bytes(content.encode() if isinstance(content, str) else content)
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


def named_in(found: Sequence[Found], field: str) -> str:
    """What a text field says, for a title: where findings differ, whatever there is ("none" for an empty one)."""
    names = list(dict.fromkeys(getattr(each, field) or "none" for each in found))
    return names[0] if len(names) == 1 else f"each one's {field} ({', '.join(names)})"


def shortened(label: str, width: int) -> str:
    """``label`` in at most ``width`` characters; its end, where the step is, stays."""
    return label if len(label) <= width else f"…{label[1 - width :]}"


def plain(value: Any) -> Any:
    """``value`` as JSON holds it: tensors as lists, dataclasses as objects, numbers that are not finite as null."""
    if isinstance(value, Tensor):
        return plain(value.tolist())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return plain(dataclasses.asdict(value))
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value


def _tensor(values: list[Any]) -> Tensor:
    return torch.tensor(_numbers(values), dtype=torch.float64)


def _numbers(values: Any) -> Any:
    if isinstance(values, list):
        return [_numbers(each) for each in values]
    return math.nan if values is None else values
