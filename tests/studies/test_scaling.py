"""What the judge of strong scaling says of curves: ends, speed-ups, shares within a bound."""

import pytest

from forecasts import MLPERF, timed_rows
from judges import scaling
from measured_tables import run_row as row
from traincast.calibration.runs import run_of


def run(**cells):
    return run_of(row(**cells))


def curve(*sizes):
    """Return runs of one system: GPUs, sequences of a step, seconds."""
    found = []
    for gpus, batch, step_s in sizes:
        measured = {"measured_metric": "iter_time_s", "measured_value": str(step_s)}
        found.append(run(id=f"m-{gpus}-{step_s}", num_gpus=str(gpus), global_batch=str(batch), **measured))
    return found


def test_a_curve_goes_from_the_smallest_to_the_largest_size_of_a_system():
    runs = curve((8, 64, 4.0), (8, 64, 5.0), (16, 64, 2.5), (32, 128, 2.5))
    other = run(id="other", num_gpus="64", gpu="B200-SXM")
    (found,) = scaling.curves_of([*runs, other])
    assert (found.smallest, found.largest) == (runs[0], runs[3])
    assert found.speed_up(lambda each: each.measured_s) == pytest.approx(2 * 4.0 / 2.5)
    assert found.speed_up(lambda _: None) is None


def test_the_share_of_curves_within_the_bound():
    curves = scaling.curves_of(curve((8, 64, 4.0), (16, 64, 2.0)))
    for longer, within in ((1.0, 100), (1.05, 100), (1.2, 0)):
        steps = {8: 4.0, 16: 2.0 * longer}
        board = scaling.curve_board(curves, lambda each, steps=steps: steps[each.request.gpus])
        assert board.figures["within"] == within
        assert board.asked == {"within": 80.0}


def test_the_worst_run_is_that_of_all():
    runs = curve((8, 64, 4.0), (16, 64, 2.0))
    board, of_model = scaling.mlperf_boards(runs, lambda each: {8: 4.4, 16: 1.6}[each.request.gpus])
    assert (board.figures["worst"], board.figures["median"]) == (20.0, 15.0)
    assert (of_model.name, of_model.rows, of_model.asked) == (runs[0].groups.model, 2, {})


def test_rows_of_mlperf_v6_are_runs_with_their_settings():
    runs = {each.id[-3:]: each for each in timed_rows(MLPERF)}
    trained = runs["001"].request
    assert (trained.moe_dispatcher, trained.moe_routing, trained.cuda_graph_scope) == (
        "hybridep", "trained", ("full_iteration",)
    )  # fmt: skip
    assert (trained.framework, runs["063"].request.framework) == ("mlperf-2026", "mlperf-lora-2026")
    assert runs["046"].request.precision == "mxfp4"
