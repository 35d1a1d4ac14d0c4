import json
from dataclasses import replace

import pytest
import torch

from opportune.evaluate import (
    Moments,
    Scores,
    evaluate_images,
    extract,
    feature_extractor,
    frechet_distance,
    kernel_distance,
    precision_recall,
    score_features,
)


def pictures(n: int, seed: int, *, brightness: float = 0.0) -> torch.Tensor:
    """Smooth random 8×8 pictures, uint8."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.randn(n, 3, 2, 2, generator=generator) * 50 + 128 + brightness
    smooth = torch.nn.functional.interpolate(coarse, size=(8, 8), mode="bilinear")
    return smooth.clamp(0, 255).to(torch.uint8)


def means(images: torch.Tensor) -> torch.Tensor:
    return images.float().mean(dim=(2, 3)) / 64


def test_every_metric_is_what_its_own_function_gives_and_the_floor_uses_other_real_images() -> None:
    extractor = feature_extractor(means)
    generated, real = extract(extractor, pictures(40, 1, brightness=20)), extract(extractor, pictures(100, 2))
    scores = score_features(generated, real, extractor=extractor)
    reference = Moments.of(real[:40])
    assert scores.frechet == frechet_distance(Moments.of(generated), reference)
    assert scores.frechet_floor == frechet_distance(Moments.of(real[40:80]), reference)
    kernel = kernel_distance(generated, real[:40])
    assert (scores.kid, scores.kid_low, scores.kid_high) == (kernel.value, kernel.low, kernel.high)
    shares = precision_recall(generated, real[:40])
    assert (scores.precision, scores.recall) == (shares.precision, shares.recall)
    assert (scores.n_generated, scores.n_real) == (40, 40)


def test_a_larger_reference_is_used_where_asked_for() -> None:
    extractor = feature_extractor(means)
    generated, real = torch.randn(20, 3), torch.randn(75, 3)
    scores = score_features(generated, real, extractor=extractor, reference_count=50, metrics=["frechet"])
    assert scores.n_real == 50
    assert scores.frechet == frechet_distance(Moments.of(generated), Moments.of(real[:50]))
    assert scores.frechet_floor == frechet_distance(Moments.of(real[50:70]), Moments.of(real[:50]))
    assert scores.kid is None
    assert scores.precision is None


def test_no_floor_without_enough_other_real_images() -> None:
    scores = score_features(torch.randn(20, 3), torch.randn(39, 3), extractor=feature_extractor(means))
    assert scores.frechet_floor is None
    assert "no floor" in scores.describe()
    with pytest.raises(ValueError, match="20 real images are needed as reference and 19 were given"):
        score_features(torch.randn(20, 3), torch.randn(19, 3), extractor=feature_extractor(means))
    with pytest.raises(ValueError, match="too few"):
        score_features(torch.randn(3, 3), torch.randn(19, 3), extractor=feature_extractor(means))


def test_real_images_score_at_the_floor_and_others_above_it() -> None:
    real = pictures(600, 1)
    same = evaluate_images(pictures(200, 2), real, features=means)
    other = evaluate_images(pictures(200, 3, brightness=40), real, features=means)
    assert max(same.frechet, same.frechet_floor, other.frechet_floor) < 0.05
    assert other.frechet > 0.3
    assert same.kid_low < 0 < same.kid_high
    assert other.kid_low > 0


def test_a_sorted_tensor_of_real_images_is_mixed_first() -> None:
    """Dark images first: taking the first half as they come would compare dark with bright."""
    real = torch.cat([pictures(150, 1, brightness=-60), pictures(150, 2, brightness=60)])
    scores = evaluate_images(pictures(150, 3), real, features=means, metrics=["frechet"])
    unmixed = evaluate_images(pictures(150, 3), [real], features=means, metrics=["frechet"])
    assert scores.frechet_floor < 0.2
    assert unmixed.frechet_floor > 2
    again = evaluate_images(pictures(150, 3), real, features=means, metrics=["frechet"])
    assert again == scores


def test_scores_at_different_n_features_or_data_are_not_compared() -> None:
    base = Scores(
        features="pixels",
        label="pixels",
        is_fid=False,
        n_generated=10,
        n_real=10,
        real="a",
        frechet=2.0,
        kid=0.5,
    )
    better = replace(base, frechet=1.5, kid=None, precision=0.5)
    assert base.compare(better) == {"frechet": 0.5}
    for change, message in (
        ({"n_generated": 20}, "n_generated=10 and n_generated=20"),
        ({"n_real": 20}, "n_real=10 and n_real=20"),
        ({"features": "inception"}, "different scales"),
        ({"real": "b"}, "different real images"),
    ):
        with pytest.raises(ValueError, match=message):
            base.compare(replace(better, **change))
    assert base.compare(replace(better, real=None)) == {"frechet": 0.5}


def test_json_keeps_every_field_and_refuses_unknown_ones() -> None:
    scores = evaluate_images(pictures(20, 1), pictures(50, 2), features="pixels")
    assert Scores.from_json(scores.to_json()) == scores
    values = json.loads(scores.to_json())
    with pytest.raises(ValueError, match=r"\['fid'\]"):
        Scores.from_json(json.dumps({**values, "fid": 3.0}))


def test_only_inception_is_called_fid_and_n_is_always_said() -> None:
    scores = evaluate_images(pictures(20, 1), pictures(50, 2), features="efficientnet-lite0-64")
    text = scores.describe()
    assert "FID" not in text
    assert all("EfficientNet-Lite0 at 64 px, n=20" in line for line in text.splitlines())
    assert len(text.splitlines()) == 3
    assert "real against real" in text
    inception = replace(scores, label="Inception", features="inception", is_fid=True, n_real=50_000)
    assert inception.describe().startswith("FID, n=20 against 50,000: ")


def test_cached_real_features_are_used_without_reading_the_images(tmp_path) -> None:
    generated, real = pictures(20, 1), pictures(60, 2)
    settings = {"features": means, "cache_folder": tmp_path, "real_key": "mine"}
    first = evaluate_images(generated, [real], **settings)

    def unreadable():
        raise AssertionError("the images were read although their features are cached")
        yield

    assert evaluate_images(generated, unreadable(), **settings) == first
    assert {path.suffix for path in tmp_path.iterdir()} == {".safetensors", ".json"}
    for other in ({"real_key": "yours"}, {"reference_count": 30}, {"features": "pixels"}):
        with pytest.raises(AssertionError, match="were read"):
            evaluate_images(generated, unreadable(), **{**settings, **other})


def test_a_tensor_of_real_images_is_recognised_by_its_pixels(tmp_path) -> None:
    generated, real = pictures(20, 1), pictures(60, 2)
    calls = []

    def counted(images: torch.Tensor) -> torch.Tensor:
        calls.append(len(images))
        return means(images)

    def score(real: torch.Tensor) -> Scores:
        calls.clear()
        return evaluate_images(generated, real, features=counted, cache_folder=tmp_path)

    first = score(real)
    assert sum(calls) == 60  # 20 generated, 20 reference, 20 for the floor
    assert score(real.clone()) == first
    assert sum(calls) == 20
    changed = real.clone()
    changed[:, 0, 0, 0] ^= 1
    assert score(changed).real != first.real
    assert sum(calls) == 60
    with pytest.raises(ValueError, match="real_key"):
        evaluate_images(generated, [real], features=counted, cache_folder=tmp_path)


@pytest.mark.parametrize("damage", ["flip", "truncate", "missing", "note"])
def test_a_damaged_cache_is_noticed_and_rebuilt(tmp_path, damage: str) -> None:
    generated, real = pictures(20, 1), pictures(60, 2)
    first = evaluate_images(generated, real, features=means, cache_folder=tmp_path)
    (table,) = tmp_path.glob("*.safetensors")
    content = bytearray(table.read_bytes())
    if damage == "flip":
        content[-3] ^= 64
        table.write_bytes(content)
    elif damage == "truncate":
        table.write_bytes(content[:-8])
    elif damage == "missing":
        table.unlink()
    else:
        (note,) = tmp_path.glob("*.json")
        note.write_text("{")
    with pytest.warns(UserWarning, match="computed again"):
        assert evaluate_images(generated, real, features=means, cache_folder=tmp_path) == first
    assert evaluate_images(generated, real, features=means, cache_folder=tmp_path) == first


def test_unknown_metrics_are_refused() -> None:
    with pytest.raises(ValueError, match=r"metrics='fid' is unknown"):
        evaluate_images(pictures(20, 1), pictures(60, 2), features="pixels", metrics=["fid"])
