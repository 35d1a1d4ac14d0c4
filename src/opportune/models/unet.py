"""The DDPM UNet, through diffusers `UNet2DModel`.

Source: Ho, Jain & Abbeel 2020, "Denoising Diffusion Probabilistic Models", appendix B.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from .base import ImageModel
from .extras import require_diffusers


class UNet(ImageModel):
    """The DDPM UNet. `widths` are the channels of each resolution, highest resolution first.

    - `attention`: one flag per entry of `widths`; by default only at the second resolution (16×16 for 32×32
      images, as in the paper). The middle block always attends.
    - `head_width`: channels per attention head; None gives the paper's single head.
    - `group_count`: groups of every GroupNorm; must divide every width.

    As in the paper the last layer of every residual branch and of the network starts at zero, so an untrained
    model predicts exactly 0.
    """

    def __init__(
        self,
        *,
        image_size: int,
        channels: int,
        out_channels: int | None = None,
        classes: int | None = None,
        condition_channels: int = 0,
        widths: Sequence[int] = (128, 256, 256, 256),
        attention: Sequence[bool] | None = None,
        blocks_per_level: int = 2,
        dropout: float = 0.0,
        head_width: int | None = None,
        group_count: int = 32,
    ) -> None:
        super().__init__(
            image_size=image_size,
            channels=channels,
            out_channels=channels if out_channels is None else out_channels,
            classes=classes,
            condition_channels=condition_channels,
        )
        _check_sizes(image_size, widths, group_count)
        flags = [level == 1 for level in range(len(widths))] if attention is None else list(attention)
        if len(flags) != len(widths):
            raise ValueError(f"attention has {len(flags)} flags for {len(widths)} widths; give one per width.")
        self.inner: nn.Module = require_diffusers().UNet2DModel(
            sample_size=image_size,
            in_channels=channels + condition_channels,
            out_channels=self.out_channels,
            block_out_channels=tuple(widths),
            down_block_types=tuple("AttnDownBlock2D" if flag else "DownBlock2D" for flag in flags),
            up_block_types=tuple("AttnUpBlock2D" if flag else "UpBlock2D" for flag in reversed(flags)),
            layers_per_block=blocks_per_level,
            dropout=dropout,
            attention_head_dim=head_width,
            norm_num_groups=group_count,
            # The remaining values are those of the paper's released model, as diffusers ships it.
            downsample_padding=0,
            flip_sin_to_cos=False,
            freq_shift=1,
            norm_eps=1e-6,
            num_class_embeds=None if classes is None else classes + 1,
        )
        _zero_last_layers(self.inner)

    def predict(self, x: Tensor, time: Tensor, labels: Tensor | None) -> Tensor:
        """Run the wrapped UNet."""
        prediction: Tensor = self.inner(x, time, class_labels=labels, return_dict=False)[0]
        return prediction


def _check_sizes(image_size: int, widths: Sequence[int], group_count: int) -> None:
    if not widths:
        raise ValueError("widths is empty; give one width per resolution, such as (32, 64, 64).")
    factor = 2 ** (len(widths) - 1)
    if image_size % factor:
        raise ValueError(
            f"image_size={image_size} does not halve {len(widths) - 1} times; with {len(widths)} widths it "
            f"must be a multiple of {factor}. Use fewer widths or resize the images."
        )
    bad = [width for width in widths if width % group_count]
    if bad:
        raise ValueError(f"widths {bad} are not multiples of group_count={group_count}; change either.")


def _zero_last_layers(model: nn.Module) -> None:
    """Start every residual branch and the output at zero (the paper's code: a scale of 1e-10)."""
    from diffusers.models.attention_processor import Attention
    from diffusers.models.resnet import ResnetBlock2D

    layers: list[nn.Module] = [model.get_submodule("conv_out")]
    for module in model.modules():
        if isinstance(module, ResnetBlock2D):
            layers.append(module.conv2)
        elif isinstance(module, Attention):
            layers.append(module.to_out[0])
    for layer in layers:
        for parameter in layer.parameters():
            nn.init.zeros_(parameter)
