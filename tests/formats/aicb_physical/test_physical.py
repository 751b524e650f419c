"""AICB's physical workloads: what their rows stand for, which step runs, and where they are wrong."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aicb_runs import codes, run
from support import ALONE
from traincast import api
from traincast.errors import FormatError, InfeasibleError, TraincastError
from traincast.estimate.operators.cost import estimate_operator
from traincast.formats.aicb_physical.grammar import parse
from traincast.formats.contract import FORMATS
from traincast.hardware.clusters import load_cluster
from traincast.workload.ops import OperatorCall

HEADER = "comm_type,comm_group,comm_group_size,msg_size,stage,dst,src,additional,_elapsed_time,algbw,busbw,count"
OLD_HEADER = HEADER.replace("comm_group_size,", "")
MIB = 1 << 20
END = ("epoch_end", None, None, 0, "")


def line(kind, group, ranks, size, stage, time_ms=None, count=1):
    name = None if group is None else f"CommGroup.{group}"
    return f"CommType.{kind},{name},{ranks},{size},{stage},None,None,,{time_ms},None,None,{count}"


def text_of(rows, title=None, header=HEADER):
    lines = [line(*row) for row in rows]
    if header == OLD_HEADER:
        lines = [",".join([*each.split(",")[:2], *each.split(",")[3:]]) for each in lines]
    return "\n".join([*([title] if title else []), header, *lines, ""])


def forward(tp=2, layers=2, size=MIB):
    first = ("broadcast", "tp_group", tp, 40, "forward_step")
    layer = [
        ("all_gather", "tp_group", tp, size, "forward.MegatronColumnLinear"),
        ("reduce_scatter", "tp_group", tp, size, "forward.MegatronRowLinear"),
    ]
    return [first, *layer * layers]


def backward(tp=2, layers=2, size=MIB):
    return [("all_gather", "tp_group", tp, size, "backward.MegatronRowLinear")] * layers


INIT = [("all_reduce", "dp_group", 4, 8, "init.model_setup"), ("broadcast", "tp_group", 2, 24, "init.model_setup"), END]
STEP = [
    ("reduce_scatter", "dp_group", 4, 64 * MIB, "step"),
    ("all_gather_into_tensor", "dp_group", 4, 32 * MIB, "step"),
    ("all_reduce", "tp_group", 2, 0, "step._allreduce_layernorm_grads"),
    ("all_reduce", "tp_group", 2, 4, "step.check_for_nan"),
]
FLAT = [*INIT, *[*forward(), *backward()] * 2, *STEP, END]


def pipeline(stage, stages, microbatches, size=MIB):
    """Return a step of one stage in AICB's order: warm-up, one forward and one backward, cool-down."""
    receive, send = ("irecv", "pp_group", 1, size), ("isend", "pp_group", 1, size)
    rows, warm = [], min(stages - stage - 1, microbatches)
    for number in range(microbatches):
        rows += [(*receive, "forward_step")] if stage else []
        rows += [*forward(), *([(*send, "forward_step")] if stage < stages - 1 else [])]
        if number >= warm:
            rows += [*backward(), *([(*send, "backward_step")] if stage else [])]
    for _ in range(warm):
        rows += [(*receive, "backward_step"), *backward(), *([(*send, "backward_step")] if stage else [])]
    return rows


def staged(stages, microbatches, extra=()):
    """Return the text of a pipeline of tp 2 and dp 4, a section for each stage."""
    return "".join(
        text_of(
            [*INIT, *pipeline(stage, stages, microbatches), *STEP, *extra, END],
            f"[ pp_stage{stage}: [{', '.join(f'rank{rank}' for rank in range(8 * stage, 8 * stage + 8))}] ]",
        )
        for stage in range(stages)
    )


def written(tmp_path, text):
    path = tmp_path / "w.csv"
    path.write_text(text, encoding="utf-8")
    return path


def counted(result):
    return Counter({(each.group, each.op, each.size_bytes, each.ranks): each.count for each in result.collectives})


def test_a_step_without_a_pipeline_is_its_communications_one_after_the_other(tmp_path):
    result = run(written(tmp_path, text_of(FLAT, "[rank0 ~ rank7]")), "h100", **ALONE)
    assert {key: result.parallel[key] for key in ("world_size", "tp", "dp", "pp", "microbatches")} == {
        "world_size": 8, "tp": 2, "dp": 4, "pp": 1, "microbatches": 2,
    }  # fmt: skip
    assert counted(result) == {
        ("tp", "broadcast", 40, 2): 2,
        ("tp", "all_gather", MIB, 2): 8,
        ("tp", "reduce_scatter", MIB, 2): 4,
        ("dp", "reduce_scatter", 64 * MIB, 4): 1,
        ("dp", "all_gather", 32 * MIB, 4): 1,
        ("tp", "all_reduce", 4, 2): 1,
    }
    assert result.iteration_time_s == pytest.approx(sum(each.count * each.time_s for each in result.collectives))
    assert codes(result) >= {"initialisation-left-out", "zero-size", "communication-only"}


@pytest.mark.parametrize("stages", [2, 4])
def test_a_section_for_each_stage_is_a_pipeline(tmp_path, stages):
    result = run(written(tmp_path, staged(stages, 5)), "h100", **ALONE)
    assert (result.parallel.pp, result.parallel.microbatches, result.parallel.world_size) == (
        stages,
        5,
        8 * stages,
    )
    sent = [each for each in result.collectives if each.op == "send_recv"]
    assert [(each.size_bytes, each.count) for each in sent] == [(MIB, 5 * (2 if stages == 2 else 4))]
    found = counted(result)
    assert found["tp", "all_gather", MIB, 2] == 5 * 4
    assert found["dp", "reduce_scatter", 64 * MIB, 4] == 1
    one = run(written(tmp_path, text_of(FLAT)), "h100", **ALONE)
    pass_s = (one.iteration_time_s - sum(e.time_s for e in one.collectives if e.group == "dp")) / 2
    # A pipeline of P equal stages takes M + P - 1 times the passes of a microbatch, and its messages.
    assert result.iteration_time_s > (5 + stages - 1) * pass_s * 0.98
    assert max(rank.breakdown_s["bubble"] for rank in result.ranks) > 0


def test_one_stage_stands_for_all_that_the_pp_group_counts(tmp_path):
    alike = [("all_reduce", "pp_group", 3, 8, "init.model_setup"), *INIT]
    text = text_of([*alike, *pipeline(0, 3, 4), *STEP, END])
    result = run(written(tmp_path, text), "h100", **ALONE)
    sections = run(written(tmp_path, staged(3, 4)), "h100", **ALONE)
    assert "one-stage" in codes(result)
    assert counted(result) == counted(sections)
    assert result.iteration_time_s == sections.iteration_time_s
    with pytest.raises(FormatError, match="does not say how many stages there are; give pp="):
        run(written(tmp_path, text_of([*INIT, *pipeline(0, 3, 4), END])))
    assert run(written(tmp_path, text_of([*INIT, *pipeline(0, 3, 4), END])), pp=3).parallel.pp == 3


def test_the_closing_rows_that_aicb_writes_twice_run_once(tmp_path):
    once, twice = (run(written(tmp_path, staged(2, 3, extra)), "h100", **ALONE) for extra in ((), STEP))
    assert "step-twice" in codes(twice) - codes(once)
    assert twice.iteration_time_s == once.iteration_time_s
    flat = run(written(tmp_path, text_of([*FLAT[:-1], *STEP, END])), "h100")
    assert counted(flat)["dp", "reduce_scatter", 64 * MIB, 4] == 2
    assert "step-twice" not in codes(flat)


def test_embeddings_are_reduced_by_the_first_and_last_stage_alone(tmp_path):
    rows = [*pipeline(0, 4, 4), ("all_reduce", "embedding_group", 2, MIB, "step"), END]
    result = run(written(tmp_path, text_of(rows)), "h100", pp=4)
    assert counted(result)["emb", "all_reduce", MIB, 2] == 1


def test_stages_of_zero_are_read_with_one_kind_of_pass_or_both(tmp_path):
    gather = ("all_gather", "dp_group", 8, MIB)
    stage3 = [
        ("broadcast", "dp_group", 8, MIB, "init._broadcast_model"),
        ("barrier", "all", 8, 0, "init.__init__"),
        END,
        *[(*gather, "forward.allgather_fn")] * 3,
        *[(*gather, "backward.allgather_fn"), ("reduce_scatter", "dp_group", 8, MIB, "backward.reduce_scatter_fn")] * 3,
        ("barrier", "all_nodes", 8, 0, "step.sync"),
        END,
    ]
    found = counted(run(written(tmp_path, text_of(stage3)), "h100"))
    assert found == {
        ("dp", "all_gather", MIB, 8): 6,
        ("dp", "reduce_scatter", MIB, 8): 3,
        ("world", "all_reduce", 4, 8): 1,
    }
    stage2 = [
        *[("all_reduce", "dp_group", 8, MIB, "backward.allreduce_bucket")] * 3,
        ("all_gather", "dp_group", 8, MIB, "step.all_gather_dp_groups"),
        END,
    ]
    result = run(written(tmp_path, text_of(stage2)), "h100")
    assert counted(result) == {("dp", "all_reduce", MIB, 8): 3, ("dp", "all_gather", MIB, 8): 1}
    assert (result.parallel.dp, result.parallel.microbatches) == (8, 1)
    assert "gradients-absent" not in codes(result)
    assert "gradients-absent" in codes(run(written(tmp_path, text_of([*FLAT[:-5], END])), "h100"))


def test_a_test_of_a_collective_runs_every_size(tmp_path):
    rows = [("all_reduce", "dp_group", 0, 4096, "warmup"), END]
    rows += [("all_reduce", "dp_group", 0, 4096 << n, "test_step", None, 10) for n in range(4)] + [END]
    text = text_of(rows, header=OLD_HEADER)
    result = run(written(tmp_path, text), "h100")
    assert counted(result) == {("dp", "all_reduce", 4096 << n, 8): 10 for n in range(4)}
    assert "world-absent" in codes(result)
    assert {each.ranks for each in run(written(tmp_path, text), "h100", gpus=64).collectives} == {64}
    alone = text.replace("dp_group", "pp_group").replace(OLD_HEADER, OLD_HEADER)
    with pytest.raises(FormatError) as caught:
        run(written(tmp_path, alone), "h100")
    assert "nothing in this step takes time: 40 communications over pp (600 KiB in all on rank 0)" in str(caught.value)
    assert "(pp 1); give --gpus or a degree" in str(caught.value)
    with pytest.raises(FormatError, match="nothing in this step takes time"):
        run(written(tmp_path, alone), "ideal")
    # Communication with peers is free there: nothing is the answer.
    assert run(written(tmp_path, text), "ideal").iteration_time_s == 0


LOG = [*INIT]
for scale in (9, 3, 4):
    LOG += [
        ("all_gather", "tp_group", 2, MIB, "forward.MegatronColumnLinear", scale),
        ("all_gather", "tp_group", 2, MIB, "backward.MegatronRowLinear", 2 * scale),
        ("all_reduce", "dp_group", 4, MIB, "step", 3 * scale),
        ("epoch_end", None, None, 0, "", 10 * scale),
    ]


def test_a_log_is_replayed_with_the_times_of_its_median_step(tmp_path):
    path = written(tmp_path, text_of(LOG))
    result = run(path, "h100")
    assert result.iteration_time_s == pytest.approx(6 * 4e-3)
    assert result.measured_s == pytest.approx(40e-3)
    assert {each.algorithm for each in result.collectives} == {"measured"}
    assert codes(result) >= {"step-chosen", "times-of-one-rank", "far-from-measured"}
    priced = run(path, "h100", comm="model")
    assert "measured" not in {each.algorithm for each in priced.collectives}
    assert priced.measured_s is None
    wider = run(path, "h100", dp=8)
    assert {each.group: each.algorithm == "measured" for each in wider.collectives} == {"tp": True, "dp": False}
    with pytest.raises(FormatError, match=r"w.csv:5: has no times to take with comm=measured"):
        run(written(tmp_path, text_of(FLAT)), comm="measured")


def test_products_are_priced_on_the_gpu(tmp_path):
    rows = [
        ("computation", "all", None, "((512 4 1024) (1024 2048))", "forward.MegatronColumnLinear.qkv"),
        ("computation", "all", None, "((2048 2048) (2048 1024))", "backward.MegatronColumnLinear.qkv"),
        END,
    ]
    result = run(written(tmp_path, text_of(rows)), "h100")
    gpu = load_cluster("h100").gpu
    shapes = ((2048, 2048, 1024), (2048, 1024, 2048))
    calls = [OperatorCall(family="gemm", shape=shape, dtype="bf16") for shape in shapes]
    assert result.iteration_time_s == pytest.approx(sum(estimate_operator(call, gpu).time_s for call in calls))
    assert result.breakdown_s["compute"] == pytest.approx(result.iteration_time_s)
    assert "compute-priced" in codes(result)
    assert "communication-only" not in codes(result)


def test_experts_without_a_group_size_are_said_to_be(tmp_path):
    moe = [("all_to_all", "ep_group", None, MIB, "forward.MoE"), ("all_gather", "tp_group", None, MIB, "forward.MoE")]
    text = text_of([*INIT, *forward(), *moe, *backward(), *STEP, END])
    result = run(written(tmp_path, text), "h100")
    assert counted(result)["ep", "all_to_all", MIB, 4] == 1
    assert "ep-absent" in codes(result)
    assert counted(run(written(tmp_path, text), "h100", ep=2))["ep", "all_to_all", MIB, 2] == 1


def test_degrees_of_the_user_change_groups_and_are_said_to(tmp_path):
    path = written(tmp_path, text_of(FLAT, "[rank0 ~ rank7]"))
    assert run(path, gpus=32).parallel.dp == 16
    wider = run(path, tp=4)
    assert (wider.parallel.tp, wider.parallel.dp) == (4, 4)
    assert "tp-not-rescaled" in codes(wider)
    assert run(path, microbatches=5).parallel.microbatches == 5
    with pytest.raises(InfeasibleError, match="7 ranks do not divide into tp 2 x pp 1"):
        run(path, gpus=7)
    with pytest.raises(FormatError, match="describes 2 pipeline stages; pp=4"):
        run(written(tmp_path, staged(2, 2)), pp=4)


@pytest.mark.parametrize(
    ("old", "new", "number", "message"),
    [
        ("CommType.broadcast", "CommType.gossip", 4, "column comm_type: unknown operation 'CommType.gossip'"),
        ("CommGroup.dp_group,4,8", "CommGroup.xp_group,4,8", 3, "column comm_group: unknown group"),
        ("CommGroup.dp_group,4,8", "CommGroup.ep_tp_group,4,8", 3, "spans tp and ep is not modelled"),
        ("dp_group,4,8,", "dp_group,0,8,", 3, "column comm_group_size"),
        ("dp_group,4,8,", "dp_group,4,-8,", 3, "column msg_size: '-8'"),
        ("dp_group,4,8,", "dp_group,4,1e300,", 3, "column msg_size"),
        ("dp_group,4,8,", "dp_group,5,8,", 20, "a dp group has 4 members here and 5 before"),
        ("None,None,1\nCommType.epoch", "None,None,0\nCommType.epoch", 4, "column count"),
        (",algbw", ",speed", 2, "unknown column 'speed'"),
        ("msg_size,stage", "stage", 2, "no column msg_size"),
        ("[rank0 ~ rank7]", "[ranks]", 1, "is not a title"),
        ("init.model_setup,None", "init.model_setup", 3, "the row has 11 cells, the header 12"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path, old, new, number, message):
    path = written(tmp_path, text_of(FLAT, "[rank0 ~ rank7]").replace(old, new, 1))
    with pytest.raises(FormatError, match=message) as caught:
        run(path)
    assert caught.value.line == number


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEADER, "holds no rows"),
        (text_of(INIT), "holds an initialisation and no step"),
        (text_of([*INIT, *forward(), *backward(), *forward(), END]), "2 forward and 1 backward passes"),
        (staged(2, 2).replace("pp_stage1", "pp_stage2"), "must be pp_stage0 to pp_stage1"),
        (staged(2, 2) + staged(2, 2), "must be pp_stage0 to pp_stage3"),
        (text_of([("computation", "all", None, "((1 2) (3 4))", "forward"), END]), "can be multiplied"),
        ("[rank0 ~ rank7]\n" + line(*INIT[0]) + "\n" + text_of(INIT), "a header .* is expected here"),
    ],
)
def test_what_makes_no_step_is_refused(tmp_path, text, message):
    with pytest.raises(FormatError, match=message):
        api.simulate(written(tmp_path, text))


def test_inspection_counts_and_names_what_wrote_it(tmp_path):
    found = api.inspect(written(tmp_path, staged(2, 3)))
    assert (found.format, found.generation) == ("aicb-physical", "AICB physical workload: Megatron")
    assert (found.counts["stages"], found.counts["steps"], found.counts["microbatches"]) == (2, 1, 3)
    assert found.layout == {"tp": 2, "dp": 4, "ep": None, "pp": None, "world_size": 16}
    totals = {(each.group, each.what): (each.count, each.size_bytes) for each in found.totals}
    assert totals["tp", "all_gather"] == (3 * 4, 12 * MIB)
    assert totals["pp", "isend"] == (3, 3 * MIB)
    assert "log of a run" in api.inspect(written(tmp_path, text_of(LOG))).generation


@pytest.mark.parametrize(
    "text", [text_of(FLAT), text_of(FLAT, "[rank0 ~ rank7]"), staged(2, 2), "\ufeff" + text_of(LOG)]
)
def test_it_is_the_format_of_its_files_and_of_no_other(text):
    sure = {form.name: form.looks_like(text).confidence for form in FORMATS.entries()}
    assert sure.pop("aicb-physical") > 0.9
    assert max(sure.values()) == 0


@settings(max_examples=60)
@given(st.data())
def test_damage_ends_in_one_message_or_a_step(data):
    text = staged(2, 2) if data.draw(st.booleans()) else text_of(LOG, "[rank0 ~ rank7]")
    cells = text.split(",")
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(cells) - 1))
        cells[place] = data.draw(st.sampled_from(["", "None", "-1", "9" * 30, "1e308", "nan", "\n", "[", "x\ny", "8"]))
    try:
        parse("w.csv", ",".join(cells))
    except TraincastError as error:
        assert str(error).startswith("w.csv:")
