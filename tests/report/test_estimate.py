"""Means over seeds with their intervals, and first crossings of curves."""

import math

import pytest
import torch
from scipy.stats import t as students_t

from opportune.report.estimate import estimate, first_at_or_below, interpolated, t_quantile


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 7, 10, 29, 200])
def test_the_quantile_is_that_of_students_t(freedom):
    assert t_quantile(freedom) == pytest.approx(students_t.ppf(0.975, freedom), rel=1e-9)


def test_the_interval_holds_the_truth_in_95_of_100_experiments():
    draws = torch.randn(2000, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 5
    found = [estimate(row) for row in draws.tolist()]
    held = sum(each.low <= 5 <= each.high for each in found) / len(found)
    assert 0.95 - 3 * math.sqrt(0.95 * 0.05 / 2000) < held < 0.95 + 3 * math.sqrt(0.95 * 0.05 / 2000)


def test_one_value_has_no_interval_and_none_no_mean():
    assert estimate([3.0]).mean == 3.0 and estimate([3.0]).low is None and estimate([3.0]).high is None
    assert estimate([]) is None


@pytest.mark.parametrize(
    ("values", "target", "found"),
    [
        ([4, 3, 2, 1], 1.5, 25.0),
        ([4, 3, 2, 1], 1, 30.0),
        ([4, 3, 2, 1], 0.5, None),
        ([4, 1, 3, 1], 2, pytest.approx(20 / 3)),  # the first time, though it went up again
        ([1, 4], 2, 0.0),
        ([4, math.nan, 2, 1], 3, 10.0),  # straight from 4 to 2
        ([math.nan] * 4, 3, None),
        ([4, 2], math.nan, None),
        ([], 1, None),
    ],
)
def test_first_at_or_below(values, target, found):
    assert first_at_or_below([10.0 * k for k in range(len(values))], [float(v) for v in values], target) == found


def test_interpolated_only_inside():
    assert interpolated([0, 10, 20], [0, 1, 3], 15) == 2
    assert interpolated([0, 10], [0, 1], 10.5) is None and interpolated([0, 10], [0, 1], -1) is None
