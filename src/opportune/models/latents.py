"""Images to latents and back, through diffusers `AutoencoderKL`.

Source: Rombach et al. 2022, "High-Resolution Image Synthesis with Latent Diffusion Models", §3.1.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .extras import require_diffusers


class LatentSpace(nn.Module):
    """A frozen autoencoder with latents scaled to about unit variance, as diffusion models expect them.

    The scaled latent is `(z − shift) · scaling`, with both numbers from the autoencoder's own config (0.18215
    and none for Stable Diffusion 1). `moments` is what to cache on disk: from it each epoch can draw a fresh
    latent, which the mean alone cannot give.
    """

    def __init__(self, autoencoder: nn.Module) -> None:
        super().__init__()
        self.inner = autoencoder.eval().requires_grad_(False)
        config: Any = autoencoder.config
        self.scaling = float(config.scaling_factor)
        self.shift = float(getattr(config, "shift_factor", None) or 0.0)
        self.channels = int(config.latent_channels)
        self.downsampling = 2 ** (len(config.block_out_channels) - 1)

    @classmethod
    def load(
        cls, name_or_path: str | Path, *, subfolder: str | None = None, revision: str | None = None
    ) -> LatentSpace:
        """Load by hub name ("stabilityai/sd-vae-ft-mse") or local folder; reads safetensors only."""
        kind = require_diffusers().AutoencoderKL
        try:
            model = kind.from_pretrained(
                str(name_or_path), subfolder=subfolder, revision=revision, use_safetensors=True
            )
        except OSError as error:  # no such folder or name, no network, no safetensors
            raise ValueError(
                f"autoencoder {str(name_or_path)!r} cannot be loaded: {str(error).strip().splitlines()[0]} Give the "
                "name of a diffusers AutoencoderKL on the hub, or a folder with its config.json and safetensors."
            ) from error
        return cls(model)

    def train(self, mode: bool = True) -> LatentSpace:
        """Stays in evaluation mode whatever is asked: the autoencoder is never trained here."""
        return super().train(False)

    @torch.no_grad()
    def moments(self, images: Tensor) -> Tensor:
        """Mean and log-variance `[B, 2·channels, h, w]`, unscaled, of `images` `[B, C, H, W]` in [-1, 1]."""
        if images.ndim != 4 or images.shape[-1] % self.downsampling or images.shape[-2] % self.downsampling:
            raise ValueError(
                f"images have shape {list(images.shape)}; give [B, C, H, W] with H and W multiples of "
                f"{self.downsampling}."
            )
        encoder: Any = self.inner
        parameters: Tensor = encoder.encode(images).latent_dist.parameters
        return parameters

    def from_moments(self, moments: Tensor, *, noise: Tensor | None = None) -> Tensor:
        """Scaled latents `[B, channels, h, w]` from `moments`.

        With `noise` `[B, channels, h, w]`, standard normal, a draw from the encoder's distribution (what
        latent diffusion models train on); without it the distribution's mean, also its mode.
        """
        mean, log_variance = moments.chunk(2, dim=1)
        if noise is not None:
            # The bounds of the autoencoder's own distribution class.
            mean = mean + torch.exp(0.5 * log_variance.clamp(-30.0, 20.0)) * noise
        return (mean - self.shift) * self.scaling

    def encode(self, images: Tensor, *, noise: Tensor | None = None) -> Tensor:
        """Scaled latents of `images`: `from_moments(moments(images), noise=noise)`."""
        return self.from_moments(self.moments(images), noise=noise)

    @torch.no_grad()
    def decode(self, latents: Tensor) -> Tensor:
        """Images `[B, C, H, W]`, about [-1, 1], of scaled `latents` `[B, channels, h, w]`."""
        decoder: Any = self.inner
        images: Tensor = decoder.decode(latents / self.scaling + self.shift).sample
        return images
