"""The diffusion transformer, through diffusers `DiTTransformer2DModel`.

Source: Peebles & Xie 2023, "Scalable Diffusion Models with Transformers" (adaLN-Zero, without learned sigma).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .base import ImageModel
from .extras import require_diffusers


class DiT(ImageModel):
    """DiT with `depth` blocks of width `width`, `heads` heads, patches of `patch_size` pixels a side.

    diffusers gives every block its own timestep and label embedder where the paper shares one, so parameter
    counts are larger than in the paper's Table 1: 750 M against 675 M for DiT-XL/2 with 1,000 classes.
    """

    def __init__(
        self,
        *,
        image_size: int,
        channels: int,
        out_channels: int | None = None,
        classes: int | None = None,
        condition_channels: int = 0,
        width: int = 384,
        depth: int = 12,
        heads: int = 6,
        patch_size: int = 2,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(
            image_size=image_size,
            channels=channels,
            out_channels=channels if out_channels is None else out_channels,
            classes=classes,
            condition_channels=condition_channels,
        )
        if width % heads:
            raise ValueError(f"width={width} is not a multiple of heads={heads}.")
        if image_size % patch_size:
            raise ValueError(f"image_size={image_size} is not a multiple of patch_size={patch_size}.")
        self.inner: nn.Module = require_diffusers().DiTTransformer2DModel(
            num_attention_heads=heads,
            attention_head_dim=width // heads,
            in_channels=channels + condition_channels,
            out_channels=self.out_channels,
            num_layers=depth,
            dropout=dropout,
            sample_size=image_size,
            patch_size=patch_size,
            # Its table has one more row than this, the null class: the only row used without classes.
            num_embeds_ada_norm=1 if classes is None else classes,
        )
        _stop_hidden_label_dropping(self.inner)
        _initialise(self.inner)

    def predict(self, x: Tensor, time: Tensor, labels: Tensor | None) -> Tensor:
        """Run the wrapped transformer; without classes every example carries the null class."""
        if labels is None:
            labels = torch.ones(x.shape[0], dtype=torch.int64, device=x.device)
        prediction: Tensor = self.inner(x, timestep=time, class_labels=labels, return_dict=False)[0]
        return prediction


def _blocks(model: Any) -> list[Any]:
    return list(model.transformer_blocks)


def _stop_hidden_label_dropping(model: nn.Module) -> None:
    """Set diffusers' own label dropping to zero.

    It draws from the global random stream inside the forward pass, and each block on its own, so one example
    would be conditioned in some blocks and not in others. Labels are dropped once, outside, by `drop_labels`.
    """
    for block in _blocks(model):
        block.norm1.emb.class_embedder.dropout_prob = 0.0


def _initialise(model: Any) -> None:
    """The paper's start: every block the identity, the output zero. diffusers leaves PyTorch's defaults."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    patches = model.pos_embed.proj
    nn.init.xavier_uniform_(patches.weight.view(patches.weight.shape[0], -1))
    nn.init.zeros_(patches.bias)
    for block in _blocks(model):
        embedders = block.norm1.emb
        nn.init.normal_(embedders.class_embedder.embedding_table.weight, std=0.02)
        nn.init.normal_(embedders.timestep_embedder.linear_1.weight, std=0.02)
        nn.init.normal_(embedders.timestep_embedder.linear_2.weight, std=0.02)
        _zero(block.norm1.linear)
    _zero(model.proj_out_1)
    _zero(model.proj_out_2)


def _zero(layer: nn.Module) -> None:
    for parameter in layer.parameters():
        nn.init.zeros_(parameter)
