"""Flow matching: x_t = (1 - t) x0 + t eps, t = 1 is noise (Lipman et al., 2023; Esser et al., 2024, 2403.03206)."""

from __future__ import annotations

import math
import warnings
from typing import Any, Self

import torch
from torch import Tensor

from ..checks import number, one_of, whole
from .base import Process, check_times


class Flow(Process):
    """Rectified flow with a timestep shift: ``t = s u / (1 + (s - 1) u)``.

    Larger ``shift`` trains on more noise, and lowers ln SNR by 2 ln s everywhere. Use the same shift to generate.

    Args:
        shift: s. 1.0 is none; Stable Diffusion 3 used 3.0 at 1024 x 1024. See :meth:`for_resolution`.
        prediction: "velocity" (eps - x0), "x0" or "eps".
        time_scale: the network is told ``time_scale * t`` (1000 is what diffusers' models expect).
    """

    predictions = ("velocity", "x0", "eps")

    def __init__(self, *, shift: float = 1.0, prediction: str = "velocity", time_scale: float = 1000.0) -> None:
        super().__init__(prediction=prediction)
        self.shift = number("shift", shift, low=0, open_low=True)
        self.time_scale = number("time_scale", time_scale, low=0, open_low=True)

    @classmethod
    def for_resolution(
        cls, tokens: int, *, rule: str = "flux", base_tokens: int | None = None, **settings: Any
    ) -> Self:
        """A shift that grows with the number of tokens (patches) per image.

        "flux": shift = e^mu, mu linear in tokens from 0.5 at 256 to 1.15 at 4096.
        "sd3": shift = sqrt(tokens / base_tokens), of 256 base tokens unless given.
        """
        whole("tokens", tokens, low=1)
        if one_of("rule", rule, ("flux", "sd3")) == "sd3":
            base = 256 if base_tokens is None else whole("base_tokens", base_tokens, low=1)
            return cls(shift=math.sqrt(tokens / base), **settings)
        if base_tokens is not None:
            warnings.warn(
                f"base_tokens={base_tokens} has no effect with rule='flux'; it is for rule='sd3'.",
                UserWarning,
                stacklevel=2,
            )
        return cls(shift=math.exp(_flux_mu(tokens)), **settings)

    @classmethod
    def from_diffusers(cls, scheduler: Any, *, tokens: int | None = None, **settings: Any) -> Self:
        """Build from a flow-matching scheduler's config: its shift, or its dynamic shift at ``tokens`` per image."""
        config: Any = getattr(scheduler, "config", None)
        shift = getattr(config, "shift", None)
        if shift is None and getattr(config, "use_flow_sigmas", False):  # a multistep solver set up for flow matching
            shift = config.flow_shift
        if shift is None:
            raise ValueError(
                f"{type(scheduler).__name__} has no config.shift, so it is not a flow-matching scheduler; "
                "for DDPM-type schedulers use DDPM.from_diffusers."
            )
        if getattr(config, "use_dynamic_shifting", False):
            if tokens is None:
                raise ValueError(
                    "tokens is missing: this scheduler's shift depends on the image size (use_dynamic_shifting). "
                    "Give the number of tokens per image, e.g. (height // 16) * (width // 16) for Flux."
                )
            mu = _flux_mu(
                whole("tokens", tokens, low=1),
                low=(config.base_image_seq_len, config.base_shift),
                high=(config.max_image_seq_len, config.max_shift),
            )
            shift = mu if getattr(config, "time_shift_type", "exponential") == "linear" else math.exp(mu)
        elif tokens is not None:
            warnings.warn(
                f"tokens={tokens} has no effect: the shift of this {type(scheduler).__name__} is {shift:g} at any "
                "image size.",
                UserWarning,
                stacklevel=2,
            )
        settings.setdefault("time_scale", float(getattr(config, "num_train_timesteps", 1000)))
        return cls(shift=float(shift), **settings)

    def log_snr(self, u: Tensor) -> Tensor:
        """2 ln((1 - t) / t) = -2 logit(u) - 2 ln shift."""
        u = u.double()
        return -2 * (torch.log(u) - torch.log1p(-u)) - 2 * math.log(self.shift)

    def time(self, u: Tensor) -> Tensor:
        return self.shift * u / (1 + (self.shift - 1) * u)

    def axis(self, t: Tensor) -> Tensor:
        return t / (self.shift - (self.shift - 1) * t)

    def coefficients(self, t: Tensor) -> tuple[Tensor, Tensor]:
        if not t.is_floating_point():
            raise ValueError(f"t has dtype {t.dtype}; flow times are floats in [0, 1], not indices. Use draw.t.")
        check_times(t, 0, 1)
        return 1 - t, t

    def sigma(self, t: Tensor) -> Tensor:
        return t

    def network_time(self, t: Tensor) -> Tensor:
        return self.time_scale * t

    def scheduler_index(self, t: Tensor, scheduler: Any) -> Tensor:
        """Index into ``scheduler.timesteps`` / ``scheduler.sigmas`` nearest to own time ``t`` ``[B]`` -> int64 ``[B]``.

        Those arrays *descend* (index 0 is the most noise) and already hold the scheduler's shift, so indexing them
        with ``(u * 1000).long()`` trains the opposite end from the one meant. This looks the noise level up instead.
        """
        check_times(t, 0, 1)
        sigmas = torch.as_tensor(scheduler.sigmas).to(t.device, torch.float64)
        count = len(scheduler.timesteps)
        ascending, index = sigmas[:count].sort()  # schedulers that invert their sigmas ascend
        right = torch.searchsorted(ascending, t.double().contiguous()).clamp(1, max(count - 1, 1))
        left = right - 1
        nearer_left = (t - ascending[left]).abs() <= (ascending[right.clamp(max=count - 1)] - t).abs()
        return index[torch.where(nearer_left, left, right.clamp(max=count - 1))]

    def __repr__(self) -> str:
        return f"Flow(shift={self.shift:g}, prediction={self.prediction!r})"


def _flux_mu(tokens: int, low: tuple[int, float] = (256, 0.5), high: tuple[int, float] = (4096, 1.15)) -> float:
    slope = (high[1] - low[1]) / (high[0] - low[0])
    return low[1] + slope * (tokens - low[0])
