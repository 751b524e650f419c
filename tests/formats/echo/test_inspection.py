"""An inspection says which kind of run a trace is of, and counts and sums what it holds."""

from pathlib import Path

import pytest

from traincast.errors import FormatError
from traincast.formats.echo.grammar import parse
from traincast.formats.echo.inspection import (
    BUCKETS,
    PLAN,
    PROFILE,
    REAL_RUN,
    generation,
    inspect_file,
    pure_compute_s,
    totals,
    trace_warnings,
)
from traincast.formats.echo.sniff import looks_like

EXAMPLES = Path(__file__).parents[3] / "examples"
DENSE = EXAMPLES / "megatron_rank0_pp2.txt"
EXPERTS = EXAMPLES / "megatron_moe_profile_rank7.txt"
PP4 = EXAMPLES / "megatron_pp4_tp2"
OTHERS = [EXAMPLES / "aicb_gpt_405b_1024gpu.txt", EXAMPLES / "aicb_scaled_512gpu.txt"]
BUCKET = (
    "rank:0:ddp_grad_comm(comm_uid=c,iter=3,stage_id=0,mg_state=cooldown,group_kind=exp_dp,comm_func=reduce_scatter,"
    "bucket_numel=1000,trigger_cmd_uid=cmd-3,metadata_only=True,grad_dtype=torch.float32,duration=0.0,"
    "timestamp=229.65,sub_operations=[])"
)


def line_of(op, end_ms, duration_ms=1.0, **changes):
    fields = {"stage_id": 0, "batch_id": 0, "mg_state": "steady", "duration": duration_ms, "description": "None"}
    fields |= {"group_kind": "None", "input__shape": "None", "input__dtype": "None", "timestamp": end_ms}
    fields |= {"sub_operations": "[]"} | changes
    subs = fields.pop("sub_operations")
    return f"rank:0:{op}({','.join(f'{key}={value}' for key, value in fields.items())},sub_operations={subs})"


def by_line(found):
    return {(total.group, total.what): total for total in found}


def codes(lines):
    return [note.code for note in trace_warnings("t.txt", parse("t.txt", "\n".join(lines)))]


def test_the_trace_of_a_dense_run():
    found = inspect_file(DENSE)
    assert (found.generation, found.confidence) == (REAL_RUN, 0.95)
    assert (found.counts["operations"], found.counts["sub_operations"]) == (8, 84)
    assert (found.counts["dp_allreduce"], found.counts["emb_allreduce"]) == (1, 1)
    expected = {
        "rank": 0, "stage": 0, "pp": 2, "tp": None, "microbatches": 1, "micro_batch": 1, "sequence": 4096,
        "hidden": 5120, "vocabulary_shard": 25216, "gradient_elements": 3296778240, "dtype": "float16",
    }  # fmt: skip
    assert expected.items() <= found.layout.items()
    totals_of = by_line(found.totals)
    asynchronous = totals_of["tp", "all_reduce_async"]
    assert (asynchronous.count, asynchronous.time_s) == (40, pytest.approx(0.06389))
    assert totals_of["tp", "all_reduce"].count == 41
    assert totals_of["tp", "all_reduce"].size_bytes == 41 * 4096 * 5120 * 2
    assert totals_of["tp", "broadcast"].size_bytes == 4096 * 8 * 2 + 4096 * 4096
    assert totals_of["dp", "all_reduce"].size_bytes == 3296778240 * 2
    assert totals_of["pp", "send_recv"].time_s == pytest.approx(0.43577)
    assert totals_of["compute", "backward"].time_s == pytest.approx(0.26689)
    assert [note.code for note in found.oddities] == ["spans-include-waiting", "async-spans"]
    assert found.oddities[1].place == f"{DENSE}:5"


def test_the_profile_of_an_expert_run():
    found = inspect_file(EXPERTS)
    assert (found.generation, found.confidence) == (PROFILE, 0.95)
    assert (found.counts["operations"], found.counts["sub_operations"]) == (4, 10)
    assert {
        "rank": 7,
        "stage": 1,
        "hidden": 4096,
        "dtype": "bfloat16",
        "sequence": None,
    }.items() <= found.layout.items()
    totals_of = by_line(found.totals)
    assert totals_of["ep", "all_to_all"].size_bytes == 4 * (2048 + 185) * 4096 * 2
    assert totals_of["dp", "all_reduce"].time_s is None
    assert [note.code for note in found.oddities] == ["simulated-communication", "placeholder"]


def test_the_name_and_the_shapes_of_a_run_agree():
    for path in sorted(PP4.glob("*.txt")):
        found = inspect_file(path)
        assert {"world_size": 8, "tp": 2, "pp": 4, "layers": 40, "micro_batch": 2}.items() <= found.layout.items()
        assert found.layout["hidden"] == 5120
        assert "name-against-shapes" not in [note.code for note in found.oddities]


def test_a_name_that_disagrees_with_the_shapes(tmp_path):
    path = tmp_path / "x_bs4_rank0.txt"
    path.write_text(DENSE.read_text())
    note = inspect_file(path).oddities[0]
    assert note.code == "name-against-shapes"
    assert "micro_batch is 4 by the name and 1 by the shapes" in note.text


def test_every_kind_of_run_is_told():
    plan = "stage:0:forward_step(batch_id=0, mg_state=steady, duration=None, description=None)"
    played = line_of("backward_step", 5.0, description="simulation", group_kind="None,cmd_uid=cmd-3")
    for lines, text, confidence in (
        ([plan], PLAN, 0.95),
        ([BUCKET, played], BUCKETS, 0.95),
        ([played], PROFILE, 0.95),
        ([played, line_of("forward_step", 3.0)], PROFILE, 0.6),
        ([line_of("forward_step", 3.0)], REAL_RUN, 0.95),
    ):
        *found, evidence = generation(parse("t.txt", "\n".join(lines)))
        assert found == [text, confidence]
        assert evidence


def test_only_traces_are_claimed():
    for path in (DENSE, EXPERTS, *sorted(PP4.glob("*.txt"))):
        assert looks_like(path.read_text()[:65536]).confidence > 0.95
    for path in OTHERS:
        assert looks_like(path.read_text()[:65536]).confidence == 0
    assert looks_like("\ufeff\r\n" + DENSE.read_text()).confidence > 0.95
    assert looks_like(DENSE.read_text()[:300]).confidence == 0.8
    assert looks_like("rank:0:f(what)\nmore").confidence == 0.5
    for text in ("", "rank: 0", "allreduce: duration=0.17, attributes={}", '{"rank": 0}'):
        assert looks_like(text).confidence == 0


def test_an_exchange_counts_once_in_time_and_twice_in_bytes():
    message = {"group_kind": "pp", "input__shape": "[8, 1, 4]", "input__dtype": "torch.float16"}
    lines = [
        line_of("send_forward", 30.0, 5.0, **message),
        line_of("recv_backward", 30.0, 5.0, **message),
        line_of("recv_backward", 40.0, 5.0, **message),
    ]
    (total,) = totals(parse("t.txt", "\n".join(lines)))
    assert (total.group, total.what, total.count, total.size_bytes) == ("pp", "send_recv", 3, 3 * 64)
    assert total.time_s == pytest.approx(0.010)
    assert codes(lines) == ["fused-messages", "spans-include-waiting"]


def test_gradient_buckets_are_communications_of_their_group():
    (total,) = totals(parse("t.txt", BUCKET))
    assert (total.group, total.what, total.count, total.size_bytes) == ("edp", "reduce_scatter", 1, 4000)
    assert "bucket-launch-only" in codes([BUCKET])


def test_synchronous_collectives_are_no_compute_and_asynchronous_ones_stay():
    sub = "trace_src_func={},duration={},timestamp=9.0,input__shape=[2],input__dtype=None,group=tp,comm_func=allreduce"
    subs = repr([sub.format("allreduce", 2.5), sub.format("normlinear_bwd_async", 3.0)])
    (op,) = parse("t.txt", line_of("backward_step", 10.0, 10.0, sub_operations=subs))
    assert pure_compute_s(op) == pytest.approx(0.0075)


def test_what_is_not_known_is_said():
    sub = "trace_src_func=f,duration=1,timestamp=2,input__shape=[2],input__dtype=torch.odd,group=xp,comm_func=gossip"
    line = line_of("new_thing", 9.0, group_kind="zp,new_field=3", input__dtype="torch.odd", sub_operations=f"['{sub}']")
    assert sorted(set(codes([line])) - {"spans-include-waiting"}) == [
        "unknown-communication", "unknown-dtype", "unknown-field", "unknown-group", "unknown-operation",
    ]  # fmt: skip


def test_what_cannot_be_inspected_names_its_line():
    with pytest.raises(FormatError, match=r"aicb_scaled_512gpu\.txt:1: "):
        inspect_file(OTHERS[1])
