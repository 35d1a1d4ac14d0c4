"""From a network's output to estimates of the image and the noise, with the image kept in its range."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from ..checks import number
from ..processes import DDPM, Process
from ..processes.base import expand

Network = Callable[..., Tensor]


class Denoiser:
    """Estimates of x0 and eps at any noise level.

    Args:
        model: called as ``model(x, time, **conditions)``; its output has the shape of ``x``.
        process: the one the model was trained with.
        clip: estimated images are clipped to [-clip, clip], and the noise follows from the clipped image. None is
            no clipping: latents, or data of another range. An eps-prediction is divided by alpha, on a cosine
            schedule 0.00005 at the noisiest timestep: there an error of 0.001 becomes one of 20 without clipping.
        dtype: what the network is given.
    """

    def __init__(self, model: Network, process: Process, *, clip: float | None, dtype: torch.dtype) -> None:
        if clip is not None:
            number("clip", clip, low=0, open_low=True)
        if isinstance(process, DDPM) and process.prediction == "eps" and float(process.alphas_cumprod[-1]) == 0:
            raise ValueError(
                "prediction='eps' says nothing of the image at the last timestep of a zero-terminal-SNR schedule; "
                "train with prediction='v' or 'x0', or without zero_terminal_snr."
            )
        self.model = model
        self.process = process
        self.clip = clip
        self.dtype = dtype

    def __call__(self, x: Tensor, t: Tensor, **conditions: Tensor) -> tuple[Tensor, Tensor]:
        """``(x0, eps)``, both ``[B, ...]`` in the dtype of ``x`` ``[B, ...]``, at own time ``t`` ``[B]``."""
        time = self.process.network_time(t)
        time = time.to(x.dtype) if time.is_floating_point() else time
        output = self.model(self.process.network_input(x, t).to(self.dtype), time, **conditions)
        if output.shape != x.shape:
            raise ValueError(
                f"model returned shape {list(output.shape)} for x of shape {list(x.shape)}; it must be the same "
                "(models that also predict a variance are not supported)."
            )
        x0, eps = self.process.split(output.to(x.dtype), x, t)
        if self.clip is None:
            return x0, eps
        x0 = x0.clamp(-self.clip, self.clip)
        alpha, sigma = (expand(c, x) for c in self.process.coefficients(t))
        return x0, (x - alpha * x0) / sigma


@contextmanager
def evaluating(model: Network) -> Iterator[None]:
    """The model in evaluation mode, and every part of it back in its own mode afterwards."""
    parts = list(model.modules()) if isinstance(model, nn.Module) else []
    before = [part.training for part in parts]
    if isinstance(model, nn.Module):
        model.eval()
    try:
        yield
    finally:
        for part, was in zip(parts, before, strict=True):
            part.training = was


def home(
    model: Network, device: torch.device | str | None, dtype: torch.dtype | None
) -> tuple[torch.device, torch.dtype]:
    """Where and in what precision the model lives, unless given; CPU and float32 for one without parameters."""
    first = next(model.parameters(), None) if isinstance(model, nn.Module) else None
    own_device = first.device if first is not None else torch.device("cpu")
    own_dtype = first.dtype if first is not None and first.is_floating_point() else torch.float32
    return torch.device(device) if device is not None else own_device, dtype if dtype is not None else own_dtype
