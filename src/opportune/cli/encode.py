"""``opportune encode``: images in; a folder of latents to train on out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

import tyro

from opportune.cli.arguments import known_flags, parse, written_out
from opportune.models import LatentSpace
from opportune.train.config import DataConfig
from opportune.train.data import Source, open_source
from opportune.train.encode import encode_latents
from opportune.train.errors import ConfigError
from opportune.train.progress import ProgressBar
from opportune.train.ranks import refuse_ranks
from opportune.train.trained_images import device_of


@dataclass(frozen=True, kw_only=True)
class EncodeArguments:
    """Turn images into latents once."""

    autoencoder: str = ""
    """Hub name or local folder of a diffusers AutoencoderKL (safetensors)."""
    output: str = ""
    """Folder to make; {split} in it stands for the split."""
    split: str = "train"
    """Split of the data set."""
    encode_batch_size: int = 16
    """Images at a time."""
    device: str = "auto"
    """auto, cpu or cuda."""
    overwrite: bool = False
    """Replace the folder if it exists."""
    data: Annotated[DataConfig, tyro.conf.arg(name="data")] = field(default_factory=DataConfig)


def main(words: Sequence[str]) -> int:
    """Run ``opportune encode`` with these words; returns the exit code."""
    refuse_ranks("opportune encode")
    arguments = parse(
        EncodeArguments,
        known_flags(written_out(words, {}), EncodeArguments),
        default=EncodeArguments(data=DataConfig(channels=3, size=256)),
        prog="opportune encode",
        description="Encode images once, to train on the latents: --data.source, --data.size, --autoencoder, --output.",
    )
    data = arguments.data
    if not arguments.autoencoder or not arguments.output:
        raise ConfigError("name the autoencoder (--autoencoder NAME) and the folder to make (--output FOLDER).")
    if data.source.startswith("latents:"):
        raise ConfigError(f"data.source={data.source!r} holds latents already.")
    source = open_source(
        data.source,
        split=arguments.split,
        size=data.size,
        channels=data.channels,
        labels=data.classes is not None,
        streaming=data.streaming,
        image_column=data.image_column,
        label_column=data.label_column,
    )
    folder = arguments.output.replace("{split}", arguments.split)
    with ProgressBar(len(source) if isinstance(source, Source) else 0, 0) as bar:
        skipped = encode_latents(
            source,
            LatentSpace.load(arguments.autoencoder),
            folder,
            encoder=arguments.autoencoder,
            batch_size=arguments.encode_batch_size,
            device=device_of(arguments.device),
            on_bad=data.on_bad,
            overwrite=arguments.overwrite,
            told=lambda done: bar.tell(f"{done} images"),
        )
    if skipped:
        print(f"skipped {skipped:,} images that cannot be read, named in the warnings")
    print(f"latents: {folder}")
    return 0
