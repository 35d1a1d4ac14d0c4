"""U-ViT: a vision transformer with the long skip connections of a UNet.

Source: Bao et al., CVPR 2023, "All are Worth Words: A ViT Backbone for Diffusion Models". Not diffusers'
`UVit2DModel`, which is another model.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .base import ImageModel


class UViT(ImageModel):
    """U-ViT with `depth` blocks (odd: half down, one middle, half up) of width `width`.

    The time, the class where there is one, and the image patches are all tokens of one sequence. Block
    `depth − 1 − i` receives the output of block `i`, concatenated and projected, and a 3×3 convolution after
    the patches are put together ends the network (§3.1, the best variants of each choice).
    """

    def __init__(
        self,
        *,
        image_size: int,
        channels: int,
        out_channels: int | None = None,
        classes: int | None = None,
        condition_channels: int = 0,
        width: int = 512,
        depth: int = 13,
        heads: int = 8,
        patch_size: int = 2,
        mlp_ratio: float = 4.0,
    ) -> None:
        super().__init__(
            image_size=image_size,
            channels=channels,
            out_channels=channels if out_channels is None else out_channels,
            classes=classes,
            condition_channels=condition_channels,
        )
        _check_sizes(image_size=image_size, patch_size=patch_size, width=width, heads=heads, depth=depth)
        self.width, self.patch_size = width, patch_size
        self.embed_patches = nn.Conv2d(channels + condition_channels, width, patch_size, stride=patch_size)
        self.embed_labels = None if classes is None else nn.Embedding(classes + 1, width)
        self.extra_tokens = 1 if classes is None else 2
        tokens = self.extra_tokens + (image_size // patch_size) ** 2
        self.positions = nn.Parameter(torch.zeros(1, tokens, width))
        half = depth // 2
        self.down = nn.ModuleList(_Block(width, heads, mlp_ratio, skip=False) for _ in range(half))
        self.middle = _Block(width, heads, mlp_ratio, skip=False)
        self.up = nn.ModuleList(_Block(width, heads, mlp_ratio, skip=True) for _ in range(half))
        self.norm = nn.LayerNorm(width)
        self.to_pixels = nn.Linear(width, patch_size**2 * self.out_channels)
        self.final = nn.Conv2d(self.out_channels, self.out_channels, 3, padding=1)
        self._initialise()

    def predict(self, x: Tensor, time: Tensor, labels: Tensor | None) -> Tensor:
        """Tokens in, down, middle, up, pixels out."""
        tokens = self._tokens(x, time, labels)
        skips: list[Tensor] = []
        for block in self.down:
            tokens = block(tokens)
            skips.append(tokens)
        tokens = self.middle(tokens)
        for block in self.up:
            tokens = block(tokens, skips.pop())
        pixels = self.to_pixels(self.norm(tokens))[:, self.extra_tokens :]
        image: Tensor = self.final(self._join_patches(pixels))
        return image

    def _tokens(self, x: Tensor, time: Tensor, labels: Tensor | None) -> Tensor:
        patches = self.embed_patches(x).flatten(2).transpose(1, 2)
        first = [sinusoidal_embedding(time, self.width).to(patches.dtype)[:, None]]
        if self.embed_labels is not None:
            first.append(self.embed_labels(labels)[:, None].to(patches.dtype))
        return torch.cat([*first, patches], dim=1) + self.positions

    def _join_patches(self, pixels: Tensor) -> Tensor:
        side = self.image_size // self.patch_size
        batch, size = pixels.shape[0], self.patch_size
        grid = pixels.reshape(batch, side, side, size, size, self.out_channels)
        return grid.permute(0, 5, 1, 3, 2, 4).reshape(batch, self.out_channels, side * size, side * size)

    def _initialise(self) -> None:
        """Truncated normal of deviation 0.02 for tokens and linear layers, zero biases."""
        nn.init.trunc_normal_(self.positions, std=0.02)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, nn.Embedding):
                nn.init.trunc_normal_(module.weight, std=0.02)


class _Block(nn.Module):
    """Pre-norm transformer block; with `skip`, a long skip connection is first joined and projected."""

    def __init__(self, width: int, heads: int, mlp_ratio: float, *, skip: bool) -> None:
        super().__init__()
        self.heads = heads
        self.join_skip = nn.Linear(2 * width, width) if skip else None
        self.norm_attention = nn.LayerNorm(width)
        self.to_qkv = nn.Linear(width, 3 * width, bias=False)
        self.from_heads = nn.Linear(width, width)
        self.norm_mlp = nn.LayerNorm(width)
        hidden = int(width * mlp_ratio)
        self.mlp = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))

    def forward(self, tokens: Tensor, skip: Tensor | None = None) -> Tensor:
        """`tokens` and `skip` are `[B, N, width]`."""
        if self.join_skip is not None and skip is not None:
            tokens = self.join_skip(torch.cat([tokens, skip], dim=-1))
        tokens = tokens + self._attend(self.norm_attention(tokens))
        result: Tensor = tokens + self.mlp(self.norm_mlp(tokens))
        return result

    def _attend(self, tokens: Tensor) -> Tensor:
        batch, count, width = tokens.shape
        qkv = self.to_qkv(tokens).reshape(batch, count, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        attended = F.scaled_dot_product_attention(query, key, value)
        result: Tensor = self.from_heads(attended.transpose(1, 2).reshape(batch, count, width))
        return result


def sinusoidal_embedding(time: Tensor, width: int, *, longest_period: float = 10_000.0) -> Tensor:
    """Cosines and sines of `time` `[B]` at geometrically spaced frequencies; float32 `[B, width]`.

    Formula: Vaswani et al. 2017, "Attention Is All You Need", §3.5.
    """
    half = width // 2
    steps = torch.arange(half, dtype=torch.float32, device=time.device) / half
    angles = time.float()[:, None] * torch.exp(-math.log(longest_period) * steps)[None]
    return torch.cat([angles.cos(), angles.sin()], dim=-1)


def _check_sizes(*, image_size: int, patch_size: int, width: int, heads: int, depth: int) -> None:
    if image_size % patch_size:
        raise ValueError(f"image_size={image_size} is not a multiple of patch_size={patch_size}.")
    if width % (2 * heads):
        raise ValueError(f"width={width} must be an even multiple of heads={heads}.")
    if depth < 3 or depth % 2 == 0:
        raise ValueError(f"depth={depth}: give an odd number from 3 (half down, one middle, half up).")
