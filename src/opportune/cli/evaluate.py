"""``opportune evaluate``: score a trained model's images against real ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from opportune.checks import whole
from opportune.cli.arguments import known_flags, parse, with_run, written_out
from opportune.cli.generate import ImageArguments
from opportune.distributed import place
from opportune.evaluate import evaluate_images, feature_extractor
from opportune.evaluate.bits_per_dim import BitsPerDim, bits_per_dim
from opportune.processes import DDPM
from opportune.train.disk import replace_text
from opportune.train.errors import ConfigError
from opportune.train.ranks import joined
from opportune.train.trained import Trained, load_trained, run_of
from opportune.train.trained_images import (
    conditions_of,
    device_of,
    held_out_images,
    make_images,
    real_images,
    side_of,
)

BITS_TIMESTEPS = 50
"""Timesteps drawn per image for the bits; the standard error holds what that costs."""


@dataclass(frozen=True, kw_only=True)
class EvaluateArguments(ImageArguments):
    """Fréchet distance, KID, precision and recall of a trained model."""

    count: int = 2048
    """Generated images; distances of different counts must not be compared."""
    real: str | None = None
    """Real images, e.g. folder:photos; left out, the data set the model was trained on."""
    split: str = "train"
    """Which part of the real images."""
    features: str = "efficientnet-lite0-64"
    """efficientnet-lite0-64, efficientnet-lite0, inception (FID), dinov2, or pixels (for trying things out)."""
    features_weights: str | None = None
    """File (inception) or folder (dinov2) of that network's weights, where they cannot be downloaded."""
    bits: int = 0
    """Held-out images whose bits per dimension are measured too (DDPM on images, not latents); 0 for none."""
    output: str | None = None
    """File for the scores; left out: evaluation.json in the run folder."""


def main(words: Sequence[str]) -> int:
    """Run ``opportune evaluate`` with these words; returns the exit code."""
    arguments = parse(
        EvaluateArguments,
        known_flags(written_out(with_run(words), {}), EvaluateArguments),
        default=EvaluateArguments(),
        prog="opportune evaluate",
        description="Score a trained model's images: opportune evaluate RUN [options].",
    )
    if not arguments.run:
        raise ConfigError("name the run: opportune evaluate RUN_FOLDER.")
    with joined():
        return _run(arguments)


def _run(arguments: EvaluateArguments) -> int:
    device = device_of(arguments.device)
    trained = load_trained(arguments.run, weights=arguments.weights, device=device)
    output = Path(arguments.output or run_of(arguments.run) / "evaluation.json")
    if not output.parent.is_dir() or output.is_dir():
        raise ConfigError(f"--output {output} cannot be written: name a file in a folder that exists.")
    # What may be missing or wrong is found before the images are made, which takes long.
    if arguments.bits:
        check_bits(trained, arguments)
    extractor = feature_extractor(arguments.features, device=device, weights=arguments.features_weights)
    conditions = conditions_of(trained, arguments)
    side = side_of(trained, arguments)
    real = real_images(trained, 2 * arguments.count, of=arguments.real, split=arguments.split, size=side)
    bits = bits_of(trained, arguments) if arguments.bits else None
    images = make_images(trained, arguments, conditions)
    if place()[0] != 0:
        return 0
    scores = evaluate_images(
        images, real, features=extractor, reference_count=min(arguments.count, len(real)), device=device
    )
    if bits is not None:
        scores = replace(scores, bits_per_dim=bits.value, bits_stderr=bits.stderr, bits_n=bits.n)
    replace_text(output, scores.to_json())
    print(scores.describe())
    print(f"step {trained.step}, {trained.weights} weights; kept in {output}")
    return 0


def check_bits(trained: Trained, arguments: EvaluateArguments) -> None:
    """Raise where bits per dimension cannot be measured."""
    whole("bits", arguments.bits, low=2)  # one image has no standard error
    if trained.of_latents:
        raise ConfigError("bits per dimension need 8-bit images, and this model makes latents; leave out --bits.")
    if not isinstance(trained.process, DDPM):
        raise ConfigError(
            f"bits per dimension need a DDPM process, and this model's is {trained.process!r}; leave out --bits."
        )


def bits_of(trained: Trained, arguments: EvaluateArguments) -> BitsPerDim:
    """Bits per dimension of ``arguments.bits`` held-out images, with the terms of ``BITS_TIMESTEPS`` timesteps each."""
    process = cast(DDPM, trained.process)
    images, conditions = held_out_images(trained, arguments.bits)
    return bits_per_dim(
        trained.model,
        process,
        images,
        timesteps=min(BITS_TIMESTEPS, process.steps - 1),
        seed=arguments.seed,
        batch_size=arguments.batch_size,
        **conditions,
    )
