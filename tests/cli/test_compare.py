"""``traincast compare``."""

import json
import math
from pathlib import Path

import pytest
from msgspec.structs import replace

import traincast
from aicb_runs import header_of, write_text
from support import row
from traincast import api
from traincast.errors import FormatError
from traincast.report.json import to_json

EXAMPLES = Path(__file__).parents[2] / "examples"
PP4 = EXAMPLES / "megatron_pp4_tp2"


@pytest.fixture
def compare(call):
    """Run ``compare`` (see `call`)."""
    return lambda *words: call("compare", *words)


@pytest.fixture(scope="module")
def replay(tmp_path_factory):
    """A result.json simulated from the measured run."""
    path = tmp_path_factory.mktemp("replay") / "result.json"
    path.write_bytes(to_json(api.simulate(PP4, cluster="h100")))
    return path


@pytest.fixture
def workload(tmp_path):
    layer = row("attention_layer", (1_000_000, "ALLREDUCE", 1 << 20), 1_000_000)
    header = header_of(tp=2, ep=1, pp=2, vpp=1, ga=1, all_gpus=16, checkpoints=0, checkpoint_initiates=0, pp_comm=4096)
    return write_text(tmp_path / "w.txt", header, [layer] * 4)


def every_number(document):
    if isinstance(document, dict):
        document = list(document.values())
    if isinstance(document, list):
        return [number for item in document for number in every_number(item)]
    return [document] if isinstance(document, int | float) else []


def test_a_replay_is_within_one_percent_of_its_measurement(compare, replay):
    code, out, err = compare(PP4, replay, "--json")
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert document["schema"] == "traincast.comparison/1"
    assert (document["a"]["what"], document["b"]["what"]) == ("measured", "simulated")
    assert document["step_s"]["a"] == pytest.approx(3.8555, abs=1e-4)
    assert [rank["rank"] for rank in document["ranks"]] == list(range(8))
    for each in (document["step_s"], *(rank["end_s"] for rank in document["ranks"])):
        assert 0 < abs(each["relative"]) < 0.01
        assert each["relative"] == pytest.approx(each["b"] / each["a"] - 1)
        assert each["difference"] == pytest.approx(each["b"] - each["a"])
    assert {"forward_step", "backward_step", "recv_forward", "optimizer_step"} <= set(document["parts_s"])
    sums = sum(rank["parts_s"]["forward_step"]["b"] for rank in document["ranks"])
    assert document["parts_s"]["forward_step"]["b"] == pytest.approx(sums)
    assert document["breakdown_s"] is None
    nothing = {"ranks": [], "parts": []}
    assert document["only_a"] == document["only_b"] == nothing
    assert all(math.isfinite(number) for number in every_number(document))


def test_the_relative_errors_are_printed(compare, replay):
    code, out, err = compare(PP4, replay)
    assert (code, err) == (0, "")
    relative = api.compare(PP4, replay).step.relative
    assert f"({100 * relative:+.2f} %)" in out.splitlines()[0]
    assert max(map(len, out.splitlines())) <= 80
    assert "Parts without waiting, ms (sums over 8 ranks)" in out
    assert "Parts of each rank" not in out
    assert "Parts of each rank" in compare(PP4, replay, "--ranks")[1]


def test_the_measurement_is_that_of_the_report(replay):
    result, measured = api.load_result(replay), api.compare(replay, PP4).b
    assert measured.step_s == result.measured_s
    assert measured.end_s == {rank.rank: rank.measured_end_s for rank in result.ranks}
    assert all(measured.part_s[part.rank][part.part] == part.measured_s for part in result.parts if part.measured_s)


def test_some_ranks_of_a_run(compare, replay):
    code, out, _ = compare(str(PP4 / "*rank[0-3]_*"), replay)
    assert code == 0
    assert "Only in B" in out and "ranks 4-7" in out and "Only in A" not in out


def test_identical_sides_do_not_differ(compare, replay):
    document = json.loads(compare(replay, replay.parent, "--json")[1])
    found = [document["step_s"], *document["breakdown_s"].values(), *document["parts_s"].values()]
    found += [rank["end_s"] for rank in document["ranks"]]
    assert {each["difference"] for each in found} == {0}
    assert {each["relative"] for each in found} == {0, None}
    assert document["breakdown_s"]["exposed_cp"]["relative"] is None
    assert ": the same" in compare(PP4, PP4)[1].splitlines()[0]


def test_two_results(compare, workload, tmp_path):
    base, slow = api.simulate(workload, cluster="h100"), api.simulate(workload, cluster="h100", vpp=2)
    (tmp_path / "a.json").write_bytes(to_json(base))
    (tmp_path / "b.json").write_bytes(to_json(replace(slow, parts=())))
    document = json.loads(compare(tmp_path / "a.json", tmp_path / "b.json", "--json")[1])
    assert document["step_s"]["b"] == slow.iteration_time_s
    assert sum(each["difference"] for each in document["breakdown_s"].values()) == pytest.approx(
        slow.iteration_time_s - base.iteration_time_s
    )
    assert len(document["only_a"]["parts"]) == len(base.parts)
    comparison = traincast.compare(base, slow)
    assert comparison.step.b_s == slow.iteration_time_s
    assert comparison.a.name == str(workload)


def test_a_workload_in_memory(workload):
    measured = api.read(PP4)
    assert traincast.compare(measured, PP4).step.difference_s == 0
    with pytest.raises(FormatError, match="simulate it first"):
        traincast.compare(measured, api.read(workload))


# --- what is not a side of a comparison


def test_an_unmeasured_workload_says_to_simulate_it_first(compare, workload, replay):
    code, out, err = compare(replay, workload)
    assert (code, out) == (1, "")
    assert err.startswith(f"error: {workload}: ")
    assert "traincast simulate FILE --out DIR" in err


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("absent.txt", None, "cannot be read: No such file or directory"),
        ("absent.json", None, "cannot be read: No such file or directory"),
        ("*.none", None, "no file matches this pattern"),
        ("plan.json", b'{"schema": "traincast.plan/1"}', "is not a traincast.result/1 document"),
        ("noname", b'\n {"schema": "traincast.result/9"}', "traincast.result/9"),
        ("list.json", b"[]", "is not a traincast.result/1 document"),
        ("words.txt", b"hello world\n", "not a file of a known format"),
        ("empty.txt", b"", "the file is empty"),
    ],
)
def test_bad_inputs_have_clear_messages(compare, replay, tmp_path, name, content, said):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    for words in ((replay, path), (path, replay)):
        code, out, err = compare(*words)
        assert (code, out) == (1, "")
        assert err.startswith(f"error: {path}:")
        assert said in err
        assert err.count("\n") == 1


def test_a_folder_of_nothing_is_refused(compare, replay, tmp_path):
    assert compare(tmp_path, replay) == (1, "", f"error: {tmp_path}: is a folder without files\n")


def test_a_result_whose_parts_are_of_no_rank_is_refused(compare, replay, tmp_path):
    document = json.loads(replay.read_bytes())
    document["parts"][0]["rank"] = 99
    path = tmp_path / "odd.json"
    path.write_text(json.dumps(document))
    code, out, err = compare(replay, path)
    assert (code, out, err) == (1, "", f"error: {path}: rank 99 has parts, but no end\n")


@pytest.mark.parametrize("words", [[], ["one"], ["one", "two", "three"], ["one", "two", "--nope"]])
def test_wrong_usage_ends_with_two(compare, words):
    code, out, err = compare(*words)
    assert (code, out) == (2, "")
    assert err.startswith("Usage: traincast compare")
