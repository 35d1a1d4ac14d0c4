"""What commands without settings of ``opportune train`` parse their words with: what is wrong takes one line."""

from __future__ import annotations

import argparse
from typing import NoReturn

from opportune.train.errors import ConfigError


class Parser(argparse.ArgumentParser):
    """Takes no abbreviations, keeps the lines of its description, and raises where argparse would print and leave."""

    def __init__(self, *, prog: str, description: str, epilog: str | None = None) -> None:
        super().__init__(
            prog=prog,
            description=description,
            epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}. See {self.prog} --help.")
