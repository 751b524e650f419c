"""Logs of nccl-tests: all shapes, one meaning."""

import json
import re

import pytest

from calibrate_logs import HEADS, nccl_log, nccl_report, with_mpi_marks
from traincast.calibration.collectives import read_collectives
from traincast.errors import FormatError

ROWS = [(1024, 32.1, 31.9), (1048576, 72.5, 71.0), (1073741824, 8139.0, 8140.5)]
TWO_NODES = ("node-0",) * 8 + ("node-1",) * 8


def read(tmp_path, text, name="run.log"):
    path = tmp_path / name
    path.write_text(text)
    return read_collectives([path])


@pytest.mark.parametrize("shape", HEADS)
@pytest.mark.parametrize("launched", [str, with_mpi_marks, lambda text: re.sub("^", "0: ", text, flags=re.MULTILINE)])
def test_every_shape_says_the_same(tmp_path, shape, launched):
    text = launched(nccl_log(ROWS, hosts=TWO_NODES, shape=shape))
    measured, ids, skipped = read(tmp_path, text)
    assert measured.size_bytes.tolist() == [1024, 1048576, 1073741824]
    assert measured.time_s.tolist() == pytest.approx([32.1e-6, 72.5e-6, 8139e-6], rel=1e-12)
    assert (measured.ranks.tolist(), measured.nodes.tolist()) == ([16] * 3, [2] * 3)
    assert (set(measured.op), set(measured.gpu)) == ({"all_reduce"}, {"NVIDIA A100-SXM4-40GB"})
    assert skipped == ()
    # Each row knows its line.
    lines = text.splitlines()
    assert ids == measured.source
    for place, (size, *_) in zip(ids, ROWS, strict=True):
        assert f" {size} " in lines[int(place.rpartition(":")[2]) - 1]


@pytest.mark.parametrize(
    ("binary", "op"),
    [
        ("all_reduce", "all_reduce"),
        ("all_gather", "all_gather"),
        ("reduce_scatter", "reduce_scatter"),
        ("alltoall", "all_to_all"),
        ("broadcast", "broadcast"),
        ("reduce", "reduce"),
        ("sendrecv", "send_recv"),
    ],
)
def test_the_binary_names_the_operation(tmp_path, binary, op):
    assert set(read(tmp_path, nccl_log(ROWS, op=binary)).measurements.op) == {op}


def test_the_name_of_the_file_helps_where_the_log_is_silent(tmp_path):
    text = nccl_log(ROWS, binary=False)
    assert read(tmp_path, text, "h100-reduce_scatter-16.txt").measurements.op[0] == "reduce_scatter"


@pytest.mark.parametrize(
    ("name", "op"),
    [
        ("reduce_1n.log", "reduce"),
        ("h100-reduce.txt", "reduce"),
        ("all_reduce_1n.log", "all_reduce"),
        ("allreduce.log", "all_reduce"),
        ("reduce-scatter.log", "reduce_scatter"),
        ("reduced_sizes.log", "all_reduce"),  # by its figures: the name does not say it
    ],
)
def test_the_name_of_a_file_tells_reduce_from_what_holds_the_word(tmp_path, name, op):
    text = nccl_log(ROWS, binary=False, busbw=0.875)
    assert set(read(tmp_path, text, name).measurements.op) == {op}


def test_a_silent_log_of_what_is_not_priced_is_skipped(tmp_path):
    measured, _, skipped = read(tmp_path, nccl_log(ROWS, binary=False), "hypercube_1n.log")
    assert not len(measured)
    assert {row.reason for row in skipped} == {"hypercube is not an operation that can be estimated"}


@pytest.mark.parametrize(
    ("ranks", "busbw", "op"),
    [(2, 0.5, "all_reduce"), (8, 0.875, "all_reduce"), (2, 0.25, "reduce_scatter"), (8, 0.4375, "reduce_scatter")],
)
def test_the_figures_of_a_nameless_log_give_reductions_away(tmp_path, ranks, busbw, op):
    text = nccl_log(ROWS, binary=False, hosts=("a",) * ranks, busbw=busbw)
    assert set(read(tmp_path, text).measurements.op) == {op}


@pytest.mark.parametrize("shape", HEADS)
def test_a_nameless_log_that_could_be_several_operations_is_refused(tmp_path, shape):
    text = nccl_log(ROWS, binary=False, shape=shape, busbw=0.4375).replace("  sum ", " none ")
    with pytest.raises(FormatError, match=r"run\.log:\d+: the log does not name its operation"):
        read(tmp_path, text)


def test_several_tests_in_one_log(tmp_path):
    text = nccl_log(ROWS) + nccl_log(ROWS[:1], op="alltoall", hosts=("a", "b")) + nccl_log(ROWS[:1], op="hypercube")
    measured, _, skipped = read(tmp_path, text)
    assert measured.op == ("all_reduce",) * 3 + ("all_to_all",)
    assert (measured.ranks.tolist(), measured.nodes.tolist()) == ([8, 8, 8, 2], [1, 1, 1, 2])
    assert [row.reason for row in skipped] == ["hypercube is not an operation that can be estimated"]


def test_what_is_not_to_be_trusted_is_skipped_with_its_reason(tmp_path):
    rows = [(0, 3.0, 3.0), (1024, 1242.0, 92.0), (2048, 90.0, 95.0), (4096, "N/A", 94.0)]
    measured, _, skipped = read(tmp_path, nccl_log(rows))
    assert measured.size_bytes.tolist() == [2048, 4096]
    assert measured.time_s.tolist() == pytest.approx([90e-6, 94e-6])
    assert [row.reason for row in skipped] == [
        "no bytes are moved",
        "warm-up artefact: 1242 us out of place, 92 us in place",
    ]
    assert read(tmp_path, nccl_log(ROWS, hosts=("a",))).skipped[0].reason == "one rank: a local copy"


def test_wrong_results_are_skipped_with_their_number(tmp_path):
    lines = nccl_log(ROWS).splitlines()
    first, second, third = (index for index, line in enumerate(lines) if line.split()[:1] and line.split()[0].isdigit())
    out_of_place = lines[first].split()
    out_of_place[8] = "3"
    lines[first] = " ".join(out_of_place)
    lines[second] = lines[second].replace("N/A", "12")
    measured, _, skipped = read(tmp_path, "\n".join(lines))
    assert measured.size_bytes.tolist() == [int(lines[third].split()[0])]
    assert [row.reason for row in skipped] == [
        "the check found wrong results: 3 values (#wrong)",
        "the check found wrong results: 12 values (#wrong)",
    ]
    # The older column holds the largest deviation, which rounding alone makes.
    older = nccl_log(ROWS, shape="redop").replace("      0 ", "  4e-07 ")
    assert len(read(tmp_path, older).measurements) == len(ROWS)


def test_split_communicators_count_once(tmp_path):
    text = nccl_log(ROWS, hosts=("a",) * 4)
    ranks = [line for line in text.splitlines() if "# Rank" in line.replace("#  ", "# ")]
    other = "\n".join(line.replace("Group  0", "Group  1") for line in ranks)
    text = text.replace(ranks[-1], f"{ranks[-1]}\n{other}")
    assert read(tmp_path, text).measurements.ranks.tolist() == [4] * 3


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda text: re.sub(r"(?m)^#  Rank.*\n", "", text), r"lines that list the ranks"),
        (lambda text: re.sub(r"(?m)^#  *size.*\n", "", text), r"lines that list the columns"),
        (lambda text: text.replace("Rank  3", "Rank  0"), "rank 0 is listed twice: a build without MPI"),
    ],
)
def test_damage_is_named_with_its_line(tmp_path, damage, said):
    with pytest.raises(FormatError, match=rf"run\.log:\d+: .*{said}"):
        read(tmp_path, damage(nccl_log(ROWS)))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda text: re.sub(r"(?m)^ *1048576 .*$", "     1048576       262144     float     sum", text), "cut short"),
        (lambda text: text.replace("    72.5", "     abc"), r"time_us is 'abc'; it must be a positive number"),
        (lambda text: text.replace("    72.5", "     0.0"), r"time_us is '0.0'"),
        (lambda text: text.replace("    72.5", f"    {'9' * 400}"), "time_us is "),
    ],
)
def test_a_damaged_row_is_left_out_and_named(tmp_path, damage, said):
    whole, damaged = read(tmp_path, nccl_log(ROWS)), read(tmp_path, damage(nccl_log(ROWS)))
    assert len(damaged.measurements) == len(whole.measurements) - 1
    (reason,) = {row.reason for row in damaged.skipped} - {row.reason for row in whole.skipped}
    assert said in reason


def test_a_log_that_broke_off_says_so(tmp_path):
    with pytest.raises(FormatError, match="holds no timings"):
        read(tmp_path, nccl_log([]))


def test_a_log_that_was_written_with_options(tmp_path):
    """Per-iteration columns and a time stamp (nccl-tests 2.17), and in-place times only."""
    head = f"# size count type redop root {'time algbw busbw #wrong i_min ' * 2} timestamp"
    row = "1048576 262144 float sum -1 100.0 10.49 18.35 0 98.1 101.0 10.38 18.17 0 99.0 2026-01-26 10:00:00"
    ranks = [
        f"#  Rank  {rank} Group  0 Pid 1 on lab device  {rank} [0000:02:00] NVIDIA H100 80GB HBM3" for rank in range(8)
    ]
    text = "\n".join(["# Collective test starting: all_reduce_perf_mpi", *ranks, head, row, ""])
    assert read(tmp_path, text).measurements.time_s.tolist() == pytest.approx([100e-6])
    short = text.replace(head, "# size count type redop root time algbw busbw #wrong").replace(row, row[:50])
    assert read(tmp_path, short).measurements.time_s.tolist() == pytest.approx([100e-6])


def test_a_report_says_the_same_as_its_log(tmp_path):
    log = read(tmp_path, nccl_log(ROWS, op="all_gather", hosts=TWO_NODES))
    report = read(tmp_path, nccl_report(ROWS, op="all_gather", hosts=TWO_NODES), "r.json")
    for name in ("op", "gpu"):
        assert getattr(report.measurements, name) == getattr(log.measurements, name)
    for name in ("ranks", "nodes", "size_bytes", "time_s"):
        assert getattr(report.measurements, name).tolist() == getattr(log.measurements, name).tolist()
    assert report.ids == tuple(f"{tmp_path / 'r.json'}[{number}]" for number in range(3))


def test_what_is_odd_in_a_report_is_skipped_with_its_reason(tmp_path):
    rows = [(1024, None, 31.9), (2048, 320.0, 31.0), (4096, 33.0, 32.0)]
    document = json.loads(nccl_report(rows))
    document["results"][2]["in_place"]["nwrong"] = 3.0
    measured, _, skipped = read(tmp_path, json.dumps(document))
    # Only in place was run.
    assert (measured.size_bytes.tolist(), measured.time_s.tolist()) == ([1024], pytest.approx([31.9e-6]))
    assert [each.reason[:28] for each in skipped] == ["warm-up artefact: 320 us out", "the check found wrong result"]


@pytest.mark.parametrize("make", [nccl_report, None])
def test_times_of_the_host_are_not_those_of_the_operation(tmp_path, make):
    text = nccl_report(ROWS, time="cpu_time") if make else nccl_log(ROWS).replace("    time ", " cputime ")
    measured, _, skipped = read(tmp_path, text)
    assert len(measured) == 0
    assert {each.reason for each in skipped} == {"the times are those of the host (-C 1)"}


@pytest.mark.parametrize(
    "damage",
    [
        lambda document: document.pop("config"),
        lambda document: document["config"]["devices"][0].pop("hostname"),
        lambda document: document["results"][0].pop("size"),
        lambda document: document.update(results=3),
    ],
)
def test_a_report_that_is_not_whole_is_refused(tmp_path, damage):
    document = json.loads(nccl_report(ROWS))
    damage(document)
    with pytest.raises(FormatError, match="not a complete report"):
        read(tmp_path, json.dumps(document))


def test_all_to_alls_of_unequal_sizes_are_not_taken_for_equal_ones(tmp_path):
    _, _, skipped = read(tmp_path, nccl_log(ROWS, op="alltoallv"), "alltoall.log")
    assert {each.reason for each in skipped} == {"alltoallv is not an operation that can be estimated"}


def test_a_number_of_a_report_that_no_float_holds_is_refused_or_left_out(tmp_path):
    text = nccl_report(ROWS)
    with pytest.raises(FormatError, match="not a complete report"):
        read(tmp_path, text.replace('"rank": 0,', '"rank": 1e999,'))
    _, _, skipped = read(tmp_path, text.replace('"time": 32.1', '"time": 1e999'))
    assert len(skipped) == 1
