"""What our codec writes the protobuf package reads, and the other way round; the official schema decides."""

import math
import random

import pytest

from formats.chakra import schema
from support import rich_rows, write_aicb
from traincast import api
from traincast.formats.chakra.grammar import NodeType, parse

RANDOM = random.Random(5)  # noqa: S311 the same nodes every time
EXTREMES = {
    "int32": [0, -1, 2**31 - 1, -(2**31)],
    "int64": [0, -1, 2**63 - 1, -(2**63)],
    "uint32": [0, 2**32 - 1],
    "uint64": [0, 2**64 - 1],
    "sint32": [0, -1, 1, 2**31 - 1, -(2**31)],
    "sint64": [0, -1, 1, 2**63 - 1, -(2**63)],
    "fixed32": [0, 2**32 - 1],
    "fixed64": [0, 2**64 - 1],
    "sfixed32": [0, -1, -(2**31)],
    "sfixed64": [0, -1, -(2**63)],
    "bool": [False, True],
    "double": [0.0, -1.5, 1e300, math.inf],
    "float": [0.0, -1.5, math.inf],
    "string": ["", "gemm", "größer"],
    "bytes": [b"", b"\0\xff"],
}


def some_nodes(count):
    """Return nodes of every type with attributes of every kind, in no order."""
    nodes = []
    for number in RANDOM.sample(range(10 * count), count):
        node = schema.Node(id=number, name=f"node {number}", type=number % 11)
        known = [each.id for each in nodes]
        node.data_deps.extend(RANDOM.sample(known, min(len(known), number % 4)))
        node.ctrl_deps.extend(RANDOM.sample(known, min(len(known), number % 3)))
        node.duration_micros = RANDOM.choice([0, 1, 127, 128, 2**40])
        node.start_time_micros = RANDOM.choice([0, 2**50])
        node.inputs.values = RANDOM.choice(["", "[1, 2]"])
        for kind in RANDOM.sample(schema.SCALARS, 5):
            for value in RANDOM.sample(EXTREMES[kind], 2):
                node.attr.add(name=f"{kind}_{value!r}"[:40], doc_string="said")
                setattr(node.attr[-1], f"{kind}_val", value)
            node.attr.add(name=f"{kind}s")
            getattr(node.attr[-1], f"{kind}_list").values.extend(EXTREMES[kind])
        nodes.append(node)
    return nodes


def test_what_protobuf_writes_is_read():
    metadata = schema.Metadata(version="0.0.4")
    metadata.attr.add(name="pid", uint64_val=4711)
    nodes = some_nodes(60)
    trace = parse("run.0.et", schema.written(metadata, nodes))
    assert (trace.version, trace.metadata) == ("0.0.4", {"pid": 4711})
    for ours, theirs in zip(trace.nodes, nodes, strict=True):
        assert (ours.id, ours.body.name, ours.body.type) == (theirs.id, theirs.name, theirs.type)
        assert (ours.control, ours.data) == (tuple(theirs.ctrl_deps), tuple(theirs.data_deps))
        assert (ours.start_us, ours.body.duration_us) == (theirs.start_time_micros, theirs.duration_micros)
        assert ours.body.inputs == theirs.inputs.values
        assert not ours.body.old
        assert ours.body.attributes == {each.name: schema.value_of(each) for each in theirs.attr}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("chakra")
    path = write_aicb(folder / "workload.txt", rich_rows(), tp=2, ep=2, pp=2, ga=2, gpus=8, pp_comm=1 << 20)
    api.convert(path, folder / "out", "chakra")
    return folder / "out"


def test_what_we_write_parses_with_the_official_schema_and_back(written):
    files = sorted(written.glob("*.et"))
    assert len(files) == 8
    for path in files:
        data = path.read_bytes()
        metadata, nodes = schema.trace_of(data)
        assert metadata.version == "0.0.4"
        # Serialized again by the library of the schema the bytes are the same: fields in order, nothing unknown.
        assert schema.written(metadata, nodes) == data
        for ours, theirs in zip(parse(str(path), data).nodes, nodes, strict=True):
            assert (ours.id, ours.body.name, ours.body.type, ours.data) == (
                *(theirs.id, theirs.name, theirs.type),
                tuple(theirs.data_deps),
            )
            assert ours.body.attributes == {each.name: schema.value_of(each) for each in theirs.attr}


def test_attributes_have_the_types_that_the_feeders_read(written):
    kinds = {
        **{"is_cpu_op": "bool_val", "comm_type": "int64_val", "comm_size": "int64_val", "pg_name": "string_val"},
        **{"comm_src": "int32_val", "comm_dst": "int32_val", "comm_tag": "int32_val"},
        **{"num_ops": "int64_val", "tensor_size": "uint64_val"},
    }
    seen = set()
    for path in written.glob("*.et"):
        for node in schema.trace_of(path.read_bytes())[1]:
            assert node.id > 0
            names = [each.name for each in node.attr]
            assert len(set(names)) == len(names)
            for each in node.attr:
                assert each.WhichOneof("value") == kinds.get(each.name, each.WhichOneof("value")), each.name
            seen |= set(names)
            if node.type == NodeType.COMM_COLL:
                assert {"comm_type", "comm_size", "pg_name"} <= set(names)
            elif node.type in (NodeType.COMM_SEND, NodeType.COMM_RECV):
                assert {"comm_src", "comm_dst", "comm_tag", "comm_size"} <= set(names)
            else:
                assert node.type == NodeType.COMP
    assert set(kinds) - seen == {"num_ops", "tensor_size"}
