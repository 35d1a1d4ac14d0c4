"""The lifetime of one step, as a sampler lives it.

1. ``draw(x)``      The loop asks for timesteps. The base class takes uniform numbers from the sampler's own seeded
                    stream (:meth:`_uniforms`) and the method turns them into ``u`` (:meth:`_place`): every density is
                    drawn through its inverse CDF, so strata, ranks and accumulation are somebody else's business.
2.                  The loop computes its losses and calls ``backward()``.
3. ``watch(...)``   wraps ``optimizer.step()``. A method that learns says what it wants to know (:meth:`request`), the
                    loop measures it, and the method takes the record in (:meth:`learn`). Others: nothing happens.

A sampler decides where compute is spent; it never weights the loss. Its ``correction`` is the importance weight from
the density drawn from to the density meant: uniform with ``unbiased=True``, which keeps the objective unchanged;
otherwise the drawn density itself (ones, which re-targets the objective to it), or what :meth:`_aim` says.

A sampler is an ``nn.Module``: what decides the next draw is in its buffers, parameters and counters, and so in
``state_dict()``. It holds no model, no rank and no random generator: its numbers depend on (seed, step) alone.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from typing import Any, ClassVar, Literal, TypedDict
from zlib import crc32

import torch
from torch import Tensor, nn

from ..checks import whole
from ..distributed import place
from ..measure import Measurement, per_example
from ..processes import Process
from ..random_streams import noise_like, uniforms
from ..types import Draw, Probe, Request, StepRecord


class Common(TypedDict, total=False):
    """Settings every sampler takes; see :class:`Sampler`."""

    seed: int
    unbiased: bool | None
    accumulation: int


BELOW_ONE = 1 - 2.0**-24  # the largest float32 below 1

Needs = Literal["nothing", "losses", "probe", "gradient"]

_CHECKED_STEP = 100  # of draws, after which a loop that does not watch, or draws too often, is told


class Watch:
    """What ``with sampler.watch(...) as watching`` hands out."""

    def __init__(self) -> None:
        self.skipped = False

    def skip(self) -> None:
        """Say that the optimizer did not step (a GradScaler found infinite gradients): nothing is learned from it."""
        self.skipped = True


class Sampler(nn.Module, ABC):
    """Base of every timestep sampler.

    Args:
        process: what noise does to the data.
        seed: of the sampler's own stream; the global random stream is neither read nor moved.
        unbiased: return importance weights as ``draw.correction`` so that the objective is the process's own. None is
            the method's published form (:attr:`unbiased_by_default`).
        accumulation: draws per optimizer step (gradient accumulation). Schedules and strata count optimizer steps.
    """

    needs: ClassVar[Needs] = "nothing"
    """What must be handed to ``watch``: nothing, the losses, a probe, or a probe and the model."""
    unbiased_by_default: ClassVar[bool] = False

    def __init__(self, process: Process, *, seed: int = 0, unbiased: bool | None = None, accumulation: int = 1) -> None:
        super().__init__()
        if not isinstance(process, Process):
            raise ValueError(f"process={process!r} is not a process; give e.g. op.DDPM('linear', steps=1000).")
        self.process = process
        self.seed = whole("seed", seed, low=0)
        if unbiased is not None and not isinstance(unbiased, bool):
            raise ValueError(f"unbiased={unbiased!r} is not allowed; give True, False, or None for the published form.")
        self.unbiased = self.unbiased_by_default if unbiased is None else unbiased
        self.accumulation = whole("accumulation", accumulation, low=1)
        self.draws_made = 0
        self.steps_watched = 0
        self._warned: set[str] = set()
        self._measured: StepRecord | None = None

    # ---- what a method fills in ----------------------------------------------------------------------------

    @abstractmethod
    def _place(self, v: Tensor, context: Tensor | None) -> Tensor:
        """Turn uniforms ``v`` ``[B]`` float64 into ``u`` ``[B]`` through the inverse CDF."""

    @abstractmethod
    def _density(self, u: Tensor, context: Tensor | None) -> Tensor:
        """Density ``[B]`` at ``u`` ``[B]`` (for each example's own context, where there is one)."""

    def _aim(self, u: Tensor, context: Tensor | None) -> Tensor | None:
        """Density ``[B]`` the objective is re-targeted to; None where it is the density drawn from."""
        return None

    def _look(self, x: Tensor) -> Tensor | None:
        """What the method wants to see of the batch, ``[B, F]``; None for methods that look at no data."""
        return None

    def _prepare(self) -> None:
        """Called before each draw; methods whose density follows a schedule bring it up to date here."""

    def request(self, draw: Draw) -> Request | None:
        """What to measure around the coming optimizer step; None when nothing is due."""
        return None

    def learn(self, record: StepRecord) -> None:
        """Take in what one step showed. The record is the same on every rank, so the update must be too."""

    def warm_up_steps(self) -> int:
        """Optimizer steps before the method does anything but draw uniformly; 0 if it has no warm-up."""
        return 0

    def _warn_uncovered(self) -> None:
        """Warn once if some noise levels are never drawn, so that no correction can be unbiased."""

    # ---- draw ----------------------------------------------------------------------------------------------

    @property
    def step(self) -> int:
        """Optimizer steps drawn for so far, by the count of draws."""
        return self.draws_made // self.accumulation

    @torch.no_grad()
    def draw(self, x: Tensor | int) -> Draw:
        """Timesteps for a batch ``[B, ...]`` of any shape; an int B where the method needs to see no data."""
        shape, device = _shape_of(x)
        self._prepare()
        context = self._context(x)
        v = self._uniforms(shape[0])
        u = self._place(v.to(self._device()), context).float().clamp(0, BELOW_ONE)
        self.draws_made += 1
        if self.draws_made == _CHECKED_STEP * self.accumulation:
            self._check_loop()
        return self.at(u, shape=shape, device=device, context=context)

    @torch.no_grad()
    def at(
        self,
        u: Tensor,
        *,
        shape: tuple[int, ...],
        device: torch.device | None = None,
        context: Tensor | None = None,
    ) -> Draw:
        """A draw at given ``u`` ``[B]``, with the density and correction it would have had."""
        device = device or u.device
        u = u.to(self._device())
        density = self._density(u, context).float()
        correction = self._correction(density, u, context)
        if device != u.device:
            u, density, correction = torch.stack([u, density, correction]).to(device, non_blocking=True).unbind()
        t = self.process.time(u)
        return Draw(
            u=u,
            t=t,
            correction=correction,
            density=density,
            shape=shape,
            sigma=self.process.sigma(t),
            context=context,
        )

    def density(self, u: Tensor) -> Tensor:
        """Density over the noise axis at ``u`` in [0, 1), same shape; 1 everywhere is uniform.

        For a policy that looks at the data: the average over the last batch it saw.
        """
        u = torch.as_tensor(u)
        if u.numel() and (not bool(torch.isfinite(u).all()) or float(u.min()) < 0 or float(u.max()) > 1):
            raise ValueError(f"u runs from {float(u.min()):g} to {float(u.max()):g}; the noise axis is [0, 1).")
        self._prepare()
        flat = u.reshape(-1).float().clamp(0, BELOW_ONE).to(self._device())
        return self._public_density(flat).reshape(u.shape).to(u.device)

    def probs(self) -> Tensor:
        """``[T]`` float64, the probability of each discrete timestep; sums to 1."""
        if self.process.steps is None:
            raise ValueError(
                f"{type(self.process).__name__} has continuous time, so there is no table of probabilities; "
                "use density(u)."
            )
        self._prepare()
        masses = self._masses(self.process.steps).double()
        return masses / masses.sum()

    def _public_density(self, u: Tensor) -> Tensor:
        return self._density(u, None)

    def _masses(self, cells: int) -> Tensor:
        """Probability of each of ``cells`` equal cells of the u axis."""
        middles = (torch.arange(cells, dtype=torch.float64, device=self._device()) + 0.5) / cells
        return self._public_density(middles) / cells

    def _check_loop(self) -> None:
        """Warn once of a loop that lets the sampler learn nothing, or runs its clock too fast."""
        name, watched = type(self).__name__, self.steps_watched
        if watched == 0 and self.needs != "nothing":
            self.warn_once(
                f"{name} has drawn for {self.step} steps and watched none, so it learns nothing. Wrap the optimizer's "
                "step: with sampler.watch(draw, losses, ...): optimizer.step(), or use op.attach(sampler, optimizer)."
            )
        elif 0 < 2 * watched <= self.step:
            self.warn_once(
                f"{name} has drawn for {self.step} steps (accumulation={self.accumulation}) and watched {watched}, so "
                "its schedule and strata run ahead of the optimizer. Give accumulation= the draws per optimizer step, "
                "and draw for validation from another sampler."
            )

    def _uniforms(self, count: int) -> Tensor:
        """This rank's uniforms ``[B]`` float64 in [0, 1) for the coming draw, from the one stream all ranks share."""
        rank, world = place()
        return uniforms(self.seed, "draw", self.draws_made, count=count, rank=rank, world=world)

    def _context(self, x: Tensor | int) -> Tensor | None:
        return self._look(x) if isinstance(x, Tensor) else None

    def _target(self, u: Tensor, context: Tensor | None) -> Tensor | None:
        """Density the objective is trained under; None where it is the density drawn from."""
        return torch.ones_like(u) if self.unbiased else self._aim(u, context)

    def _correction(self, density: Tensor, u: Tensor, context: Tensor | None) -> Tensor:
        target = self._target(u, context)
        return torch.ones_like(density) if target is None else target.to(density) / density.clamp_min(1e-12)

    def _device(self) -> torch.device:
        for tensor in self.buffers():
            return tensor.device
        return torch.device("cpu")

    # ---- watch ---------------------------------------------------------------------------------------------

    @contextmanager
    def watch(
        self,
        draw: Draw | Sequence[Draw],
        losses: Tensor | Sequence[Tensor] | None = None,
        probe: Probe | None = None,
        *,
        model: nn.Module | None = None,
    ) -> Iterator[Watch]:
        """Wrap ``optimizer.step()``: measures what the method asks for, when it is due, and lets it learn.

        Args:
            draw: the draw the step was computed from; under gradient accumulation the list of its micro-batches'
                draws, of which the last is the one ``probe`` evaluates.
            losses: ``[B]`` the raw per-example losses, before any weighting or correction (a list, where draw is one).
            probe: ``probe(draw) -> losses [B]`` of the current batch at ``draw.t`` with ``draw.noise``.
            model: switched to eval mode while a probe runs, and what gradients are taken with respect to.
        """
        watching = Watch()
        measurement = self.begin_step(draw, losses, probe, model=model)
        yield watching
        if not watching.skipped:
            self.end_step(measurement)

    def begin_step(
        self,
        draw: Draw | Sequence[Draw],
        losses: Tensor | Sequence[Tensor] | None = None,
        probe: Probe | None = None,
        *,
        model: nn.Module | None = None,
    ) -> Measurement | None:
        """First half of :meth:`watch`: measure what must be known before the step; None when nothing is due."""
        if self.needs == "nothing":
            return None
        draws = _draws_of(draw)
        parts = [] if losses is None else [losses] if isinstance(losses, Tensor) else list(losses)
        if self.needs == "losses":
            if len(parts) != len(draws):
                raise ValueError(
                    f"losses: {len(parts)} given for {len(draws)} draws; {type(self).__name__} learns from the raw "
                    "per-example losses [B] of each draw."
                )
            raw = torch.cat([per_example(loss, d) for loss, d in zip(parts, draws, strict=True)])
            measurement = Measurement(Draw.cat(draws), raw, None, None, None)
        else:
            request = self.request(draws[-1])
            if request is None:
                return None
            measurement = Measurement(draws[-1], parts[-1] if parts else None, request, probe, model)
        measurement.before()
        return measurement

    def end_step(self, measurement: Measurement | None) -> None:
        """Second half of :meth:`watch`: measure after the step and learn."""
        if measurement is not None:
            measurement.after()
            self._measured = measurement.record(self.steps_watched)
            self.learn(self._measured)
        self.steps_watched += 1

    def take_measured(self) -> StepRecord | None:
        """What was measured around the last step, handed out once (for logs; it decides nothing); None if nothing."""
        for sampler in self.modules():
            if isinstance(sampler, Sampler) and sampler._measured is not None:
                record, sampler._measured = sampler._measured, None
                return record
        return None

    def global_size(self, draw: Draw) -> int:
        """Examples of the batch over all ranks."""
        return len(draw) * place()[1]

    def probe_draw(self, draw: Draw, u: Tensor, index: int) -> Draw:
        """A probe at ``u`` ``[N]`` of the *global* batch: this rank's share, with noise of the data's shape.

        ``index`` tells apart the probes of one step; with it the noise is the same at any number of ranks.
        """
        rank, world = place()
        share = u[rank::world][: len(draw)]
        if len(share) != len(draw):
            raise ValueError(
                f"u has {len(u)} timesteps for a global batch of {self.global_size(draw)}; give one per example of all "
                "ranks (see global_size)."
            )
        made = self.at(share.float().clamp(0, BELOW_ONE), shape=(len(draw), *draw.shape[1:]), device=draw.u.device)
        noise = noise_like(
            made.shape,
            seed=self.seed,
            step=self.steps_watched,
            probe=index,
            rank=rank,
            world=world,
            device=draw.u.device,
            dtype=torch.float32,
        )
        return replace(made, noise=noise)

    # ---- state ---------------------------------------------------------------------------------------------

    def get_extra_state(self) -> dict[str, Any]:
        """Counters, the seed, and the number of this method, by which another one refuses it: numbers alone."""
        return {
            "method": self._method_number(),
            "draws_made": self.draws_made,
            "steps_watched": self.steps_watched,
            "seed": self.seed,
        }

    def set_extra_state(self, state: Mapping[str, Any]) -> None:
        # Two methods may hold buffers of one shape. States saved before methods were numbered have no such entry.
        if state.get("method", self._method_number()) != self._method_number():
            raise ValueError("another method saved it")
        self.draws_made = int(state["draws_made"])
        self.steps_watched = int(state["steps_watched"])
        self.seed = int(state["seed"])

    def _method_number(self) -> int:
        return crc32(type(self).__name__.encode())

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """As in torch; the state of another method is refused with a ValueError, and nothing of it is kept."""
        own = deepcopy(self.state_dict())
        try:
            return super().load_state_dict(state_dict, strict=strict, assign=assign)
        except (RuntimeError, KeyError, ValueError) as error:
            super().load_state_dict(own)  # torch copies what fits before it says what does not
            told = " ".join(str(error).split())
            raise ValueError(
                f"the state is not that of this {type(self).__name__} ({told}). Make the sampler the "
                "state was saved from, with the same settings."
            ) from error

    def check_run(self, steps: int) -> None:
        """Warn once where a setting can have no effect in a run of ``steps`` optimizer steps."""
        if self.warm_up_steps() >= steps:
            self.warn_once(
                f"{type(self).__name__} warms up for {self.warm_up_steps()} steps but the run has {steps}: "
                "it will draw uniformly throughout. Lower its warm-up."
            )

    def warn_once(self, message: str) -> None:
        """Warn about an option without effect, once per sampler."""
        if message not in self._warned:
            self._warned.add(message)
            warnings.warn(message, UserWarning, stacklevel=3)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        # Moving is allowed, rounding is not: probabilities and losses stay in the precision they were made in, also
        # when the sampler sits inside a model that is cast to half precision.
        return super()._apply(lambda tensor: tensor.to(fn(tensor).device), recurse)  # type: ignore[no-untyped-call]

    def forward(self, x: Tensor | int) -> Draw:
        """Same as :meth:`draw`."""
        return self.draw(x)

    def extra_repr(self) -> str:
        """What stands between the brackets when a sampler is printed: the process and its own numbers."""
        numbers = self._numbers()
        return f"{self.process!r}, {numbers}" if numbers else repr(self.process)

    def _numbers(self) -> str:
        public = {name: value for name, value in vars(self).items() if not name.startswith("_")}
        return ", ".join(f"{name}={value:g}" for name, value in public.items() if isinstance(value, float))


def _draws_of(draw: Draw | Sequence[Draw]) -> list[Draw]:
    draws = [draw] if isinstance(draw, Draw) else list(draw) if isinstance(draw, Sequence) else None
    if draws is None or not all(isinstance(each, Draw) for each in draws):
        raise ValueError(f"draw={draw!r} is not a draw; hand over what sampler.draw(x0) returned, or a list of those.")
    if not draws:
        raise ValueError("draw is an empty list; hand over the draws the step was computed from, in order.")
    return draws


def _shape_of(x: Tensor | int) -> tuple[tuple[int, ...], torch.device]:
    if isinstance(x, Tensor):
        if x.ndim == 0 or x.shape[0] == 0:
            raise ValueError(f"x has shape {tuple(x.shape)}; give a batch [B, ...] with B of 1 or more, or an int B.")
        return tuple(x.shape), x.device
    return (whole("batch size", x, low=1),), torch.device("cpu")
