"""``opportune train``: recipe, configuration file and flags in; a trained model in the run folder out."""

from __future__ import annotations

import argparse
import logging
import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from opportune.cli import ending_at_once
from opportune.cli.arguments import SHORT, known_flags, parse, taken_settings, written_out
from opportune.recipes import recipe
from opportune.train.checkpoint import Checkpoints
from opportune.train.config import TrainConfig
from opportune.train.config_check import check
from opportune.train.config_file import merged, read_toml, updated
from opportune.train.errors import ConfigError
from opportune.train.manifest import MANIFEST
from opportune.train.run_folder import CONFIG, saved_config
from opportune.train.saved import Checkpoint, open_checkpoint
from opportune.train.trained import run_of

if TYPE_CHECKING:
    from opportune.train.trainer import Outcome

_DESCRIPTION = (
    "Train a diffusion or flow-matching model. Settings come from --recipe, then --config, then flags, each over the "
    "one before. --SECTION.settings.NAME VALUE sets what belongs to one method, model or process. Short forms: "
    + ", ".join(f"{short} for {long}" for short, long in SHORT.items())
    + "."
)


@dataclass(frozen=True, kw_only=True)
class TrainArguments:
    """What only the command line knows, and the configuration."""

    recipe: str | None = None
    """Start from published settings: fashion16, cifar10-16, cifar10-ddpm, celebahq-ldm, imagenet-uvit, imagenet-dit."""
    config: str | None = None
    """A TOML file with the sections below; the config.toml of an earlier run will do."""
    resume: str | None = None
    """latest, or the path of a checkpoint."""
    force: bool = False
    """Resume although the configuration has changed."""
    dry_run: bool = False
    """Print the resolved configuration and what it costs; make no file."""
    settings: Annotated[TrainConfig, tyro.conf.arg(name="")] = field(default_factory=TrainConfig)


def main(words: Sequence[str]) -> int:
    """Run ``opportune train`` with these words; returns the exit code."""
    arguments = read(words)
    with ending_at_once():
        check(arguments.settings)
        from opportune.train.trainer import Trainer
    if arguments.dry_run:
        from opportune.train.dry_run import describe

        print(describe(arguments.settings))
        return 0
    outcome = Trainer(arguments.settings, resume=arguments.resume, force=arguments.force).run()
    if os.environ.get("RANK", "0") == "0":
        print(_ended(outcome, arguments.settings.run.steps))
    return outcome.exit_code


def _ended(outcome: Outcome, steps: int) -> str:
    """What there is now, and what to do with it; what was left out, if anything."""
    folder, skipped = shlex.quote(str(outcome.folder)), outcome.skipped_images
    bad = f"skipped {skipped:,} images that cannot be read, named in the warnings\n" if skipped else ""
    if outcome.stopped_by is None:
        return f"{bad}trained {steps:,} steps: {outcome.folder} (now: opportune generate {folder})"
    again = f"opportune train --resume latest --output-dir {folder}"
    return f"{bad}stopped by {outcome.stopped_by} after step {outcome.step:,} of {steps:,}, saved; to continue: {again}"


def read(words: Sequence[str]) -> TrainArguments:
    """The configuration meant by a command line."""
    rest, given = taken_settings(written_out(words, SHORT))
    first = _first_look(rest)
    layers: dict[str, Any] = {}
    if first.recipe is not None:
        layers = _recipe(first.recipe)
    if first.config is not None:
        layers = merged(layers, read_toml(first.config))
    base = updated(TrainConfig(), layers or _of_resumed(first))
    arguments = parse(
        TrainArguments,
        known_flags(rest, TrainArguments),
        default=TrainArguments(settings=base),
        prog="opportune train",
        description=_DESCRIPTION,
    )
    return replace(arguments, settings=_with_settings(arguments.settings, base, given))


def _first_look(words: Sequence[str]) -> argparse.Namespace:
    """The flags that decide what the others are changes of."""
    look = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for flag in ("--recipe", "--config", "--resume", "--run.output-dir"):
        look.add_argument(flag, dest=flag.rpartition(".")[2].strip("-").replace("-", "_"), nargs="?")
    return look.parse_known_args(list(words))[0]


def _recipe(name: str) -> dict[str, Any]:
    try:
        return recipe(name)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _of_resumed(first: argparse.Namespace) -> dict[str, Any]:
    """A run that is resumed with nothing but its folder, or one of its checkpoints, has the configuration there."""
    if first.resume is None:
        return {}
    folder = Path(first.output_dir or TrainConfig().run.output_dir)
    if first.resume != "latest":
        folder = run_of(first.resume)
    found = _written(folder, first.resume)
    # The folder may have been moved since its name was written into it.
    return merged(found, {"run": {"output_dir": str(folder)}}) if found else {}


def _written(folder: Path, resume: str) -> dict[str, Any]:
    """``config.toml`` of a run; where that is lost or damaged, what the checkpoint to resume was made with."""
    try:
        found = read_toml(folder / CONFIG)
        updated(TrainConfig(), found)
        if missing := [each.name for each in fields(TrainConfig) if each.name not in found]:
            raise ConfigError(f"section [{missing[0]}] is missing.")
        return found
    except ConfigError as error:
        checkpoint = _to_resume(folder, resume)
        if checkpoint is None:
            return {}  # nothing to resume, which is told by whoever tries to
        if os.environ.get("RANK", "0") == "0":
            logging.getLogger(__name__).warning(
                "%s is of no use: %s Going on with the settings in %s.", folder / CONFIG, error, checkpoint.path
            )
        return saved_config(checkpoint)


def _to_resume(folder: Path, resume: str) -> Checkpoint | None:
    if resume == "latest":
        return Checkpoints(folder / "checkpoints").latest()
    return open_checkpoint(resume) if (Path(resume) / MANIFEST).exists() else None


def _with_settings(config: TrainConfig, base: TrainConfig, given: dict[str, dict[str, Any]]) -> TrainConfig:
    """Put the settings of methods in; those of another method than the one chosen do not carry over."""
    changes: dict[str, Any] = {}
    for each in fields(config):
        section, before = getattr(config, each.name), getattr(base, each.name)
        if not hasattr(section, "settings"):
            continue
        kept = before.settings if section.name == before.name else {}
        changes[each.name] = {"settings": {**kept, **given.pop(each.name, {}).get("settings", {})}}
    return updated(config, {**changes, **given})
