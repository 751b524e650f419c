"""Lines of a rank trace: every hazard of the format, the samples, and writing back."""

import time
from pathlib import Path

import pytest

from echo_runs import joined, line_read
from traincast.errors import FormatError
from traincast.formats.echo.grammar import load, parse, parse_line
from traincast.workload.words import Group, Operation

EXAMPLES = Path(__file__).parents[3] / "examples"
SAMPLES = [
    EXAMPLES / "megatron_rank0_pp2.txt",
    EXAMPLES / "megatron_moe_profile_rank7.txt",
    *sorted((EXAMPLES / "megatron_pp4_tp2").glob("*.txt")),
]
SUB = (
    "trace_src_func=allreduce,duration=0.36,timestamp=2004.5,input__shape=[4096, 5120],"
    "input__dtype=torch.float16,func_name=linear_fwd,group=tp,comm_func=allreduce"
)
DESCRIPTIONS = [
    "loss_func, calculate and DP allreduce for the last stage",
    "model_chunk.finish_grad_sync(), All-reduce / reduce-scatter across DP replicas",
    "_allreduce_embedding_grads, All-reduce embedding grads (for pipeline parallelism)",
    "simulation: loss_func, calculate and DP allreduce for the last stage",
    "Regular DP gradient synchronization (non-expert parameters)",
    "a=1, b=2, note=see (x), [timestamp=3, y] rank:1:f(",
]


def line_of(op="dp_allreduce", subs="[]", gap=",", **changes):
    fields = {
        "stage_id": "1",
        "batch_id": "0",
        "mg_state": "steady",
        "duration": "7.74",
        "description": "None",
        "group_kind": "dp",
        "input__shape": "[2, 3]",
        "input__dtype": "torch.float16",
        "timestamp": "2000.5",
    }
    fields |= changes
    fields["sub_operations"] = subs
    return f"rank:3:{op}({gap.join(f'{key}={value}' for key, value in fields.items())})"


def read(text):
    return parse_line(text, "t.txt", 5)


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_every_letter_of_a_sample_is_in_a_field(path):
    assert [joined(line_read(op)) for op in load(path)] == [joined(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize(("index", "lines", "sub_operations", "asynchronous"), [(0, 8, 84, 40), (1, 4, 10, 0)])
def test_a_sample_has_its_operations(index, lines, sub_operations, asynchronous):
    ops = load(SAMPLES[index])
    subs = [sub for op in ops for sub in op.sub_ops]
    assert [op.line for op in ops] == list(range(1, lines + 1))
    assert len(subs) == sub_operations
    assert sum(sub.call.is_async for sub in subs) == asynchronous
    assert all(sub.call.group is not None and sub.call.comm is not Operation.NONE for sub in subs)


def test_values_have_types_and_si_units():
    op = read(line_of(subs=f"['{SUB}']", description="simulation"))
    assert (op.path, op.line, op.scope, op.rank, op.op, op.stage_id, op.batch_id) == (
        "t.txt", 5, "rank", 3, "dp_allreduce", 1, 0,
    )  # fmt: skip
    assert (op.state, op.group_kind, op.shape, op.dtype, op.size_bytes) == ("steady", Group.DP, (2, 3), "float16", 12)
    assert op.duration_s == pytest.approx(0.00774)
    assert op.start_s == pytest.approx(1.99276)
    assert op.end_s == 2.0005
    (sub,) = op.sub_ops
    assert (sub.call.source, sub.call.func_name, sub.call.shape, sub.call.dtype) == (
        "allreduce",
        "linear_fwd",
        (4096, 5120),
        "float16",
    )
    assert (sub.call.group, sub.call.comm, sub.call.is_async, sub.call.size_bytes) == (
        Group.TP,
        Operation.ALL_REDUCE,
        False,
        41943040,
    )
    assert (sub.duration_s, sub.end_s) == (0.36 / 1e3, 2.0045)


@pytest.mark.parametrize("description", DESCRIPTIONS)
@pytest.mark.parametrize("gap", [",", ", "])
def test_a_description_may_hold_anything_but_a_known_field(description, gap):
    text = line_of(description=description, subs=f"['{SUB}', '{SUB}']", gap=gap)
    op = read(text)
    assert op.description == description
    assert (op.group_kind, op.timestamp_s, len(op.sub_ops)) == (Group.DP, 2.0005, 2)
    assert joined(line_read(op)) == joined(text)


@pytest.mark.parametrize(
    ("raw", "name"),
    [
        ("exp_dp_allreduce", "edp_allreduce"),
        ("ep_dp_allreduce", "edp_allreduce"),
        ("ep_allreduce", "emb_allreduce"),
        ("pep_allreduce", "pos_emb_allreduce"),
        ("calcu_loss", "loss_func"),
        ("RecvGrad", "recv_backward"),
        ("tp_reducescatter", "tp_reduce_scatter"),
        ("something_new", "something_new"),
    ],
)
def test_an_operation_has_one_name(raw, name):
    op = read(line_of(op=raw))
    assert (op.op, op.raw_op) == (name, raw)


@pytest.mark.parametrize(
    ("written", "group"),
    [
        ("None", None),
        ("tp", Group.TP),
        ("ep", Group.EMB),
        ("pep", Group.EMB),
        ("exp", Group.EP),
        ("exp_dp", Group.EDP),
        ("ep_dp", Group.EDP),
        ("other", None),
    ],
)
def test_ep_is_the_embedding_group(written, group):
    op = read(line_of(group_kind=written))
    assert op.group_kind is group
    assert op.raw("group_kind") == written


@pytest.mark.parametrize("word", ["allreduce", "all_reduce"])
def test_communications_have_two_spellings(word):
    (sub,) = read(line_of(subs=f"['{SUB.replace('comm_func=allreduce', f'comm_func={word}')}']")).sub_ops
    assert sub.call.comm is Operation.ALL_REDUCE


def test_an_asynchronous_span_is_told_by_its_source_or_its_purpose():
    subs = [
        SUB.replace("=allreduce,", "=normlinear_bwd_async,"),
        SUB.replace("linear_fwd", "embedding_bwd_async"),
        SUB.replace("linear_fwd", "normlinear_bwd_allreduce"),
    ]
    assert [sub.call.is_async for sub in read(line_of(subs=repr(subs))).sub_ops] == [True, True, False]


@pytest.mark.parametrize(
    ("text", "shape", "func_name"),
    [
        (SUB.replace("func_name=linear_fwd,", ""), (4096, 5120), None),
        (SUB.replace("input__shape", "input_shape"), (4096, 5120), "linear_fwd"),
        (SUB.replace("input__", "input_.").replace("func_name", "func.name"), (4096, 5120), "linear_fwd"),
        (SUB.replace("input__shape=[4096, 5120]", "input__shape=[8]"), (8,), "linear_fwd"),
        (SUB.replace("input__shape=[4096, 5120]", "input__shape=[]"), (), "linear_fwd"),
        (SUB.replace("input__shape=[4096, 5120]", "input__shape=None"), None, "linear_fwd"),
    ],
)
def test_older_spellings_and_missing_fields_of_a_sub_operation(text, shape, func_name):
    (sub,) = read(line_of(subs=f"['{text}']")).sub_ops
    assert (sub.call.shape, sub.call.func_name, sub.call.dtype, sub.call.group) == (
        shape,
        func_name,
        "float16",
        Group.TP,
    )


def test_a_sub_operation_without_a_time_or_with_more_fields():
    subs = [
        SUB.replace(",timestamp=2004.5", ""),
        SUB + ",cost=3,what=[1, 2]",
        SUB.replace("duration=0.36", "duration=None"),
    ]
    first, second, third = read(line_of(subs=repr(subs))).sub_ops
    assert (first.duration_s, first.end_s, first.start_s) == (0.36 / 1e3, None, None)
    assert (third.duration_s, third.end_s) == (None, 2.0045)
    assert first.call == second.call == third.call


def test_strings_with_escapes_and_double_quotes():
    named = SUB.replace("linear_fwd", 'the user\'s \\ "own" \x07 call')
    text = line_of(subs=repr([named, SUB, SUB.replace("linear_fwd", "it's")]))
    op = read(text)
    assert [sub.call.func_name for sub in op.sub_ops] == ['the user\'s \\ "own" \x07 call', "linear_fwd", "it's"]
    assert joined(line_read(op)) == joined(text)


def test_fields_of_later_traces_are_kept():
    text = (
        "rank:0:ddp_grad_comm(comm_uid=comm-1,iter=3,stage_id=0,mg_state=cooldown,group_kind=dp,comm_func=allreduce,"
        "bucket_id=1,bucket_numel=44040192,trigger_cmd_uid=cmd-3,launch_timestamp_ms=229.65,metadata_only=True,"
        "status=launch_only,wait_cmd_uid=None,grad_dtype=torch.float32,duration=0.0,timestamp=229.65,sub_operations=[])"
    )
    op = read(text)
    assert (op.batch_id, op.description, op.group_kind, op.duration_s) == (None, None, Group.DP, 0.0)
    assert op.is_simulated and not op.is_placeholder
    assert (op.extra["bucket_numel"], op.extra["trigger_cmd_uid"]) == ("44040192", "cmd-3")
    assert joined(line_read(op)) == joined(text)
    placed = read(line_of(description="simulation", group_kind="dp,cmd_uid=c-1,op_semantics=metadata_placeholder"))
    assert placed.group_kind is Group.DP
    assert placed.extra == {"cmd_uid": "c-1", "op_semantics": "metadata_placeholder"}


def test_a_scheduling_plan_has_no_times():
    text = (
        "stage:2:send_forward(batch_id=3, mg_state=steady, duration=None, description=None, group_kind=pp, "
        "input__shape=None, input__dtype=None)"
    )
    op = read(text + "\r\n")
    assert (op.scope, op.rank, op.stage_id, op.batch_id, op.duration_s, op.start_s) == ("stage", 2, 2, 3, None, None)
    assert op.is_placeholder and not op.is_simulated
    assert joined(line_read(op)) == joined(text)


def test_placeholders_and_profiles_are_told():
    placeholder = read(line_of(duration="0", timestamp="0"))
    assert placeholder.is_placeholder
    assert placeholder.start_s is None
    assert not read(line_of(duration="0.0")).is_placeholder
    assert not read(line_of()).is_simulated
    assert read(line_of(mg_state="None")).is_simulated
    assert read(line_of(description="simulation: loss_func, calculate")).is_simulated


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("allreduce: duration=0.17, attributes={'input_.shape': [1024, 128]}", "is not a line of a trace"),
        ("rank:x:f(duration=1)", "is not a line of a trace"),
        ("rank:01:f(duration=1)", "is not a line of a trace"),
        (line_of()[:-1], "was it cut off?"),
        ("rank:0:f()", "expected key=value"),
        ("rank:0:f(stage_id=0)", "no field 'duration'"),
        (line_of(duration="fast"), "duration is not a time in milliseconds: 'fast'"),
        (line_of(duration="nan"), "duration is not a time"),
        (line_of(duration="-1"), "duration is not a time"),
        (line_of(timestamp="1e400"), "timestamp is not a time"),
        (line_of(batch_id="1.5"), "batch_id is not a whole number: '1.5'"),
        (line_of(input__shape="[2, x]"), "input__shape is not a list of whole numbers"),
        (line_of(input__shape=f"[{2**31}, {2**31}]"), "is more than the 2^53 bytes that any tensor has"),
        (line_of(input__shape="[2, 3"), "a square bracket stays open"),
        (line_of(duration="1,duration=2"), "field 'duration' comes twice"),
        (line_of(input__shape="[1],input_shape=[2]"), "field 'input__shape' comes twice"),
        (line_of(subs="{}"), "not a list of strings"),
        (line_of(subs=SUB + "']"), "not a list of strings"),
        (line_of(subs="['" + SUB + "'"), "not a list of strings"),
        (line_of(subs="['" + SUB + "''" + SUB + "']"), "a quote is missing or left over"),
        (line_of(subs="[\"" + SUB + "', '" + SUB + "']"), "sub_operations is not a list of strings"),
        (line_of(subs="[__import__(\"os\")]"), "sub_operations is not a list of strings"),
        (line_of(subs="['\\q']"), "sub_operations is not a list of strings"),
        (line_of(subs="[\"a\",\"b\"]"), "expected key=value"),
        (line_of(subs="['allreduce']"), "expected key=value"),
        (line_of(subs="['" + SUB.replace("0.36", "x") + "']"), "duration is not a time"),
        (line_of(subs="['" + SUB.replace("=2004.5", "=2,004.5") + "']"), "timestamp is not a time in milliseconds"),
        (line_of(subs="['" + SUB + ",duration=3']"), "field 'duration' comes twice"),
        (line_of(subs="['" + SUB.replace("trace_src_func=allreduce,", "a=b,") + "']"), "no field 'trace_src_func'"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_named_with_its_line(text, message):
    with pytest.raises(FormatError, match=r"^t\.txt:5: ") as caught:
        read(text)
    assert message in str(caught.value)
    assert str(caught.value).isascii()


def test_a_text_may_have_empty_lines_and_carriage_returns():
    ops = parse("t.txt", "\ufeff" + line_of() + "\r\n\n  \n" + line_of(batch_id="1") + "\r\n")
    assert [(op.line, op.batch_id) for op in ops] == [(1, 0), (4, 1)]
    with pytest.raises(FormatError, match=r"t\.txt:1: the file has no operations"):
        parse("t.txt", "\n")


def test_lines_that_differ_in_their_numbers_alone_are_read_as_if_each_were_the_only_one():
    """What was read once is remembered: also of lines of another rank, microbatch and file, but not of damaged ones."""
    text = line_of(subs=f"['{SUB}', '{SUB}']", description="a, b (c)")
    read(text)
    op = parse_line(text.replace("rank:3:", "rank:12:").replace("=7.74", "=1e1").replace("=0.36", "=3"), "u.txt", 9)
    assert (op.path, op.line, op.rank, op.duration_s, op.timestamp_s) == ("u.txt", 9, 12, 0.01, 2.0005)
    assert [(sub.duration_s, sub.end_s) for sub in op.sub_ops] == [(0.003, 2.0045)] * 2
    assert op.fields == read(text).fields
    assert read(text.replace("=7.74", "=None")).duration_s is None
    for uid in ("cmd-7", "cmd-8", "cmd-9,op_semantics=x", "[,]", "a b", "None"):
        numbered = read(text.replace(",input__shape=[2, 3]", f",cmd_uid={uid},input__shape=[2, 3]"))
        assert (numbered.uid, numbered.raw("cmd_uid")) == (uid.split(",op")[0],) * 2
        assert numbered.shape == (2, 3)
        assert numbered.extra["cmd_uid"] == uid.split(",op")[0]
    assert read(text.replace("linear_fwd", "a\\x41")).sub_ops[0].call.func_name == "aA"
    for number in ("-7", "7_4", "1e400", "nan", "\u0663", "", "7 4"):
        for was in ("=7.74", "=2000.5", "=0.36", "=2004.5"):
            with pytest.raises(FormatError, match="is not a time"):
                read(text.replace(was, f"={number}"))
    with pytest.raises(FormatError, match="batch_id is not a whole number"):
        read(text.replace("batch_id=0", "batch_id=01"))


def test_reading_time_grows_with_the_length_only():
    hostile = [
        "rank:0:f(duration=1," + ", " * 200_000,
        "rank:0:f(duration=1,description=" + ", a" * 200_000 + ")",
        "rank:0:f(duration=1," + "a" * 500_000 + ")",
        line_of(subs="['" + "\\" * 300_000 + "']"),
        line_of(subs="[" + "'\\'" * 100_000 + "]"),
        line_of(input__shape="[" + "1, " * 200_000 + "x]"),
    ]
    start = time.perf_counter()
    for text in hostile:
        try:
            read(text)
        except FormatError as problem:
            assert len(str(problem)) < 300
    assert time.perf_counter() - start < 5
