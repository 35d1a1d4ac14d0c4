import numpy as np
import pytest
import torch
from sklearn.metrics.pairwise import polynomial_kernel

from opportune.evaluate import kernel_distance


def reference(x: np.ndarray, y: np.ndarray) -> float:
    """Bińkowski et al. 2018, eq. 4, with scikit-learn's kernel."""
    m, n = len(x), len(y)
    xx, yy, xy = (polynomial_kernel(a, b, degree=3, coef0=1) for a, b in ((x, x), (y, y), (x, y)))
    return float((xx.sum() - np.trace(xx)) / (m * (m - 1)) + (yy.sum() - np.trace(yy)) / (n * (n - 1)) - 2 * xy.mean())


@pytest.mark.parametrize("block_size", [1, 7, 1024])
def test_matches_scikit_learn_in_blocks_of_any_size(block_size: int) -> None:
    x, y = torch.randn(31, 9), torch.randn(23, 9) * 1.3 + 0.2
    ours = kernel_distance(x, y, block_size=block_size).value
    assert ours == pytest.approx(reference(x.double().numpy(), y.double().numpy()), rel=1e-9)


def test_matches_torchmetrics_on_one_subset_of_everything() -> None:
    from torchmetrics.image.kid import KernelInceptionDistance

    class Flat(torch.nn.Module):
        num_features = 12

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return images.flatten(1).double() / 255

    metric = KernelInceptionDistance(feature=Flat(), subsets=1, subset_size=80).set_dtype(torch.float64)
    real = torch.randint(0, 256, (80, 3, 2, 2), dtype=torch.uint8)
    fake = torch.randint(0, 200, (80, 3, 2, 2), dtype=torch.uint8)
    metric.update(real, real=True)
    metric.update(fake, real=False)
    ours = kernel_distance(Flat()(real), Flat()(fake)).value
    assert ours == pytest.approx(float(metric.compute()[0]), rel=1e-6)


def test_the_interval_is_the_jackknife_computed_by_leaving_out() -> None:
    """The shortcut through row sums must equal really leaving each example out."""
    x, y = torch.randn(12, 4), torch.randn(9, 4) + 0.5
    found = kernel_distance(x, y)

    def leave_out(a: torch.Tensor, i: int) -> np.ndarray:
        return np.delete(a.double().numpy(), i, axis=0)

    parts = [
        np.array([reference(leave_out(x, i), y.double().numpy()) for i in range(12)]),
        np.array([reference(x.double().numpy(), leave_out(y, i)) for i in range(9)]),
    ]
    variance = sum((len(p) - 1) / len(p) * ((p - p.mean()) ** 2).sum() for p in parts)
    assert found.high - found.value == pytest.approx(1.96 * variance**0.5, rel=1e-8)
    assert found.value - found.low == pytest.approx(found.high - found.value)


def test_unbiased_and_the_interval_covers() -> None:
    """Draws from two finite populations, whose true distance is a sum over all pairs."""
    generator = torch.Generator().manual_seed(0)
    populations = [torch.randn(200, 40, generator=generator).double().abs() + shift for shift in (0.0, 0.05)]

    def mean(a: torch.Tensor, b: torch.Tensor) -> float:
        return float(polynomial_kernel(a.numpy(), b.numpy(), degree=3, coef0=1).mean())

    p, q = populations
    truth = mean(p, p) + mean(q, q) - 2 * mean(p, q)
    draws = []
    for _ in range(500):
        rows = torch.randint(0, 200, (2, 50), generator=generator)
        draws.append(kernel_distance(p[rows[0]], q[rows[1]]))
    values = np.array([draw.value for draw in draws])
    standard_error = values.std() / len(values) ** 0.5
    assert abs(values.mean() - truth) < 4 * standard_error
    bias = sum(float(((x.square().mean(1) + 1) ** 3).mean()) - mean(x, x) for x in (p, q)) / 50
    assert bias > 20 * standard_error  # what the estimate with the diagonals would be off by
    assert 0.93 < np.mean([draw.low <= truth <= draw.high for draw in draws]) < 1.0
    width = np.mean([draw.high - draw.low for draw in draws]) / (2 * 1.96)
    assert 0.8 < values.std() / width < 1.1


def test_equal_distributions_come_out_on_both_sides_of_zero() -> None:
    generator = torch.Generator().manual_seed(0)
    values = [
        kernel_distance(torch.randn(40, 6, generator=generator), torch.randn(40, 6, generator=generator)).value
        for _ in range(60)
    ]
    assert min(values) < 0 < max(values)
    assert abs(np.mean(values)) < 4 * np.std(values) / 60**0.5


def test_too_few_or_different_features_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 3"):
        kernel_distance(torch.randn(2, 4), torch.randn(9, 4))
    with pytest.raises(ValueError, match=r"\[9, 5\] and \[9, 4\]"):
        kernel_distance(torch.randn(9, 5), torch.randn(9, 4))
