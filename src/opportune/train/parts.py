"""Make the parts of a run from its configuration."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from opportune import names
from opportune.checks import closest
from opportune.models import ImageModel, build_model
from opportune.optim.mdlrc import MDLRC, EqualDecay
from opportune.processes import DDPM, EDM, VE, VP, Flow, Process
from opportune.random_streams import generator
from opportune.samplers import Sampler
from opportune.train.config import TrainConfig
from opportune.weightings import Weighting

PROCESSES: dict[str, type[Process]] = {"ddpm": DDPM, "edm": EDM, "flow": Flow, "vp": VP, "ve": VE}


def make_process(config: TrainConfig) -> Process:
    """What noise does to the data."""
    made, settings = PROCESSES[config.process.name], config.process.settings
    known = names._settings_of(made) | ({"schedule"} if made is DDPM else set())
    for setting in settings:
        if setting not in known:
            raise ValueError(
                f"{setting}={settings[setting]!r} is not a setting of process {config.process.name}"
                f"{closest(setting, known) or '.'} Its settings: {', '.join(sorted(known))}."
            )
    return made(**settings)


def make_sampler(config: TrainConfig, process: Process) -> Sampler:
    """The timestep sampler, with the run's seed and accumulation; methods that can serve the weighting in use do."""
    settings = {"seed": config.run.seed, **config.sampler.settings}
    if names.serves_weighting(config.sampler.name):
        settings.setdefault("weighting", make_weighting(config, process))
    return names.sampler(
        config.sampler.name,
        process,
        **settings,
        unbiased=config.sampler.unbiased,
        accumulation=config.data.accumulation,
    )


def make_weighting(config: TrainConfig, process: Process) -> Weighting | None:
    """The weighting; None for weight 1 on the network's own target."""
    if config.weighting.name == "none":
        if config.weighting.settings:
            given = ", ".join(config.weighting.settings)
            raise ValueError(
                f"{given}: weighting 'none' has no settings; name one of: {', '.join(names.weightings())}."
            )
        return None
    return names.weighting(config.weighting.name, process, **config.weighting.settings)


def make_model(config: TrainConfig) -> ImageModel:
    """The network with fresh weights, decided by the run's seed alone; leaves the global random stream as it was."""
    data = config.data
    with torch.random.fork_rng():
        torch.manual_seed(generator(config.run.seed, "model").initial_seed())
        return build_model(
            config.model.name,
            image_size=data.size,
            channels=data.channels,
            classes=data.classes,
            condition_channels=data.channels if data.low_resolution_factor else 0,
            **config.model.settings,
        )


def model_on_meta(config: TrainConfig) -> ImageModel:
    """The same without memory for its weights: shapes, counts and operations can be asked for."""
    with torch.device("meta"):
        return make_model(config)


def make_optimizer(config: TrainConfig, model: nn.Module, weighting: Weighting | None) -> torch.optim.Optimizer:
    """Adam or AdamW over the model's parameters, and those of a weighting that learns (without weight decay)."""
    chosen = config.optimizer
    groups = [{"params": _trainable(model.parameters()), "weight_decay": chosen.weight_decay}]
    own = _trainable(weighting.parameters()) if weighting is not None else []
    if own:
        groups.append({"params": own, "weight_decay": 0.0})
    kind = torch.optim.AdamW if chosen.name == "adamw" else torch.optim.Adam
    return kind(
        groups,
        lr=chosen.learning_rate,
        betas=(chosen.beta1, chosen.beta2),
        eps=chosen.epsilon,
        fused=chosen.fused,
    )


def make_momentum_decay(config: TrainConfig, optimizer: torch.optim.Optimizer) -> MDLRC | EqualDecay | None:
    """MDLRC or its control, where asked for."""
    if config.optimizer.momentum_decay == "none":
        return None
    kind = MDLRC if config.optimizer.momentum_decay == "mdlrc" else EqualDecay
    return kind(optimizer, total_steps=config.run.steps)


def _trainable(parameters: Iterable[nn.Parameter]) -> list[nn.Parameter]:
    return [parameter for parameter in parameters if parameter.requires_grad]
