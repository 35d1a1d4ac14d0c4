import subprocess
import sys

import pytest
import torch
from torch import nn

from opportune.models import ImageModel, build_model, count_parameters, model_names, model_settings

SMALL = {
    "unet": {"widths": (8, 16), "group_count": 4, "blocks_per_level": 1},
    "dit": {"width": 32, "depth": 2, "heads": 2},
    "uvit": {"width": 32, "depth": 3, "heads": 2},
}


def small(family: str, *, wake: bool = True, **shape: int) -> ImageModel:
    """A tiny model; `wake` gives its zero-initialised layers numbers, so that every input can matter."""
    torch.manual_seed(0)
    model = build_model(family, **{"image_size": 8, "channels": 3, **shape}, **SMALL[family])
    if wake:
        for parameter in model.parameters():
            nn.init.normal_(parameter, std=0.1)
    return model.eval()


families = pytest.mark.parametrize("family", sorted(SMALL))


@families
def test_every_family_follows_the_calling_convention(family: str) -> None:
    model = small(family, classes=5, condition_channels=2, out_channels=4)
    x, time = torch.randn(3, 3, 8, 8), torch.tensor([0.0, 500.0, 999.0])
    labels, condition = torch.tensor([0, 4, 5]), torch.randn(3, 2, 4, 4)
    out = model(x, time, labels, condition)
    assert out.shape == (3, 4, 8, 8)
    for changed in (
        model(x + 0.1, time, labels, condition),
        model(x, time + 3.0, labels, condition),
        model(x, time, (labels + 1) % 5, condition),
        model(x, time, labels, condition + 0.1),
    ):
        assert ((changed - out).abs().amax(dim=(1, 2, 3)) > 1e-5).all()


@families
def test_an_example_does_not_see_its_neighbours(family: str) -> None:
    model = small(family, classes=5)
    x, time, labels = torch.randn(4, 3, 8, 8), torch.rand(4) * 1000, torch.tensor([0, 1, 2, 3])
    alone = torch.cat([model(x[i : i + 1], time[i : i + 1], labels[i : i + 1]) for i in range(4)])
    torch.testing.assert_close(model(x, time, labels), alone, rtol=1e-4, atol=1e-5)


@families
def test_missing_labels_mean_the_null_class(family: str) -> None:
    model = small(family, classes=5)
    x, time = torch.randn(2, 3, 8, 8), torch.tensor([10.0, 700.0])
    assert model.null_label == 5
    assert torch.equal(model(x, time), model(x, time, torch.tensor([5, 5])))
    assert not torch.allclose(model(x, time), model(x, time, torch.tensor([0, 0])))
    with pytest.raises(IndexError):  # five classes and the null class, nothing beyond
        model(x, time, torch.tensor([6, 6]))


@families
def test_training_mode_draws_nothing_and_keeps_labels(family: str) -> None:
    """diffusers' DiT drops labels inside its forward pass, in each block apart; that must be off."""
    model = small(family, classes=5).train()
    x, time, labels = torch.randn(64, 3, 8, 8), torch.rand(64) * 1000, torch.arange(64) % 5
    before = torch.get_rng_state()
    first = model(x, time, labels)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first, model(x, time, labels))


@families
def test_every_parameter_learns(family: str) -> None:
    model = small(family, classes=2, condition_channels=1).train()
    out = model(torch.randn(4, 3, 8, 8), torch.rand(4) * 1000, torch.tensor([0, 1, 2, 0]), torch.randn(4, 1, 8, 8))
    out.square().mean().backward()
    assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []


@families
def test_unconditional_models_ignore_no_argument_silently(family: str) -> None:
    model = small(family)
    x, time = torch.randn(2, 3, 8, 8), torch.zeros(2)
    assert model.null_label is None
    with pytest.raises(ValueError, match="without classes"):
        model(x, time, torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="condition_channels=0"):
        model(x, time, None, torch.randn(2, 3, 8, 8))


@families
@pytest.mark.parametrize(
    ("x", "time", "labels", "condition", "message"),
    [
        (
            (2, 1, 8, 8),
            (2,),
            (2,),
            (2, 2, 4, 4),
            r"x has shape \[2, 1, 8, 8\]; this model takes \[B, 3, 8, 8\]",
        ),
        ((2, 3, 8, 16), (2,), (2,), (2, 2, 4, 4), "x has shape"),
        ((2, 3, 8, 8), (1,), (2,), (2, 2, 4, 4), r"time has shape \[1\]"),
        ((2, 3, 8, 8), (2,), (1,), (2, 2, 4, 4), r"labels have shape \[1\]"),
        ((2, 3, 8, 8), (2,), (2,), None, "condition is missing"),
        ((2, 3, 8, 8), (2,), (2,), (2, 3, 4, 4), r"condition has shape \[2, 3, 4, 4\]"),
        ((2, 3, 8, 8), (2,), (2,), (1, 2, 4, 4), "condition has shape"),
    ],
)
def test_wrong_shapes_are_named(family, x, time, labels, condition, message) -> None:
    model = small(family, classes=5, condition_channels=2)
    with pytest.raises(ValueError, match=message):
        model(
            torch.zeros(x),
            torch.zeros(time),
            torch.zeros(labels, dtype=torch.int64),
            None if condition is None else torch.zeros(condition),
        )


def test_a_small_condition_is_upsampled_in_place() -> None:
    """A left-right gradient in the low-resolution picture must stay one after upsampling, next to x."""
    model = small("unet", condition_channels=1)
    seen = []
    model.inner.conv_in.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    ramp = torch.linspace(-1, 1, 4).expand(1, 1, 4, 4)
    x = torch.randn(1, 3, 8, 8)
    model(x, torch.zeros(1), None, ramp)
    assert torch.equal(seen[0][:, :3], x)
    joined = seen[0][0, 3]
    assert joined.shape == (8, 8)
    assert (joined.diff(dim=1) > 0).all()
    torch.testing.assert_close(joined.diff(dim=0), torch.zeros(7, 8), atol=1e-6, rtol=0)


def test_published_sizes() -> None:
    """Ho et al. 2020, appendix B: 35.7 M and 114 M. Bao et al. 2023, Table 1: 44, 131, 287 and 501 M."""
    with torch.device("meta"):
        assert count_parameters(build_model("ddpm-cifar10", image_size=32, channels=3)) == 35_746_307
        assert count_parameters(build_model("ddpm-256", image_size=256, channels=3)) == pytest.approx(114e6, rel=0.005)
        for name, published in (("s-2", 44e6), ("m-4", 131e6), ("l-2", 287e6), ("h-2", 501e6)):
            model = build_model(f"uvit-{name}", image_size=32, channels=4, classes=1000)
            assert count_parameters(model) == pytest.approx(published, rel=0.02)


def test_dit_size_is_the_papers_plus_the_unshared_embedders() -> None:
    """Peebles & Xie 2023, Table 4: 675 M for XL/2, whose output has the 8 channels of the learned sigma."""
    with torch.device("meta"):
        model = build_model("DiT-XL/2", image_size=32, channels=4, out_channels=8, classes=1000)
    embedders = [block.norm1.emb for block in model.inner.transformer_blocks]
    unshared = sum(count_parameters(embedder) for embedder in embedders[1:])
    assert count_parameters(model) - unshared == pytest.approx(675e6, rel=0.002)


@pytest.mark.parametrize("name", ["unet-1m", "unet-4m", "dit-2m", "uvit-2m"])
def test_small_presets_have_the_size_they_are_named_after(name: str) -> None:
    with torch.device("meta"):
        size = count_parameters(build_model(name, image_size=16, channels=1))
    assert size == pytest.approx(float(name.split("-")[1].rstrip("m")) * 1e6, rel=0.15)


def test_shared_and_frozen_parameters_are_counted_right() -> None:
    layer = nn.Linear(3, 2)
    frozen = nn.Linear(5, 1).requires_grad_(False)
    assert count_parameters(nn.ModuleList([layer, layer, frozen])) == 8


def test_names_and_settings_are_checked() -> None:
    shape = {"image_size": 8, "channels": 1}
    with pytest.raises(ValueError, match=r"model='unet-1n' is unknown; did you mean 'unet-1m'\?.*dit-xl-2"):
        build_model("unet-1n", **shape)
    with pytest.raises(TypeError, match=r"dit has no setting 'widht'; did you mean 'width'\?.*patch_size"):
        build_model("dit", **shape, widht=32)
    with pytest.raises(ValueError, match="channels=0"):
        build_model("unet-1m", image_size=8, channels=0)
    with pytest.raises(ValueError, match="classes=0"):
        build_model("unet-1m", **shape, classes=0)


@pytest.mark.parametrize(
    ("family", "settings", "message"),
    [
        ("unet", {"widths": (8, 16, 16, 16, 16), "group_count": 4}, "must be a multiple of 16"),
        ("unet", {"widths": (8, 10), "group_count": 4}, r"widths \[10\]"),
        ("unet", {"widths": ()}, "widths is empty"),
        ("unet", {"widths": (8, 16), "group_count": 4, "attention": (True,)}, "1 flags for 2 widths"),
        ("dit", {"width": 30, "heads": 4}, "width=30"),
        ("dit", {"patch_size": 3}, "patch_size=3"),
        ("uvit", {"depth": 4}, "depth=4"),
        ("uvit", {"width": 36, "heads": 4}, "width=36"),
        ("uvit", {"patch_size": 3}, "patch_size=3"),
    ],
)
def test_impossible_sizes_are_refused(family, settings, message) -> None:
    with pytest.raises(ValueError, match=message):
        build_model(family, image_size=8, channels=1, **settings)


def test_settings_of_a_preset_are_shown_and_can_be_changed() -> None:
    assert model_settings("ddpm-cifar10")["dropout"] == 0.1
    assert model_settings("unet")["dropout"] == 0.0
    assert "image_size" not in model_settings("dit-s-2")
    model = build_model("ddpm-cifar10", image_size=8, channels=1, widths=(8, 16), group_count=4, dropout=0.25)
    assert {m.p for m in model.modules() if isinstance(m, nn.Dropout)} >= {0.25}
    assert {"unet", "dit", "uvit", "dit-s-2", "uvit-s-2"} <= set(model_names())


def test_diffusers_is_not_imported_before_a_model_is_built() -> None:
    code = "import sys, opportune.models; sys.exit('diffusers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_missing_diffusers_is_one_line_naming_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "diffusers", None)  # the documented way to make an import fail
    with pytest.raises(ImportError, match=r'pip install "opportune\[train\]"') as error:
        build_model("unet-1m", image_size=8, channels=1)
    assert "\n" not in str(error.value)
