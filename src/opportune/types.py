"""The values that travel between the rooms: what is drawn, what is asked for, what came back.

One time axis is used everywhere: ``u`` in [0, 1), 0 is clean data and 1 is pure noise, for every process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class Draw:
    """The timesteps of one batch.

    Attributes:
        u: ``[B]`` float, noise axis in [0, 1): 0 clean, 1 noise.
        t: ``[B]`` the process's own time: int64 index in [0, T) for discrete processes, float otherwise.
        correction: ``[B]`` what the per-example loss is multiplied by: the density meant over the density drawn from.
            ``1 / density`` when the sampler is unbiased (the objective stays the process's own), ones for most others
            (the objective is re-targeted towards the timesteps drawn more often), or what the method says it aims at.
        density: ``[B]`` the density over ``u`` each timestep was drawn from.
        shape: shape of the batch the draw was made for, ``[B, ...]``.
        sigma: ``[B]`` noise level in the words of EDM, VE and flow models; None for DDPM and VP.
        noise: ``[B, ...]`` noise to corrupt the batch with; set on the draws of a probe, where the same noise
            must be used before and after the step, and None on training draws.
        context: ``[B, F]`` what a policy that looks at the data saw; None for every other method.
    """

    u: Tensor
    t: Tensor
    correction: Tensor
    density: Tensor
    shape: tuple[int, ...]
    sigma: Tensor | None = None
    noise: Tensor | None = None
    context: Tensor | None = None

    def __len__(self) -> int:
        return int(self.u.shape[0])

    @staticmethod
    def cat(draws: Sequence[Draw]) -> Draw:
        """Join the draws of several micro-batches into one; noise is dropped (it belongs to single probes)."""
        if not draws:
            raise ValueError("draws is empty: Draw.cat needs at least one draw to join.")
        if len(draws) == 1:
            return draws[0]

        def join(parts: Sequence[Tensor | None]) -> Tensor | None:
            present = [part for part in parts if part is not None]
            return torch.cat(present) if len(present) == len(parts) else None

        first = draws[0]
        return replace(
            first,
            u=torch.cat([d.u for d in draws]),
            t=torch.cat([d.t for d in draws]),
            correction=torch.cat([d.correction for d in draws]),
            density=torch.cat([d.density for d in draws]),
            shape=(sum(len(d) for d in draws), *first.shape[1:]),
            sigma=join([d.sigma for d in draws]),
            noise=None,
            context=join([d.context for d in draws]),
        )


Probe = Callable[[Draw], Tensor]
"""``probe(draw) -> losses [B]``: the user's own loss of the current batch at ``draw.t`` with ``draw.noise``."""


@dataclass(frozen=True)
class Request:
    """What a sampler asks the loop to measure around one optimizer step.

    Attributes:
        draws: probes, each a draw of the batch's size that carries its noise.
        after: measure the probes again after the step (same noise), for before/after differences.
        gradient: measure, for each probe, the moments of the model's gradient at its timesteps.
    """

    draws: tuple[Draw, ...]
    after: bool = False
    gradient: bool = False


@dataclass(frozen=True)
class StepRecord:
    """What one optimizer step showed.

    A sampler's ``learn`` gets it gathered over all ranks, identical on each; the training loop yields its own rank's.

    Attributes:
        step: number of optimizer steps the sampler had watched before this one.
        draw: the training draw, ``[N]`` with N = ranks x batch.
        losses: ``[N]`` raw per-example training losses, or None if the loop handed none over.
        probe_u: ``[M, N]`` where the M probes looked, or None when nothing was asked.
        before: ``[M, N]`` their losses before the step.
        after: ``[M, N]`` their losses after the step, same noise and examples.
        gradient: ``[M, 2]`` per probe: squared length of the mean gradient (unbiased), and trace of the
            covariance of one example's gradient.
        loss: scalar, the weighted mean the step descended; set by the training loop, as are the next two.
        gradient_norm: scalar, length of the gradient before clipping.
        skipped: the optimizer did not step.
    """

    step: int
    draw: Draw
    losses: Tensor | None = None
    probe_u: Tensor | None = None
    before: Tensor | None = None
    after: Tensor | None = None
    gradient: Tensor | None = None
    loss: Tensor | None = None
    gradient_norm: Tensor | None = None
    skipped: bool = False
