"""Simulated runs written as execution traces, and simulated again from them."""

import json
from pathlib import Path

import pytest

import traincast
from support import rich_rows, write_aicb
from traincast import api
from traincast.errors import ConfigError
from traincast.formats.chakra.grammar import NodeType, load
from traincast.job.options import make_options

EXAMPLES = Path(__file__).parents[3] / "examples"
JOB = """
[model]
name = "mixtral-8x7b"
[parallel]
pp = 2
ep = 8
[batch]
global_batch = 16
seq_length = 2048
[cluster]
name = "h100"
gpus = 16
"""


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sources")
    (folder / "job.toml").write_text(JOB)
    rows = write_aicb(folder / "workload.txt", rich_rows(), tp=2, ep=2, pp=2, ga=2, gpus=8, pp_comm=1 << 20)
    return {"job": folder / "job.toml", "workload": rows, "trace": EXAMPLES / "megatron_pp4_tp2"}


def simulated(source):
    if source.suffix == ".toml":
        return traincast.predict(source)
    return traincast.simulate(source, cluster="h100", unfold=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["job", "workload", "trace"])
def test_a_run_comes_back_with_the_same_step(sources, tmp_path, name):
    before = simulated(sources[name])
    traincast.convert(sources[name], tmp_path / "out", "chakra", options=make_options(cluster="h100"))
    after = traincast.simulate(tmp_path / "out", cluster="h100")
    assert after.iteration_time_s == pytest.approx(before.iteration_time_s, rel=1e-6)
    # What slows each other down stands in the recorded times, so that of the whole step only the ranks compare.
    least_s = 1e-6 * before.iteration_time_s
    for key, time_s in before.ranks[0].breakdown_s.items():
        assert after.ranks[0].breakdown_s[key] == pytest.approx(time_s, rel=1e-3, abs=least_s), key
    for key in ("world_size", "tp", "pp", "ep", "dp"):
        assert after.parallel[key] == before.parallel[key]
    kinds = {each.group for each in after.collectives}
    assert kinds == {each.group for each in before.collectives}


def test_a_profile_of_several_streams_comes_back_with_the_same_step(tmp_path):
    source = Path(__file__).parents[2] / "conformance" / "samples" / "kineto"
    for path in sorted(source.iterdir()):
        before = traincast.simulate(path, cluster="h100")
        traincast.convert(path, tmp_path / path.stem, "chakra", options=make_options(cluster="h100"))
        after = traincast.simulate(tmp_path / path.stem, cluster="h100")
        assert after.iteration_time_s == pytest.approx(before.measured_s, rel=1e-3), path.name


def test_what_was_read_back_is_written_with_the_same_meaning(sources, tmp_path):
    traincast.convert(sources["workload"], tmp_path / "one", "chakra", options=make_options(cluster="h100"))
    traincast.convert(tmp_path / "one", tmp_path / "two", "chakra", options=make_options(cluster="h100"))
    for path in sorted((tmp_path / "one").glob("*.et")):
        first, again = load(path), load(tmp_path / "two" / path.name)
        assert [each.body.name for each in first.nodes] == [each.body.name for each in again.nodes]
        assert [each.body.duration_s for each in first.nodes] == pytest.approx(
            [each.body.duration_s for each in again.nodes]
        )
    one, two = (traincast.simulate(tmp_path / each, cluster="h100") for each in ("one", "two"))
    assert two.iteration_time_s == pytest.approx(one.iteration_time_s, rel=1e-9)


def test_every_node_is_one_that_simulators_finish(sources, tmp_path):
    traincast.convert(sources["job"], tmp_path, "chakra", prefix="mixtral", force=True)
    groups = json.loads((tmp_path / "comm_group.json").read_text())
    files = sorted(tmp_path.glob("mixtral.*.et"))
    assert [path.name for path in files] == sorted(f"mixtral.{rank}.et" for rank in range(16))
    sent, received = [], []
    for rank in range(16):
        known = set()
        for node in load(tmp_path / f"mixtral.{rank}.et").nodes:
            body = node.body
            assert body.type in (NodeType.COMP, NodeType.COMM_SEND, NodeType.COMM_RECV, NodeType.COMM_COLL)
            # Dependencies point back, so that every order of the file can run.
            assert set(node.data) <= known and not node.control
            known.add(node.id)
            if body.is_collective:
                assert rank in groups[body.text("pg_name")]
                assert body.text("pg_name") != "0"
            elif body.is_message:
                key = (body.number("comm_src"), body.number("comm_dst"), body.number("comm_tag"))
                (sent if body.type == NodeType.COMM_SEND else received).append(key)
                assert rank == key[0 if body.type == NodeType.COMM_SEND else 1]
    assert len(set(sent)) == len(sent) > 0
    assert sorted(sent) == sorted(received)


def test_whole_microseconds_add_up(sources, tmp_path):
    traincast.convert(sources["job"], tmp_path, "chakra", force=True)
    for path in tmp_path.glob("*.et"):
        nodes = [each.body for each in load(path).nodes if each.body.is_computation]
        exact_us = sum(1e6 * each.duration_s for each in nodes)
        assert sum(each.duration_us for each in nodes) == pytest.approx(exact_us, abs=1.0)


def test_a_prefix_that_is_no_name_is_refused(sources, tmp_path):
    with pytest.raises(ConfigError, match="option prefix"):
        api.convert(sources["workload"], tmp_path / "out", "chakra", prefix="a/b")
    assert not (tmp_path / "out").exists()


def test_what_the_format_cannot_say_is_told(sources, tmp_path):
    lost = {note.code for note in traincast.convert(sources["job"], tmp_path, "chakra", force=True).lost}
    assert "placement" in lost
