"""The ``opportune`` command: one module per sub-command, imported when it is called."""

from __future__ import annotations

import atexit
import logging
import os
import select
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import NoReturn

from opportune.checks import closest

COMMANDS = {
    "train": "train a model, or continue to",
    "compare": "train and score methods x settings x seeds",
    "encode": "turn images into latents once, to train on",
    "generate": "make images with a trained model",
    "evaluate": "score a trained model's images",
    "diagnose": "see what a run learns at which noise level",
    "suggest": "suggest a density and a weighting from a run",
    "preview": "show what methods would draw, without training",
    "report": "compare runs in one HTML file",
}

USAGE = 2
"""Exit code where the command line or configuration is at fault; nothing was done."""
FAILED = 1
"""Exit code of everything else that went wrong."""
INTERRUPTED = 130
"""Exit code after Ctrl-C, where a command has no better one; files are written whole or not at all."""
UNREAD = 141
"""Exit code where nobody reads the output any more, as after ``| head -1``: what SIGPIPE gives other programs."""
PATIENCE_SECONDS = 10.0
"""Launchers end all ranks as soon as one has ended: the silent ones wait until rank 0, perhaps later, has spoken."""


def run() -> NoReturn:
    """The program: :func:`main`, then the end of the process."""
    alone = os.environ.get("WORLD_SIZE", "1") == "1"
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # while the package was loading
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        code = _code_of_main()
    except Exception:
        if alone:
            raise
        traceback.print_exc()
        code = FAILED
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not where it is ignored, as in the background
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C while libraries are taken apart is no news
    if not alone:
        # Threads of gloo may still hold tensors of the last exchange. Where they let go of them while Python is being
        # taken apart, the process aborts with all its work done, and the launcher calls it failed.
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _code_of_main() -> int:
    try:
        try:
            code = main()
        except SystemExit as end:  # of a parser, after --help
            code = end.code if isinstance(end.code, int) else 0
        sys.stdout.flush()  # now, where it can still be seen that nobody reads it
    except BrokenPipeError:
        if not output_unread():
            raise
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in (sys.stdout, sys.stderr):  # what is left in them is written once more when Python ends
            os.dup2(nowhere, stream.fileno())
        return UNREAD
    except KeyboardInterrupt:
        return INTERRUPTED
    return code


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a sub-command; returns the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help"):
        print(_help())
        return 0 if words else USAGE
    if words[0] == "--version":
        from opportune import __version__

        print(__version__)
        return 0
    if words[0] not in COMMANDS:
        near = closest(words[0], COMMANDS)
        return say(f"error: there is no command {words[0]!r}{near or '.'} See opportune --help.", USAGE)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s", stream=sys.stderr)
    logging.getLogger("huggingface_hub").propagate = False  # it prints its messages itself; once is enough
    warnings.formatwarning = _one_line
    if os.environ.get("RANK", "0") != "0":
        warnings.simplefilter("ignore")  # they are about the settings, which are those of rank 0
    return guarded(words[0], words[1:])


def guarded(command: str, words: list[str]) -> int:
    """Run a command; what we know how to explain becomes one message and an exit code, not a traceback."""
    with ending_at_once():
        from opportune.train.data.errors import DataError, WorkerDied
        from opportune.train.errors import (
            CheckpointError,
            ConfigError,
            NonFiniteError,
            RankFailed,
            RanksError,
            RunFolderError,
            RunLockError,
        )

    try:
        with ending_at_once():
            module = import_module(f"{__package__}.{command}")
        return int(module.main(words))
    except (ConfigError, DataError, RanksError, RunFolderError, RunLockError, ImportError) as error:
        return say(f"error: {error}", USAGE)
    except ValueError as error:
        if command == "train":  # its settings were checked; this is a fault of ours, and the traceback tells where
            raise
        return say(f"error: {error}", USAGE)
    except (FileExistsError, FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
        return say(f"error: {error}", USAGE)  # a path that somebody named
    except RankFailed as error:
        print(f"error: {error}", file=sys.stderr, flush=True)  # on whichever rank: only that one knows
        os._exit(FAILED)  # the others wait for this one, and taking torch apart takes seconds
    except (CheckpointError, NonFiniteError, WorkerDied, OSError) as error:
        if isinstance(error, BrokenPipeError) and output_unread():
            raise
        return say(f"error: {error}", FAILED)
    except KeyboardInterrupt:
        return say("stopped", INTERRUPTED)


def output_unread() -> bool:
    """Whether the reader of standard output or error has gone; a pipe that breaks may also lead elsewhere."""
    streams = select.poll()
    for stream in (1, 2):
        streams.register(stream, 0)
    return any(seen & (select.POLLERR | select.POLLHUP) for _, seen in streams.poll(0))


@contextmanager
def ending_at_once() -> Iterator[None]:
    """Ctrl-C while libraries load ends the process: raised inside an import it comes out as any error, or as none."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:  # not where it is ignored, or somebody else's
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def say(message: str, code: int) -> int:
    """Print ``message`` on standard error, on one rank; returns ``code``."""
    if os.environ.get("RANK", "0") == "0":
        print(message, file=sys.stderr)
    else:
        time.sleep(PATIENCE_SECONDS)
    return code


def _help() -> str:
    lines = [f"  {name:<10} {does}" for name, does in COMMANDS.items()]
    return "\n".join(["usage: opportune COMMAND [options]", "", *lines, "", "opportune COMMAND --help tells more."])


def _one_line(message: object, category: type[Warning], filename: str, lineno: int, line: str | None = None) -> str:
    return f"warning: {message}\n"
