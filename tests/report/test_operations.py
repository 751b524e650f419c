"""Files of single operations: ops.csv and trace.json.gz."""

import csv
import gzip
import io
import itertools
import json

import pytest
from msgspec.structs import replace

from support import with_ops
from traincast.errors import ConfigError
from traincast.report import chrome_trace
from traincast.report import csv as ops_csv
from traincast.report.chrome_trace import write_trace
from traincast.report.csv import COLUMNS, write_csv
from traincast.report.operations import choose_ranks
from traincast.report.plain import spreadsheet_cell

WAITING_S = 13 * 1.1e-6


def rows_of(result):
    stream = io.BytesIO()
    write_csv(result, stream)
    return list(csv.DictReader(io.StringIO(stream.getvalue().decode())))


def trace_of(result):
    stream = io.BytesIO()
    write_trace(result, stream)
    return json.loads(gzip.decompress(stream.getvalue()))


def slices_of(trace):
    return [event for event in trace["traceEvents"] if event["ph"] == "X"]


def test_csv_has_a_line_per_operation(result):
    rows = rows_of(result)
    assert tuple(rows[0]) == COLUMNS
    assert len(rows) == len(result.program)
    times = (float(row["end_s"]) - float(row["start_s"]) for row in rows)
    assert sum(times) == pytest.approx(result.timeline.duration_s_N.sum())
    assert sum(float(row["wait_s"]) for row in rows) == pytest.approx(WAITING_S)
    assert [float(row["start_s"]) for row in rows] == result.timeline.start_s_N.tolist()


def test_csv_cells(result):
    compute, collective = rows_of(result)[:2]
    assert compute["name"] == 'mlp, "fused"'
    assert compute["source"] == "job, one.txt:12"
    assert [compute[key] for key in ("phase", "kind", "layer", "stream")] == ["forward", "compute", "3", "compute"]
    assert [compute[key] for key in ("group", "operation", "size_bytes", "ranks")] == [""] * 4
    assert [collective[key] for key in ("group", "operation", "size_bytes", "ranks", "source", "layer")] == [
        *("tp", "all_reduce", "1048576", "2", "", "")
    ]
    assert collective["provenance"] == "priced"
    optimizer = rows_of(result)[-1]
    assert [optimizer[key] for key in ("rank", "stage", "virtual_stage", "microbatch")] == ["2", "1", "", ""]
    assert optimizer["source"] == "job, one.txt"


@pytest.mark.parametrize("name", ["=cmd|'x'!A1", "+1+1", "-2+3", "@SUM(A1)", "\t=1", "\uff1d1", "'=1", "''@x"])
def test_csv_cells_of_the_input_are_no_formulas(result, name):
    ops = replace(result.program.ops, name_T=(name, *result.program.ops.name_T[1:]))
    changed = with_ops(result, ops)
    written = rows_of(changed)[0]["name"]
    assert written == f"'{name}"


@pytest.mark.parametrize("text", ["mlp_layer", "'quoted'", "-1.5e-3", "+7", "a=b", "", "1-2"])
def test_other_cells_stay_as_they_are(text):
    assert spreadsheet_cell(text) == text


def test_trace_slices_do_not_overlap_and_sum_up(result):
    slices = slices_of(trace_of(result))
    by_track = itertools.groupby(
        sorted(slices, key=lambda event: (event["pid"], event["tid"], event["ts"])),
        key=lambda event: (event["pid"], event["tid"]),
    )
    for _, track in by_track:
        for before, after in itertools.pairwise(track):
            assert round((before["ts"] + before["dur"]) * 1000) <= round(after["ts"] * 1000)
    runs = [event for event in slices if event["cat"] != "wait"]
    waits = [event for event in slices if event["cat"] == "wait"]
    assert sum(event["dur"] for event in runs) == pytest.approx(result.timeline.duration_s_N.sum() * 1e6, abs=0.02)
    assert sum(event["dur"] for event in waits) == pytest.approx(WAITING_S * 1e6, abs=0.02)
    assert all(event["dur"] > 0 for event in slices)


def test_trace_names_and_arguments(result):
    trace = trace_of(result)
    assert list(trace) == ["traceEvents", "displayTimeUnit", "otherData"]
    names = {
        (e["pid"], e.get("tid", 0)): e["args"]["name"] for e in trace["traceEvents"] if e["name"].endswith("_name")
    }
    assert names[0, 0] == "rank 0 (stage 0, stands for 2)"
    assert "receive forward" not in names.values()
    assert {"compute", "tp", "send forward", "recv forward"} <= set(names.values())
    wait, transfer = [event for event in slices_of(trace) if event["name"].endswith("all_reduce")][:2]
    assert wait["name"] == "wait: all_reduce"
    assert wait["tid"] == transfer["tid"] and names[0, wait["tid"]] == "tp"
    assert transfer["cat"] == "forward"
    assert transfer["args"] == {
        **{"phase": "forward", "group": "tp", "operation": "all_reduce"},
        **{"size_bytes": 2**20, "microbatch": 0, "ranks": 2},
    }
    assert (transfer["ts"], transfer["dur"]) == (5.5, 1.1)


def test_trace_says_its_ranks(result):
    facts = trace_of(result)["otherData"]
    assert (facts["ranks_shown"], facts["ranks_simulated"]) == ([0, 2], 2)
    assert facts["reason"] == "every simulated rank is shown"
    assert facts["version"] == "0.1.0"


def test_a_large_trace_shows_the_ranks_that_matter(many_ranks, monkeypatch):
    monkeypatch.setattr(chrome_trace, "MAX_SLICES", 55)
    trace = trace_of(many_ranks)
    facts = trace["otherData"]
    assert {0, 9, 14, 19} <= set(facts["ranks_shown"])
    assert facts["ranks_simulated"] == 20
    assert "at most 55 slices" in facts["reason"]
    slices = slices_of(trace)
    assert len(slices) <= 55
    assert {event["pid"] for event in slices} == set(facts["ranks_shown"])


def test_a_large_csv_keeps_whole_ranks(many_ranks, monkeypatch):
    monkeypatch.setattr(ops_csv, "MAX_ROWS", 40)
    monkeypatch.setattr("traincast.report.operations._AT_ONCE", 3)
    rows = rows_of(many_ranks)
    assert len(rows) <= 40
    assert {"0", "9", "14", "19"} <= {row["rank"] for row in rows}
    assert sum(row["rank"] == "0" for row in rows) == 7


def test_one_rank_is_always_shown(many_ranks):
    choice = choose_ranks(many_ranks, [10] * 20, 3, "lines")
    assert choice.indices == (0,)


@pytest.mark.parametrize("write", [write_csv, write_trace])
def test_without_operations_it_says_so(result, write):
    with pytest.raises(ConfigError, match="simulate again"):
        write(replace(result, timed=None), io.BytesIO())
