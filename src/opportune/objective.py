"""Batch + draw + process + weighting -> per-example loss, nothing reduced before the last line.

For people who have no loss of their own; the training loop and every benchmark use it too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .processes import Process
from .types import Draw, Probe
from .weightings import Weighting

Network = Callable[..., Tensor]


class Objective:
    """The MSE of the process's own target, per example.

    Args:
        model: ``model(x_t, time, **conditions) -> output`` of the shape of ``x_t``.
        process: gives the noisy input, the time the network is told, and the target.
        weighting: multiplies the loss; None is weight 1 on the process's own target.
    """

    def __init__(self, model: Network, process: Process, weighting: Weighting | None = None) -> None:
        if not callable(model):
            raise ValueError(f"model={model!r} cannot be called; give a network: model(x_t, time) -> output like x_t.")
        if not isinstance(process, Process):
            raise ValueError(f"process={process!r} is not a process; give e.g. op.DDPM('linear', steps=1000).")
        self.model = model
        self.process = process
        if weighting is not None and not isinstance(weighting, Weighting):
            raise ValueError(f"weighting={weighting!r} is not a weighting; give op.weighting(name, process), or None.")
        if weighting is not None and weighting.process is not process:
            raise ValueError("weighting was made for another process; make it with the one the objective uses.")
        self.weighting = weighting

    def losses(self, x0: Tensor, draw: Draw, noise: Tensor | None = None, **conditions: Any) -> Tensor:
        """Raw per-example losses ``[B]`` float32 at ``draw``; noise is the draw's own (a probe), given, or fresh."""
        # A batch may come with noise of its own among its conditions; the probes of that batch keep theirs.
        noise = draw.noise if draw.noise is not None else noise
        _check_data(x0)
        if noise is None:
            noise = torch.randn_like(x0)
        _check(x0, draw, noise)
        t, noise = draw.t, noise.to(x0.dtype)
        x_t = self.process.corrupt(x0, noise, t)
        output = self.model(self.process.network_input(x_t, t), self.process.network_time(t), **conditions)
        if output.shape != x0.shape:
            raise ValueError(f"model returned shape {tuple(output.shape)} for data of shape {tuple(x0.shape)}.")
        return (output.float() - self.process.target(x0, noise, t).float()).square().reshape(len(x0), -1).mean(dim=1)

    __call__ = losses

    def weighted(self, losses: Tensor, draw: Draw) -> Tensor:
        """``[B]``: losses times weighting times the draw's correction. Its mean is what to call backward() on."""
        if self.weighting is not None:
            losses = self.weighting.apply_to(losses, draw.t)
        return draw.correction * losses

    def probe(self, x0: Tensor, **conditions: Any) -> Probe:
        """``probe(draw) -> losses [B]`` of this batch, for ``sampler.watch``."""

        def evaluate(draw: Draw) -> Tensor:
            return self.losses(x0, draw, **conditions)

        return evaluate


def _check_data(x0: Tensor) -> None:
    if not isinstance(x0, Tensor) or x0.ndim == 0:
        raise ValueError(f"x0={x0!r} is not a batch; give a tensor [B, ...].")
    if not x0.is_floating_point():
        raise ValueError(f"x0 has dtype {x0.dtype}; give floats, e.g. images as x0.float() / 127.5 - 1.")


def _check(x0: Tensor, draw: Draw, noise: Tensor) -> None:
    if x0.shape[0] != len(draw):
        raise ValueError(f"x0 has {x0.shape[0]} examples and the draw {len(draw)}; draw with the same batch: draw(x0).")
    if noise.shape != x0.shape:
        raise ValueError(
            f"noise has shape {tuple(noise.shape)}, x0 {tuple(x0.shape)}; they must be the same. A probe's noise has "
            "the shape of the batch that was drawn for: draw(x0), not draw(len(x0))."
        )


def objective(model: nn.Module | Network, process: Process, weighting: Weighting | str | None = None) -> Objective:
    """An :class:`Objective`; ``weighting`` may be a name of :func:`opportune.weightings`."""
    if isinstance(weighting, str):
        from .names import weighting as by_name

        weighting = by_name(weighting, process)
    return Objective(model, process, weighting)
