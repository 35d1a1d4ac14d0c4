"""Export a model as a diffusers pipeline folder, which ``DiffusionPipeline.from_pretrained(folder)`` loads."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from opportune.checks import one_of
from opportune.models import ImageModel, LatentSpace
from opportune.models.dit import DiT
from opportune.models.extras import require_diffusers
from opportune.models.unet import UNet
from opportune.processes import DDPM, Process

_PREDICTION = {"eps": "epsilon", "x0": "sample", "v": "v_prediction"}
_VARIANCE = {"small": "fixed_small", "large": "fixed_large"}
_DIT_CLASSES = 1000  # DiTPipeline's own: label 1000 is its null class
_SECRET_NAME = re.compile(r"token|secret|passw|api_?key|credential|private", re.IGNORECASE)
_SECRET_VALUE = re.compile(r"\bhf_\w{8,}|\bsk-[\w-]{8,}|\bgh[pousr]_\w{8,}|\bAKIA\w{12,}|://[^/\s:@]*:[^/\s@]+@")


def export_pipeline(
    model: ImageModel,
    process: Process,
    folder: str | Path,
    *,
    method: str = "ddim",
    variance: str = "small",
    autoencoder: LatentSpace | nn.Module | None = None,
    card: Mapping[str, Any] | None = None,
) -> Path:
    """Write ``model`` (the averaged weights, if those are wanted) with its scheduler; weights as safetensors.

    What diffusers has a pipeline for:

    - a UNet of images, without classes or condition, on a DDPM: ``DDIMPipeline`` or ``DDPMPipeline``, by ``method``;
    - a DiT of latents with 1,000 classes on a DDPM, with its ``autoencoder``: ``DiTPipeline``, with ``method``'s
      scheduler. That pipeline takes label 1000 for "no class", which is ours only with 1,000 classes.

    The scheduler takes its timesteps as :func:`opportune.generate.generate` does. Given a list of generators
    ``random_streams.generator(seed, "generate", i)``, image pipelines make the pictures of ``generate(seed=seed)``;
    DDIMPipeline for that also needs ``use_clipped_model_output=True``.

    Args:
        folder: new or empty. It appears complete or not at all.
        variance: "small" or "large", of the "ddpm" method.
        card: settings to show in a model card (README.md); None writes no card. Values that look like passwords or
            tokens are left out, and the home folder's name is too.

    Returns:
        The folder.
    """
    one_of("method", method, ("ddim", "ddpm"))
    one_of("variance", variance, _VARIANCE)
    target = Path(folder)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise FileExistsError(f"folder={str(target)!r} exists and is not empty; give a new folder.")
    pipeline = _pipeline(model, process, method, variance, autoencoder)
    target.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        pipeline.save_pretrained(str(staging), safe_serialization=True)
        if card is not None:
            (staging / "README.md").write_text(model_card(type(pipeline).__name__, process, card), encoding="utf-8")
        staging.chmod(0o755)  # mkdtemp makes folders nobody else may read
        os.replace(staging, target)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    return target


def model_card(pipeline: str, process: Process, settings: Mapping[str, Any]) -> str:
    """The text of a model card: how to load the model, and what it was trained with, secrets left out."""
    shown = json.dumps(_public(settings), indent=2, sort_keys=True, ensure_ascii=False, default=str)
    shown = shown.replace("`", "\\u0060")  # a value must not end the code block
    steps = min(50, process.steps or 50)
    call = {
        "DDPMPipeline": f"pipeline(num_inference_steps={process.steps})",
        "DDIMPipeline": f"pipeline(num_inference_steps={steps}, use_clipped_model_output=True)",
        "DiTPipeline": f"pipeline(class_labels=[207], num_inference_steps={steps})",
    }[pipeline]
    return f"""---
library_name: diffusers
tags:
- diffusers
- opportune
---

# Diffusion model

A `{pipeline}` on `{process!r}`, trained with opportune.

```python
from diffusers import DiffusionPipeline

pipeline = DiffusionPipeline.from_pretrained("this folder")
image = {call}.images[0]
```

## Settings

```json
{shown}
```
"""


def _pipeline(
    model: ImageModel, process: Process, method: str, variance: str, autoencoder: LatentSpace | nn.Module | None
) -> Any:
    if not isinstance(model, ImageModel):
        raise ValueError(
            f"model is a {type(model).__name__}; export needs the model that build_model made, without wrappers "
            "(model.module, or accelerator.unwrap_model(model))."
        )
    if not isinstance(process, DDPM):
        raise ValueError(
            f"{process!r} cannot be exported: diffusers has pipelines for plain image models on DDPM processes only. "
            "Keep the checkpoint and use opportune.generate."
        )
    _check_model(model, autoencoder)
    diffusers = require_diffusers()
    clip = 1.0 if isinstance(model, UNet) else None
    scheduler = _scheduler(process, method, variance, clip)
    if isinstance(model, UNet):
        return getattr(diffusers, f"{method.upper()}Pipeline")(unet=model.inner, scheduler=scheduler)
    vae = autoencoder.inner if isinstance(autoencoder, LatentSpace) else autoencoder
    return diffusers.DiTPipeline(transformer=model.inner, vae=vae, scheduler=scheduler)


def _check_model(model: ImageModel, autoencoder: LatentSpace | nn.Module | None) -> None:
    if not isinstance(model, (UNet, DiT)):
        raise ValueError(
            f"a {type(model).__name__} cannot be exported: diffusers has no pipeline for it. Export a UNet or a DiT, "
            "or keep the checkpoint and use opportune.generate."
        )
    if model.condition_channels:
        raise ValueError(
            f"condition_channels={model.condition_channels} cannot be exported: these pipelines give the model no "
            "conditioning image. Keep the checkpoint and use opportune.generate."
        )
    if isinstance(model, UNet):
        if model.classes is not None:
            raise ValueError(
                f"a UNet with classes={model.classes} cannot be exported: its pipelines pass no labels. "
                "Export a model without classes, or keep the checkpoint and use opportune.generate."
            )
        if autoencoder is not None:
            raise ValueError("autoencoder was given with a UNet, whose pipelines make images directly; leave it out.")
        return
    if model.classes != _DIT_CLASSES:
        raise ValueError(
            f"a DiT with classes={model.classes} cannot be exported: DiTPipeline takes label 1000 for its null class, "
            "so it needs classes=1000. Keep the checkpoint and use opportune.generate."
        )
    _check_autoencoder(model, autoencoder)


def _check_autoencoder(model: ImageModel, autoencoder: LatentSpace | nn.Module | None) -> None:
    if autoencoder is None:
        raise ValueError("autoencoder is missing: DiTPipeline decodes latents; give the one the model was trained on.")
    space = autoencoder if isinstance(autoencoder, LatentSpace) else LatentSpace(autoencoder)
    if space.shift:
        raise ValueError(
            f"the autoencoder has shift_factor={space.shift:g}, which DiTPipeline ignores: images would come out "
            "wrong. Keep the checkpoint and use opportune.generate."
        )
    if space.channels != model.channels:
        raise ValueError(f"the autoencoder has {space.channels} latent channels, the model {model.channels}.")


def _scheduler(process: DDPM, method: str, variance: str, clip: float | None) -> Any:
    diffusers = require_diffusers()
    settings: dict[str, Any] = {
        "num_train_timesteps": process.steps,
        "trained_betas": process.betas.tolist(),
        "prediction_type": _PREDICTION[process.prediction],
        "timestep_spacing": "trailing",  # T - 1 first, whatever the number of steps
        "clip_sample": clip is not None,
        "clip_sample_range": clip if clip is not None else 1.0,
    }
    if method == "ddim":
        return diffusers.DDIMScheduler(**settings, set_alpha_to_one=True, steps_offset=0)
    return diffusers.DDPMScheduler(**settings, variance_type=_VARIANCE[variance])


def _public(value: Any) -> Any:
    """``value`` without secrets, by the name of a setting or the look of its value."""
    if isinstance(value, Mapping):
        return {str(k): _public(v) for k, v in value.items() if not _SECRET_NAME.search(str(k))}
    if isinstance(value, (list, tuple)):
        return [_public(item) for item in value]
    if isinstance(value, (bool, int, float)) or value is None:
        return value
    text = str(value)
    if _SECRET_VALUE.search(text):
        return "(left out)"
    home = str(Path.home())
    return text.replace(home, "~") if len(home) > 1 else text
