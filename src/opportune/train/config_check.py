"""What is wrong with a configuration, found before a run makes any file."""

from __future__ import annotations

import math
import types
from dataclasses import fields
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from opportune.samplers import Sampler
from opportune.train.config import Range, TrainConfig
from opportune.train.errors import ConfigError
from opportune.train.parts import make_process, make_sampler, make_weighting, model_on_meta
from opportune.train.trackers import check_trackers


def check(config: TrainConfig) -> None:
    """Raise a ConfigError that names the setting, the value, what is allowed and the remedy."""
    for section in fields(config):
        _check_ranges(getattr(config, section.name), f"{section.name}.")
    _check_combinations(config)
    _check_parts(config)
    check_trackers(config.logs.report_to)


def _check_ranges(section: Any, where: str) -> None:
    for key, hint in get_type_hints(type(section), include_extras=True).items():
        value, allowed = getattr(section, key), _range(hint)
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"{where}{key}={value} is not a finite number.")
        if allowed is None or value is None:
            continue
        low = value <= allowed.low if allowed.open_low else value < allowed.low
        high = value >= allowed.high if allowed.open_high else value > allowed.high
        if low or high:
            left, right = "(" if allowed.open_low else "[", ")" if allowed.open_high else "]"
            raise ConfigError(
                f"{where}{key}={value} is outside the allowed range {left}{allowed.low:g}, {allowed.high:g}{right}."
            )


def _range(hint: Any) -> Range | None:
    if get_origin(hint) in (Union, types.UnionType):
        return next((found for kind in get_args(hint) if (found := _range(kind))), None)
    if get_origin(hint) is Annotated:
        return next((note for note in get_args(hint) if isinstance(note, Range)), None)
    return None


def _check_combinations(config: TrainConfig) -> None:
    data, hardware = config.data, config.hardware
    if not config.run.output_dir:
        raise ConfigError("run.output_dir is empty; name a folder.")
    ranks = hardware.ranks or 1
    if data.batch_size % (data.accumulation * ranks):
        raise ConfigError(
            f"data.batch_size={data.batch_size} is for all ranks and micro-batches together and does not divide by "
            f"data.accumulation={data.accumulation} x {ranks} ranks; use a multiple of {data.accumulation * ranks}."
        )
    if config.schedule.warm_up_steps >= config.run.steps:
        most = f"{config.run.steps - 1} or less (0: no warm-up)" if config.run.steps > 1 else "0 (no warm-up)"
        raise ConfigError(
            f"schedule.warm_up_steps={config.schedule.warm_up_steps} is not less than run.steps={config.run.steps}: "
            f"the learning rate would never be reached. Set it to {most}."
        )
    if config.schedule.final_share and config.schedule.name == "constant":
        raise ConfigError("schedule.final_share has no effect on schedule.name='constant'; remove it, or name a decay.")
    if config.optimizer.momentum_decay != "none" and config.optimizer.beta1 == 0:
        raise ConfigError("optimizer.beta1=0 leaves no momentum for optimizer.momentum_decay; give one, usually 0.9.")
    if data.source.startswith("latents:") and (data.flip or data.low_resolution_factor):
        raise ConfigError(
            "latents cannot be mirrored or shrunken: set data.flip = false and data.low_resolution_factor = 0."
        )
    if not data.source.startswith("latents:") and data.channels not in (1, 3):
        raise ConfigError(f"data.channels={data.channels} is not allowed for images; give 3 (RGB) or 1 (grey).")
    if data.low_resolution_factor and data.size % data.low_resolution_factor:
        raise ConfigError(
            f"data.low_resolution_factor={data.low_resolution_factor} does not divide data.size={data.size}."
        )
    if data.low_resolution_factor == 1:
        raise ConfigError("data.low_resolution_factor=1 would show the network its answer; give 2 or more, or 0.")
    if hardware.sharding == "fsdp2" and hardware.precision == "fp16":
        raise ConfigError("hardware.sharding='fsdp2' does not go with precision='fp16'; use bf16.")
    if hardware.sharding == "fsdp2" and hardware.compile:
        raise ConfigError("hardware.sharding='fsdp2' does not go with hardware.compile here; choose one.")


def _check_parts(config: TrainConfig) -> None:
    """Make everything that is cheap to make: each part knows best what its settings may be."""
    process = _made("process", lambda: make_process(config))
    sampler: Sampler = _made("sampler", lambda: make_sampler(config, process))
    _made("weighting", lambda: make_weighting(config, process))
    _made("model", lambda: model_on_meta(config))
    if config.hardware.sharding == "fsdp2" and sampler.needs == "gradient":
        raise ConfigError(
            f"sampler.name={config.sampler.name!r} measures gradients, which hardware.sharding='fsdp2' cuts up. "
            "Choose a sampler that needs no gradients, or sharding='none'."
        )
    sampler.check_run(config.run.steps)


def _made(section: str, make: Any) -> Any:
    try:
        return make()
    except ImportError:
        raise
    except (ValueError, TypeError) as error:
        raise ConfigError(f"[{section}] {error}") from error
