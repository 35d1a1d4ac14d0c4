"""The numbers of the summary, against ones worked out by hand."""

from __future__ import annotations

import pytest

from opportune.compare.summary import Table, row
from opportune.compare.tables import one_table
from opportune.report.metrics import Curve

CURVES = {
    0: Curve(steps=(0.0, 100.0, 200.0), values=(9.0, 5.0, 3.0)),
    1: Curve(steps=(0.0, 100.0, 200.0), values=(9.0, 6.0, 5.0)),
}


def test_points_are_means_with_the_sample_deviation():
    found = row("m", False, CURVES, (100, 200), None)
    assert found.at[100].mean == 5.5
    assert found.at[100].std == pytest.approx(0.5**0.5)
    assert found.at[200].by_seed == {0: 3.0, 1: 5.0}
    assert found.at[200].std == pytest.approx(2**0.5)
    assert found.equal_time is None


def test_equal_time_is_the_value_at_the_steps_the_clock_leaves():
    # 200 / 1.25 = 160 steps: 5 - 0.6 * 2 = 3.8 and 6 - 0.6 * 1 = 5.4.
    found = row("m", False, CURVES, (100, 200), 1.25)
    assert found.equal_time is not None
    assert found.equal_time.by_seed == pytest.approx({0: 3.8, 1: 5.4})
    assert found.equal_time.mean == pytest.approx(4.6)


def test_a_cost_below_one_reads_nothing_beyond_the_last_step():
    found = row("m", False, CURVES, (100, 200), 0.5)
    assert found.equal_time is not None
    assert found.equal_time.by_seed == {0: 3.0, 1: 5.0}


def test_equal_time_before_the_first_score_is_left_empty():
    scores = {0: Curve(steps=(100.0, 200.0), values=(5.0, 3.0))}
    assert row("m", False, scores, (100, 200), 2.5).equal_time is None


def test_a_point_counts_the_seeds_that_have_it():
    curves = {**CURVES, 1: Curve(steps=(0.0, 100.0), values=(9.0, 6.0))}
    found = row("m", False, curves, (100, 200), None)
    assert (found.at[200].mean, found.at[200].std) == (3.0, None)


def test_the_table_is_aligned_and_marks_the_baseline():
    rows = (row("uniform", True, CURVES, (100, 200), 1.0), row("m", False, {0: CURVES[0]}, (100, 200), 1.25))
    table = Table(
        setting="s", metric="kid", title="KID", note="", seeds=(0, 1), partial=False, points=(100, 200), rows=rows
    )
    assert one_table(table).splitlines() == [
        "| method             |  100 steps | 200 steps | equal time | cost of a step |",
        "|--------------------|-----------:|----------:|-----------:|---------------:|",
        "| uniform (baseline) | 5.5 ± 0.71 |   4 ± 1.4 |    4 ± 1.4 |           1.00 |",
        "| m                  |          5 |         3 |        3.8 |           1.25 |",
    ]
