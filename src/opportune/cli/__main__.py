"""``python -m opportune.cli`` is ``opportune``."""

from opportune.cli import run

run()
