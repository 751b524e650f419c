"""Arrows and counters of the timeline for Perfetto."""

import gzip
import io
import json
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

import traincast
from traincast.job.draft import Draft
from traincast.report import trace_links
from traincast.report.chrome_trace import write_trace
from traincast.workload.words import Group

EXAMPLES = Path(__file__).parents[2] / "examples"
FIELDS = {"gpus": 16, "tp": 2, "pp": 4, "seq_length": 2048, "global_batch": 32}


def events(result):
    stream = io.BytesIO()
    write_trace(result, stream)
    return json.loads(gzip.decompress(stream.getvalue()))["traceEvents"]


@pytest.fixture(scope="module")
def forecast():
    return traincast.predict(Draft(model="llama3-8b", cluster="h100", fields=FIELDS))


@pytest.fixture(scope="module", params=["forecast", "measured"])
def result(request, forecast):
    return forecast if request.param == "forecast" else traincast.simulate(EXAMPLES / "megatron_pp4_tp2")


def test_every_arrow_leads_from_a_slice_to_one_of_another_rank(result):
    found = events(result)
    ends = {phase: {each["id"]: each for each in found if each["ph"] == phase} for phase in "sf"}
    assert ends["s"] and ends["s"].keys() == ends["f"].keys()
    assert len(ends["s"]) == sum(each["ph"] == "s" for each in found)
    slices = {}
    for each in found:
        if each["ph"] == "X":
            slices.setdefault((each["pid"], each["tid"]), []).append(each)
    for number, begin in ends["s"].items():
        end = ends["f"][number]
        assert begin["pid"] != end["pid"] and begin["ts"] <= end["ts"] and end["bp"] == "e"
        for one in (begin, end):
            around = [
                each
                for each in slices[one["pid"], one["tid"]]
                if each["ts"] <= one["ts"] <= each["ts"] + each["dur"] and each["cat"] != "wait"
            ]
            assert around, one


def test_messages_lead_from_the_send_to_the_receive(forecast):
    found = events(forecast)
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in found if e["name"] == "thread_name"}
    of_messages = [each for each in found if each["ph"] in "sf" and each["name"] == "message"]
    assert of_messages
    for each in of_messages:
        assert names[each["pid"], each["tid"]].startswith("send" if each["ph"] == "s" else "recv")


def test_a_collective_leads_from_who_arrived_last_to_all_others(result):
    program, timeline = result.program, result.timeline
    sizes = Counter(program.rendezvous_N[program.rendezvous_N >= 0].tolist())
    took = {int(each) for each in program.rendezvous_N[timeline.end_s_N > timeline.start_s_N]}
    expected = sum(count - 1 for number, count in sizes.items() if number in took)
    assert sum(each["ph"] == "s" for each in events(result)) == expected


def test_counters_begin_and_end_at_nothing_and_move_all_bytes(forecast):
    found = [each for each in events(forecast) if each["ph"] == "C" and each["name"].endswith("(GB/s)")]
    tracks = {}
    for each in found:
        tracks.setdefault((each["pid"], each["name"]), []).append(each)
    program = forecast.program
    for (rank, name), values in tracks.items():
        assert [each["ts"] for each in values] == sorted(each["ts"] for each in values)
        assert values[-1]["args"]["GB/s"] == 0 and all(each["args"]["GB/s"] >= 0 for each in values)
        moved = sum(one["args"]["GB/s"] * 1e9 * (two["ts"] - one["ts"]) * 1e-6 for one, two in pairwise(values))
        index = program.rank_R.tolist().index(rank)
        mine = program.rank_slice(index)
        rows = program.row_N[mine]
        group = Group[name.split()[0].upper()]
        took = forecast.timeline.end_s_N[mine] > forecast.timeline.start_s_N[mine]
        of_group = (program.ops.group_T[rows] == group) & took
        assert moved == pytest.approx(program.ops.size_bytes_T[rows][of_group].clip(0).sum(), rel=0.01, abs=1000)


def test_the_memory_of_a_forecast_peaks_where_its_stage_does(forecast):
    found = [each for each in events(forecast) if each["name"] == "memory (GiB)"]
    highest = {}
    for each in found:
        highest[each["pid"]] = max(highest.get(each["pid"], 0.0), each["args"]["GiB"])
    peaks = sorted(stage.peak / 2**30 for stage in forecast.memory_bytes)
    assert sorted(highest.values()) == pytest.approx(peaks, abs=1e-3)


def test_microbatches_in_flight_of_a_measured_run(result):
    names = {each["name"] for each in events(result) if each["ph"] == "C"}
    assert names & {"memory (GiB)", "microbatches in flight"}


def test_too_many_arrows_are_none(forecast, monkeypatch):
    monkeypatch.setattr(trace_links, "MOST_FLOWS", 3)
    assert not [each for each in events(forecast) if each["ph"] in "sf"]
