"""What training at some noise levels does to the loss at all others (Kim et al., CVPR 2025, figure 4)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import ClassVar

import torch
from torch import Tensor, nn

from opportune.checks import number, whole
from opportune.measure import trainable, untouched
from opportune.names import sampler as sampler_named
from opportune.objective import Objective
from opportune.random_streams import generator
from opportune.step import Batch, PlainEngine, training_steps

from .found import Found
from .loss_profile import binned_losses
from .places import bin_edges


@dataclass(frozen=True, kw_only=True)
class Interdependence(Found):
    """Row i: trained at noise levels of bin i alone. Column j: how the loss in bin j changed. 0 is clean, 1 noise.

    Attributes:
        edges: ``[bins + 1]`` of the bins.
        before: ``[bins]`` loss before.
        change: ``[bins, bins]`` loss after minus loss before; below 0 is better.
        change_error: ``[bins, bins]`` standard error: over repeats, or over examples where there is one repeat.
        everywhere: ``[bins]`` change when as many steps train all noise levels evenly, as an unbiased run would.
        everywhere_error: ``[bins]``.
        steps: optimizer steps trained in each bin.
        repeats: times each was done, with other training batches and noise.
        prediction: what the network predicts.
    """

    figure: ClassVar[str] = "interdependence"
    edges: Tensor
    before: Tensor
    change: Tensor
    change_error: Tensor
    everywhere: Tensor
    everywhere_error: Tensor
    steps: int
    repeats: int
    prediction: str

    @property
    def relative(self) -> Tensor:
        """``[bins, bins]`` change as a share of the loss before."""
        return self.change / self.before


def interdependence(
    objective: Objective,
    optimizer: torch.optim.Optimizer,
    batches: Iterable[Batch],
    held_out: Batch,
    *,
    bins: int = 8,
    steps: int = 20,
    repeats: int = 2,
    max_gradient_norm: float = 0.0,
    seed: int = 0,
    batch_size: int = 64,
    label: str = "",
    tell: Callable[[int, int], None] | None = None,
) -> Interdependence:
    """Train copies of the model, each on one bin of the noise axis, and measure all bins before and after.

    Model, optimizer and weighting stay as they are, to the bit. Copies begin with the optimizer's state and train in
    the mode the model is in: hand it over in ``train()``. Within a repeat all copies see the same batches; before and
    after are measured in evaluation mode, on the same held-out pairs of data and noise.

    Args:
        objective: model (an ``nn.Module``), process and weighting.
        optimizer: of the model's parameters (and of a weighting's that learns).
        batches: training batches, at least ``steps * repeats``; more are not looked at.
        held_out: examples to measure on.
        bins: how many equal parts of the noise axis.
        steps: optimizer steps in each bin.
        repeats: with other batches and noise, for the standard error. 1 measures the error over held-out examples only,
            which says nothing of what other batches would have done.
        max_gradient_norm: gradients are clipped to it; 0 leaves them.
        seed: of noise levels and noise.
        batch_size: held-out examples at a time.
        label: name of this model in pictures.
        tell: called with (copies trained, copies in all) after each.
    """
    whole("bins", bins, low=2)
    whole("steps", steps, low=1)
    whole("repeats", repeats, low=1)
    number("max_gradient_norm", max_gradient_norm, low=0)
    model = _checked_model(objective, optimizer)
    edges = bin_edges(bins)
    before, _ = binned_losses(objective, held_out, edges, seed=seed, batch_size=batch_size)
    changes: list[Tensor] = []
    supply = iter(batches)
    for repeat in range(repeats):
        lot = list(islice(supply, steps))
        if len(lot) < steps:
            raise ValueError(
                f"batches ended after {repeat * steps + len(lot)} of steps * repeats = {steps * repeats}; give more, "
                "or ask for fewer steps or repeats."
            )
        for row in range(bins + 1):
            density = [1.0] * bins if row == bins else [float(row == each) for each in range(bins)]
            own = generator(seed, "interdependence", repeat).initial_seed() % 2**31
            changed = _trained_copy(model, objective, optimizer, lot, density, max_gradient_norm, own)
            after, _ = binned_losses(changed, held_out, edges, seed=seed, batch_size=batch_size)
            changes.append(after - before)
            if tell is not None:
                tell(len(changes), repeats * (bins + 1))
    every = torch.stack(changes).unflatten(0, (repeats, bins + 1))  # [repeats, bins + 1, bins, examples]
    change, error = _summary(every)
    return Interdependence(
        label=label,
        edges=edges,
        before=before.mean(dim=1),
        change=change[:-1],
        change_error=error[:-1],
        everywhere=change[-1],
        everywhere_error=error[-1],
        steps=steps,
        repeats=repeats,
        prediction=objective.process.prediction,
    )


def _trained_copy(
    original: nn.Module,
    objective: Objective,
    optimizer: torch.optim.Optimizer,
    lot: list[Batch],
    density: list[float],
    max_gradient_norm: float,
    seed: int,
) -> Objective:
    """A copy of ``original``, the objective's model, trained on ``lot`` at noise levels drawn from ``density``."""
    process = objective.process
    # Copied together, so that the optimizer's copy holds the parameters of the model's; the process is shared.
    model, weighting, moving = copy.deepcopy((original, objective.weighting, optimizer), memo={id(process): process})
    made = Objective(model, process, weighting)
    sampler = sampler_named("table", process, density=density, seed=seed)
    engine = PlainEngine(model.parameters(), max_norm=max_gradient_norm or None)
    for parameter in model.parameters():
        parameter.grad = None  # what a loop had accumulated when it asked is not part of this
    with untouched(None, next(model.parameters()).device):  # the global random streams, from which noise comes
        torch.manual_seed(seed)
        for _ in training_steps(made, sampler, moving, lot, engine=engine):
            pass
    return made


def _checked_model(objective: Objective, optimizer: torch.optim.Optimizer) -> nn.Module:
    if not isinstance(objective.model, nn.Module):
        raise ValueError("objective.model is no nn.Module, so no copy of it can be trained.")
    trainable(objective.model)
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    if not any(id(p) in held for p in objective.model.parameters()):
        raise ValueError("optimizer holds none of the model's parameters; give the one the model is trained with.")
    rates = [float(group["lr"]) for group in optimizer.param_groups]
    if not any(rates):
        raise ValueError(
            "the optimizer's learning rate is 0, so nothing would change (a warm-up begins there); set it, or take a "
            "later checkpoint."
        )
    return objective.model


def _summary(changes: Tensor) -> tuple[Tensor, Tensor]:
    """``[repeats, rows, bins, examples]`` -> mean and standard error ``[rows, bins]``."""
    repeats, examples = changes.shape[0], changes.shape[-1]
    means = changes.mean(dim=-1)
    if repeats > 1:
        return means.mean(dim=0), means.std(dim=0) / repeats**0.5
    error = changes[0].std(dim=-1) / examples**0.5 if examples > 1 else torch.full_like(means[0], torch.nan)
    return means[0], error
