"""Everything a run holds in memory, made from its configuration on this rank."""

from __future__ import annotations

import copy
import random
import warnings
from collections.abc import Generator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import torch
from accelerate import Accelerator
from torch import nn

from opportune.models import count_parameters
from opportune.objective import Objective
from opportune.random_streams import generator
from opportune.samplers import Sampler
from opportune.train import parts
from opportune.train.batches import Preparation, Prepared
from opportune.train.config import TrainConfig
from opportune.train.data import Loader, Order, Source, StreamOrder
from opportune.train.ema import Ema
from opportune.train.engine import AcceleratedEngine
from opportune.train.errors import ConfigError
from opportune.train.held_out import open_data
from opportune.train.meters import Meters
from opportune.train.ranks import on_all
from opportune.train.sharding import shard
from opportune.train.timing import Clock, TimedSampler
from opportune.train.validation import Validation


class Session:
    """The parts of a run, and how far it is.

    Attributes:
        step: steps done.
        validated_at: the last step validation was done at, or None.
        model: what the loop calls: prepared for ranks and precision.
        bare: the same network without any wrapper around it; its state is what is saved.
    """

    def __init__(self, config: TrainConfig, accelerator: Accelerator) -> None:
        self.config, self.accelerator = config, accelerator
        self.device: torch.device = accelerator.device
        self.rank, self.world = accelerator.process_index, accelerator.num_processes
        self.step = 0
        self.validated_at: int | None = None
        self._check_batch()
        if config.hardware.sharding == "fsdp2" and self.world == 1:
            warnings.warn(
                "hardware.sharding='fsdp2' has no effect with one process: it spreads over ranks.", stacklevel=2
            )
        self.process = parts.make_process(config)
        self.sampler: Sampler = parts.make_sampler(config, self.process).to(self.device)
        weighting = parts.make_weighting(config, self.process)
        self.weighting = None if weighting is None else weighting.to(self.device)
        self.source, held_out = on_all(lambda: open_data(config, verify=True))
        self._make_model()
        self.objective = Objective(self.model, self.process, self.weighting)
        self.momentum_decay = parts.make_momentum_decay(config, self.bare_optimizer)
        self.engine = AcceleratedEngine(
            accelerator,
            self.model,
            apart=() if self.weighting is None else self.weighting.parameters(),
            max_norm=config.optimizer.max_gradient_norm,
            max_skips=config.optimizer.max_skips,
        )
        self.loader = self._make_loader()
        self.preparation = Preparation(config, self.source, device=self.device, rank=self.rank, world=self.world)
        self.validation = None if held_out is None else self._make_validation(held_out)
        self.meters = Meters(config.logs.bins, self.device)
        self.clock = Clock()
        # The loop uses draw, watch and two numbers of a sampler.
        self.timed_sampler = cast(Sampler, TimedSampler(self.sampler, self.clock))
        self.seed_rank()

    @property
    def sharded(self) -> bool:
        """Whether weights are spread over the ranks."""
        return self.config.hardware.sharding == "fsdp2" and self.world > 1

    def batches(self) -> Generator[Prepared, None, None]:
        """Training batches without end, from the loader's position on."""
        return self.clock.waiting(self.preparation.training(self.loader))

    def seed_rank(self) -> None:
        """Give this rank its own streams for what draws from the global ones (dropout)."""
        seed = generator(self.config.run.seed, "rank", self.rank, self.step).initial_seed()
        torch.manual_seed(seed)
        random.seed(seed)
        import numpy

        numpy.random.seed(seed % 2**32)

    def evaluating(self) -> AbstractContextManager[Any]:
        """The precision of training, around a model Accelerate has not prepared."""
        if self.sharded:
            return nullcontext()
        held: AbstractContextManager[Any] = self.accelerator.autocast()
        return held

    def _make_model(self) -> None:
        config, hardware = self.config, self.config.hardware
        self.bare: nn.Module = parts.make_model(config).to(self.device)
        if hardware.channels_last:
            self.bare = self.bare.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.parameter_count = count_parameters(self.bare)
        average = copy.deepcopy(self.bare) if config.ema.enabled else None
        if self.sharded:
            for model in (self.bare, average):
                if model is not None:
                    shard(model, bf16=hardware.precision == "bf16", device_type=self.device.type)
        self.ema = None
        if average is not None:
            self.ema = Ema(self.bare, average, decay=config.ema.decay, warm_up=config.ema.warm_up)
        self.bare_optimizer = parts.make_optimizer(config, self.bare, self.weighting)
        if hardware.compile:
            self.bare.compile()
        self.model: nn.Module = self.bare if self.sharded else self.accelerator.prepare_model(self.bare)
        if isinstance(self.model, nn.parallel.DistributedDataParallel):
            self.model.broadcast_buffers = False  # ours are constants: nothing to send at every forward
        self.optimizer: torch.optim.Optimizer = self.accelerator.prepare_optimizer(self.bare_optimizer)

    def _make_loader(self) -> Loader:
        data, seed = self.config.data, self.config.run.seed
        size = data.batch_size // data.accumulation
        order: Order | StreamOrder
        if isinstance(self.source, Source):
            order = Order(len(self.source), size, seed=seed)
        else:
            order = StreamOrder(size, seed=seed, shuffle_buffer=data.shuffle_buffer)
        return Loader(
            self.source,
            order,
            rank=self.rank,
            world=self.world,
            workers=data.workers,
            flip=data.flip,
            on_bad=data.on_bad,
            max_bad_share=data.max_bad_share,
            pin=self.device.type == "cuda",
        )

    def _make_validation(self, held_out: Any) -> Validation:
        wanted = self.config.validation
        # Wrong shapes and labels are found now, before any file is made.
        self.preparation.fixed(held_out.images[:1], None if held_out.labels is None else held_out.labels)
        return Validation(
            held_out,
            self.preparation,
            self.objective,
            seed=wanted.seed,
            batch_size=max(1, wanted.batch_size // self.world),
            bins=self.config.logs.bins,
        )

    def _check_batch(self) -> None:
        data = self.config.data
        if data.batch_size % (data.accumulation * self.world):
            raise ConfigError(
                f"data.batch_size={data.batch_size} is for all ranks and micro-batches together and does not divide by "
                f"data.accumulation={data.accumulation} x {self.world} ranks; use a multiple of "
                f"{data.accumulation * self.world}."
            )
