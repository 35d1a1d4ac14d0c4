"""What an untrained model does, and what its parts compute."""

import math

import pytest
import torch

from opportune.models import build_model
from opportune.models.uvit import sinusoidal_embedding


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("unet", {"widths": (8, 16), "group_count": 4}),
        ("dit", {"width": 32, "depth": 2, "heads": 2}),
    ],
)
def test_untrained_unet_and_dit_predict_zero_and_can_leave_it(family, settings) -> None:
    torch.manual_seed(0)
    model = build_model(family, image_size=8, channels=1, **settings)
    x, time = torch.randn(16, 1, 8, 8), torch.rand(16) * 1000
    assert model(x, time).abs().max() == 0
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(30):
        loss = (model(x, time) - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.7 * x.square().mean()


def test_untrained_dit_blocks_are_the_identity() -> None:
    """adaLN-Zero: Peebles & Xie 2023, §3.2."""
    model = build_model("dit", image_size=8, channels=1, width=32, depth=2, heads=2, classes=3)
    tokens = torch.randn(2, 16, 32)
    for block in model.inner.transformer_blocks:
        assert torch.equal(block(tokens, timestep=torch.tensor([1.0, 9.0]), class_labels=torch.tensor([0, 3])), tokens)


def test_untrained_unet_residual_blocks_add_nothing() -> None:
    from diffusers.models.resnet import ResnetBlock2D

    model = build_model("unet", image_size=8, channels=1, widths=(8, 16), group_count=4)
    blocks = [m for m in model.modules() if isinstance(m, ResnetBlock2D) and m.conv_shortcut is None]
    assert blocks
    for block in blocks:
        x = torch.randn(2, block.in_channels, 4, 4)
        assert torch.equal(block(x, torch.randn(2, 32)), x)


def test_sinusoidal_embedding_is_the_formula() -> None:
    time = torch.tensor([0.0, 3.0, 999.0])
    expected = [
        [math.cos(t * 10_000 ** (-i / 4)) for i in range(4)] + [math.sin(t * 10_000 ** (-i / 4)) for i in range(4)]
        for t in time.tolist()
    ]
    torch.testing.assert_close(sinusoidal_embedding(time, 8), torch.tensor(expected), atol=2e-4, rtol=0)


def test_uvit_skips_join_mirrored_blocks() -> None:
    """The first block's output must reach the last block and no other (last in, first out)."""
    model = build_model("uvit", image_size=8, channels=1, width=32, depth=5, heads=2)
    outputs, skips = [], []
    for block in model.down:
        block.register_forward_hook(lambda module, args, out: outputs.append(out))
    for block in model.up:
        block.register_forward_hook(lambda module, args, out: skips.append(args[1]))
    model(torch.randn(1, 1, 8, 8), torch.zeros(1))
    assert len(skips) == 2
    assert torch.equal(skips[0], outputs[1])
    assert torch.equal(skips[1], outputs[0])


def test_uvit_puts_patches_back_where_they_came_from() -> None:
    """Cutting an image into patches and joining them again must give the image back."""
    model = build_model("uvit", image_size=6, channels=2, width=32, depth=3, heads=2, patch_size=2)
    x = torch.randn(2, 2, 6, 6)
    patches = x.unfold(2, 2, 2).unfold(3, 2, 2)  # [B, C, 3, 3, 2, 2]: rows, columns, then inside the patch
    pixels = patches.permute(0, 2, 3, 4, 5, 1).reshape(2, 9, 8)
    assert torch.equal(model._join_patches(pixels), x)
    embedded = model.embed_patches(x).flatten(2).transpose(1, 2)
    kernel = model.embed_patches.weight.permute(0, 2, 3, 1).reshape(32, 8)
    torch.testing.assert_close(embedded, pixels @ kernel.T + model.embed_patches.bias)


def test_dropout_of_the_preset_acts_in_training_only() -> None:
    model = build_model("ddpm-cifar10", image_size=8, channels=1, widths=(8, 16), group_count=4)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    x, time = torch.randn(2, 1, 8, 8), torch.zeros(2)
    assert not torch.equal(model.train()(x, time), model(x, time))
    assert torch.equal(model.eval()(x, time), model(x, time))
