import numpy as np
import pytest
import torch
from sklearn.neighbors import NearestNeighbors

from opportune.evaluate import precision_recall


def reference(points: np.ndarray, members: np.ndarray, k: int) -> float:
    """Kynkäänniemi et al. 2019, eqs. 1–2, with scikit-learn's exact neighbours."""
    distances, _ = NearestNeighbors(n_neighbors=k + 1, algorithm="brute").fit(members).kneighbors(members)
    radii = distances[:, k]
    gaps = np.linalg.norm(points[:, None] - members[None], axis=-1)
    return float((gaps <= radii[None]).any(axis=1).mean())


@pytest.mark.parametrize("k", [1, 3, 5])
@pytest.mark.parametrize("block_size", [7, 1024])
def test_matches_scikit_learn(k: int, block_size: int) -> None:
    generated, real = torch.randn(60, 5) * 0.7 + 0.5, torch.randn(83, 5)
    found = precision_recall(generated, real, neighbours=k, block_size=block_size)
    a, b = generated.double().numpy(), real.double().numpy()
    assert found.precision == reference(a, b, k)
    assert found.recall == reference(b, a, k)
    assert found.precision != found.recall


def test_collapse_keeps_precision_and_loses_recall() -> None:
    real = torch.randn(300, 2)
    collapsed = real[:1] + 0.01 * torch.randn(300, 2)
    found = precision_recall(collapsed, real)
    assert found.precision > 0.95
    assert found.recall < 0.05


def test_far_from_the_origin_distances_stay_exact() -> None:
    generated, real = torch.randn(50, 4).double(), torch.randn(50, 4).double()
    near = precision_recall(generated, real)
    assert precision_recall(generated + 1e8, real + 1e8) == near


def test_what_cannot_be_measured_is_refused() -> None:
    with pytest.raises(ValueError, match="neighbours=5"):
        precision_recall(torch.randn(5, 2), torch.randn(50, 2), neighbours=5)
    with pytest.raises(ValueError, match=r"\[9, 5\] and \[9, 4\]"):
        precision_recall(torch.randn(9, 5), torch.randn(9, 4))
