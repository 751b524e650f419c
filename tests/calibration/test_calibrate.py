"""Fit a cluster to measurements that another cluster would give, and find that cluster again."""

import numpy as np
import pytest
from msgspec.structs import replace

import traincast
from calibrate_logs import nccl_log
from measured_tables import SIZES, write_collectives
from traincast import api
from traincast.calibration.collectives import estimate_measured, read_collectives
from traincast.errors import CalibrationError, ConfigError
from traincast.hardware.clusters import load_cluster
from traincast.report.json import calibration_to_dict


@pytest.fixture
def slow():
    """An a100 whose links are slower than those of the preset."""
    preset = load_cluster("a100")
    intra = replace(preset.intra, bandwidth_bytes_per_s=100e9, hop_latency_s=3 * preset.intra.hop_latency_s)
    return replace(preset, intra=intra)


@pytest.mark.slow
def test_a_fit_finds_the_links_again(tmp_path, slow):
    file = write_collectives(tmp_path / "m.csv", slow)
    found = api.calibrate(file, "a100")
    everything = found.residuals[0]
    assert everything.name == "all"
    assert everything.after.rows == 66
    assert everything.after.median_abs_error < 0.02 < everything.before.median_abs_error
    assert found.cluster.intra.bandwidth_bytes_per_s == pytest.approx(100e9, rel=0.05)
    assert [each.name for each in found.residuals[1:]] == ["<= 64 KiB", "<= 1 MiB", "<= 16 MiB", "> 16 MiB"]
    assert "intra.bandwidth_bytes_per_s" in found.fitted
    # One node says nothing about the steps between nodes.
    assert "inter.hop_latency_s" not in found.fitted


@pytest.mark.slow
def test_the_profile_is_a_cluster_that_prices_as_fitted(tmp_path, slow):
    file = write_collectives(tmp_path / "m.csv", slow)
    found = api.calibrate(file, "a100")
    path = tmp_path / "mine.toml"
    path.write_text(found.profile())
    read = load_cluster(str(path))
    assert replace(read, name="a100", sources=()) == replace(found.cluster, sources=())
    assert dict(read.sources)["intra.bandwidth_bytes_per_s"] == f"fitted by traincast calibrate to {file}"
    assert dict(read.sources)["gpu.hbm_bytes"] == dict(load_cluster("a100").sources)["gpu.hbm_bytes"]
    assert "# Absolute error of the time, in sample" in path.read_text()
    validated = traincast.validate(file, str(path)).total
    assert validated.median_abs_error == found.residuals[0].after.median_abs_error


@pytest.mark.slow
def test_what_the_rows_cannot_tell_apart_is_said_everywhere(tmp_path):
    preset = load_cluster("a100")
    fast = replace(preset, inter=replace(preset.inter, bandwidth_bytes_per_s=30e9))
    found = api.calibrate(write_collectives(tmp_path / "m.csv", fast, groups=((2, 2), (4, 4))), "a100")
    assert "inter.node_bandwidth_bytes_per_s" not in found.fitted
    assert found.cluster.inter.bandwidth_bytes_per_s == pytest.approx(30e9, rel=0.02)
    (note,) = found.notes
    assert "stays at 126.5 GB/s, as in a100" in note
    assert f"# Note: {note}." in found.profile()
    assert calibration_to_dict(found)["notes"] == [note]
    both = write_collectives(tmp_path / "b.csv", fast, groups=((2, 2), (16, 2)))
    assert api.calibrate(both, "a100").notes == ()


@pytest.mark.slow
def test_logs_and_tables_are_fitted_together(tmp_path, slow):
    log = tmp_path / "two.log"
    log.write_text(nccl_log([(size, f"{30 + size / 2e5:.2f}", f"{30 + size / 2e5:.2f}") for size in SIZES], gpu="a100"))
    found = api.calibrate([write_collectives(tmp_path / "m.csv", slow), log], "a100")
    assert found.residuals[0].after.rows == 66 + len(SIZES)


def test_what_cannot_be_fitted_is_said(tmp_path, slow):
    nothing = tmp_path / "nothing.csv"
    nothing.write_text("ranks,size_bytes,time_us,suspect\n8,1024,5,cold\n")
    with pytest.raises(CalibrationError, match=r"no row can be used: cold \(.*nothing\.csv:2\)") as refused:
        api.calibrate(nothing, "a100")
    assert (refused.value.rows, refused.value.needed_rows) == (0, 1)
    two = [write_collectives(tmp_path / f"{gpu}.csv", slow, gpu=gpu) for gpu in ("a100", "h100")]
    with pytest.raises(CalibrationError, match=r"several GPUs \(a100, h100\)"):
        api.calibrate(two, "a100")


@pytest.mark.slow
def test_ranks_that_are_left_out_are_predicted_by_the_others(tmp_path, slow):
    file = write_collectives(tmp_path / "m.csv", slow, groups=((2, 1), (4, 1), (8, 1), (16, 2), (32, 4)))
    found = traincast.validate(file, by=["ranks"], cv="ranks")
    assert found.total.median_abs_error > 0.05
    assert found.held_out.by == "ranks"
    assert found.held_out.total.evaluated == found.total.evaluated == 110
    assert found.held_out.total.median_abs_error < 0.05
    assert [group.name for group in found.held_out.groups] == ["2", "4", "8", "16", "32"]
    assert found.held_out.skipped == ()
    assert traincast.validate(file).held_out is None


def test_one_number_of_ranks_cannot_be_left_out(tmp_path, slow):
    file = write_collectives(tmp_path / "m.csv", slow, groups=((8, 1),))
    held_out = traincast.validate(file, cv="ranks").held_out
    assert held_out.total.evaluated == 0
    assert {row.reason for row in held_out.skipped} == {"there is no other number of ranks to fit to"}


def test_what_cannot_be_left_out_is_said(tmp_path, slow):
    file = write_collectives(tmp_path / "m.csv", slow)
    with pytest.raises(ConfigError, match=r"cannot leave out 'op'; known: ranks, gpu$"):
        traincast.validate(file, cv="op")


def test_an_unknown_number_of_nodes_is_that_of_full_nodes(tmp_path, slow):
    file = tmp_path / "m.csv"
    file.write_text("gpu,ranks,size_bytes,time_us\na100,16,1024,50\nabacus,16,1024,50\n")
    details = traincast.validate(file).predictions.details
    assert details["nodes"] == (2, None)
    assert np.isfinite(estimate_measured(read_collectives([file]).measurements, slow)[0].time_s)


@pytest.mark.slow
def test_a_band_that_gets_worse_is_told(tmp_path):
    size = np.array([2**power for power in range(8, 31)])
    rows = "".join(f"a100,all_reduce,8,1,{each},1\n" for each in size)
    file = tmp_path / "m.csv"
    head = "gpu,op,ranks,nodes,size_bytes,time_s\n"
    file.write_text(head + rows)
    prices = estimate_measured(read_collectives([file]).measurements, load_cluster("a100"))
    # Right in one band by chance, and wrong by a factor in all others.
    factors = np.where(size <= 2**16, 2.0, np.where(size <= 2**20, 1.0, 0.5))
    times = [float(price.time_s * factor) for price, factor in zip(prices, factors, strict=True)]
    file.write_text(head + "".join(f"a100,all_reduce,8,1,{each},{t!r}\n" for each, t in zip(size, times, strict=True)))
    found = api.calibrate(file, "a100")
    (note,) = found.notes
    assert note.startswith("rows of <= 1 MiB are ")
    assert "0.0 % before: no constants have all of these sizes right (--table" in note
    assert (
        api.calibrate(write_collectives(tmp_path / "fine.csv", load_cluster("a100"), groups=((8, 1),)), "a100").notes
        == ()
    )
