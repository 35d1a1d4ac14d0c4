"""The import law: a room imports only from the rooms above it, and the core needs torch alone."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "opportune"

CORE = [
    "types", "checks", "distributed", "random_streams", "processes", "measure", "samplers", "weightings", "optim",
    "objective", "step", "attach", "adapters", "names", "citations", "embedded", "testing",
]  # fmt: skip
UPPER = [
    "models",
    "generate",
    "evaluate",
    "train",
    "diagnostics",
    "report",
    "recipes",
    "compare",
    "cli",
]
ROOMS = [*CORE, *UPPER]
# Lazy look-ups by name, each inside a function: the only places that look down.
EXCEPTIONS = {("objective", "names"), ("samplers", "names")}


def _files():
    return sorted(
        p for p in PACKAGE.rglob("*.py") if p.parent != PACKAGE or p.name not in ("__init__.py", "__main__.py")
    )


def _imports(path: Path):
    """(absolute dotted name, inside a function?) of every import of a file."""
    tree = ast.parse(path.read_text())
    inner = {
        id(n) for f in ast.walk(tree) if isinstance(f, (ast.FunctionDef, ast.AsyncFunctionDef)) for n in ast.walk(f)
    }
    own = ("opportune", *path.relative_to(PACKAGE).with_suffix("").parts)
    package = own[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, id(node) in inner
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            yield ".".join([*base, *([node.module] if node.module else [])]), id(node) in inner


def _room(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


@pytest.mark.parametrize("path", _files(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_a_room_imports_only_from_rooms_above(path):
    room = _room(path)
    assert room in ROOMS, f"{room} is not a room; give it a place in the order"
    for name, inside in _imports(path):
        parts = name.split(".")
        if parts[0] != "opportune" or len(parts) < 2:
            continue
        other = parts[1]
        if other == room or (inside and (room, other) in EXCEPTIONS):
            continue
        assert ROOMS.index(other) < ROOMS.index(room), f"{path.name} ({room}) imports {name}, which lies below it"


@pytest.mark.parametrize("path", [p for p in _files() if _room(p) in CORE], ids=lambda p: str(p.relative_to(PACKAGE)))
def test_the_core_imports_torch_and_the_standard_library_alone(path):
    allowed = {*sys.stdlib_module_names, "torch", "opportune"}
    for name, _ in _imports(path):
        assert name.split(".")[0] in allowed, f"{path.name} imports {name}"


def test_import_brings_in_nothing_heavy():
    """A fresh interpreter: importing the package loads no third-party module that torch itself does not load."""
    code = (
        "import sys, torch; before = set(sys.modules); import opportune; "
        "new = {m.split('.')[0] for m in set(sys.modules) - before} - set(sys.stdlib_module_names); print(sorted(new))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert ast.literal_eval(shown) == ["opportune"]


def test_nothing_in_the_core_prints_or_reads_the_global_stream():
    for path in (p for p in _files() if _room(p) in CORE):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id != "print", f"{path.name} prints"
