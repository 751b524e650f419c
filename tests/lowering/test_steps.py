"""What a rank runs in a pass, to begin a step and to end it: which exchanges, how much of each, and in which order."""

from itertools import product

import pytest
from msgspec.structs import replace

from job_parts import TINY, TINY_EXPERTS, job_of
from told import Told
from traincast.hardware.clusters import load_cluster
from traincast.lowering.stage import stages_of
from traincast.lowering.step import (
    Ending,
    OfStage,
    backward_pass,
    cast_kernels,
    end_rows,
    first_forward_pass,
    forward_pass,
    start_rows,
)
from traincast.lowering.work import Exchange
from traincast.mechanisms import all as mechanisms
from traincast.model.blocks.part import Gemm
from traincast.workload.words import Group, Operation

TOKENS, LAYERS = 1024, TINY.layers
GATHERED, SCATTERED, SUMMED = ("DP ALL_GATHER", 1000), ("DP REDUCE_SCATTER", 800), ("REPLICA ALL_REDUCE", 80)


class State:
    """A state of round numbers: 1000 bytes to gather, 800 of gradients, 80 to sum over copies."""

    def gathered(self):
        return [Exchange(Group.DP, Operation.ALL_GATHER, 1000)]

    def reduced(self):
        return [Exchange(Group.DP, Operation.REDUCE_SCATTER, 800)]

    def summed(self):
        return [Exchange(Group.REPLICA, Operation.ALL_REDUCE, 80)]

    def all_reduced(self):
        return [*self.reduced(), *self.summed()]

    def over_copies(self):
        return [Exchange(Group.COPY, Operation.ALL_REDUCE, 40)]

    def updated(self):
        return 1000

    def held(self):
        return 1200

    def cast(self):
        return 512


def decided(**fields):
    """A job whose host takes no time, and of whose FSDP a quarter shows."""
    job = job_of(**fields)
    quiet = {"host_layer_s": 0.0, "step_fixed_s": 0.5, "steady_gpus": 0, "unhidden_fsdp": 0.25, "grad_reduce_bytes": 4}
    return replace(job, framework=replace(job.framework, **quiet))


def staged(job):
    return [OfStage(stage, State()) for stage in stages_of(job, 8)]


def names(rows):
    return [row[1] if row[0] == "compute" else row[0] for row in rows]


def told(rows, name):
    """Return how much of something is told, and how."""
    return [row[1:] for row in rows if row[0] == name]


def test_the_ends_of_the_model_are_on_the_first_and_the_last_stage():
    job = decided(gpus=4, pp=4)
    forward = [names(forward_pass(Told(job), of)) for of in staged(job)]
    layers = ["layers forward"]
    assert forward == [["embedding forward", *layers], layers, layers, [*layers, "LM head forward"]]
    backward = [names(backward_pass(Told(job), of)) for of in staged(job)]
    layers = ["layers backward", "layers weight gradient"]
    assert backward == [[*layers, "embedding backward"], layers, layers, ["LM head backward", *layers]]


def test_frozen_embeddings_have_no_backward_pass():
    job = decided(task="lora", lora_rank=8)
    (of,) = staged(job)
    assert "embedding backward" not in names(backward_pass(Told(job), of))
    assert "embedding forward" in names(forward_pass(Told(job), of))


def test_mtp_layers_are_joined_to_the_model_where_they_are():
    job = decided(model=replace(TINY, mtp_layers=1), gpus=2, pp=2)
    emit, (first, last) = Told(job), staged(job)
    assert "MTP projections forward" not in names(forward_pass(emit, first))
    assert names(forward_pass(emit, last)) == ["MTP projections forward", "layers forward", "LM head forward"]
    assert names(backward_pass(emit, last))[-1] == "MTP projections backward"


@pytest.mark.parametrize(
    ("tp", "sequence_parallel", "size_bytes"),
    [(1, False, 0), (2, False, TOKENS * 512 * 2), (2, True, 0)],
)
def test_split_messages_are_made_whole_before_a_pass_but_on_the_stage_that_gets_none(tp, sequence_parallel, size_bytes):
    """A microbatch's hidden state in 16 bits, of which the stage before sent each rank its part."""
    job = decided(gpus=2 * tp, tp=tp, pp=2, sequence_parallel=sequence_parallel, overlap_tp=False)
    job = replace(job, framework=replace(job.framework, splits_messages=True, overlaps_tp_gradients=False))
    emit, (first, last) = Told(job), staged(job)
    whole = [("TP ALL_GATHER", size_bytes, "blocks")] if size_bytes else []
    assert forward_pass(emit, last)[: len(whole)] == backward_pass(emit, first)[: len(whole)] == whole
    assert first_forward_pass(emit, last, None, begins=True)[: len(whole)] == whole
    for rows in (
        forward_pass(emit, first),
        backward_pass(emit, last),
        first_forward_pass(emit, first, None, begins=True),
    ):
        assert rows[0][0] == "compute"
    if not size_bytes:
        assert {forward_pass(emit, last)[0][0], backward_pass(emit, first)[0][0]} == {"compute"}
    streams = replace(job, model=replace(job.model, residual_streams=4))
    if size_bytes:
        assert forward_pass(Told(streams), last)[0] == ("TP ALL_GATHER", 4 * size_bytes, "blocks")


def test_sharded_parameters_are_gathered_along_a_pass_all_but_the_share_that_shows():
    job = decided(gpus=8, zero=3)
    (of,), emit = staged(job), Told(job)
    for rows in (forward_pass(emit, of, gathers=True), backward_pass(emit, of, gathers=True)):
        assert told(rows, "DP ALL_GATHER") == [(750, "launched"), (250, "unhidden")]
    for rows in (forward_pass(emit, of), backward_pass(emit, of)):
        assert told(rows, "DP ALL_GATHER") == []


def test_parameters_on_the_host_come_for_each_gather():
    """Half of 16 bits for each of the 1200 that the rank holds."""
    job = decided(gpus=8, zero=3, offload_parameters=True)
    (of,), emit = staged(job), Told(job)
    for one_pass in (forward_pass, backward_pass):
        assert told(one_pass(emit, of, gathers=True), "parameters in") == [(2400, "launched")]
        assert told(one_pass(emit, of), "parameters in") == []
        here = job.with_values(offload_parameters=False)
        assert told(one_pass(Told(here), of, gathers=True), "parameters in") == []


EARLY = 1 - 1 / LAYERS
"""All layers but the one that is computed last have their gradients before a backward pass ends."""


@pytest.mark.parametrize(("zero", "overlap", "last"), list(product((0, 1, 2), (False, True), (False, True))))
def test_gradients_are_reduced_along_the_last_pass_or_along_each_that_keeps_them_in_shares(zero, overlap, last):
    job = decided(gpus=8, zero=zero, overlap_grad_reduce=overlap)
    (of,) = staged(job)
    rows = backward_pass(Told(job), of, last=last)

    def parts(size_bytes):
        return [(size_bytes * EARLY, "launched"), (size_bytes / LAYERS, "launched")]

    assert told(rows, "DP REDUCE_SCATTER") == (parts(800) if zero == 2 or (last and overlap) else [])
    assert told(rows, "REPLICA ALL_REDUCE") == (parts(80) if last and (zero == 2 or overlap) else [])


def test_a_stage_of_one_layer_reduces_all_of_its_gradients_after_it():
    job = decided(model=replace(TINY, layers=1), gpus=8, zero=1, overlap_grad_reduce=True)
    (of,) = staged(job)
    assert told(backward_pass(Told(job), of, last=True), "DP REDUCE_SCATTER") == [(800, "launched")]


@pytest.mark.parametrize("last", [False, True])
def test_fully_sharded_gradients_are_scattered_along_each_pass_and_their_copies_summed_after_the_last(last):
    job = decided(gpus=8, zero=3)
    (of,) = staged(job)
    rows = backward_pass(Told(job), of, last=last)
    assert told(rows, "DP REDUCE_SCATTER") == [(600, "launched"), (200, "unhidden")]
    assert told(rows, "REPLICA ALL_REDUCE") == ([(80 * EARLY, "launched"), (80 / LAYERS, "launched")] if last else [])
    # A pipeline that keeps gradients whole over its microbatches reduces none of them along a pass.
    once = decided(gpus=8, pp=2, zero=3, framework="torchtitan-2025")
    assert once.reduces_once
    rows = backward_pass(Told(once), staged(once)[0], last=last)
    assert told(rows, "DP REDUCE_SCATTER") == told(rows, "REPLICA ALL_REDUCE") == []


def test_gradients_in_shares_leave_for_the_host_as_they_are_reduced():
    """Four bytes for each of the 1000 that the rank updates."""
    job = decided(gpus=8, zero=2, offload_optimizer=1.0)
    (of,) = staged(job)
    rows = backward_pass(Told(job), of)
    assert told(rows, "gradients out") == [(4000 * EARLY, "launched"), (4000 / LAYERS, "launched")]
    assert names(rows).index("gradients out") < names(rows).index("layers backward")
    assert names(rows)[-2:] == ["gradients out", "DP REDUCE_SCATTER"]
    stay = decided(gpus=8, zero=1, offload_optimizer=1.0)
    assert told(backward_pass(Told(stay), of), "gradients out") == []


@pytest.mark.parametrize(("count", "whole"), [(LAYERS, True), (LAYERS - 1, False)])
def test_activations_of_all_layers_come_before_the_backward_pass_and_others_while_it_runs(count, whole):
    job = decided(offload_activations=count)
    (of,) = staged(job)
    rows = backward_pass(Told(job), of)
    assert [how for _, how in told(rows, "activations in")] == (["blocks", "launched"] if whole else ["launched"])
    first, total = told(rows, "activations in")[0][0], sum(size for size, _ in told(rows, "activations in"))
    if whole:
        assert first == -(-total // LAYERS)
    assert sum(size for size, _ in told(forward_pass(Told(job), of), "activations out")) == total
    modules = decided(offload_modules=("core_attn",))
    rows = backward_pass(Told(modules), staged(modules)[0])
    assert [how for _, how in told(rows, "activations in")] == ["launched"]


def test_updated_parameters_arrive_before_or_along_the_first_pass_and_those_of_the_next_stage_are_launched():
    job = decided(gpus=8, pp=2, vpp=2, zero=1, schedule="interleaved")
    emit, of = Told(job), staged(job)
    layers = ["layers forward"]
    assert names(first_forward_pass(emit, of[0], of[2], begins=True)) == [
        "embedding forward", *layers, "wait", "DP ALL_GATHER",
    ]  # fmt: skip
    rows = first_forward_pass(emit, of[0], of[2], begins=True)
    assert told(rows, "DP ALL_GATHER") == [(1000, "launched")]
    assert told(rows, "wait") == [("DP",)]
    assert names(first_forward_pass(emit, of[1], of[3], begins=False)) == ["wait", "DP ALL_GATHER", *layers]
    assert names(first_forward_pass(emit, of[2], None, begins=False)) == ["wait", *layers]


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize("overlap", [False, True])
def test_a_step_begins_with_its_overhead_and_the_first_layer_s_parameters(zero, overlap):
    job = decided(gpus=8, pp=2, zero=zero, overlap_param_gather=overlap)
    rows = start_rows(Told(job), staged(job)[:1])
    assert rows[0] == ("gap", "step overhead", 0.5)
    # Four layers a stage.
    wanted = [(250, "blocks"), (750, "launched")] if overlap and zero in (1, 2) else []
    assert told(rows, "DP ALL_GATHER") == wanted
    assert len(rows) == 1 + len(wanted)


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize("overlap", [False, True])
def test_a_step_ends_with_what_nothing_has_hidden(zero, overlap):
    job = decided(gpus=8, zero=zero, overlap_param_gather=overlap)
    own = staged(job)
    rows = end_rows(Told(job), own, Ending(late=[State()]))
    assert rows[:2] == [("wait", "DP"), ("wait", "REPLICA")]
    assert told(rows, "DP REDUCE_SCATTER") == [(800, "blocks")]
    assert told(rows, "REPLICA ALL_REDUCE") == [(80, "blocks")]
    assert told(rows, "WORLD ALL_REDUCE") == [(4, "blocks")]
    assert told(rows, "runs") == [("optimizer", 1)]
    assert told(rows, "DP ALL_GATHER") == ([(1000, "blocks")] if zero in (1, 2) and not overlap else [])
    assert told(rows, "COPY ALL_REDUCE") == told(rows, "EMB ALL_REDUCE") == []
    early = end_rows(Told(job), own, Ending(late=[]))
    assert told(early, "DP REDUCE_SCATTER") == told(early, "REPLICA ALL_REDUCE") == []


def test_one_layer_comes_whole_before_a_step_and_goes_whole_to_the_host_after_it():
    one = replace(TINY, layers=1)
    job = decided(model=one, gpus=8, zero=1, overlap_param_gather=True)
    assert told(start_rows(Told(job), staged(job)), "DP ALL_GATHER") == [(1000, "blocks")]
    job = decided(model=one, gpus=8, zero=1, offload_optimizer=1.0)
    rows = end_rows(Told(job), staged(job), Ending([]))
    assert told(rows, "gradients out") == [(4000, "blocks")]
    assert told(rows, "parameters in") == [(2000, "blocks")]


def test_what_an_optimizer_exchanges_precedes_what_it_runs():
    """Muon sums what its ranks found, once for each kind of group that it asks."""
    job = decided(gpus=8, tp=2, zero=1, optimizer="muon", muon_tp_mode="distributed")
    own = staged(job)
    asked = mechanisms.updated(job, own[0].stage.weights(), 1000).exchanges
    assert asked
    rows = end_rows(Told(job), own, Ending([]))
    sent = [row for row in rows if row[0].startswith(("TP", "DP", "SHARD"))]
    wanted = {}
    for each in asked:
        key = f"{each.group.upper()} {each.operation.upper()}", each.size_bytes
        wanted[key] = wanted.get(key, 0) + each.count
    for (name, size_bytes), count in wanted.items():
        assert (name, size_bytes * count, "blocks") in sent
    assert names(rows).index("runs") > names(rows).index(sent[0][0])


@pytest.mark.parametrize("optimizer", ["adam", "muon"])
def test_the_host_launches_an_update_tensor_by_tensor_and_gemm_by_gemm(optimizer):
    """Three of 0.12 launches for each tensor, and one for each GEMM of Muon; a launch takes a second here."""
    job = decided(optimizer=optimizer)
    job = replace(job, framework=replace(job.framework, host_layer_s=11.0, module_launches=1.0))
    own = staged(job)
    runs = mechanisms.updated(job, own[0].stage.weights(), 1000).runs
    gemms = sum(each.count for each in runs if isinstance(each.what, Gemm))
    assert bool(gemms) is (optimizer == "muon")
    tensors = 8 * 6 + 1 + 2
    rows = end_rows(Told(job), own, Ending([]))
    assert told(rows, "launched") == [(pytest.approx((3 * tensors + gemms) * 0.12),)]


def test_one_gpu_sums_no_norm_and_two_do():
    for gpus, found in ((1, []), (2, [(4, "blocks")])):
        job = decided(gpus=gpus)
        assert told(end_rows(Told(job), staged(job), Ending([])), "WORLD ALL_REDUCE") == found


def test_copies_of_stages_and_of_tables_are_summed():
    """Each virtual stage's own part; a table of all entries, 4 bytes each, over two tensor parallel ranks."""
    job = decided(gpus=8, tp=2, pp=2, vpp=2, schedule="interleaved")
    own = staged(job)[::2]
    rows = end_rows(Told(job), own, Ending([], has_copies=True, has_table=True))
    assert told(rows, "COPY ALL_REDUCE") == [(40, "blocks")] * 2
    assert told(rows, "EMB ALL_REDUCE") == [(32768 // 2 * 512 * 4, "blocks")]
    frozen = decided(gpus=8, tp=2, pp=2, task="lora", lora_rank=8)
    rows = end_rows(Told(frozen), staged(frozen)[:1], Ending([], has_table=True))
    assert told(rows, "EMB ALL_REDUCE") == []


def test_the_host_updates_in_as_many_pieces_as_the_rank_has_layers():
    """Eight layers of two virtual stages, 2000 parameters of 4 bytes down and of 2 up."""
    job = decided(gpus=8, pp=2, vpp=2, zero=1, schedule="interleaved", offload_optimizer=1.0, overlap_offload=True)
    own = staged(job)[::2]
    assert sum(each.stage.layers for each in own) == 4
    rows = end_rows(Told(job), own, Ending([]))
    assert told(rows, "gradients out") == [(2000, "blocks"), (6000, "launched")]
    assert told(rows, "parameters in") == [(3000, "launched"), (1000, "blocks")]
    assert told(rows, "optimizer on the host") == [(60000, "launched")]


@pytest.mark.parametrize("overlap", [False, True])
def test_islands_exchange_after_a_step_or_along_the_next_one(overlap):
    cluster = replace(
        load_cluster("h100"), islands=("east", "west"), island_bandwidth_bytes_per_s=1e9, island_latency_s=0.02
    )
    job = decided(cluster=cluster, gpus=2, local_steps=10, overlap_outer=overlap)
    begun = start_rows(Told(job), staged(job))
    ended = end_rows(Told(job), staged(job), Ending([]))
    (((seconds, how),), none) = (told(begun if overlap else ended, "outer gradients"),
                                 told(ended if overlap else begun, "outer gradients"))  # fmt: skip
    assert how == ("launched" if overlap else "blocks")
    assert none == []
    assert seconds > 0
    assert (("wait", "REPLICA") in ended[-3:]) is overlap


@pytest.mark.parametrize(
    ("fields", "shapes"),
    [
        ({"zero": 1}, [("cast", 512)]),
        ({"zero": 0}, [("cast", 512)]),
        # Sharded weights are cast for every pass; those that come in 8 bits are transposed where Hopper needs that.
        ({"zero": 3}, []),
        ({"zero": 1, "param_gather_bytes": 1}, [("copy", 512)]),
        ({"zero": 1, "param_gather_bytes": 1, "cluster": "b200"}, []),
        ({"zero": 1, "task": "lora", "lora_rank": 8}, []),
    ],
)
def test_weights_are_cast_once_a_step(fields, shapes):
    job = decided(**{"gpus": 8, "precision": "fp8", "fp8_recipe": "current", "model": TINY_EXPERTS, "ep": 2} | fields)
    found = [each for each in cast_kernels(job, Told(job).share, 512.4) if each.shape[-1]]
    assert [(each.family, each.shape[-1]) for each in found] == shapes
    rows = end_rows(Told(job), staged(job), Ending([]))
    assert [name for name, _ in told(rows, "runs")] == ["optimizer", *(["weight casts"] if shapes else [])]
