"""Constants that never saw what they predict: families, sources, shapes and GPUs left out of the fit."""

import pytest

from measured_tables import ROWS, SHAPES, SKIPPED, write_collectives, write_gemms, write_runs
from traincast.calibration.kind import Request
from traincast.calibration.kinds import runs
from traincast.calibration.kinds.runs import predict_steps
from traincast.calibration.operator_recipe import held_out_rows, usual, without_gpu
from traincast.calibration.operators import operators_of
from traincast.calibration.run_factors import forecast_runs
from traincast.calibration.tables import read_table
from traincast.calibration.validate import validate
from traincast.estimate import factors
from traincast.estimate.factors import Factor, FactorTable
from traincast.estimate.operators import OperatorCall, shipped_constants
from traincast.hardware.clusters import load_cluster
from traincast.hardware.gpu import load_gpu

H100 = load_gpu("h100")


def left_out(path, group, **more):
    return validate(path, leave_out=group, **more)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return write_runs(tmp_path_factory.mktemp("runs") / "runs.csv", [*ROWS, *SKIPPED])


def test_leaving_families_out_forecasts_each_with_a_fit_that_has_not_seen_it(file):
    plain, without = validate(file), left_out(file, "family")
    assert without.held_out is not None
    assert without.held_out.by == "family"
    assert without.total.median_abs_error == plain.total.median_abs_error
    assert without.held_out.total.evaluated == len(ROWS)
    # Fitting to six rows and predicting the seventh differs from the shipped fit.
    assert without.held_out.total.mean_abs_error != plain.total.mean_abs_error


def test_a_framework_of_one_family_has_its_prior_where_that_is_left_out(file, monkeypatch):
    """What only left-out rows speak for is as if it had never been measured."""
    used = []

    def recorded(rows, tables, progress=None):
        used.append({row.id: table for row, table in zip(rows, tables, strict=True)})
        return forecast_runs(rows, tables, progress)

    monkeypatch.setattr(runs, "forecast_runs", recorded)
    shipped = FactorTable.from_factors(
        [Factor(level="framework", name="internevo-2024", cost_class="compute", factor=1.5, deviation=0.02, rows=9)]
    )
    for room in (runs, factors):
        monkeypatch.setattr(room, "shipped_factors", lambda: shipped)
    predict_steps(read_table(file), Request(leave_out="family"))
    assert {id(each) for each in used[0].values()} == {id(shipped)}
    out = used[0] | used[1]
    key = ("framework", "internevo-2024", "compute")
    of_itself = out["intern-1"].factors[key]
    assert of_itself.rows == 0
    assert of_itself.factor == pytest.approx(1.0, abs=1e-6)
    assert out["titan-1"].factors[key].rows == 1
    # Of one family, one fit; runs that are not fitted to keep the shipped factors.
    assert out["nemo-1"] is out["nemo-2"]
    assert out["nemo-1"] is not out["nemo-3"]
    assert out["lora-1"] is shipped


def test_intervals_are_wider_where_the_family_is_left_out(file):
    seen, unseen = (predict_steps(read_table(file), Request(leave_out=name)) for name in (None, "family"))
    for name, before, after in zip(seen.ids, seen.kept, unseen.kept, strict=True):
        if name not in ("lora-1", "indivisible"):
            assert after.bounds[0] < before.bounds[0] < 1 < before.bounds[1] < after.bounds[1], name


def test_progress_counts_every_pass(file):
    told = []
    predict_steps(read_table(file), Request(leave_out="source", progress=lambda *each: told.append(each)))
    passes = [each for each in told if each[0] == each[1]]
    assert told == [(count, of) for _, of in passes for count in range(1, of + 1)]
    assert passes[0][1] == len(ROWS) + 1


def test_a_gpu_left_out_is_predicted_by_others(tmp_path):
    path = write_gemms(tmp_path, H100, SHAPES)
    found = left_out(path, "gpu")
    assert 0 < found.held_out.total.mean_abs_error < 0.5
    without = without_gpu(shipped_constants(), H100)
    assert all(row.gpu != H100.name for row in without.rows)
    assert all(grid.gpu != H100.name for grid in without.corrections)


def test_held_out_shapes_are_predicted_by_a_fit_that_never_saw_them(tmp_path):
    shapes = [(m, n, k) for m in range(512, 4097, 512) for n in (1024, 2048, 4096) for k in (512, 1024, 4096)]
    path = write_gemms(tmp_path, H100, shapes, factor=1.5)
    found = left_out(path, "shape")
    held = found.held_out.total
    rows = held_out_rows(operators_of(read_table(path)))
    assert 0 < held.evaluated == rows.sum() < len(shapes) / 3
    # The shipped constants are off by what the factor says, the fit to the other shapes is not.
    assert found.total.mean_abs_error == pytest.approx(1 / 3, abs=1e-6)
    assert held.mean_abs_error < 0.06
    few = left_out(write_gemms(tmp_path, H100, shapes[:15], name="few.csv"), "shape")
    assert few.held_out.total.evaluated == 0


@pytest.mark.slow
def test_a_gpu_that_is_left_out_is_learnt_from_the_others(tmp_path):
    names = ("a100", "h100", "h200")
    parts = [write_collectives(tmp_path / f"{name}.csv", load_cluster(name), gpu=name) for name in names]
    file = tmp_path / "all.csv"
    file.write_text(parts[0].read_text() + "".join(part.read_text().split("\n", 1)[1] for part in parts[1:]))
    found = left_out(file, "gpu", by=["gpu"])
    assert found.total.median_abs_error == pytest.approx(0, abs=1e-12)
    held_out = found.held_out
    assert held_out.total.evaluated == 198
    # Not seen, so not exact; but the same architecture is a good teacher.
    by_gpu = {group.name: group.figures.median_abs_error for group in held_out.groups}
    assert 0 < by_gpu["h200"] < 0.25
    alone = left_out(parts[0], "gpu").held_out
    assert {row.reason for row in alone.skipped} == {"there is no other GPU to learn from"}


@pytest.mark.parametrize(
    ("gpu", "time_s", "options", "fitted"),
    [
        ("H100", 5e-4, (), True),
        ("H100", 2e-3, (), False),
        ("GB200", 2e-3, (), False),
        ("GB200", 2e-3, (("kernel", "scaled"),), True),
        ("A100", 2e-3, (), True),
    ],
)
def test_gemms_that_the_power_limit_held_back_are_not_fitted_to(gpu, time_s, options, fitted):
    """What a step adds to the clock of timings would count twice."""
    call = OperatorCall(family="gemm", shape=(16384, 16384, 6144), dtype="bf16", options=options)
    assert usual(call, load_gpu(gpu), time_s) == fitted
