"""The errors that end a run, each with a message a tired person can act on."""

from __future__ import annotations


class CheckpointError(RuntimeError):
    """A checkpoint could not be written, or one that was asked for is missing, damaged or not ours."""


class RunLockError(RuntimeError):
    """Another process is already using the run folder."""


class NonFiniteError(RuntimeError):
    """The loss or the gradients stayed NaN or infinite for too many steps in a row."""


class ConfigError(ValueError):
    """A setting is unknown, of the wrong type, out of range, or does not go with another."""


class RunFolderError(RuntimeError):
    """The run folder holds another run already, or nothing to resume."""


class RanksError(RuntimeError):
    """Not as many processes came up as were asked for."""


class RankFailed(RuntimeError):
    """Something went wrong on one of several ranks; the message says which, and is that rank's own."""
