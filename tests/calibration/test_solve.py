"""The fit of factors: known factors come back, priors hold where nothing speaks, one gross error does no harm."""

import numpy as np
import pytest

from traincast.calibration.run_factors import NOISE, solve


def synthetic(rows=200, factors=3, seed=7, noise=0.0):
    rng = np.random.default_rng(seed)
    slope_IK = rng.dirichlet(np.ones(factors + 1), rows)[:, :factors]
    truth_K = rng.uniform(-0.3, 0.3, factors)
    return slope_IK, truth_K, slope_IK @ truth_K + rng.normal(0, noise, rows)


def fitted(slope_IK, residual_I, *, prior=1.0, weight=None, current=None, mean=None):
    count = slope_IK.shape[1]
    zeros = np.zeros(count)
    return solve(
        slope_IK,
        residual_I,
        np.ones(len(slope_IK)) if weight is None else np.asarray(weight, float),
        np.broadcast_to(np.asarray(prior, float), count).copy(),
        zeros if current is None else current,
        zeros if mean is None else mean,
    )


def test_known_factors_come_back():
    slope_IK, truth_K, residual_I = synthetic()
    assert fitted(slope_IK, residual_I).log_factor_K == pytest.approx(truth_K, abs=2e-3)


def test_known_factors_come_back_within_their_deviation_from_noisy_runs():
    errors = []
    for seed in range(20):
        slope_IK, truth_K, residual_I = synthetic(seed=seed, noise=NOISE)
        found = fitted(slope_IK, residual_I)
        errors.append((found.log_factor_K - truth_K) / found.deviation_K)
    # A normal distribution: root mean square 1, two thirds within one deviation.
    assert np.sqrt(np.mean(np.square(errors))) == pytest.approx(1.0, rel=0.35)


def test_prior_holds_where_no_run_speaks():
    slope_IK, _, residual_I = synthetic()
    silent = np.hstack([slope_IK, np.zeros((len(slope_IK), 1))])
    mean = np.array([0.0, 0.0, 0.0, np.log(1.4)])
    found = fitted(silent, residual_I, prior=[1, 1, 1, 0.2], mean=mean)
    assert found.log_factor_K[3] == pytest.approx(np.log(1.4))
    assert found.deviation_K[3] == pytest.approx(0.2)
    nothing = fitted(silent[:0], residual_I[:0], prior=0.2, mean=mean)
    assert nothing.log_factor_K == pytest.approx(mean)
    assert nothing.deviation_K == pytest.approx([0.2] * 4)


def test_rows_of_no_weight_say_nothing():
    slope_IK, truth_K, residual_I = synthetic()
    wrong = np.concatenate([residual_I, np.full(50, 5.0)])
    weight = [1.0] * len(residual_I) + [0.0] * 50
    found = fitted(np.vstack([slope_IK, slope_IK[:50]]), wrong, weight=weight)
    assert found.log_factor_K == pytest.approx(truth_K, abs=2e-3)


def test_one_run_moves_a_factor_by_its_weight_against_the_prior():
    """One row, one factor: the mean of prior and measurement, weighted with their variances."""
    prior, residual = 0.1, 0.05
    found = fitted(np.array([[1.0]]), np.array([residual]), prior=prior)
    expected = residual / NOISE**2 / (1 / NOISE**2 + 1 / prior**2)
    assert found.log_factor_K[0] == pytest.approx(expected)
    assert found.deviation_K[0] == pytest.approx((1 / NOISE**2 + 1 / prior**2) ** -0.5)


def test_a_gross_error_in_one_run_does_little():
    slope_IK, truth_K, residual_I = synthetic(noise=0.01)
    clean = fitted(slope_IK, residual_I).log_factor_K
    residual_I[13] += np.log(10)
    robust = fitted(slope_IK, residual_I).log_factor_K
    moved = np.abs(robust - clean).max()
    assert moved < 0.01
    # Least squares without Huber's turn, for comparison, is dragged along.
    dragged = np.linalg.lstsq(slope_IK, residual_I, rcond=None)[0]
    assert np.abs(dragged - clean).max() > 8 * moved
    assert truth_K == pytest.approx(robust, abs=0.02)


def test_solution_does_not_hang_on_the_factors_that_forecasts_were_made_with():
    slope_IK, truth_K, residual_I = synthetic(noise=0.01)
    current = np.array([0.1, -0.2, 0.05])
    first = fitted(slope_IK, residual_I)
    again = fitted(slope_IK, residual_I - slope_IK @ current, current=current)
    assert again.log_factor_K == pytest.approx(first.log_factor_K, abs=1e-4)
    assert truth_K == pytest.approx(first.log_factor_K, abs=0.02)


def test_more_runs_make_a_factor_surer():
    deviations = [fitted(*synthetic(rows)[::2]).deviation_K.max() for rows in (10, 100, 1000)]
    assert deviations == sorted(deviations, reverse=True)
