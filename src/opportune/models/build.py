"""Models by name: presets after the papers' configurations, and three families with every setting open."""

from __future__ import annotations

import inspect
from typing import Any

from torch import nn

from ..checks import closest, number, one_of, whole
from .base import ImageModel
from .dit import DiT
from .unet import UNet
from .uvit import UViT

_FAMILIES: dict[str, type[ImageModel]] = {"unet": UNet, "dit": DiT, "uvit": UViT}

# name -> family and the settings that differ from the family's defaults.
_PRESETS: dict[str, tuple[str, dict[str, Any]]] = {
    "unet": ("unet", {}),
    # Ho et al. 2020, appendix B: CIFAR-10 (35.7 M parameters) and 256×256 (114 M).
    "ddpm-cifar10": ("unet", {"dropout": 0.1}),
    "ddpm-256": (
        "unet",
        {"widths": (128, 128, 256, 256, 512, 512), "attention": (False, False, False, False, True, False)},
    ),
    # Small ones that train on two CPU cores.
    "unet-1m": ("unet", {"widths": (32, 64, 64), "blocks_per_level": 1, "group_count": 8}),
    "unet-4m": ("unet", {"widths": (64, 128, 128), "blocks_per_level": 1, "group_count": 16}),
    "dit": ("dit", {}),
    "dit-2m": ("dit", {"width": 128, "depth": 6, "heads": 4}),
    "uvit": ("uvit", {}),
    "uvit-2m": ("uvit", {"width": 128, "depth": 9, "heads": 4}),
}

# family and size -> depth, width, heads; the name ends in the patch size.
# Peebles & Xie 2023, Table 1; Bao et al. 2023, Table 1.
_TRANSFORMER_SIZES: dict[tuple[str, str], tuple[int, int, int]] = {
    ("dit", "s"): (12, 384, 6),
    ("dit", "b"): (12, 768, 12),
    ("dit", "l"): (24, 1024, 16),
    ("dit", "xl"): (28, 1152, 16),
    ("uvit", "s"): (13, 512, 8),
    ("uvit", "s-deep"): (17, 512, 8),
    ("uvit", "m"): (17, 768, 12),
    ("uvit", "l"): (21, 1024, 16),
    ("uvit", "h"): (29, 1152, 16),
}
for (_family, _size), (_depth, _width, _heads) in _TRANSFORMER_SIZES.items():
    for _patch in (2, 4, 8):
        _settings = {"depth": _depth, "width": _width, "heads": _heads, "patch_size": _patch}
        _PRESETS[f"{_family}-{_size}-{_patch}"] = (_family, _settings)

_SHAPE_ARGUMENTS = ("self", "image_size", "channels", "out_channels", "classes", "condition_channels")


def model_names() -> list[str]:
    """Every name `build_model` knows."""
    return sorted(_PRESETS)


def model_settings(name: str) -> dict[str, Any]:
    """The settings of the model called `name` and their values, those the name presets included."""
    family, preset = _PRESETS[_known_name(name)]
    parameters = inspect.signature(_FAMILIES[family].__init__).parameters
    defaults = {key: value.default for key, value in parameters.items() if key not in _SHAPE_ARGUMENTS}
    return {**defaults, **preset}


def build_model(
    name: str,
    *,
    image_size: int,
    channels: int,
    out_channels: int | None = None,
    classes: int | None = None,
    condition_channels: int = 0,
    **settings: Any,
) -> ImageModel:
    """Build the model called `name` for images `[B, channels, image_size, image_size]`, untrained.

    - `name`: see `model_names()`. The papers' spelling works too: "DiT-S/2" is "dit-s-2".
    - `out_channels`: `channels` unless given.
    - `classes`: number of classes, or None for an unconditional model. One null class is added for guidance.
    - `condition_channels`: channels of the conditioning image, 0 for none.
    - `settings`: change what the name presets, see `model_settings(name)`.
    """
    known = model_settings(name)
    for setting in settings:
        if setting not in known:
            near = closest(setting, known)
            raise TypeError(f"{name} has no setting {setting!r}{near or '.'} Settings: {', '.join(sorted(known))}.")
        _check_kind(setting, settings[setting], known[setting])
    family, _ = _PRESETS[_known_name(name)]
    return _FAMILIES[family](
        image_size=whole("image_size", image_size, low=1),
        channels=whole("channels", channels, low=1),
        out_channels=whole("out_channels", channels if out_channels is None else out_channels, low=1),
        classes=None if classes is None else whole("classes", classes, low=1),
        condition_channels=whole("condition_channels", condition_channels, low=0),
        **{**known, **settings},
    )


def _check_kind(setting: str, value: Any, preset: Any) -> None:
    """Refuse a value of another kind than the preset one: libraries further down fail on it in their own words."""
    if isinstance(preset, int):
        whole(setting, value, low=1)
    elif isinstance(preset, float):  # of these settings only shares are not whole
        number(setting, value, low=0, high=1, open_high=True)
    elif isinstance(preset, tuple) and not isinstance(value, (list, tuple)):
        raise ValueError(f"{setting}={value!r} is not allowed; give a list of numbers, e.g. {list(preset)}.")


def count_parameters(model: nn.Module) -> int:
    """The number of trainable parameters; a shared one counts once."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def _known_name(name: str) -> str:
    return one_of("model", name.lower().replace("/", "-").replace("u-vit", "uvit"), _PRESETS)
