"""DDPM: discrete time, variance preserving (Ho et al., 2020, arXiv 2006.11239)."""

from __future__ import annotations

import math
from typing import Any, Self

import torch
from torch import Tensor

from ..checks import flag, one_of, row
from .base import Process
from .schedules import alphas_cumprod as schedule_alphas_cumprod
from .schedules import zero_terminal_snr as rescale_to_zero

_DIFFUSERS_PREDICTION = {"epsilon": "eps", "sample": "x0", "v_prediction": "v"}


class DDPM(Process):
    """``x_t = sqrt(alpha_bar_t) x0 + sqrt(1 - alpha_bar_t) eps`` with t in 0 .. T-1, ``t = floor(u * T)``.

    Args:
        schedule: "linear", "quadratic", "cosine", "scaled_linear" or "constant".
        steps: number of timesteps T.
        prediction: "eps", "x0" or "v".
        beta_start, beta_end: at T = 1000, of "linear", "quadratic" and "scaled_linear"; None is the published value.
        zero_terminal_snr: rescale so that the last timestep is pure noise (Lin et al., 2024).
        betas: ``[T]`` instead of a schedule.
        alphas_cumprod: ``[T]`` instead of a schedule.
    """

    predictions = ("eps", "x0", "v")

    def __init__(
        self,
        schedule: str = "linear",
        *,
        steps: int = 1000,
        prediction: str = "eps",
        beta_start: float | None = None,
        beta_end: float | None = None,
        zero_terminal_snr: bool = False,
        betas: Tensor | None = None,
        alphas_cumprod: Tensor | None = None,
    ) -> None:
        super().__init__(prediction=prediction)
        if betas is None and alphas_cumprod is None:
            self.schedule = schedule
            bars = schedule_alphas_cumprod(schedule, steps, beta_start=beta_start, beta_end=beta_end)
        elif betas is not None and alphas_cumprod is not None:
            raise ValueError("betas and alphas_cumprod are both given; give one of them.")
        else:
            _refuse_named(schedule, beta_start, beta_end)
            _refuse_name(betas=betas, alphas_cumprod=alphas_cumprod)
            self.schedule = "alphas_cumprod" if betas is None else "betas"
            bars = row("alphas_cumprod", alphas_cumprod, one_per="timestep") if betas is None else _from_betas(betas)
        if steps not in (bars.numel(), 1000):  # 1000 is what it is when nobody gave it
            raise ValueError(f"steps={steps} but {self.schedule} has {bars.numel()} values; leave steps out.")
        if flag("zero_terminal_snr", zero_terminal_snr):
            bars = rescale_to_zero(bars)
        _check_alphas(bars)
        self.steps: int = int(bars.numel())
        self.alphas_cumprod = bars
        """``[T]`` float64 on the CPU."""
        self._tables: dict[torch.device, tuple[Tensor, Tensor]] = {}

    @classmethod
    def from_diffusers(cls, scheduler: Any, *, prediction: str | None = None) -> Self:
        """Build from any scheduler with ``alphas_cumprod`` (and, if present, ``config.prediction_type``).

        Schedulers that divide by alpha end a zero-terminal-SNR schedule in 2^-24 instead of 0, which is *less* noise
        than the timestep before it; here it ends in 0, as it was meant to.
        """
        bars = getattr(scheduler, "alphas_cumprod", None)
        if bars is None:
            raise ValueError(
                f"{type(scheduler).__name__} has no alphas_cumprod, so it is not a DDPM-type scheduler; "
                "for flow-matching schedulers use Flow.from_diffusers."
            )
        bars = row("alphas_cumprod", bars, one_per="timestep")
        config: Any = getattr(scheduler, "config", None)
        if getattr(config, "rescale_betas_zero_snr", False):
            bars[-1] = 0.0
        if prediction is None:
            said = getattr(config, "prediction_type", "epsilon")
            if said == "flow_prediction":
                raise ValueError(
                    f"{type(scheduler).__name__} has prediction_type='flow_prediction', so it is set up for flow "
                    "matching; use Flow.from_diffusers."
                )
            prediction = _DIFFUSERS_PREDICTION[one_of("prediction_type", said, _DIFFUSERS_PREDICTION)]
        return cls(alphas_cumprod=bars, prediction=prediction)

    def log_snr(self, u: Tensor) -> Tensor:
        """ln(alpha_bar / (1 - alpha_bar)) of the timestep that ``u`` falls in; -inf at zero terminal SNR."""
        bars = self.alphas_cumprod.to(u.device)[self.time(u)]
        return torch.log(bars) - torch.log1p(-bars)

    def time(self, u: Tensor) -> Tensor:
        """``floor(u * T)`` int64 in [0, T): every timestep owns an equal share of u, the ends too."""
        return (u.double() * self.steps).floor().long().clamp(0, self.steps - 1)

    def axis(self, t: Tensor) -> Tensor:
        return (t.double() + 0.5) / self.steps

    def coefficients(self, t: Tensor) -> tuple[Tensor, Tensor]:
        if t.is_floating_point():
            raise ValueError(f"t has dtype {t.dtype}; DDPM timesteps are int64 in [0, {self.steps}). Use draw.t.")
        # Python's -1 would silently be the noisiest step. Only on the CPU: an accelerator would be made to wait.
        if t.device.type == "cpu" and t.numel() and (int(t.min()) < 0 or int(t.max()) >= self.steps):
            raise ValueError(f"t runs from {int(t.min())} to {int(t.max())}; timesteps lie in [0, {self.steps}).")
        table = self._tables.get(t.device)
        if table is None:
            root, rest = self.alphas_cumprod.sqrt(), (1 - self.alphas_cumprod).sqrt()
            table = self._tables[t.device] = (root.float().to(t.device), rest.float().to(t.device))
        return table[0][t], table[1][t]

    @property
    def betas(self) -> Tensor:
        """``[T]`` float64: 1 - alpha_bar_t / alpha_bar_{t-1}."""
        before = torch.cat([torch.ones(1, dtype=torch.float64), self.alphas_cumprod[:-1]])
        return 1 - self.alphas_cumprod / before

    def __repr__(self) -> str:
        return f"DDPM({self.schedule!r}, steps={self.steps}, prediction={self.prediction!r})"


def _refuse_named(schedule: str, beta_start: float | None, beta_end: float | None) -> None:
    if beta_start is not None or beta_end is not None:
        raise ValueError("beta_start and beta_end belong to a named schedule; leave them out where arrays are given.")
    if schedule != "linear":  # which it is when nobody gave it
        raise ValueError(f"schedule={schedule!r} has no effect where arrays are given; leave one of the two out.")


def _refuse_name(**arrays: Any) -> None:
    for name, values in arrays.items():
        if isinstance(values, str):
            raise ValueError(f"{name}={values!r} is not numbers; a schedule's name comes first: DDPM({values!r}).")


def _from_betas(betas: Tensor) -> Tensor:
    betas = row("betas", betas, one_per="timestep")
    if bool((betas <= 0).any()) or bool((betas > 1).any()):
        raise ValueError(f"betas has values outside (0, 1]: from {betas.min():g} to {betas.max():g}.")
    return torch.cumprod(1 - betas, dim=0)


def _check_alphas(bars: Tensor) -> None:
    if bool((bars < 0).any()) or bool((bars >= 1).any()):
        raise ValueError(
            f"alphas_cumprod runs from {bars.min():g} to {bars.max():g}; values must lie in [0, 1), "
            "1 being data without noise."
        )
    if bars.numel() > 1 and not bool((bars[1:] < bars[:-1]).all()):
        at = int((bars[1:] >= bars[:-1]).nonzero()[0]) + 1
        raise ValueError(
            f"alphas_cumprod does not fall at index {at}; noise must grow with t (index 0 is the cleanest)."
        )
    if bool((bars[:-1] == 0).any()) or math.isclose(float(bars[0]), 0.0):
        raise ValueError("alphas_cumprod is 0 before the last timestep; only the last one may be pure noise.")
