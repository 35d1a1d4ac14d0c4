"""``opportune preview``: what methods would draw on a process, in the terminal or as a picture, without training."""

from __future__ import annotations

import re
import sys
import textwrap
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from torch import Tensor

from opportune import names
from opportune.checks import one_of
from opportune.cli.arguments import toml_value
from opportune.cli.parser import Parser
from opportune.diagnostics.density_map import DensityMap, ceiling, density_map
from opportune.processes import Process
from opportune.train.config import ProcessConfig, TrainConfig
from opportune.train.errors import ConfigError
from opportune.train.parts import PROCESSES, make_process

LEARNS = "learns while training; shown before it has learned anything"
COLUMNS = 80
TERMINAL_BARS = COLUMNS - 12
PICTURE_BARS = 256
ROWS = 4
BLOCKS, PLAIN_BLOCKS = " ▁▂▃▄▅▆▇█", " .:-=+*#@"
EXAMPLES = """\
Settings follow a name after a colon:
  opportune preview uniform logit_normal:mean=-0.5,std=0.8 --process flow:shift=3
  opportune preview speed --process ddpm:schedule=cosine --weighting min_snr:gamma=5
  opportune preview clts:ramp_steps=1000 --at-step 500 --png clts.png"""


def main(words: Sequence[str]) -> int:
    """Run ``opportune preview`` with these words; returns the exit code."""
    arguments = _parser().parse_args(words)
    process = _process(arguments.process)
    weighting = None
    if arguments.weighting != "none":
        name, settings = named(arguments.weighting)
        weighting = names.weighting(name, process, **settings)
    path = Path(arguments.png or "preview.png")
    if path.suffix != ".png":
        raise ConfigError(f"--png {path} is no name of a picture; give one that ends in .png.")
    bars = PICTURE_BARS if arguments.png else TERMINAL_BARS
    maps: dict[str, DensityMap] = {}
    for spec in arguments.methods:
        name, settings = named(spec)
        sampler = names.sampler(name, process, **settings)
        maps[spec] = density_map(sampler, weighting, bars=bars, at_step=arguments.at_step, label=spec)
    if arguments.png:
        from opportune.diagnostics.plots import save

        data, picture = save(list(maps.values()), path.parent, name=path.stem)
        for spec, seen in maps.items():
            print(f"{spec}: {_in_words(seen, arguments.at_step)}")
        print(f"picture in {picture}, its numbers in {data}")
    else:
        print(_writable(in_terminal(maps, arguments.weighting, process, arguments.at_step)))
    return 0


def named(spec: str) -> tuple[str, dict[str, Any]]:
    """``name:a=1,b=text`` -> name and settings; values are TOML (numbers, true, lists, tables) or else text."""
    name, colon, given = spec.partition(":")
    if not colon:
        return name, {}
    try:
        return name, tomllib.loads(f"settings = {{{given}}}")["settings"]
    except tomllib.TOMLDecodeError:  # text without quotes
        pairs = [part.partition("=") for part in re.split(r",(?=\s*\w+\s*=)", given)]
    for key, equals, value in pairs:
        if not key.strip() or not equals or not value.strip():
            raise ConfigError(f"{spec!r} is not name:setting=value,setting=value; see opportune preview --help.")
    return name, {key.strip(): toml_value(value.strip()) for key, _, value in pairs}


# ---- in the terminal -------------------------------------------------------------------------------------------


def in_terminal(maps: dict[str, DensityMap], weighting: str, process: Process, at_step: int | None) -> str:
    """Bars over the noise axis for every method, at most 80 columns wide."""
    lines = [*_wrapped(f"{process!r}"), "left: clean data, right: pure noise; each panel's scale starts at 0", ""]
    for spec, seen in maps.items():
        lines += _wrapped(f"{spec}: {_in_words(seen, at_step)}")
        lines += _panel("density p(u); uniform is 1", seen.density)
    if weighting != "none":
        seen = next(iter(maps.values()))
        lines += _wrapped(weighting + (f": {LEARNS}" if seen.weighting_learns else ""))
        lines += _panel(f"weight w(u) on the network's own {process.prediction} loss", seen.weighting)
    for spec, seen in maps.items():
        if weighting != "none" or seen.unbiased:
            lines += _wrapped(f"{spec} with {weighting if weighting != 'none' else 'its correction'}")
            lines += _panel("effective density p(u)·w(u), scaled to mean 1", seen.effective)
    return "\n".join(lines).rstrip()


def _panel(title: str, values: Tensor) -> list[str]:
    top, cut = ceiling(values)
    note = f"; highest {float(values.max()):.3g}, cut at {top:.3g}" if cut else ""
    lines = [f"  {title}{note}"]
    for row, cells in enumerate(block_rows(values.tolist(), top)):
        scale = f"{top:>8.3g} " if row == 0 else f"{0:>8} " if row == ROWS - 1 else " " * 9
        lines.append(f"{scale}|{cells}|")
    return [*lines, f"{'':9} {'clean':<{TERMINAL_BARS - 12}}more noise →", ""]


def block_rows(values: Sequence[float], top: float) -> list[str]:
    """``ROWS`` lines of block characters, the upper first; a bar as high as ``top`` fills all of them."""
    eighths = [round(min(value / top, 1.0) * 8 * ROWS) for value in values]
    return ["".join(BLOCKS[min(max(e - 8 * row, 0), 8)] for e in eighths) for row in reversed(range(ROWS))]


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, COLUMNS, subsequent_indent="  ")


def _in_words(seen: DensityMap, at_step: int | None) -> str:
    said = []
    if seen.learns:
        said.append(LEARNS)
    if seen.scheduled:
        said.append(f"changes with the step; shown at step {seen.step}")
        if at_step is None:
            said[-1] += " (another: --at-step N)"
    elif at_step is not None:
        said.append("no schedule, so --at-step changes nothing")
    if seen.unbiased:
        said.append("unbiased: p(u) is divided out of the loss again")
    return "; ".join(said) or "fixed"


def _writable(text: str) -> str:
    """``text`` in characters that standard output can take."""
    encoding = sys.stdout.encoding or "ascii"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        plain = str.maketrans(dict(zip(BLOCKS, PLAIN_BLOCKS, strict=True)) | {"→": ">", "·": "*"})
        return text.translate(plain).encode(encoding, "replace").decode(encoding)
    return text


# ---- what was asked for ----------------------------------------------------------------------------------------


def _parser() -> Parser:
    parser = Parser(
        prog="opportune preview",
        description="What methods would draw, before any training: density, weighting and their product.",
        epilog=EXAMPLES,
    )
    parser.add_argument("methods", nargs="+", metavar="METHOD", help=f"one or more of: {', '.join(names.samplers())}")
    parser.add_argument("--process", default="ddpm", help=f"{', '.join(PROCESSES)}, with settings (default: ddpm)")
    parser.add_argument("--weighting", default="none", help=f"none, {', '.join(names.weightings())}")
    parser.add_argument("--at-step", type=int, help="optimizer step a scheduled method is shown at (default: 0)")
    parser.add_argument("--png", metavar="FILE", help="instead of bars, a picture and its numbers as JSON beside it")
    return parser


def _process(spec: str) -> Process:
    name, settings = named(spec)
    known = cast(Any, one_of("--process", name.lower(), PROCESSES))
    return make_process(TrainConfig(process=ProcessConfig(name=known, settings=settings)))
