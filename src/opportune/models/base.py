"""The one calling convention every image model here follows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class ImageModel(nn.Module, ABC):
    """A denoiser called as `model(x, time, labels=None, condition=None) -> [B, out_channels, H, W]`.

    - `x` `[B, channels, H, W]`: the noisy image (or latent).
    - `time` `[B]`: what the process tells its network, `process.network_time(t)`: the index 0 (clean) to
      T − 1 (noise) for a DDPM. It goes through a sinusoidal embedding with periods from 2π to 2π · 10,000.
    - `labels` `[B]`, int64: a class in [0, classes), or `null_label` (= `classes`) for "no class". Left out,
      every example gets the null class. The model never drops labels by itself: see `drop_labels`.
    - `condition` `[B, condition_channels, h, w]`: an image to condition on, such as the small picture of a
      super-resolution model. Resized (bicubic) to `H, W` and joined to `x` along the channels (Saharia et al.
      2021, "Image Super-Resolution via Iterative Refinement").

    `inner` is the wrapped diffusers model where there is one, else None: exporting a pipeline needs it.
    """

    def __init__(
        self,
        *,
        image_size: int,
        channels: int,
        out_channels: int,
        classes: int | None,
        condition_channels: int,
    ) -> None:
        super().__init__()
        self.image_size = image_size
        self.channels = channels
        self.out_channels = out_channels
        self.classes = classes
        self.condition_channels = condition_channels
        self.inner: nn.Module | None = None

    @property
    def null_label(self) -> int | None:
        """The label that means "no class"; None for a model without classes."""
        return self.classes

    def forward(self, x: Tensor, time: Tensor, labels: Tensor | None = None, condition: Tensor | None = None) -> Tensor:
        """Predict for noisy `x` `[B, channels, H, W]` at `time` `[B]` -> `[B, out_channels, H, W]`."""
        self._check(x, time)
        labels = self._complete_labels(x, labels)
        return self.predict(self._join_condition(x, condition), time, labels)

    @abstractmethod
    def predict(self, x: Tensor, time: Tensor, labels: Tensor | None) -> Tensor:
        """Predict from `x` with the condition already joined; `labels` is None exactly when `classes` is."""

    def _check(self, x: Tensor, time: Tensor) -> None:
        expected = (self.channels, self.image_size, self.image_size)
        if x.ndim != 4 or tuple(x.shape[1:]) != expected:
            wanted = ", ".join(str(size) for size in expected)
            raise ValueError(f"x has shape {list(x.shape)}; this model takes [B, {wanted}].")
        if tuple(time.shape) != (x.shape[0],):
            raise ValueError(
                f"time has shape {list(time.shape)}; give one value per example, [{x.shape[0]}] "
                f"(time.expand({x.shape[0]}) repeats a single value)."
            )

    def _complete_labels(self, x: Tensor, labels: Tensor | None) -> Tensor | None:
        if self.classes is None:
            if labels is not None:
                raise ValueError("labels were given to a model without classes; build it with classes=<count>.")
            return None
        if labels is None:
            return torch.full((x.shape[0],), self.classes, dtype=torch.int64, device=x.device)
        if tuple(labels.shape) != (x.shape[0],):
            raise ValueError(f"labels have shape {list(labels.shape)}; give one per example, [{x.shape[0]}].")
        return labels

    def _join_condition(self, x: Tensor, condition: Tensor | None) -> Tensor:
        if self.condition_channels == 0:
            if condition is not None:
                raise ValueError("condition was given to a model built with condition_channels=0.")
            return x
        if condition is None:
            raise ValueError(f"condition is missing; this model takes [B, {self.condition_channels}, h, w].")
        if condition.ndim != 4 or condition.shape[:2] != (x.shape[0], self.condition_channels):
            raise ValueError(
                f"condition has shape {list(condition.shape)}; this model takes "
                f"[{x.shape[0]}, {self.condition_channels}, h, w]."
            )
        return torch.cat([x, enlarged(condition, x.shape[-2:]).to(x.dtype)], dim=1)


def enlarged(condition: Tensor, size: Sequence[int]) -> Tensor:
    """`condition` `[B, C, h, w]` as the model sees it, `[B, C, H, W]` for `size` `(H, W)`: bicubic, or as it is."""
    if tuple(condition.shape[-2:]) == tuple(size):
        return condition
    return F.interpolate(condition, size=tuple(size), mode="bicubic", align_corners=False)
