"""``traincast validate``, ``collective`` and ``calibrate``."""

import json

import pytest
from jsonschema import Draft202012Validator

from calibrate_logs import nccl_log
from traincast.report.documents import schema


@pytest.fixture
def log(tmp_path):
    """An all-reduce of eight A100 that is about twice as slow as the preset."""
    path = tmp_path / "run.log"
    times = [(2**size, 40 + 2**size / 60e3, 40 + 2**size / 60e3) for size in range(10, 31)]
    path.write_text(nccl_log([(size, f"{out:.2f}", f"{into:.2f}") for size, out, into in times]))
    return path


def test_validate_prints_writes_and_says_json(call, log, tmp_path):
    code, out, err = call("validate", log, "--by", "op, size", "--out", tmp_path / "p.csv")
    assert (code, err) == (0, "")
    assert out.startswith("Median error ")
    assert "by op" in out
    assert "by gpu" not in out
    assert out.endswith(f"wrote {tmp_path / 'p.csv'}\n")
    assert (tmp_path / "p.csv").read_text().count("\n") == 22
    code, out, err = call("validate", log, "--json", "--cluster", "h100")
    assert (code, err) == (0, "")
    assert json.loads(out)["schema"] == "traincast.validation/1"
    assert json.loads(out)["worst"][0]["details"]["cluster"] == "h100"


@pytest.mark.parametrize("command", ["validate", "calibrate"])
def test_a_bad_file_is_named(call, tmp_path, command):
    path = tmp_path / "bad.csv"
    path.write_text("ranks,size_bytes,time_us\n8,1024,soon\n")
    code, out, err = call(command, path, "--cluster", "h100", "--out", tmp_path / "out")
    assert (code, out) == (1, "")
    assert err == f"error: no row can be used: column time_us is 'soon'; it must be a positive number ({path}:2)\n"
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("op", ["all_reduce", "all-reduce", "allreduce"])
def test_collective_prints_a_line_per_size(call, op):
    code, out, err = call("collective", op, "--size", "1KiB..1MiB", "--gpus", "16", "--cluster", "h100")
    assert (code, err) == (0, "")
    assert out.startswith("all-reduce over 16 ranks on 2 nodes of h100\n")
    assert len(out.splitlines()) == 3 + 11
    assert len(call("collective", op, "--size", "1MiB", "--cluster", "h100")[1].splitlines()) == 4
    code, out, err = call("collective", op, "--json", "--gpus", "2", "--nodes", "2")
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert document["schema"] == "traincast.collective/1"
    assert (document["nodes"], len(document["rows"])) == (2, 24)
    assert document["assumptions"][0]["code"] == "cluster-default"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["all_reduce", "--size", "8MiB..1MiB"], 2, "not a range of sizes"),
        (["all_reduce", "--size", "0"], 2, "not a range of sizes"),
        (["all_reduce", "--size", "much"], 2, "64MiB"),
        (["all_reduce", "--gpus", "0"], 2, "--gpus"),
        ([], 2, "Missing argument"),
        (["all_reduce", "--gpus", "17", "--nodes", "2"], 3, "17 ranks do not fit on 2 nodes of 8 GPUs"),
        (["scan"], 1, "unknown operation 'scan'; known: all_reduce, "),
        (["all_reduce", "--cluster", "nowhere"], 1, "unknown cluster"),
    ],
)
def test_collective_refuses(call, words, code, said):
    found, out, err = call("collective", *words)
    assert (found, out) == (code, "")
    assert said in err


@pytest.mark.slow
def test_validate_leaves_out_what_it_is_told(call, tmp_path):
    path = tmp_path / "a100.csv"
    rows = [f"{ranks},{2**size},{20 + ranks + 2**size / 1e5}" for ranks in (2, 4, 8) for size in range(10, 31, 4)]
    path.write_text("ranks,size_bytes,time_us\n" + "\n".join(rows) + "\n")
    code, out, err = call("validate", path, "--cv", "ranks", "--by", "ranks")
    assert (code, err) == (0, "")
    assert "Error where each group by ranks is left out of the fit" in out
    document = json.loads(call("validate", path, "--cv", "ranks", "--json")[1])
    assert document["held_out"]["by"] == "ranks"
    assert document["held_out"]["evaluated"] == document["evaluated"] == 18
    assert call("validate", path, "--cv", "op")[2].startswith("error: cv: measured collectives cannot leave out 'op'")
    out = call("validate", path, "--cv", "gpu")[1]
    assert "Skipped where each group by gpu is left out" in out
    assert "18 rows: there is no other GPU" in " ".join(out.split())


@pytest.mark.slow
def test_calibrate_prints_residuals_and_writes_a_profile(call, log, tmp_path):
    profile = tmp_path / "mine.toml"
    code, out, err = call("calibrate", log, "--cluster", "a100", "--out", profile)
    assert (code, err) == (0, "")
    assert out.startswith("a100 fitted to 21 timings\n")
    assert "> 16 MiB" in out
    assert "intra.bandwidth_bytes_per_s" in out
    assert out.endswith(f"wrote {profile}; use it with --cluster {profile}\n")
    document = json.loads(call("validate", log, "--cluster", profile, "--json")[1])
    fitted = json.loads(call("calibrate", log, "--cluster", "a100", "--json")[1])
    assert fitted["schema"] == "traincast.calibration/1"
    Draft202012Validator(schema("calibration")).validate(fitted)
    assert fitted["residuals"][0]["after"]["median_abs_error"] == document["median_abs_error"]
    assert document["median_abs_error"] < fitted["residuals"][0]["before"]["median_abs_error"]


def test_calibrate_needs_a_cluster_to_start_from(call, log):
    code, out, err = call("calibrate", log)
    assert (code, out) == (2, "")
    assert "--cluster" in err


@pytest.mark.slow
def test_a_profile_with_tables_says_that_times_were_measured(call, log, tmp_path):
    mine = tmp_path / "mine.toml"
    code, out, err = call("calibrate", log, "--cluster", "a100", "--table", "--out", mine)
    assert (code, err) == (0, "")
    code, out, err = call("collective", "all_reduce", "--size", "1KiB..1MiB", "--cluster", mine)
    assert (code, err) == (0, "")
    assert "table" in out
    assert "times are measured ones" in out
    # The first size took 40 us and a 60th of a nanosecond per byte.
    assert "40.02" in out
    assert "table" not in call("collective", "all_gather", "--cluster", mine)[1]
    assert "21 times, 1 KiB to 1 GiB" in call("clusters", mine)[1]


def test_an_option_is_no_group_to_leave_out(call, log):
    code, out, err = call("validate", log, "--cv", "--plain")
    assert (code, out) == (2, "")
    assert "'--plain' is an option; say what is left out, such as ranks or gpu" in err


def test_collective_on_an_ideal_cluster_runs_no_algorithm(call):
    code, out, err = call("collective", "all_reduce", "--size", "1MiB", "--cluster", "ideal")
    assert (code, err) == (0, "")
    assert out.splitlines()[-1].split() == ["1048576", "1", "MiB", "0.00", "-", "-", "none", "-"]
