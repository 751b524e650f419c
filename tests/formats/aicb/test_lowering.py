"""What the rows of an AICB file become: where each runs, when, over which group, how often."""

from itertools import pairwise

import pytest

from aicb_runs import codes, header_of, run, seen, work, write_text
from support import QUIET, row
from traincast import api
from traincast.errors import FormatError, InfeasibleError
from traincast.formats.aicb.policies import WITH_DIMENSIONS
from traincast.workload.words import Group, Kind, Operation, Phase, Stream

A = 1 << 20
MS = 1_000_000

LEADING = [
    row("norm", (7, "BROADCAST", 70)),
    row("grad_gather", QUIET, QUIET, (1, "ALLGATHER", 2001)),
    row("grad_param_comm", QUIET, QUIET, (1, "REDUCESCATTER", 4001)),
    row("grad_param_compute", QUIET, 5 * MS),
    row("layernorm", QUIET, (2, "ALLREDUCE", 6001)),
    row("embedding_grads", QUIET, (3, "ALLREDUCE", 7001)),
    row("moe_grad_norm1", QUIET, QUIET, (1, "ALLGATHER_DP_EP", 8001)),
    row("moe_grad_norm2", QUIET, QUIET, (1, "REDUCESCATTER_DP_EP", 9001)),
]
TRAILING = [
    row("cross_entropy1", (11, "ALLREDUCE", 110)),
    row("cross_entropy2", (12, "ALLREDUCE", 120)),
    row("optimizer1", (13, "ALLREDUCE", 4)),
]
LAYER = [
    row("attention_column", (2 * MS, "ALLGATHER", A), (3 * MS, "REDUCESCATTER", 0), 4 * MS),
    row("mlp_row", (5 * MS, "REDUCESCATTER", A), (6 * MS, "ALLGATHER", A), 7 * MS),
]
BLOCK = [
    row("embedding_layer", (MS, "ALLREDUCE", A), QUIET, 2 * MS),
    *LAYER * 2,
    row("final_column", 3 * MS, 4 * MS, 5 * MS),
]
STEP = [*LEADING, *BLOCK * 4, *TRAILING]
WORLD = {"tp": 2, "ep": 2, "pp": 4, "vpp": 1, "ga": 4, "all_gpus": 32}


@pytest.fixture
def make(tmp_path):
    """Write rows under a header and simulate them."""

    def make_and_run(rows, *, cluster="ideal", keys=WORLD, more="", **options):
        text = header_of(**keys, more=more)
        return run(write_text(tmp_path / "w.txt", text, rows), cluster, **options)

    return make_and_run


def step_work(ops):
    return [op for op in ops if op.phase is Phase.STEP]


def fields(ops, *names):
    return [tuple(getattr(op, name) for name in names) for op in ops]


# --- rows once per step


@pytest.mark.parametrize("stage", range(4))
def test_once_per_step_rows_run_once_in_this_order_over_these_groups(make, stage):
    ops = step_work(work(make(STEP), stage))
    last = [("cross_entropy1", Group.TP), ("cross_entropy2", Group.TP)] if stage == 3 else []
    shared = [("layernorm", Group.TP)] + ([("embedding_grads", Group.EMB)] if stage in (0, 3) else [])
    assert fields([op for op in ops if op.kind is Kind.COLLECTIVE], "name", "group") == [
        ("norm", Group.TP),
        *last,
        ("grad_param_comm", Group.DP),
        ("moe_grad_norm2", Group.EDP),
        *shared,
        ("optimizer1", Group.TP),
        ("grad_gather", Group.DP),
        ("moe_grad_norm1", Group.EDP),
    ]
    names = [op.name for op in ops]
    assert names.count("grad_param_compute") == 1
    assert names.index("grad_param_compute") > names.index("layernorm")
    assert names.index("grad_param_compute") < names.index("optimizer1")


@pytest.mark.parametrize("cluster", ["ideal", "h100"])
@pytest.mark.parametrize("vpp", [1, 2])
def test_once_per_step_rows_stand_around_the_microbatches(make, cluster, vpp):
    result = make(STEP, cluster=cluster, vpp=vpp)
    for stage in range(4):
        ops = work(result, stage)
        inside = [op for op in ops if op.microbatch >= 0]
        forward = [op for op in inside if op.phase is Phase.FORWARD]
        for op in step_work(ops):
            assert op.microbatch == -1
            if op.name == "norm":
                assert op.end_s <= min(each.start_s for each in inside)
            elif op.name.startswith("cross_entropy"):
                assert op.start_s >= max(each.end_s for each in forward)
                later = [each.start_s for each in inside if each.start_s > max(one.end_s for one in forward)]
                assert op.end_s <= min(later, default=op.end_s)
            else:
                assert op.start_s >= max(each.end_s for each in inside)
        assert [op.start_s for op in ops[-3:]] == sorted(op.start_s for op in ops[-3:])


def test_the_columns_of_grad_norm_are_reduce_update_and_gather(make):
    grad_norm = row("grad_norm", (3 * MS, "ALLGATHER", 2001), 2 * MS, (1, "REDUCESCATTER", 4001))
    ops = [op for op in work(make([grad_norm, *BLOCK, *TRAILING]), 1) if op.microbatch < 0]
    assert fields(ops, "what", "group") == [
        (("grad_norm", "compute"), Group.NONE),
        (("grad_norm", "reduce_scatter"), Group.DP),
        (("grad_norm", "compute"), Group.NONE),
        (("optimizer1", "compute"), Group.NONE),
        (("optimizer1", "all_reduce"), Group.TP),
        (("grad_norm", "compute"), Group.NONE),
        (("grad_norm", "all_gather"), Group.DP),
    ]


def test_as_written_keeps_every_row_on_every_stage(make):
    result = make(STEP, stage_roles="as-written")
    for stage in range(4):
        ops = work(result, stage)
        names = [op.name for op in ops if op.kind is Kind.COMPUTE]
        assert names.count("embedding_layer") == 4 * 2
        assert names.count("final_column") == 4 * 3
        assert names.count("cross_entropy1") == names.count("embedding_grads") == 1
        emb = [op for op in ops if op.group is Group.EMB]
        assert len(emb) == (1 if stage in (0, 3) else 0), "the stages between hold no embedding to agree on"


def test_auto_puts_embedding_rows_first_and_final_rows_last(make):
    result = make(STEP, vpp=2)
    for stage in range(4):
        places = {(op.name, op.virtual_stage) for op in work(result, stage) if op.microbatch >= 0}
        assert ({each for each in places if each[0] == "embedding_layer"} == {("embedding_layer", 0)}) == (stage == 0)
        assert ({each for each in places if each[0] == "final_column"} == {("final_column", 7)}) == (stage == 3)
    first, last = (sum(op.end_s - op.start_s for op in work(result, stage)) for stage in (0, 3))
    assert first > sum(op.end_s - op.start_s for op in work(result, 1))
    assert last > first


def test_repeated_embedding_norms_are_reduced_once_with_a_warning(make):
    norm = row("embedding_norm", (1, "ALLREDUCE", 777))
    result = make([*LEADING, *[*BLOCK, norm] * 4, *TRAILING])
    for stage, times in enumerate((1, 0, 0, 1)):
        assert sum(op.name == "embedding_norm" and op.group is Group.EMB for op in work(result, stage)) == times
    assert "embedding-norm-repeated" in codes(result)


def test_an_embedding_reduction_inside_a_microbatch_is_refused_with_its_line(make):
    rows = [*BLOCK[:3], LEADING[5], *BLOCK[3:], *BLOCK]
    with pytest.raises(FormatError, match=r"w.txt:6: row 'embedding_grads'.*before the first microbatch"):
        make(rows)
    assert "group-of-one" in codes(make(rows, keys={**WORLD, "pp": 1, "all_gpus": 4}))


# --- forward and backward


def test_the_backward_goes_back_through_the_rows_and_weight_gradients_run_beside_it(make):
    rows = [
        row(name, (MS, "ALLREDUCE", A), (2 * MS, "ALLREDUCE", A), (3 * MS, "REDUCESCATTER", 64 * A))
        for name in ("attention_layer", "mlp_layer")
    ]
    keys = {"tp": 2, "ep": 1, "pp": 1, "ga": 1, "all_gpus": 16}
    result = make([*rows, row("grad_param_compute", 0, MS)], keys=keys, cluster="h100")
    ops = work(result)
    f, b, w = Phase.FORWARD, Phase.BACKWARD, Phase.WEIGHT_GRADIENT
    assert fields(ops[:-1], "what", "phase", "stream") == [
        item
        for name, phases in (
            ("attention_layer", [f]),
            ("mlp_layer", [f]),
            ("mlp_layer", [b, w]),
            ("attention_layer", [b, w]),
        )
        for phase in phases
        for item in [
            ((name, "compute"), phase, Stream.COMPUTE),
            ((name, "reduce_scatter"), phase, Stream.DP) if phase is w else ((name, "all_reduce"), phase, Stream.TP),
        ]
    ]
    forward, backward = ops[:4], ops[4:12]
    blocking = [*forward, *(op for op in backward if op.stream is not Stream.DP)]
    for before, after in pairwise(blocking):
        assert after.start_s == before.end_s
    mlp, attention = (op for op in backward if op.stream is Stream.DP)
    assert mlp.start_s == backward[2].end_s
    assert attention.start_s == max(mlp.end_s, backward[6].end_s)
    assert attention.end_s > backward[6].end_s
    assert ops[-1].name == "grad_param_compute"
    assert ops[-1].start_s == attention.end_s, "the update waits for the gradients"


def test_a_first_block_that_differs_is_kept(make):
    other = [row("embedding_layer", 9 * MS), *LAYER * 2, row("final_column", 3 * MS, 4 * MS)]
    result = make([*LEADING, *other, *BLOCK * 3, *TRAILING])
    times = {
        op.microbatch: op.end_s - op.start_s
        for op in work(result, 0)
        if op.name == "embedding_layer" and op.kind is Kind.COMPUTE and op.phase is Phase.FORWARD
    }
    assert times == pytest.approx({0: 9e-3, 1: 1e-3, 2: 1e-3, 3: 1e-3})
    assert not [
        op for op in work(result, 0) if op.microbatch == 0 and op.phase is Phase.WEIGHT_GRADIENT and op.layer < 0
    ]


def test_recomputation_repeats_the_rows_from_the_checkpoint(make):
    rows = [row(name, n * MS, 10 * n * MS) for n, name in enumerate(("a", "b", "c", "d", "e"), 1)]
    keys = {"tp": 1, "ep": 1, "pp": 1, "ga": 1, "all_gpus": 1}
    result = make(rows, keys=keys, more="checkpoints: 2 0 2 checkpoint_initiates: 2 1 4")
    backward = [op for op in work(result) if op.phase in (Phase.BACKWARD, Phase.RECOMPUTE)]
    # Initiating row 4 (e) repeats rows 2 and 3 (c, d) first; row 1 (b) repeats row 0 (a).
    assert fields(backward, "name", "phase") == [
        ("c", Phase.RECOMPUTE),
        ("d", Phase.RECOMPUTE),
        ("e", Phase.BACKWARD),
        ("d", Phase.BACKWARD),
        ("c", Phase.BACKWARD),
        ("a", Phase.RECOMPUTE),
        ("b", Phase.BACKWARD),
        ("a", Phase.BACKWARD),
    ]
    assert result.iteration_time_s == pytest.approx((15 + 150 + 3 + 4 + 1) * 1e-3)


def test_recomputation_repeats_communication_and_stays_in_its_virtual_stage(make):
    keys = {"tp": 2, "ep": 1, "pp": 2, "vpp": 1, "ga": 1, "all_gpus": 4}
    result = make(BLOCK, keys=keys, more="checkpoints: 0 checkpoint_initiates: 1 4", cluster="h100")
    again = [op for op in work(result, 1) if op.phase is Phase.RECOMPUTE]
    assert [op.what for op in again] == [
        ("attention_column", "compute"),
        ("attention_column", "all_gather"),
        ("mlp_row", "compute"),
        ("mlp_row", "reduce_scatter"),
        ("attention_column", "compute"),
        ("attention_column", "all_gather"),
    ], "without a checkpoint it begins where the stage begins"


# --- layout


def test_microbatches_are_the_blocks_whatever_ga_says(make):
    result = make(STEP, keys={**WORLD, "ga": 7})
    assert result.parallel.microbatches == 4
    assert "ga-mismatch" in {note.code for note in result.warnings}
    silent = make(STEP, keys={key: value for key, value in WORLD.items() if key != "ga"})
    assert silent.parallel.microbatches == 4
    assert "ga-absent" in codes(silent)
    assert silent.iteration_time_s == result.iteration_time_s


@pytest.mark.parametrize(("count", "code"), [(1, "blocks-dropped"), (3, "blocks-dropped"), (9, "blocks-repeated")])
def test_microbatches_on_request_drop_or_repeat_blocks_and_say_so(make, count, code):
    result = make(STEP, microbatches=count)
    assert code in codes(result)
    assert {op.microbatch for op in work(result, 2)} == {-1, *range(count)}
    assert result.parallel.dp == 4
    assert code not in codes(make(STEP, microbatches=4))


def test_more_microbatches_repeat_the_last_block(make):
    other = [row("embedding_layer", 9 * MS), *LAYER * 2]
    rows = [*other, row("embedding_layer", 2 * MS), *LAYER * 2]
    times = [
        round((op.end_s - op.start_s) * 1e3) for op in work(make(rows, microbatches=4)) if op.name == "embedding_layer"
    ]
    assert times == [9, 2, 2, 2]


@pytest.mark.parametrize("name", ["cp", "ep", "etp"])
def test_a_degree_that_no_row_communicates_over_is_said(make, name):
    silent = [row("attention_layer", (MS, "ALLREDUCE", A), MS)]
    world = {"tp": 2, "ep": 1, "pp": 1, "ga": 1, "all_gpus": 16}
    assert not {"cp-unused", "ep-unused", "etp-unused"} & codes(make(silent, keys=world))
    assert f"{name}-unused" in codes(make(silent, keys=world, **{name: 4}))
    # What the run has anyhow does not ask for something else.
    assert f"{name}-unused" not in codes(make(silent, keys=world, **{name: 2 if name == "etp" else 1}))
    suffix = "CP" if name == "cp" else "EP"
    heard = [row("attention_layer", (MS, f"ALLGATHER_{suffix}", A), MS)]
    assert f"{name}-unused" not in codes(make(heard, keys=world, **{name: 4}))
    none = [row("attention_layer", (MS, f"ALLGATHER_{suffix}", 0), MS)]
    assert f"{name}-unused" in codes(make(none, keys=world, **{name: 4}))


@pytest.mark.parametrize(("gpus", "dp"), [(8, 1), (16, 2), (64, 8), (8 * 96, 96)])
def test_gpus_change_dp_and_never_the_microbatches(make, gpus, dp):
    result = make(STEP, keys={**WORLD, "ep": 1}, gpus=gpus)
    assert (result.parallel.dp, result.parallel.microbatches, result.parallel.pp) == (dp, 4, 4)
    assert result.parallel.world_size == gpus


def test_a_missing_pp_comm_is_the_activation_divided_where_rows_are_sequence_parallel(make):
    result = make(STEP)
    messages = {op.size_bytes for op in seen(result, 1) if op.kind is Kind.SEND}
    assert messages == {A // 2}
    said = next(note for note in result.assumptions if note.code == "pp-comm-absent")
    assert f"{A} bytes / tp 2" in said.text
    assert said.place.endswith("w.txt:12")
    plain = [row("attention_layer", (MS, "ALLREDUCE", A), MS), row("mlp_layer", (MS, "ALLREDUCE", A), MS)]
    result = make(plain, cluster="h100")
    assert {op.size_bytes for op in seen(result, 1) if op.kind is Kind.SEND} == {A}
    assert "pp-comm-absent" in codes(result)


@pytest.mark.parametrize("written", ["pp_comm: 5000", "pp_comm 5000", "pp_comm: 5000.0", "pp_comm: 5e3"])
def test_a_written_pp_comm_is_used_in_every_spelling(make, written):
    result = make(STEP, more=written)
    assert {op.size_bytes for op in seen(result, 1) if op.kind is Kind.SEND} == {5000}
    assert "pp-comm-absent" not in codes(result)
    asked = make(STEP, more=written, pp_message_bytes=123)
    assert {op.size_bytes for op in seen(asked, 1) if op.kind is Kind.RECV} == {123}


def test_an_unknown_message_size_is_a_warning(make):
    result = make([row("attention_layer", MS, MS)] * 4, cluster="h100", more="pp_comm: 0")
    warning = next(note for note in result.warnings if note.code == "pp-comm-unknown")
    assert "pp_comm 0" in warning.text
    assert result.breakdown_s["exposed_pp"] == 0


def test_a_message_size_without_messages_is_said_to_be_unused(make):
    single = {**WORLD, "pp": 1, "all_gpus": 8}
    assert "pp-comm-unused" in codes(make(STEP, keys=single, pp_message_bytes=5))
    assert "pp-comm-unused" not in codes(make(STEP, pp_message_bytes=5))


def test_degrees_other_than_the_files_are_warned_of(make):
    assert "pp-not-rescaled" in codes(make(STEP, pp=2))
    assert "tp-not-rescaled" in codes(make(STEP, tp=4, ep=1))
    assert not {"pp-not-rescaled", "tp-not-rescaled"} & codes(make(STEP, pp=4, tp=2))


def test_a_missing_vpp_is_one_and_said(make):
    result = make(STEP, keys={key: value for key, value in WORLD.items() if key != "vpp"})
    assert (result.parallel.vpp, result.parallel.schedule) == (1, "1f1b")
    assert "vpp-absent" in codes(result)


def test_virtual_stages_share_the_layers_in_order(make):
    block = [row("embedding_layer", MS), *[row("attention_layer", n * MS, MS) for n in range(1, 6)]]
    result = make(block * 4, vpp=3)
    assert result.parallel.schedule == "interleaved"
    assert "uneven-chunks" in {note.code for note in result.warnings}
    layers = {
        (op.virtual_stage, op.layer) for op in work(result, 2) if op.phase is Phase.FORWARD and op.microbatch >= 0
    }
    assert layers == {(2, 0), (2, 1), (6, 2), (6, 3), (10, 4)}
    assert "uneven-chunks" not in codes(make(block * 4, vpp=5))


@pytest.mark.parametrize("keys", [{"vpp": 3}, {"vpp": 10**6}])
def test_more_virtual_stages_than_layers_are_infeasible(make, keys):
    with pytest.raises(InfeasibleError, match=r"w.txt: vpp \d+ is more than the 2 layers .*vpp=2") as caught:
        make(STEP, keys={**WORLD, **keys})
    assert caught.value.exit_code == 3
    with pytest.raises(InfeasibleError, match="vpp"):
        make(STEP, vpp=keys["vpp"])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"gpus": 33}, ["33 ranks", "tp 2 x cp 1 x pp 4", "1 would be left over"]),
        ({"gpus": 4}, ["4 ranks", "4 would be left over"]),
        ({"pp": 5}, ["32 ranks", "pp 5", "2 would be left over"]),
        ({"ep": 3}, ["etp 2 x ep 3", "8 ranks of a stage"]),
        ({"gpus": 32, "dp": 3}, ["gpus=32", "dp 3", "24"]),
        ({"gpus": 10**9}, ["1000000000 ranks", "limit"]),
        ({"pp": 999_999, "dp": 1, "tp": 1, "ep": 1}, ["999999 stages", "limit"]),
        ({"microbatches": 10**9}, ["1000000000 microbatches", "limit"]),
        ({"schedule": "1f1b", "vpp": 2}, ["1f1b", "interleaved"]),
    ],
)
def test_a_layout_that_does_not_work_is_infeasible_with_its_arithmetic(make, options, words):
    with pytest.raises(InfeasibleError) as caught:
        make(STEP, **options)
    assert caught.value.exit_code == 3
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_the_degrees_of_a_damaged_header_end_fast(make):
    for key, value in (("pp", 999_999), ("all_gpus", 10**9), ("vpp", 10**6), ("tp", 2**31 - 1), ("ep", 10**9)):
        with pytest.raises(InfeasibleError):
            make(STEP, keys={**WORLD, key: value})
    for key in ("pp", "tp"):
        with pytest.raises(InfeasibleError):
            make(STEP, keys={key: 2**20 + 1})
    assert make(STEP, keys={**WORLD, "ga": 2**31 - 1}).parallel.microbatches == 4


# --- durations


def test_the_process_time_follows_each_collective(make):
    def rows(process_ns):
        return [row("attention_layer", (MS, "ALLREDUCE", A), (MS, "ALLREDUCE", A), QUIET, process_ns)]

    keys = {"tp": 2, "ep": 1, "pp": 1, "ga": 1, "all_gpus": 2}
    without, with_it = (make(rows(ns), keys=keys, cluster="h100") for ns in (0, 50_000))
    assert with_it.iteration_time_s == pytest.approx(without.iteration_time_s + 2 * 50e-6, abs=1e-12)
    assert with_it.breakdown_s["exposed_tp"] == pytest.approx(without.breakdown_s["exposed_tp"] + 100e-6)
    alone = {**keys, "tp": 1, "all_gpus": 1}
    assert make(rows(50_000), keys=keys).iteration_time_s == pytest.approx(2e-3)
    assert make(rows(50_000), keys=alone, cluster="h100").iteration_time_s == pytest.approx(2e-3)


def gradient_rows(layers, ns=4 * MS, size=400 * A + 3):
    block = [row("embedding_layer", MS), *[row("attention_layer", ns, ns, ns)] * layers, row("final_column", MS, MS)]
    return [row("grad_param_comm", QUIET, QUIET, (1, "REDUCESCATTER", size)), *block * 3]


@pytest.mark.parametrize(("pp", "vpp", "layers"), [(1, 1, 4), (4, 1, 3), (2, 2, 4), (2, 3, 7)])
def test_an_overlapped_reduction_is_one_bucket_per_layer_in_the_last_backward(make, pp, vpp, layers):
    keys = {"tp": 1, "ep": 1, "pp": pp, "vpp": vpp, "ga": 3, "all_gpus": 8 * pp}
    plain = make(gradient_rows(layers), keys=keys, cluster="h100")
    hidden = make(gradient_rows(layers), keys=keys, cluster="h100", overlap_grad_reduce=True)
    for stage in range(pp):
        ops = work(hidden, stage)
        buckets = [op for op in ops if op.operation is Operation.REDUCE_SCATTER]
        assert sorted(op.layer for op in buckets) == list(range(layers))
        assert sum(op.size_bytes for op in buckets) == 400 * A + 3
        assert {op.microbatch for op in buckets} == {2}
        for bucket in buckets:
            mine = [
                op
                for op in ops
                if op.layer == bucket.layer
                and op.microbatch == 2
                and op.phase is Phase.WEIGHT_GRADIENT
                and op.kind is Kind.COMPUTE
            ]
            assert bucket.start_s >= max(op.end_s for op in mine)
    assert hidden.iteration_time_s < plain.iteration_time_s
    assert hidden.breakdown_s["exposed_dp"] < plain.breakdown_s["exposed_dp"]


def test_what_follows_an_overlapped_reduction_waits_for_it(make):
    rows = [*gradient_rows(2), row("optimizer1", MS)]
    result = make(rows, keys={"tp": 1, "all_gpus": 64}, cluster="h100", overlap_grad_reduce=True)
    ops = work(result)
    optimizer = next(op for op in ops if op.name == "optimizer1")
    assert optimizer.start_s == max(op.end_s for op in ops if op.operation is Operation.REDUCE_SCATTER)


def test_an_overlap_uses_the_layers_of_the_block_that_runs_last(make):
    long, short = ([row("embedding_layer", MS), *[row("attention_layer", MS, MS)] * n] for n in (3, 2))
    rows = [row("grad_param_comm", QUIET, QUIET, (1, "REDUCESCATTER", 6001)), *long, *short, *long]
    for count, layers in ((1, 3), (2, 2), (3, 3), (5, 3)):
        result = make(rows, keys={"tp": 1, "all_gpus": 8}, microbatches=count, overlap_grad_reduce=True)
        sizes = [op.size_bytes for op in work(result) if op.group is Group.DP]
        assert (len(sizes), sum(sizes)) == (layers, 6001)


def test_an_overlapped_expert_reduction_stays_in_its_group(make):
    rows = [row("grad_param_comm", QUIET, QUIET, (1, "REDUCESCATTER_DP_EP", 6001)), *BLOCK * 4]
    result = make(rows, overlap_grad_reduce=True)
    assert {op.group for op in work(result) if op.operation is Operation.REDUCE_SCATTER and op.microbatch == 3} >= {
        Group.EDP
    }
    assert not [op for op in work(result) if op.group is Group.DP]


@pytest.mark.parametrize(
    "rows", [BLOCK * 4, [row("grad_param_comm", QUIET, QUIET, (1, "REDUCESCATTER", 0)), *BLOCK * 4]]
)
def test_an_overlap_of_nothing_is_said(make, rows):
    assert "overlap-unused" in codes(make(rows, overlap_grad_reduce=True))
    assert "overlap-unused" not in codes(make(rows))


# --- policies

TALKATIVE = [
    row("attention_layer", (MS, "ALLREDUCE", A), (MS, "ALLGATHER", A), (MS, "REDUCESCATTER", A), 1),
    row("mlp_layer", (MS, "ALLREDUCE", A), (MS, "ALLGATHER", A), (MS, "REDUCESCATTER", A), 1),
]
F, B, W = Phase.FORWARD, Phase.BACKWARD, Phase.WEIGHT_GRADIENT


@pytest.mark.parametrize(
    ("policy", "groups", "layout"),
    [
        ("HYBRID_TRANSFORMER_FWD_IN_BCKWD", {F: Group.TP, B: Group.TP, W: Group.DP}, (2, 4)),
        ("HYBRID_TRANSFORMER", {F: Group.TP, B: Group.TP, W: Group.DP}, (2, 4)),
        ("HYBRID_DATA_MODEL", {F: Group.TP, B: Group.TP, W: Group.DP}, (2, 4)),
        ("HYBRID_MODEL_DATA", {F: Group.DP, B: Group.DP, W: Group.TP}, (4, 2)),
        ("DATA", {W: Group.DP}, (1, 8)),
        ("MODEL", {F: Group.TP, B: Group.TP}, (8, 1)),
        ("DISTRIBUTED_INFERENCE", {F: Group.TP}, (8, 1)),
        ("MICRO", {W: Group.DP}, (1, 8)),
        ("HYBRID_DLRM", {F: Group.WORLD, B: Group.WORLD, W: Group.WORLD}, (1, 8)),
        ("HYBRID_DLRM_ENHANCED", {F: Group.WORLD, B: Group.WORLD, W: Group.WORLD}, (1, 8)),
    ],
)
def test_a_policy_decides_which_columns_communicate_over_which_group(make, policy, groups, layout):
    result = make(TALKATIVE, keys={"policy": policy, "tp": 2, "ep": 1, "pp": 1, "ga": 1, "all_gpus": 8}, cluster="h100")
    assert (result.parallel.tp, result.parallel.dp) == layout
    assert {op.phase: op.group for op in work(result) if op.kind is Kind.COLLECTIVE} == groups
    # Where dimensions are told apart, the first layer's input gradient is not exchanged.
    silent = {F, B, W} - set(groups) or policy in ("HYBRID_DLRM", "HYBRID_DLRM_ENHANCED", *WITH_DIMENSIONS)
    assert bool(silent) == bool({"policy-ignores", "forward-only"} & codes(result))
    if policy == "DISTRIBUTED_INFERENCE":
        assert {op.phase for op in work(result)} == {F}


def test_a_customized_row_follows_its_own_policy(make):
    policies = ("DATA", "MODEL", "HYBRID_DLRM", "HYBRID_TRANSFORMER")
    rows = [f"{TALKATIVE[0].replace('attention', name)}\t{name}" for name in policies]
    result = make(rows, keys={"policy": "HYBRID_CUSTOMIZED", "tp": 2, "ep": 1, "pp": 1, "ga": 1, "all_gpus": 8})
    found = {
        name: {op.phase: op.group for op in work(result) if op.kind is Kind.COLLECTIVE and op.name == f"{name}_layer"}
        for name in policies
    }
    assert found == {
        "DATA": {W: Group.WORLD},
        "MODEL": {F: Group.WORLD, B: Group.WORLD},
        "HYBRID_DLRM": {W: Group.WORLD},
        "HYBRID_TRANSFORMER": {F: Group.TP, B: Group.TP, W: Group.DP},
    }
    said = next(note for note in result.warnings if note.code == "policy-ignores")
    assert "policies DATA and HYBRID_DLRM and MODEL do not run 5 communications that are written" in said.text


@pytest.mark.parametrize("pp", [1, 4])
def test_inference_is_forward_only_and_says_what_it_leaves_out(make, pp):
    keys = {**WORLD, "pp": pp, "all_gpus": 8 * pp, "mode": 1}
    result = make(STEP, keys=keys, cluster="h100")
    for stage in range(pp):
        ops = seen(result, stage)
        assert {op.phase for op in ops if op.kind in (Kind.COMPUTE, Kind.COLLECTIVE)} == {Phase.FORWARD, Phase.STEP}
        assert not [op for op in ops if op.name.startswith(("grad_", "optimizer", "send_backward"))]
        assert {op.microbatch for op in ops} >= {0, 1, 2, 3}
    assert "forward-only" in codes(result)
    forward = [row(name, (MS, "ALLREDUCE", A), 1, 1) for name in ("attention_layer", "mlp_layer")]
    assert "forward-only" not in codes(make(forward, keys=keys))


def test_zero_sizes_are_counted_as_the_file_writes_them(make):
    result = make(STEP)
    said = next(note for note in result.assumptions if note.code == "zero-size")
    assert said.text.startswith("8 communications of 0 bytes take"), "2 in each of 4 blocks"


def test_the_loss_follows_the_last_forward_before_anything_else_is_awaited(tmp_path):
    """Every stage has the loss: F, loss, send | F, loss, B, send | B: 2 x (100 + 30 + 200) + 2 x 10 ns."""
    path = tmp_path / "loss.txt"
    none = "NONE\t0"
    path.write_text(
        "HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 1 ep: 1 pp: 2 vpp: 1 ga: 1 all_gpus: 2 "
        "pp_comm: 1000\n"
        f"2\nattention_layer\t-1\t100\t{none}\t100\t{none}\t100\t{none}\t0\n"
        f"cross_entropy1\t-1\t30\t{none}\t0\t{none}\t0\t{none}\t0\n"
    )
    cluster = tmp_path / "slow.toml"
    cluster.write_text('base = "ideal"\n')
    result = api.simulate(path, cluster=str(cluster), stage_roles="as-written", busbw_bytes_per_s={"pp": 1e11})
    assert result.iteration_time_s == pytest.approx(680e-9)
