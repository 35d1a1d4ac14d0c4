"""Every setting of a training run, in sections; a TOML file has the same sections and names.

Values are checked by :func:`opportune.train.config_check.check` before a run makes any file.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple


class Range(NamedTuple):
    """Allowed values of a number, the ends included unless they are open."""

    low: float = -math.inf
    high: float = math.inf
    open_low: bool = False
    open_high: bool = False


Count = Annotated[int, Range(low=1)]
Whole = Annotated[int, Range(low=0)]
Seed = Annotated[int, Range(low=0, high=2**63 - 1)]
Positive = Annotated[float, Range(low=0, open_low=True)]
NotNegative = Annotated[float, Range(low=0)]
Share = Annotated[float, Range(low=0, high=1)]
BelowOne = Annotated[float, Range(low=0, high=1, open_high=True)]
Settings = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """The run as a whole."""

    output_dir: str = "runs/opportune"
    """Folder of the run: configuration, logs and checkpoints."""
    seed: Seed = 0
    """Of everything random: weights, order of the data, timesteps, noise, dropout."""
    steps: Count = 10_000
    """Optimizer steps."""


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """The images, or latents encoded beforehand."""

    source: str = "embedded:fashion16"
    """embedded:fashion16, folder:PATH, parquet:PATH, hub:NAME, webdataset:PATTERN or latents:PATH."""
    size: Count = 16
    """Side of the images in pixels (of the latents in cells)."""
    channels: Count = 1
    """3 for RGB, 1 for grey, those of the autoencoder for latents."""
    classes: Count | None = None
    """Number of classes of a conditional model; leave out for an unconditional one."""
    batch_size: Count = 64
    """Images per optimizer step, over all ranks and micro-batches together."""
    accumulation: Count = 1
    """Micro-batches per optimizer step (gradient accumulation)."""
    flip: bool = False
    """Mirror half of the images left to right."""
    label_dropout: Share = 0.1
    """Share of labels replaced by "no class", for classifier-free guidance; only where there are classes."""
    low_resolution_factor: Whole = 0
    """Train super-resolution by this factor, the shrunken image being the condition; 0 trains plain generation."""
    streaming: bool = False
    """Read the set from front to back instead of at random (hub: and parquet: only)."""
    shuffle_buffer: Count = 1000
    """Examples a stream is shuffled in."""
    workers: Whole | None = None
    """Loader processes per rank; left out, chosen by the size of the set."""
    on_bad: Literal["error", "skip"] = "error"
    """What to do about an image that cannot be read."""
    max_bad_share: Share = 0.05
    """Share of unreadable images above which a run with on_bad="skip" stops."""
    image_column: str | None = None
    """Column that holds the images (hub: and parquet:); found by itself where there is only one."""
    label_column: str | None = None
    """Column that holds the classes."""


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The network."""

    name: str = "unet-1m"
    """unet-1m, ddpm-cifar10, dit-s-2, uvit-m-2, ...; any of opportune.models.model_names()."""
    settings: Settings = field(default_factory=dict)
    """What to change of the named model, e.g. --model.settings.dropout 0.1."""


@dataclass(frozen=True, kw_only=True)
class ProcessConfig:
    """What noise does to the data, and what the network predicts."""

    name: Literal["ddpm", "edm", "flow", "vp", "ve"] = "ddpm"
    """ddpm (discrete steps), edm, flow (straight paths), vp or ve."""
    settings: Settings = field(default_factory=dict)
    """Of the process, e.g. --process.settings.schedule cosine --process.settings.prediction v."""


@dataclass(frozen=True, kw_only=True)
class SamplerConfig:
    """Which timesteps are trained."""

    name: str = "uniform"
    """Any of opportune.samplers()."""
    unbiased: bool | None = None
    """Keep the objective by importance weights; left out, what the method's publication did."""
    settings: Settings = field(default_factory=dict)
    """Of the method, e.g. --sampler.settings.of kim."""


@dataclass(frozen=True, kw_only=True)
class WeightingConfig:
    """How much each timestep's loss counts."""

    name: str = "none"
    """none (weight 1 on the network's own target) or any of opportune.weightings()."""
    settings: Settings = field(default_factory=dict)
    """Of the weighting, e.g. --weighting.settings.gamma 5."""


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """How the weights go down the gradient."""

    name: Literal["adamw", "adam"] = "adamw"
    """adamw or adam."""
    learning_rate: Positive = 2e-4
    """After warm-up."""
    beta1: BelowOne = 0.9
    """Decay of the gradient's running mean."""
    beta2: BelowOne = 0.999
    """Decay of the squared gradient's running mean."""
    epsilon: Positive = 1e-8
    """Added to the denominator."""
    weight_decay: NotNegative = 0.0
    """Decoupled for adamw."""
    momentum_decay: Literal["none", "mdlrc", "equal_decay"] = "none"
    """mdlrc lets the momentum fall over the run and compensates the learning rate; equal_decay is its control."""
    max_gradient_norm: NotNegative = 1.0
    """Longer gradients are shortened to this; 0 leaves them as they are."""
    max_skips: Whole = 10
    """Steps in a row that may be skipped because the loss or a gradient is NaN or infinite."""
    fused: bool = True
    """Update all weights in one pass."""


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """The learning rate over the run."""

    name: Literal["constant", "cosine", "linear"] = "constant"
    """constant, cosine or linear decay."""
    warm_up_steps: Whole = 0
    """Steps over which the learning rate rises from 0."""
    final_share: Share = 0.0
    """Share of the learning rate left at the last step (cosine and linear)."""


@dataclass(frozen=True, kw_only=True)
class EmaConfig:
    """The moving average of the weights, which is what images are generated with."""

    enabled: bool = True
    """Keep one."""
    decay: BelowOne = 0.9999
    """Share of the old average kept per step."""
    warm_up: bool = True
    """Start with a smaller decay, (1 + n) / (10 + n) after n steps, so that the start is soon forgotten."""


@dataclass(frozen=True, kw_only=True)
class ValidationConfig:
    """The loss on held-out images at fixed noise levels with fixed noise: comparable over the run, and between runs."""

    every_steps: Whole = 1000
    """How often; 0 never."""
    examples: Count = 512
    """Held-out images."""
    batch_size: Count = 64
    """Images at a time over all ranks; the result does not depend on it."""
    split: str = "test"
    """Split of the data set to take them from; where there is none they are set apart from the training images."""
    seed: Seed = 0
    """Of the noise levels and the noise. Not the run's: runs with other seeds stay comparable."""


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """What survives an interruption."""

    every_steps: Count = 1000
    """How often; one is also saved at the start, at the end, and when the run is asked to stop."""
    keep: Annotated[int, Range(low=2)] = 2
    """Valid checkpoints kept; two survive damage to the newest."""
    keep_every_steps: Whole = 0
    """Checkpoints of steps that are multiples of this are kept besides; 0 for none."""


@dataclass(frozen=True, kw_only=True)
class LogsConfig:
    """What is written down. metrics.jsonl is always written."""

    every_steps: Count = 50
    """Steps per record; each holds the averages since the one before."""
    bins: Count = 20
    """Equal parts of the noise axis that losses are reported for."""
    report_to: str = "auto"
    """auto (TensorBoard where installed), none, or a list: tensorboard,wandb,trackio."""
    project: str = "opportune"
    """Name of the project at wandb or trackio."""


@dataclass(frozen=True, kw_only=True)
class HardwareConfig:
    """Where it runs. Ranks are started by torchrun or accelerate launch."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto takes an accelerator where there is one."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Of the network's arithmetic; weights stay float32."""
    sharding: Literal["none", "fsdp2"] = "none"
    """none keeps the model whole on every rank (DDP); fsdp2 shards weights, gradients and optimizer state."""
    ranks: Count | None = None
    """Processes that must have come up; left out, as many as were started."""
    compile: bool = False
    """torch.compile the model."""
    channels_last: bool = False
    """Store images with channels last; faster for convolutions on GPUs."""
    timeout_seconds: Positive = 120.0
    """How long ranks wait for one another before they give up."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Everything that decides what a run does."""

    run: RunConfig = field(default_factory=RunConfig)
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    process: ProcessConfig = field(default_factory=ProcessConfig)
    sampler: SamplerConfig = field(default_factory=SamplerConfig)
    weighting: WeightingConfig = field(default_factory=WeightingConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    ema: EmaConfig = field(default_factory=EmaConfig)
    validation: ValidationConfig = field(default_factory=ValidationConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    logs: LogsConfig = field(default_factory=LogsConfig)
    hardware: HardwareConfig = field(default_factory=HardwareConfig)
