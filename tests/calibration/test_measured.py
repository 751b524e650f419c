"""Measured times kept in a profile: medians, in order, and the price of just their groups."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

import traincast
from traincast import api
from traincast.calibration.cluster_calibration import cluster_toml, measured_tables, never_falling
from traincast.calibration.collectives import read_collectives
from traincast.hardware.cluster import Measured, MeasuredTable
from traincast.hardware.clusters import load_cluster

EXAMPLE = Path(__file__).parents[2] / "examples" / "aicb_scaled_512gpu.txt"


def rows(times, ranks=8, op="all_reduce"):
    return "".join(f"a100,{op},{ranks},1,{2 ** (10 + 2 * at)},{time}\n" for at, time in enumerate(times))


HEAD = "gpu,op,ranks,nodes,size_bytes,time_us\n"


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "m.csv"
    first, second = [30, 31, 40, 38, 90, 300, 900], [32, 33, 42, 39, 92, 310, 880]
    path.write_text(
        HEAD + rows(first) + rows(second) + rows([9, 9, 9, 10, 20, 80, 300], ranks=2) + rows([50], op="reduce")
    )
    return path


def test_a_table_holds_medians_that_never_fall(file):
    two, eight = measured_tables(read_collectives([file]).measurements.on(load_cluster("a100")), "mine")
    assert (two.op, two.ranks, two.nodes, two.source) == ("all_reduce", 2, 1, "mine")
    assert eight.size_bytes == tuple(2 ** (10 + 2 * at) for at in range(7))
    pooled = np.sqrt(41 * 38.5)
    assert eight.time_s == pytest.approx([31e-6, 32e-6, *[pooled * 1e-6] * 2, 91e-6, 305e-6, 890e-6], rel=1e-3)


def test_a_profile_with_tables_prices_what_was_measured_from_them(file, tmp_path):
    found = api.calibrate(file, "a100", table=True)
    path = tmp_path / "mine.toml"
    path.write_text(found.profile())
    assert "[[measured]]" in path.read_text()
    read = load_cluster(str(path))
    assert read.measured == found.cluster.measured
    kept = traincast.validate(file, str(path))
    assert kept.total.median_abs_error < min(0.02, found.residuals[0].after.median_abs_error)
    algorithms = dict(zip(kept.predictions.details["ranks"], kept.predictions.details["algorithm"], strict=True))
    assert algorithms == {2: "table", 8: "table"} | {8: algorithms[8]}
    assert api.calibrate(file, "a100").cluster.measured is None
    # A new fit starts without the tables of its base.
    assert api.calibrate(file, str(path)).cluster.measured is None


@pytest.mark.slow
def test_a_table_does_not_tell_what_is_left_out(file, tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(api.calibrate(file, "a100", table=True).profile())
    bare = tmp_path / "bare.toml"
    bare.write_text(api.calibrate(file, "a100").profile())
    with_tables, without = (traincast.validate(file, str(each), cv="ranks").held_out for each in (path, bare))
    assert with_tables.total == without.total


@given(st.lists(st.floats(-20, 20), min_size=1, max_size=30))
def test_what_never_falls_is_the_nearest_such_sequence(values):
    fitted = never_falling(values)
    assert (np.diff(fitted) >= 0).all()
    assert fitted.sum() == pytest.approx(sum(values), abs=1e-9)
    if (np.diff(values) >= 0).all():
        assert fitted.tolist() == values
    # Nothing that never falls is nearer: the residual stands upright on the cone.
    assert float((np.array(values) - fitted) @ fitted) == pytest.approx(0, abs=1e-6)


def test_the_simulation_says_what_came_from_a_table(tmp_path):
    plain = traincast.simulate(EXAMPLE, cluster="h100")
    first = next(each for each in plain.collectives if each.ranks > 1)
    preset = load_cluster("h100")
    # Far slower than the formula, so that the step must show it.
    table = MeasuredTable(
        op=first.op, ranks=first.ranks, nodes=first.nodes, size_bytes=(8, 2**40), time_s=(1.0, 1.0), source="here"
    )
    path = tmp_path / "mine.toml"
    known = replace(preset, measured=Measured(tables=(table,), intra=preset.intra, inter=preset.inter))
    path.write_text(cluster_toml(known))
    found = traincast.simulate(EXAMPLE, cluster=str(path))
    notes = [note.text for note in found.assumptions if note.code == "measured-table"]
    assert len(notes) == 1
    assert f"{first.op} over {first.ranks} ranks" in notes[0]
    # Where groups share the links, the table is scaled like the formula.
    assert min(each.time_s for each in found.collectives if each.algorithm == "table") >= 1 - 1e-12
    assert found.iteration_time_s > plain.iteration_time_s
    assert not [note for note in plain.assumptions if note.code == "measured-table"]
