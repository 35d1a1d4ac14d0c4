"""Decoding in worker processes, in order, with PyTorch's loader."""

from __future__ import annotations

import atexit
import signal
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing import active_children
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from opportune.train.data.cache import Decoded, Decoder
from opportune.train.data.errors import WorkerDied
from opportune.train.data.lots import Lot

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def in_workers(
    decoder: Decoder, lots: Iterator[Lot], workers: int, timeout_seconds: float, name: str
) -> Iterator[tuple[Lot, Decoded]]:
    """Decode ``lots`` in ``workers`` processes, a few ahead; the results come in the order of the lots."""
    waiting: deque[Lot] = deque()
    loader = DataLoader(
        _Items(decoder),
        batch_sampler=_Announce(lots, waiting),
        num_workers=workers,
        collate_fn=_as_is,
        generator=torch.Generator(),  # else the loader would take its seed from the global stream
        timeout=timeout_seconds,
    )
    before = set(active_children())
    with _signals_held_back():
        results = iter(loader)
    stop = partial(_stop, results, set(active_children()) - before)
    # Runs before PyTorch's own exit hook, after which PyTorch would leave the workers waiting for work.
    atexit.register(stop)
    try:
        while True:
            decoded = next(results)
            yield waiting.popleft(), decoded
    except RuntimeError as error:
        if not str(error).startswith("DataLoader"):
            raise
        raise WorkerDied(
            f"a loader worker of {name} was lost: {str(error).strip().rstrip('.')}. Often it was killed because "
            "memory ran out: use fewer workers (workers=0 uses none), and resume."
        ) from error
    finally:
        atexit.unregister(stop)
        stop()


def _stop(results: Any, workers: set[Any]) -> None:
    """End the workers now, the stuck ones by force: they do not hear the signal Python would send them at exit."""
    results._shutdown_workers()
    for worker in workers:
        if worker.is_alive():
            worker.kill()


class _Items(Dataset[Decoded]):
    """What runs in a worker: a list of undecoded items in, arrays out."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder

    def __getitem__(self, index: int) -> Decoded:
        return self.__getitems__([index])

    def __getitems__(self, items: list[Any]) -> Decoded:
        return self.decoder.many(items)


class _Announce:
    """Gives each lot's items to the workers, and keeps the lot itself for when they come back, in the same order."""

    def __init__(self, lots: Iterator[Lot], waiting: deque[Lot]) -> None:
        self.lots, self.waiting = lots, waiting

    def __iter__(self) -> Iterator[list[Any]]:
        for lot in self.lots:
            self.waiting.append(lot)
            yield lot.items


def _as_is(decoded: Any) -> Any:
    return decoded


@contextmanager
def _signals_held_back() -> Iterator[None]:
    """Workers started inside never get the signals that tell a training to save and stop.

    A launcher or a terminal sends them to every process of a job; a worker that died of one would break the
    very save it asks for. Workers leave by themselves when the main process is done or gone.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
