"""Factors fitted to runs whose times were made with known factors; groups left out fall back to their prior."""

import numpy as np
import pytest
from msgspec.structs import replace

from fit_runs import fit_factors
from traincast.calibration.run_factors import (
    Sample,
    factors_of,
    forecast_run,
    forecast_runs,
    representatives,
    sample_of,
    solve,
)
from traincast.calibration.runs import GROUPINGS, MeasuredRun, RunGroups
from traincast.estimate.factors import Factor, FactorTable, prior_deviation
from traincast.hardware.clusters import load_cluster
from traincast.job.request import JobRequest
from traincast.model.load import load_model

LAYOUTS = (
    {"gpus": 8, "tp": 8},
    {"gpus": 16, "tp": 4},
    {"gpus": 8, "tp": 1, "zero": 3},
    {"gpus": 8, "tp": 2, "seq_length": 2048},
    {"gpus": 16, "tp": 2, "pp": 2, "seq_length": 16384},
    {"gpus": 8, "tp": 4, "micro_batch": 2},
)


def run(number, framework="nanotron-2024", measured_s=None, **layout):
    request = JobRequest(
        model=load_model("llama3-8b"),
        **({"seq_length": 4096, "global_batch": 32, "framework": framework, "vpp": 1, "recompute": "none"} | layout),
    )
    labels = dict.fromkeys(GROUPINGS, "x") | {"family": f"family {number}", "framework": framework}
    return MeasuredRun(
        id=f"run-{number}", request=request, cluster=load_cluster("h100"), measured_s=measured_s, full_layout=True,
        groups=RunGroups(**labels), cells={},
    )  # fmt: skip


def truth(**changes):
    return FactorTable.from_factors(
        Factor(level="all", name="*", cost_class=name, factor=value, deviation=0.0, rows=0)
        for name, value in changes.items()
    )


@pytest.fixture(scope="module")
def measured():
    """Runs that took as long as with kernels 15 % slower and transfers 15 % faster than the models say."""
    made = truth(**{"gemm bf16": 1.15, "transfer tp": 0.85})
    return [
        replace(each, measured_s=forecast_run(each, made).step_s)
        for each in (run(number, **layout) for number, layout in enumerate(LAYOUTS * 3))
    ]


@pytest.mark.slow
def test_fit_explains_runs_that_were_made_with_known_factors(measured):
    ratio = np.array([each.measured_s / forecast_run(each, FactorTable()).step_s for each in measured])
    assert np.abs(ratio - 1).max() > 0.03
    told = []
    table, sample = fit_factors(measured, rounds=2, progress=told.append)
    assert told == [*range(1, len(measured) + 1)] * 2
    fitted = np.array([each.measured_s / forecast_run(each, table).step_s for each in measured])
    assert np.abs(fitted - 1).max() < 0.02
    assert np.abs(np.log(fitted)).mean() < np.abs(np.log(ratio)).mean() / 6
    found = {key[2]: factor.factor for key, factor in table.factors.items() if key[0] == "all"}
    # Much of a step can be explained by other classes, whose priors are wider.
    assert found["transfer tp"] < 0.98
    assert all(factor.rows <= len(measured) for factor in table.factors.values())
    assert set(sample.keys) == set(table.factors)


def test_sample_counts_alike_configurations_as_their_root(measured):
    twice = [*measured[:2], measured[0], measured[0], measured[0]]
    forecasts = forecast_runs(twice, [FactorTable()] * len(twice))
    assert sample_of(twice, forecasts, FactorTable()).weight_I.tolist() == [0.5, 1.0, 0.5, 0.5, 0.5]


def test_runs_without_a_forecast_count_nothing(measured):
    odd = run(99, gpus=6, tp=4, measured_s=1.0)
    rows = [*measured[:3], odd]
    forecasts = forecast_runs(rows, [FactorTable()] * 4)
    assert forecasts[3].step_s is None
    assert "6 GPUs do not divide" in forecasts[3].reason
    sample = sample_of(rows, forecasts, FactorTable())
    assert sample.weight_I[3] == 0
    assert not sample.slope_IK[3].any()


def test_a_framework_that_is_left_out_falls_back_to_its_prior(measured):
    alone = run(50, framework="eager", gpus=8, tp=8)
    alone = replace(alone, measured_s=1.4 * forecast_run(alone, FactorTable()).step_s)
    rows = [*measured, alone]
    sample = sample_of(rows, forecast_runs(rows, [FactorTable()] * len(rows)), FactorTable())
    key = ("framework", "eager", "compute")
    seen = factors_of(sample).factors[key]
    out = factors_of(sample.without(np.array([False] * len(measured) + [True]))).factors[key]
    assert seen.factor > 1.02
    assert seen.rows == 1
    assert (out.factor, out.rows) == (pytest.approx(1.0, abs=1e-9), 0)
    assert seen.deviation < out.deviation


def shared(source_I: list[str], residual_I: list[float]) -> Sample:
    """Return runs of one class of work that move with its factor alike, and those of "a" with another, too."""
    keys = (("all", "*", "gemm bf16"), ("all", "*", "memory"))
    slope_IK = np.array([[0.8, 0.5 if source == "a" else 0.0] for source in source_I])
    ones_I = np.ones(len(source_I))
    return Sample(keys, slope_IK, np.array(residual_I), ones_I, np.zeros(2), np.array(source_I))


def test_what_one_source_adds_to_all_of_its_runs_moves_factors_less():
    """Nine runs that take 20 % longer are one machine's, or three times three machines'."""
    late = [0.18] * 9
    rest = [f"d{each}" for each in range(9)]
    one = shared(["a"] * 9 + rest, late + [0.0] * 9).solved().log_factor_K
    three = shared([f"{each}" for each in "abc" * 3] + rest, late + [0.0] * 9)
    slope_IK = three.slope_IK.copy()
    slope_IK[:9, 1] = 0.5
    several = three._replace(slope_IK=slope_IK).solved().log_factor_K
    assert 0 < one[1] < several[1]


def test_a_source_alone_has_nothing_of_its_own():
    """Nobody could tell it from the factors."""
    alone = shared(["a"] * 6, [0.1] * 6)
    prior_K = np.array([prior_deviation(key) for key in alone.keys])
    plain = solve(alone.slope_IK, alone.residual_I, alone.weight_I, prior_K, alone.current_K, np.zeros(2))
    assert alone.solved().log_factor_K.tolist() == plain.log_factor_K.tolist()


def test_forecasts_do_not_hang_on_how_many_there_are(measured):
    rows = measured[:4] * 5
    many = forecast_runs(rows, [FactorTable()] * len(rows))
    assert many == [forecast_run(each, FactorTable(), engine="reference") for each in rows]


def test_representatives_count_as_all_of_their_configuration():
    alike = [run(1, gpus=gpus, tp=8) for gpus in (64, 8, 16, 32, 128)]
    other = run(2, gpus=8, tp=4)
    chosen, weight_I = representatives([*alike, other], 2)
    assert [row.request.gpus for row in chosen] == [8, 128, 8]
    # Five rows of a configuration count as the root of five.
    assert weight_I == pytest.approx([5**0.5 / 2, 5**0.5 / 2, 1])
    every, weight_I = representatives(alike, 9)
    assert len(every) == len(alike)
    assert weight_I == pytest.approx([5**-0.5] * 5)
