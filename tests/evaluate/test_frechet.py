import numpy as np
import pytest
import scipy.linalg
import torch

from opportune.evaluate import Moments, frechet_distance


def reference(a: np.ndarray, b: np.ndarray) -> float:
    """The formula as published, with SciPy's general matrix square root."""
    gap = a.mean(0) - b.mean(0)
    cov_a, cov_b = np.cov(a, rowvar=False), np.cov(b, rowvar=False)
    root = scipy.linalg.sqrtm(cov_a @ cov_b)
    return float(gap @ gap + np.trace(cov_a + cov_b - 2 * np.real(root)))


def features(n: int, d: int, seed: int, shift: float = 0.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    mixing = torch.randn(d, d, generator=generator, dtype=torch.float64)
    return torch.randn(n, d, generator=generator, dtype=torch.float64) @ mixing + shift


@pytest.mark.parametrize(("n", "d"), [(500, 8), (400, 64)])
def test_matches_scipy(n: int, d: int) -> None:
    a, b = features(n, d, 1), features(n + 50, d, 2, shift=0.5)
    assert frechet_distance(Moments.of(a), Moments.of(b)) == pytest.approx(reference(a.numpy(), b.numpy()), rel=1e-8)


def test_fewer_images_than_features_needs_no_correction() -> None:
    """Singular covariances: padding with constant features and turning must change nothing."""
    a, b = features(30, 6, 1), features(40, 6, 2)
    basis = torch.linalg.qr(torch.randn(50, 50, dtype=torch.float64, generator=torch.Generator().manual_seed(3)))[0]
    wide = [torch.cat([f, torch.ones(len(f), 44, dtype=torch.float64)], dim=1) @ basis for f in (a, b)]
    exact = reference(a.numpy(), b.numpy())
    assert frechet_distance(Moments.of(wide[0]), Moments.of(wide[1])) == pytest.approx(exact, rel=1e-5)


def test_known_value_of_two_normals_on_a_line() -> None:
    """|0 − 3|² + (2 − 5)² for standard deviations 2 and 5."""
    unit = torch.tensor([[-1.0], [1.0]]) / 2**0.5  # unbiased standard deviation 1
    assert frechet_distance(Moments.of(2 * unit), Moments.of(5 * unit + 3)) == pytest.approx(18.0)


def test_zero_for_equal_sets_and_symmetric() -> None:
    a, b = Moments.of(features(100, 16, 1)), Moments.of(features(100, 16, 2))
    assert frechet_distance(a, a) == pytest.approx(0.0, abs=1e-6)
    assert frechet_distance(a, b) == pytest.approx(frechet_distance(b, a), rel=1e-9)


def test_matches_torchmetrics_with_our_features() -> None:
    from torchmetrics.image.fid import FrechetInceptionDistance

    class Flat(torch.nn.Module):
        num_features = 12

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return images.flatten(1).double() / 255

    metric = FrechetInceptionDistance(feature=Flat(), input_img_size=(3, 2, 2)).set_dtype(torch.float64)
    real = torch.randint(0, 256, (300, 3, 2, 2), dtype=torch.uint8)
    fake = torch.randint(0, 128, (300, 3, 2, 2), dtype=torch.uint8)
    metric.update(real, real=True)
    metric.update(fake, real=False)
    ours = frechet_distance(Moments.of(Flat()(real)), Moments.of(Flat()(fake)))
    assert ours == pytest.approx(float(metric.compute()), rel=1e-6)


def test_moments_of_parts_merge_to_the_moments_of_all() -> None:
    """Unequal parts with far-apart means, and float32 input far from zero."""
    data = features(101, 5, 1).float() + 1000.0
    data[70:] += 50
    parts = [Moments.of(data[:1]), Moments.of(data[1:70]), Moments.of(data[70:])]
    for merged in (parts[0].merge(parts[1]).merge(parts[2]), parts[2].merge(parts[0].merge(parts[1]))):
        assert merged.count == 101
        np.testing.assert_allclose(merged.mean, data.double().mean(0), rtol=1e-12)
        np.testing.assert_allclose(merged.covariance, np.cov(data.double().numpy(), rowvar=False), rtol=1e-9)


def test_what_cannot_be_compared_is_refused() -> None:
    with pytest.raises(ValueError, match="5 and 6 dimensions"):
        frechet_distance(Moments.of(torch.randn(9, 5)), Moments.of(torch.randn(9, 6)))
    with pytest.raises(ValueError, match="of 5 and of 6 features"):
        Moments.of(torch.randn(9, 5)).merge(Moments.of(torch.randn(9, 6)))
    with pytest.raises(ValueError, match="at least 2 examples"):
        frechet_distance(Moments.of(torch.randn(1, 5)), Moments.of(torch.randn(9, 5)))
    with pytest.raises(ValueError, match=r"shape \[0, 5\]"):
        Moments.of(torch.randn(0, 5))
