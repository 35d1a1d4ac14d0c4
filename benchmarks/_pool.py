"""Run cells in processes of one thread each, one finished file per cell, so that a stopped run goes on where it was."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

THREADS = {name: "1" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}

Cell = dict[str, Any]


def load(path: Path) -> Cell | None:
    """The finished cell in ``path``, or None if it is missing or not whole."""
    try:
        found: Cell = json.loads(path.read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return None
    return found


def save(path: Path, result: Cell) -> None:
    """Write at once or not at all: a kill leaves no half file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_text(json.dumps(result))
    part.replace(path)


def work(
    cells: Iterable[Cell],
    *,
    folder: Path,
    run: Callable[[Cell], Cell],
    key: Callable[[Cell], str],
    workers: int,
) -> tuple[list[Cell], list[tuple[str, str]]]:
    """``(results, failures)`` of all cells; finished ones are read from ``folder``, the rest are run.

    Args:
        run, key: functions of a module (they are sent to other processes).
        workers: processes; 0 runs in this one.
    """
    paths = {key(cell): cell for cell in cells}  # one entry per distinct cell
    results = {name: found for name in paths if (found := load(folder / f"{name}.json")) is not None}
    missing = [name for name in paths if name not in results]
    failures: list[tuple[str, str]] = []
    with _progress(len(missing), already=len(results)) as advance:
        for name, result, problem in _outcomes(missing, paths, folder, run, workers):
            if problem is None:
                results[name] = result
            else:
                failures.append((name, problem))
            advance(name if problem is None else f"{name}: {problem}")
    return [results[name] for name in paths if name in results], failures


def _outcomes(
    names: list[str], cells: dict[str, Cell], folder: Path, run: Callable[[Cell], Cell], workers: int
) -> Iterator[tuple[str, Cell, str | None]]:
    jobs = [(name, cells[name], folder / f"{name}.json", run) for name in names]
    if workers == 0:
        yield from map(_one, jobs)
        return
    os.environ.update(THREADS)  # inherited by the workers, read when they import torch
    with ProcessPoolExecutor(
        workers, mp_context=get_context("spawn"), initializer=_start, initargs=(os.getpid(),)
    ) as pool:
        for future in as_completed([pool.submit(_one, job) for job in jobs]):
            yield future.result()


def _one(job: tuple[str, Cell, Path, Callable[[Cell], Cell]]) -> tuple[str, Cell, str | None]:
    name, cell, path, run = job
    try:
        result = run(cell)
    except Exception as error:  # one bad cell must not cost the others: it is reported at the end, and run again
        return name, {}, f"{type(error).__name__}: {error}"
    save(path, result)
    return name, result, None


def _start(parent: int) -> None:
    import torch

    torch.set_num_threads(1)

    def leave_with_parent() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=leave_with_parent, daemon=True).start()


@contextmanager
def _progress(total: int, *, already: int) -> Iterator[Callable[[str], None]]:
    if sys.stderr.isatty():
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
        with Progress(*columns) as bar:
            task = bar.add_task(f"{already} cells were done", total=total)
            yield lambda text: bar.update(task, advance=1, description=text)
        return
    began, done = time.time(), 0
    print(f"{total} cells to run, {already} were done", file=sys.stderr, flush=True)

    def advance(text: str) -> None:
        nonlocal done
        done += 1
        left = (time.time() - began) / done * (total - done)
        print(f"{done}/{total}  {left / 60:.1f} min left  {text}", file=sys.stderr, flush=True)

    yield advance
