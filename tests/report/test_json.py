import json

import numpy as np
import pytest
from msgspec.structs import replace

from traincast.diagnostics import Note
from traincast.errors import FormatError, TraincastError
from traincast.formats.contract import Inspection, Total
from traincast.hardware.cluster import Cluster, Link
from traincast.hardware.gpu import Gpu
from traincast.report.json import (
    RESULT_KEYS,
    clusters_to_dict,
    encode,
    inspection_to_dict,
    result_from_json,
    result_to_dict,
    to_json,
)
from traincast.simulation.result import Result

CONTRACT = [
    "schema",
    "iteration_time_s",
    "breakdown_s",
    "ranks",
    "job",
    "parallel",
    "interval",
    "tokens_per_s_per_gpu",
    "tflops_per_gpu",
    "mfu",
    "hfu",
    "mfu_peak",
    "mfu_16_bit",
    "hfu_16_bit",
    "memory_bytes",
    "collectives",
    "stragglers",
    "slowdown",
    "causes",
    "advice",
    "suggestions",
    "what_if",
    "other_layouts",
    "variability",
    "goodput",
    "training_run",
    "measured_s",
    "parts",
    "blocks",
    "gpu_time",
    "analysis",
    "inputs",
    "cluster",
    "assumptions",
    "warnings",
    "run",
    "version",
]


def test_keys_are_those_of_the_contract(result):
    document = json.loads(to_json(result))
    assert list(document) == CONTRACT == list(RESULT_KEYS)
    assert document["schema"] == "traincast.result/1"
    keys = ["rank", "stage", "represents", "end_s", "compute_s", "wait_s", "breakdown_s", "measured_end_s"]
    assert list(document["ranks"][0]) == keys
    assert list(document["parts"][0]) == ["rank", "part", "time_s", "measured_s", "wait_s", "measured_wait_s"]
    keys = ["group", "op", "size_bytes", "ranks", "nodes", "count", "time_s", "algorithm", "protocol"]
    assert list(document["collectives"][0]) == keys


def test_the_document_holds_every_field_of_a_result():
    assert {*Result.__struct_fields__} - {"timed", "doubts"} == set(CONTRACT) - {"schema"}


def test_round_trip(result):
    data = to_json(result)
    assert data.endswith(b"}\n")
    again = result_from_json(data, "result.json")
    assert again == result
    assert to_json(again) == data


def test_what_was_measured_may_be_absent(result):
    document = result_to_dict(result)
    del document["parts"]
    for rank in document["ranks"]:
        del rank["measured_end_s"]
    again = result_from_json(encode(document), "x")
    assert again.parts == ()
    assert [rank.measured_end_s for rank in again.ranks] == [None, None]
    document = result_to_dict(result)
    for part in document["parts"]:
        part.pop("measured_s")
    parts = result_from_json(encode(document), "x").parts
    assert [part.time_s for part in parts] == [part.time_s for part in result.parts]
    assert {part.measured_s for part in parts} == {None}


def test_numpy_numbers_and_bad_file_names_are_written(result):
    result = replace(result, mfu=np.float64(0.5), parallel=replace(result.parallel, tp=np.int32(8)))
    result = replace(result, cluster=replace(result.cluster, name="\udcff"))
    document = json.loads(to_json(result))
    assert (document["mfu"], document["parallel"]["tp"]) == (0.5, 8)
    assert document["cluster"]["name"] == "\\udcff"


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_nan_is_refused_with_its_place(result, number):
    bad = replace(result.ranks[1], breakdown_s={**result.ranks[1].breakdown_s, "bubble": number})
    with pytest.raises(TraincastError, match=r"\$\.ranks\[1\]\.breakdown_s\.bubble"):
        to_json(replace(result, ranks=(result.ranks[0], bad)))


def test_unknown_keys_are_ignored(result):
    document = result_to_dict(result)
    document["later"] = 1
    document["ranks"][0]["later"] = {}
    assert result_from_json(encode(document), "x").ranks == result.ranks
    document["schema"] = "traincast.result/1.4"
    document["measured_s"] = 3
    assert result_from_json(encode(document), "x").mfu == result.mfu


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda d: d.update(schema="traincast.result/2"), "traincast.result/2"),
        (lambda d: d.update(schema="traincast.plan/1"), "traincast.plan/1"),
        (lambda d: d.pop("ranks"), "ranks"),
        (lambda d: d["ranks"][1].update(end_s="late"), r"ranks\[\.*1?.*end_s"),
        (lambda d: d["ranks"][1]["breakdown_s"].pop("bubble"), r"bubble.*ranks\[1\]"),
        (lambda d: d["breakdown_s"].update(compute=None), "breakdown_s"),
        (lambda d: d.update(iteration_time_s=1e308), r"1e\+308 at \$\.iteration_time_s"),
        (lambda d: d.update(iteration_time_s=-1.0), r"-1.0 at \$\.iteration_time_s"),
        (
            lambda d: d["breakdown_s"].update(exposed_tp=999999999),
            r"\$\.breakdown_s sum to .*, but \$\.iteration_time_s is",
        ),
        (lambda d: d["breakdown_s"].update(exposed_tp=1e20), r"\$\.breakdown_s\.exposed_tp is not a value"),
        (lambda d: d["ranks"][1]["breakdown_s"].update(other=-1e-6), r"\$\.ranks\[1\]\.breakdown_s\.other"),
        (lambda d: d["ranks"][1].update(wait_s=1e200), r"\$\.ranks\[1\]\.wait_s"),
        (lambda d: d["ranks"][1].update(stage=-1), r"\$\.ranks\[1\]\.stage"),
        (lambda d: d["parallel"].update(tp=2**70), r"\$\.parallel\.tp"),
        (lambda d: d["parallel"].update(microbatches="a=b"), r"Expected `int`, got `str` - at `\$\.parallel\.microb"),
        (lambda d: d["parallel"].pop("schedule"), r"missing required field `schedule` - at `\$\.parallel`"),
        (lambda d: d["cluster"].update(nodes=1.5), r"\$\.cluster\.nodes"),
        (lambda d: d["memory_bytes"][1].pop("peak"), r"missing required field `peak` - at `\$\.memory_bytes\[1\]`"),
        (lambda d: d["collectives"][0].update(count=2**60), r"\$\.collectives\[0\]\.count"),
        (lambda d: d["collectives"][0].update(size_bytes=1.5), r"\$\.collectives\[.*\]\.size_bytes"),
        (lambda d: d["cluster"].update(later=1e300), r"\$\.cluster\.later"),
        (lambda d: d.update(mfu=1e300), r"\$\.mfu"),
        (lambda d: d.update(interval={"level": 0.9, "low_s": 1.0}), r"required field `high_s` - at `\$\.interval`"),
        (lambda d: d.update(stragglers=[{"rank": 1}]), r"missing required field `stage` - at `\$\.stragglers\[0\]`"),
        (lambda d: d.update(what_if=[{"change": "x"}]), r"missing required field .* at `\$\.what_if\[0\]`"),
    ],
)
def test_a_wrong_document_is_refused_with_its_field(result, change, said):
    document = result_to_dict(result)
    change(document)
    with pytest.raises(FormatError, match=said) as caught:
        result_from_json(encode(document), "there.json")
    assert str(caught.value).startswith("there.json: ")


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"3", b"\xff\xfe", b"[" * 100_000])
def test_what_is_no_document_is_refused(data):
    with pytest.raises(FormatError):
        result_from_json(data, "x")


def test_inspection():
    inspection = Inspection(
        path="a.txt",
        format="aicb",
        generation="1",
        confidence=1,
        evidence=("header",),
        counts={"rows": 3},
        layout={"tp": 8, "vpp": None},
        totals=(Total(group="tp", what="all_gather", count=1, size_bytes=5, time_s=None),),
        oddities=(Note("x", "y"),),
    )
    document = inspection_to_dict(inspection)
    assert next(iter(document)) == "schema" and document["schema"] == "traincast.inspection/1"
    assert document["totals"] == [{"group": "tp", "what": "all_gather", "count": 1, "size_bytes": 5, "time_s": None}]
    assert document["layout"] == {"tp": 8, "vpp": None}


def test_clusters():
    link = Link(bandwidth_bytes_per_s=1e9, base_latency_s=1e-6, hop_latency_s=1e-7)
    cluster = Cluster(
        name="h100",
        description="",
        gpu=Gpu(name="H100"),
        gpus_per_node=8,
        intra=link,
        inter=link,
        sources=(("gpu.name", "datasheet"),),
    )
    document = clusters_to_dict([cluster])
    assert document["schema"] == "traincast.clusters/1"
    assert document["clusters"][0]["intra"]["bandwidth_bytes_per_s"] == 1e9
    assert document["clusters"][0]["sources"] == [{"number": "gpu.name", "source": "datasheet"}]
