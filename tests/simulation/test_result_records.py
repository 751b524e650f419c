"""The records of a result: attributes, and for a version the same by name; what old documents lack."""

import json

import pytest
from msgspec.structs import asdict, replace

import traincast
from traincast.analysis.by_name import IndexedByName
from traincast.report.json import encode, result_from_json, result_to_dict, to_json
from traincast.report.json_schema import DocumentShape, schema_of
from traincast.simulation.result import Result

JOB = {"model": "llama3-8b", "cluster": "h100", "gpus": 16, "global_batch": 32, "seq_length": 4096}


@pytest.fixture(scope="module")
def replayed():
    return traincast.simulate("examples/megatron_pp4_tp2", cluster="h100", what_if="rank7.own=peers")


@pytest.fixture(scope="module")
def forecast():
    return traincast.predict(**JOB, tp=2)


@pytest.fixture(scope="module")
def records(replayed, forecast):
    return {
        "straggler": replayed.stragglers[0],
        "what-if": replayed.what_if[0],
        "parallel": replayed.parallel,
        "cluster": replayed.cluster,
        "interval": forecast.interval,
        "memory": forecast.memory_bytes[0],
    }


KINDS = ("straggler", "what-if", "parallel", "cluster", "interval", "memory")


@pytest.mark.parametrize("kind", KINDS)
def test_every_record_is_read_by_name_as_by_attribute(records, kind):
    record = records[kind]
    fields = {name: getattr(record, name) for name in record.keys()}  # noqa: SIM118 not of a dict
    assert isinstance(record, IndexedByName) and fields
    assert {name: record[name] for name in record} == fields == dict(record) == {**record}
    assert (list(record), len(record), list(record.items())) == (list(fields), len(fields), list(fields.items()))
    assert list(record.values()) == list(fields.values())
    assert record == fields and fields == record and record != {**fields, "later": 1}
    for name, value in fields.items():
        assert name in record and record.get(name) == value
    assert "later" not in record and record.get("later", 3) == 3 and record.get("later") is None
    with pytest.raises(KeyError, match="later"):
        record["later"]


@pytest.mark.parametrize("kind", KINDS)
def test_names_are_the_keys_of_the_document(replayed, forecast, records, kind):
    document = json.loads(to_json(forecast if kind in ("interval", "memory") else replayed))
    written = {
        "straggler": lambda: document["stragglers"][0],
        "what-if": lambda: document["what_if"][0],
        "parallel": lambda: document["parallel"],
        "cluster": lambda: document["cluster"],
        "interval": lambda: document["interval"],
        "memory": lambda: document["memory_bytes"][0],
    }[kind]()
    assert written == records[kind]
    assert list(written) == list(records[kind])


def test_records_of_one_class_compare_and_hash_by_what_they_say(forecast):
    interval = forecast.interval
    assert interval == replace(interval) != replace(interval, low_s=0.0)
    assert len({interval, replace(interval)}) == 1
    assert interval != tuple(asdict(interval).values())


def test_memory_of_the_host_has_a_key_where_something_is_offloaded(forecast):
    assert forecast.memory_bytes[0].host is None and "host" not in forecast.memory_bytes[0]
    offloaded = traincast.predict(**JOB, tp=2, offload_optimizer=1.0)
    assert offloaded.memory_bytes[0].host > 0
    keys = list(json.loads(to_json(offloaded))["memory_bytes"][0])
    assert keys == [
        *("parameters", "gradients", "optimizer", "activations", "other", "peak", "host", "usable"),
        keys[-1],
    ]


def test_a_document_read_and_written_again_has_the_same_bytes(replayed, forecast):
    for result in (replayed, forecast):
        data = to_json(result)
        again = result_from_json(data, "result.json")
        assert to_json(again) == data
        assert type(again) is Result and again == result
        assert (again.program, again.timeline) == (None, None)


def test_what_older_versions_did_not_write_may_be_absent(forecast):
    document = result_to_dict(forecast)
    for name in ("gpu_tdp_w", "gpus_used_per_node", "fabric"):
        del document["cluster"][name]
    for stage in document["memory_bytes"]:
        del stage["usable"], stage["chance_of_oom"]
    del document["mfu_peak"], document["job"], document["run"]
    old = result_from_json(encode(document), "result.json")
    assert (old.cluster.fabric, old.cluster.gpu_tdp_w, old.cluster.gpus_used_per_node) == (None, None, None)
    assert [each.peak for each in old.memory_bytes] == [each.peak for each in forecast.memory_bytes]
    assert {each.usable for each in old.memory_bytes} == {None}
    assert result_to_dict(old)["memory_bytes"] == document["memory_bytes"]


def test_operations_in_a_document_are_ignored(forecast):
    document = result_to_dict(forecast) | {"program": 3, "timeline": []}
    assert result_from_json(encode(document), "result.json").program is None


def test_the_schema_says_what_each_record_has():
    schema = schema_of(DocumentShape((Result,), ("program", "timeline")), "result")
    records = schema["$defs"]
    memory = records["simulation.result_records.MemoryResult"]
    assert list(memory["properties"])[-3:] == ["host", "usable", "chance_of_oom"]
    assert memory["required"] == ["parameters", "gradients", "optimizer", "activations", "other", "peak"]
    assert records["analysis.summary.Interval"]["required"] == ["level", "low_s", "high_s"]
    assert records["simulation.result_records.StragglerResult"]["properties"]["rank"] == {"type": "integer"}
    assert schema["properties"]["parallel"] == {"$ref": "#/$defs/simulation.result_records.ParallelFacts"}
    assert "program" not in schema["properties"]
