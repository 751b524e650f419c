"""Error statistics against numbers worked out by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traincast.calibration.validate import mean_ranks, spearman, statistics

NAN = float("nan")


def test_figures_by_hand():
    # Errors -10, 0, +20, +50 %: sorted absolute 0, .1, .2, .5.
    found = statistics(np.array([9.0, 20.0, 36.0, 60.0, NAN]), np.array([10.0, 20.0, 30.0, 40.0, 50.0]), 10)
    assert (found.rows, found.evaluated, found.coverage) == (10, 4, 0.4)
    assert found.median_abs_error == pytest.approx(0.15)
    assert found.p90_abs_error == pytest.approx(0.2 + 0.7 * 0.3)
    assert found.p95_abs_error == pytest.approx(0.2 + 0.85 * 0.3)
    assert found.bias == pytest.approx(0.1)
    assert found.spearman == 1.0
    assert found.interval_coverage is None


def test_nothing_to_count_is_none_and_not_zero():
    nothing = statistics(np.array([NAN]), np.array([1.0]))
    assert (nothing.rows, nothing.evaluated, nothing.coverage) == (1, 0, 0.0)
    assert nothing.median_abs_error is None
    assert nothing.bias is None
    assert nothing.spearman is None
    assert statistics(np.array([]), np.array([])).coverage is None


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ([1, 2, 3], [10, 20, 30], 1.0),
        ([1, 2, 3], [3, 2, 1], -1.0),
        # Ranks 1, 2.5, 2.5, 4 against 1, 2, 3, 4: 4.5 / sqrt(4.5 * 5).
        ([1, 2, 2, 3], [1, 2, 3, 4], 4.5 / np.sqrt(22.5)),
        # Ranks 1.5, 1.5, 3 against 2, 1, 3: 1.5 / sqrt(1.5 * 2).
        ([5, 5, 6], [2, 1, 3], 1.5 / np.sqrt(3)),
        ([1, 1, 1], [1, 2, 3], None),
        ([1], [1], None),
    ],
)
def test_spearman_by_hand(a, b, expected):
    found = spearman(np.array(a, float), np.array(b, float))
    assert found is None if expected is None else found == pytest.approx(expected)


def test_equal_values_share_their_ranks():
    assert mean_ranks(np.array([3.0, 1.0, 3.0, 2.0, 3.0])).tolist() == [4, 1, 4, 2, 4]


@given(st.lists(st.integers(0, 5), min_size=2, max_size=30), st.randoms())
def test_spearman_minds_order_only(values, random):
    a = np.array(values, float)
    b = np.array([random.random() for _ in values])
    found = spearman(a, b)
    assert found == spearman(np.exp(a), b) or found == pytest.approx(spearman(np.exp(a), b))
    if found is not None:
        assert -1 <= found <= 1
        assert spearman(b, a) == pytest.approx(found)
