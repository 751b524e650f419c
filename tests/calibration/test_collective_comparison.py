"""Two files of measured collectives, size by size."""

import json

import pytest

from calibrate_logs import nccl_log, nccl_report
from traincast import api
from traincast.calibration.collective_comparison import compare_collectives
from traincast.cli.main import main
from traincast.errors import CalibrationError

SIZES = [2**exponent for exponent in (10, 20, 24, 30)]


@pytest.fixture
def files(tmp_path):
    """A log, and the report of a test of the same whose sizes from 1 MiB take 10 % less."""
    log, report = tmp_path / "a.log", tmp_path / "b.json"
    log.write_text(nccl_log([(size, 20 + size / 1e5, 20 + size / 1e5) for size in SIZES]))
    report.write_text(nccl_report([(size, 18 + 0.9 * size / 1e5, 19.0 + size / 1e5) for size in [*SIZES[1:], 2**32]]))
    return log, report


def call(capsys, *words):
    with pytest.raises(SystemExit) as ended:
        main(list(map(str, words)))
    return ended.value.code, *capsys.readouterr()


def test_pairs_have_times_and_bus_bandwidths_of_both_sides(files):
    found = api.compare_collectives(*files)
    assert [pair.size_bytes for pair in found.pairs] == SIZES[1:]
    assert (found.only_a, found.only_b, found.skipped) == (1, 1, ())
    for pair in found.pairs:
        assert (pair.op, pair.ranks, pair.nodes) == ("all_reduce", 8, 1)
        assert pair.relative == pytest.approx(-0.1)
        # nccl-tests: 2 (n - 1) / n of the size over the time.
        assert pair.busbw_bytes_per_s(pair.a_s) == pytest.approx(1.75 * pair.size_bytes / pair.a_s)
    assert found.median_relative == pytest.approx(-0.1)


def test_of_repeated_timings_the_median_counts(tmp_path):
    log = tmp_path / "a.log"
    log.write_text(nccl_log([(2**20, us, us) for us in (10.0, 30.0, 20.0)]))
    assert [pair.a_s for pair in compare_collectives(log, log).pairs] == [pytest.approx(20e-6)]


def test_the_command_compares_them(files, capsys):
    code, out, err = call(capsys, "compare", *files)
    assert (code, err) == (0, "")
    assert out.startswith("B is 10.0 % shorter than A in the median of 3 sizes")
    assert "all-reduce over 8 ranks on 1 node" in out
    document = json.loads(call(capsys, "compare", *files, "--json")[1])
    assert document["schema"] == "traincast.collective_comparison/1"
    assert [pair["time_s"]["relative"] for pair in document["pairs"]] == pytest.approx([-0.1] * 3)
    assert call(capsys, "compare", files[0], files[0])[1].startswith("B is the same in the median of 4 sizes")


def test_what_has_nothing_in_common_is_refused(files, tmp_path, capsys):
    other = tmp_path / "c.log"
    other.write_text(nccl_log([(2**20, 10.0, 10.0)], op="broadcast"))
    with pytest.raises(CalibrationError, match="in common"):
        api.compare_collectives(files[0], other)
    code, _, err = call(capsys, "compare", files[0], tmp_path)
    assert (code, "the other side does not" in " ".join(err.split())) == (2, True)
