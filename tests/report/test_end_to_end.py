"""The layout of SimAI's EndToEnd.csv, of its own sum and of a simulated step."""

import csv
from pathlib import Path

import numpy as np
import pytest

from support import rich_rows, write_aicb
from traincast import api
from traincast.analysis.breakdown import exposed_seconds, last_rank, rank_breakdown
from traincast.job.options import make_options
from traincast.report.end_to_end import SUMMARY, Line, RowCommunication, end_to_end_csv, simai_end_to_end
from traincast.report.files import write_directory
from traincast.workload.words import Group, Kind

EXAMPLES = Path(__file__).parents[2] / "examples"
SAMPLE = EXAMPLES / "aicb_gpt_405b_1024gpu.txt"
KEYS = (
    "File name, Expose DP comm, Expose DP_EP comm, Expose TP comm, Expose_EP_comm, Expose_PP_comm, bubble time, "
    "total comp, total exposed comm, Total time"
)


def numbers(line):
    """Return the numbers of the second line without their shares."""
    return [float(cell.split("(")[0]) for cell in line.split(",")[1:]]


@pytest.fixture(scope="module")
def simulated(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    path = write_aicb(folder / "w.txt", rich_rows(), tp=2, ep=2, pp=2, ga=2, gpus=16, pp_comm=1 << 20)
    result = api.simulate(path, make_options(cluster="h100"))
    write_directory(result, folder / "out", names=["endtoend"])
    return result, (folder / "out" / "EndToEnd.csv").read_text().splitlines()


def test_simais_own_sum_is_written_as_simai_writes_it():
    """Source of the lines: SimAI-Analytical 1.6 run on this file with vpp 8 (H100, CX7)."""
    report = api.simai(SAMPLE, make_options(cluster="h100", vpp=8))
    lines = simai_end_to_end(report, "run").decode().splitlines()
    assert lines[0] == KEYS
    assert numbers(lines[1]) == [322654, 0, 281609, 0, 0, 867333, 7213232, 604263, 8684828]
    assert "322654 (3.72%)" in lines[1]
    assert lines[2].startswith(
        "layer_name,Analytical_test,fwd compute,wg compute,ig compute,fwd exposed comm,wg exposed comm,"
    )
    assert lines[3] == "grad_gather,Analytical_test,0,0,0,0,107551,0,0,0.00,0.00,107551,55.43,48.50,0,0.00,0.00"
    assert len(lines) == 3 + 557
    assert len({line.count(",") for line in lines[2:]}) == 1


def test_what_simai_is_told_to_leave_out_is_not_exposed_and_still_communicated():
    report = api.simai(SAMPLE, make_options(cluster="h100", vpp=8), overlap=api.SimaiOverlap(dp=1.0))
    first = simai_end_to_end(report, "run").decode().splitlines()[3].split(",")
    assert (first[6], first[11]) == ("0", "107551")


def of_last_rank(result):
    return next(rank.breakdown_s for rank in result.ranks if rank.end_s == result.iteration_time_s)


def test_a_simulated_step_says_its_breakdown_in_the_same_layout(simulated):
    result, lines = simulated
    assert lines[0] == KEYS
    dp, dp_ep, tp, ep, pp, bubble, compute, exposed, total = (us / 1e6 for us in numbers(lines[1]))
    parts, near = of_last_rank(result), {"abs": 2e-6}
    assert dp + dp_ep == pytest.approx(parts["exposed_dp"], **near)
    assert tp == pytest.approx(parts["exposed_tp"] + parts["exposed_cp"], **near)
    assert (ep, pp, bubble) == pytest.approx((parts["exposed_ep"], parts["exposed_pp"], parts["bubble"]), **near)
    assert compute == pytest.approx(parts["compute"], **near)
    assert exposed == pytest.approx(dp + dp_ep + tp + ep, abs=5e-6)
    assert total == pytest.approx(result.iteration_time_s, **near)
    assert dp_ep > 0


def test_its_rows_add_up_to_its_summary(simulated):
    result, lines = simulated
    rows = list(csv.DictReader(lines[2:]))
    compute = sum(float(row[f"{column} compute"]) for row in rows for column in ("fwd", "wg", "ig"))
    assert compute / 1e6 == pytest.approx(of_last_rank(result)["compute"], abs=len(rows) * 1.5e-6)
    assert [row["layer_name"] for row in rows if row["layer_name"].startswith("attention")]
    index = [row["layer_name"] for row in rows].index("attention_row")
    assert float(rows[index]["fwd total comm"]) > 0


def test_exposed_operations_add_up_to_the_breakdown_of_their_rank(simulated):
    result, _ = simulated
    program = result.program
    for index in range(len(program.rank_R)):
        mine = program.rank_slice(index)
        row_N = program.row_N[mine]
        exposed_N = exposed_seconds(result.timed, index)
        parts = rank_breakdown(result.timed, index).breakdown_s
        collective_N = program.ops.kind_T[row_N] == Kind.COLLECTIVE
        for groups, name in (([Group.TP], "exposed_tp"), ([Group.EP], "exposed_ep")):
            of_groups_N = np.isin(program.ops.group_T[row_N], groups) & collective_N
            assert exposed_N[of_groups_N].sum() == pytest.approx(parts[name])
        assert not exposed_N[program.ops.kind_T[row_N] == Kind.COMPUTE].any()
    assert 0 <= last_rank(program, result.timeline) < len(program.rank_R)


def test_it_is_written_on_request_alone(simulated, tmp_path):
    result, _ = simulated
    assert "EndToEnd.csv" not in {path.name for path in write_directory(result, tmp_path)}
    both = {path.name for path in write_directory(result, tmp_path, further=["endtoend"])}
    assert {"EndToEnd.csv", "result.json"} <= both


HOSTILE = ['=HYPERLINK("http://x")', "@SUM(A1)", "+1+1", "-2+3,4", "a,b", 'say "x"', "two\nlines", "\t=1"]


def test_names_are_one_cell_each_and_no_formula():
    summary = dict.fromkeys(SUMMARY, 1.0)
    lines = [Line(name, (1.0, 1.0, 1.0), (RowCommunication(),) * 3) for name in HOSTILE]
    text = "\n".join(end_to_end_csv(HOSTILE[0], HOSTILE[1], summary, lines))
    rows = text.split("\n")
    widths = {len(row.split(",")) for row in rows[2:]}
    assert len(rows) == 3 + len(HOSTILE)
    assert len(widths) == 1
    for cells in csv.reader(rows):
        assert not [cell for cell in cells if cell.startswith(("=", "+", "-", "@", "\t"))]
