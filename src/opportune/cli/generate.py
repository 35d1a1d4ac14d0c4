"""``opportune generate``: a run folder in; a grid, a folder of images or a diffusers pipeline out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from opportune.cli.arguments import known_flags, parse, with_run, written_out
from opportune.distributed import place
from opportune.generate import save_folder, save_grid
from opportune.models import LatentSpace
from opportune.models.base import enlarged
from opportune.train.config_file import to_dict
from opportune.train.errors import ConfigError
from opportune.train.hub import check_repository, push_to_hub
from opportune.train.ranks import joined
from opportune.train.trained import Trained, load_trained, run_of
from opportune.train.trained_images import ImageSettings, check_choices, conditions_of, device_of, make_images


@dataclass(frozen=True, kw_only=True)
class ImageArguments(ImageSettings):
    """What images to make with which model."""

    run: str = ""
    """Folder of the run, or one of its checkpoints."""
    weights: Literal["auto", "ema", "raw"] = "auto"
    """The moving average, where there is one, or the raw weights."""
    device: str = "auto"
    """auto, cpu or cuda."""


@dataclass(frozen=True, kw_only=True)
class GenerateArguments(ImageArguments):
    """Images from a trained model."""

    output: str = ""
    """Folder for the images; left out: generated/ in the run folder."""
    export: str | None = None
    """Write a diffusers pipeline to this folder instead of images."""
    card: bool = False
    """With export: add a model card, a README with the settings of the run."""
    push_to_hub: str | None = None
    """With export: upload the folder to this repository of the Hugging Face hub, e.g. me/my-model."""


def main(words: Sequence[str]) -> int:
    """Run ``opportune generate`` with these words; returns the exit code."""
    arguments = parse(
        GenerateArguments,
        known_flags(written_out(with_run(words), {}), GenerateArguments),
        default=GenerateArguments(),
        prog="opportune generate",
        description="Make images with a trained model: opportune generate RUN [options].",
    )
    if not arguments.run:
        raise ConfigError("name the run: opportune generate RUN_FOLDER.")
    if arguments.card and arguments.export is None:
        raise ConfigError("--card goes with --export FOLDER: a model card is part of the exported pipeline.")
    if arguments.push_to_hub is not None:
        if arguments.export is None:
            raise ConfigError("--push-to-hub goes with --export FOLDER: that folder is uploaded.")
        check_repository(arguments.push_to_hub)
    with joined():
        return _run(arguments)


def _run(arguments: GenerateArguments) -> int:
    trained = load_trained(arguments.run, weights=arguments.weights, device=device_of(arguments.device))
    if arguments.export is not None:
        return _export(trained, arguments) if place()[0] == 0 else 0
    output = Path(arguments.output or run_of(arguments.run) / "generated")
    if output.exists() and not output.is_dir():
        raise ConfigError(f"--output {output} is a file; name a folder for the images.")
    check_choices(trained, arguments)
    _check_no_others(output / "images", arguments.count)
    conditions = conditions_of(trained, arguments)
    images = make_images(trained, arguments, conditions)
    if place()[0] != 0:
        return 0
    save_folder(images, output / "images")
    grid = save_grid(images[:64], output / "grid.png")
    if "condition" in conditions:
        save_grid(enlarged(conditions["condition"][:64], trained.shape[1:]), output / "low_resolution.png")
    print(f"{len(images)} images of step {trained.step} ({trained.weights} weights): {output}, {grid}")
    return 0


def _check_no_others(folder: Path, count: int) -> None:
    """Images 0 to count - 1 are replaced; more of an earlier call would stay, and be taken for ours."""
    others = [path.name for path in folder.glob("[0-9]*.png") if path.stem.isdecimal() and int(path.stem) >= count]
    if others:
        raise ConfigError(
            f"{folder} holds {len(others)} images beyond the {count} to be made ({min(others)} and on), which would be "
            "mixed with them; remove the folder, or name another with --output."
        )


def _export(trained: Trained, arguments: GenerateArguments) -> int:
    from opportune.train.export import export_pipeline

    folder = export_pipeline(
        trained.model,
        trained.process,
        str(arguments.export),
        method=arguments.method or "ddim",
        autoencoder=None if arguments.autoencoder is None else LatentSpace.load(arguments.autoencoder),
        card={"step": trained.step, "weights": trained.weights, **to_dict(trained.config)} if arguments.card else None,
    )
    print(f"diffusers pipeline of step {trained.step} ({trained.weights} weights): {folder}")
    if arguments.push_to_hub is not None:
        print(f"pushed to {push_to_hub(folder, arguments.push_to_hub)}")
    return 0
