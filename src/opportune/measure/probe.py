"""Carry out a sampler's request around one optimizer step and hand back the record, the same on every rank."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from ..distributed import gather, place
from ..types import Draw, Probe, Request, StepRecord
from .gradient import moments
from .loss import losses_at, untouched


class Measurement:
    """One step's measurement: ``before()`` the step, ``after()`` it, then ``record()``."""

    def __init__(
        self,
        draw: Draw,
        losses: Tensor | None,
        request: Request | None,
        probe: Probe | None,
        model: nn.Module | None,
    ) -> None:
        self._draw, self._request, self._probe, self._model = draw, request, probe, model
        self._losses = None if losses is None else per_example(losses, draw)
        self._before: Tensor | None = None
        self._after: Tensor | None = None
        self._gradient: Tensor | None = None

    def before(self) -> None:
        """Measure at the weights before the step."""
        request = self._request
        if request is None:
            return
        probe = self._need_probe()
        with untouched(self._model, self._draw.u.device):
            if request.gradient:
                model = self._need_model()
                measured = [moments(probe, draw, model) for draw in request.draws]
                self._before, self._gradient = map(torch.stack, zip(*measured, strict=True))
            else:
                with torch.no_grad():
                    self._before = torch.stack([losses_at(probe, draw) for draw in request.draws])

    def after(self) -> None:
        """Measure again at the weights after the step, same noise."""
        request = self._request
        if request is None or not request.after:
            return
        probe = self._need_probe()
        with untouched(self._model, self._draw.u.device), torch.no_grad():
            self._after = torch.stack([losses_at(probe, draw) for draw in request.draws])

    def record(self, step: int) -> StepRecord:
        """Everything measured, gathered over ranks in the order of the global batch."""
        draw, request = self._draw, self._request
        probe_u = torch.stack([d.u for d in request.draws]) if request is not None else None
        columns = _Columns()
        for values in (draw.u, draw.t, draw.correction, draw.density, draw.sigma, self._losses):
            columns.add(values)
        for rows in (probe_u, self._before, self._after):
            columns.add(None if rows is None else rows.T)
        columns.add(draw.context)
        u, t, correction, density, sigma, losses, looked, before, after, context = columns.gathered()
        return StepRecord(
            step=step,
            draw=replace(
                draw,
                u=_given(u),
                t=_given(t),
                correction=_given(correction),
                density=_given(density),
                shape=(_given(u).shape[0], *draw.shape[1:]),
                sigma=sigma,
                noise=None,
                context=context,
            ),
            losses=losses,
            probe_u=None if looked is None else looked.T,
            before=None if before is None else before.T,
            after=None if after is None else after.T,
            gradient=None if self._gradient is None else gather(self._gradient[None]).mean(dim=0),
        )

    def _need_probe(self) -> Probe:
        if self._probe is None:
            raise ValueError(
                "probe is missing: this sampler measures losses at timesteps of its own choice. Hand watch() a "
                "function probe(draw) -> losses [B] that evaluates the current batch at draw.t with draw.noise."
            )
        return self._probe

    def _need_model(self) -> nn.Module:
        if self._model is None:
            raise ValueError(
                "model is missing: this sampler measures gradients; hand it over: watch(..., model=model)."
            )
        return self._model


def per_example(losses: Tensor, draw: Draw) -> Tensor:
    """``losses`` as float32 ``[B]`` without a graph, checked for the shape of the draw."""
    if not isinstance(losses, Tensor) or losses.shape != draw.u.shape:
        shape = f"shape {tuple(losses.shape)}" if isinstance(losses, Tensor) else type(losses).__name__
        raise ValueError(
            f"losses has {shape} for a draw of {len(draw)} timesteps; keep the loss per example, "
            f"shape ({len(draw)},), and reduce it only for backward()."
        )
    return losses.detach().float()


def _given(values: Tensor | None) -> Tensor:
    if values is None:
        raise ValueError("a draw lost its u, t, correction or density on the way to the record.")
    return values


class _Columns:
    """Per-example values of any kind, sent in one message: one gather a step instead of ten."""

    def __init__(self) -> None:
        self._parts: list[Tensor | None] = []

    def add(self, values: Tensor | None) -> None:
        self._parts.append(values)

    def gathered(self) -> list[Tensor | None]:
        if place()[1] == 1:
            return self._parts
        present = [part for part in self._parts if part is not None]
        home = present[0].device  # where ranks talk; what a policy saw may lie on the CPU
        wide = torch.float64 if home.type != "mps" else torch.float32
        flat = [part.reshape(part.shape[0], -1) for part in present]
        together = gather(torch.cat([part.to(home, wide) for part in flat], dim=1))
        pieces = iter(together.split([part.shape[1] for part in flat], dim=1))
        return [
            None if part is None else next(pieces).reshape(-1, *part.shape[1:]).to(part.dtype) for part in self._parts
        ]
