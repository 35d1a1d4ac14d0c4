"""Which objective an adaptive sampler serves: the weight on the raw loss at each noise level."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ..processes import Process


class Weighting(Protocol):
    """What a sampler uses of the weightings, a room below this one."""

    process: Process

    def at(self, u: Tensor) -> Tensor:
        """Weight on the MSE of the process's own target at ``u``."""

    def parameters(self) -> Iterator[nn.Parameter]:
        """None, but for weightings that learn."""


WeightAt = Callable[[Tensor], Tensor]
"""``weight(u [...]) -> [...]`` float64, what the raw loss of the process's own target is multiplied by."""


def objective_weight(process: Process, weighting: Weighting | str | None, **settings: Any) -> WeightAt:
    """The weight of a weighting, given as an instance or by name; None is weight 1 on the process's own target.

    ``settings`` go to a weighting given by name.
    """
    if weighting is None:
        return _one
    if isinstance(weighting, str):
        from ..names import weighting as by_name  # names knows the samplers too, so it cannot be imported above

        name, weighting = weighting, by_name(weighting, process, **settings)
        if next(iter(weighting.parameters()), None) is not None:
            raise ValueError(
                f"weighting={name!r} learns, and one made here by name would never be trained; give the instance whose "
                f"parameters the optimizer has: op.weighting({name!r}, process)."
            )
    if getattr(weighting, "process", None) is not process:
        raise ValueError(
            f"weighting={weighting!r} is not a weighting made for this sampler's process; give a name of "
            "op.weightings(), or op.weighting(name, process) with the process the sampler gets."
        )
    return _Weight(weighting)


def _one(u: Tensor) -> Tensor:
    return torch.ones_like(u, dtype=torch.float64)


class _Weight:
    # Held apart from the sampler's modules: a learned weighting belongs to the objective and is saved there.
    def __init__(self, weighting: Weighting) -> None:
        self._weighting = weighting

    @torch.no_grad()
    def __call__(self, u: Tensor) -> Tensor:
        device = next((p.device for p in self._weighting.parameters()), u.device)
        return self._weighting.at(u.to(device)).double().to(u.device)
