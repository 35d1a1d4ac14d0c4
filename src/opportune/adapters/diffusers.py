"""``compute_density_for_timestep_sampling`` of diffusers' flow-matching scripts, drawn by one of our samplers.

::

    process = op.Flow.from_diffusers(noise_scheduler)
    compute_density_for_timestep_sampling = TimestepDensity(op.sampler("adaptive", process), noise_scheduler)

The scripts then go on as they are. Those of DDPM type draw with ``torch.randint``; there ``sampler.draw(x0).t`` is it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..processes import Flow
from ..samplers import Sampler
from ..types import Draw


class TimestepDensity:
    """Called with the scripts' arguments, returns their ``u [B]``, an index in disguise: ``(u * N).long()``.

    The scripts look that index up in ``scheduler.timesteps``, which *descends* and holds the shift already: a density
    of theirs that favours large u trains *little* noise. Here u is chosen so that the look-up finds the noise level the
    sampler meant, to the nearest of the scheduler's N.

    Args:
        sampler: on ``op.Flow.from_diffusers(scheduler)``, so that the shift is applied once.
        scheduler: the one the script indexes, with ``timesteps`` and ``sigmas`` of training.
    """

    def __init__(self, sampler: Sampler, scheduler: Any) -> None:
        if not isinstance(sampler, Sampler) or not isinstance(sampler.process, Flow):
            raise ValueError(
                f"sampler={sampler!r} is not a sampler on a flow process; give e.g. "
                'op.sampler("adaptive", op.Flow.from_diffusers(scheduler)).'
            )
        if not (hasattr(scheduler, "timesteps") and hasattr(scheduler, "sigmas")):
            raise ValueError(
                f"scheduler={type(scheduler).__name__} has no timesteps and sigmas; give the flow-matching scheduler "
                "that the script looks its timesteps up in."
            )
        self.sampler, self.scheduler = sampler, scheduler
        self._process = sampler.process
        self.last: Draw | None = None
        """The latest draw, for ``sampler.watch`` and its ``correction``."""

    def __call__(
        self,
        weighting_scheme: str | None = None,
        batch_size: int = 1,
        logit_mean: float | None = None,
        logit_std: float | None = None,
        mode_scale: float | None = None,
        device: torch.device | str = "cpu",
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """``u [batch_size]`` float32 in (0, 1) on ``device``; which density it follows is up to the sampler alone."""
        if weighting_scheme in ("logit_normal", "mode"):
            self.sampler.warn_once(
                f"weighting_scheme={weighting_scheme!r} and its settings have no effect: timesteps are drawn by "
                f"{type(self.sampler).__name__}. Give those settings to the sampler."
            )
        self.last = self.sampler.draw(torch.empty(batch_size, device=device))
        index = self._process.scheduler_index(self.last.t, self.scheduler)
        return (index.float() + 0.5) / len(self.scheduler.timesteps)
