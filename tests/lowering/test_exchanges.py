"""What ranks exchange: volumes in closed form, whatever is overlapped."""

from collections import Counter

import pytest
from msgspec.structs import replace

from job_parts import TINY, TINY_EXPERTS, TINY_LATENT, exchanged, job_of, slots, workload_of
from traincast.job.share import rank_share
from traincast.lowering.emit import RowEmitter
from traincast.lowering.stage import stages_of
from traincast.workload.builder import WorkloadBuilder
from traincast.workload.words import CostClass, Group, Kind, Operation, Phase

GATHER, SCATTER, REDUCE = Operation.ALL_GATHER, Operation.REDUCE_SCATTER, Operation.ALL_REDUCE
WHOLE_STEP = ("start", "forward", "backward", "end")


UNWEIGHTED = {"model": TINY_EXPERTS, "gpus": 8, "ep": 8, "framework": "megatron-core-2024"}
"""Before the router's weights went to the experts."""


def of_step(job, gpus_per_node=8):
    total = Counter()
    for which in WHOLE_STEP:
        total.update(exchanged(job, which, gpus_per_node))
    return total


def activation(job):
    """Return the bytes of the hidden state of a microbatch, in 16 bits."""
    return job.batch.micro_batch * job.batch.seq_length // job.parallel.cp * job.model.hidden * 2


def ring_bytes(found, group, ranks):
    """Return what one rank sends: 2 (n - 1) / n of an all-reduce, (n - 1) / n of its halves."""
    halves = found[group, GATHER] + found[group, SCATTER]
    return (halves + 2 * found[group, REDUCE]) * (ranks - 1) / ranks


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("cp", [1, 2])
def test_layers_gather_and_scatter_the_split_sequence(overlap, cp):
    job = job_of(gpus=4 * cp, tp=4, cp=cp, overlap_tp=overlap, sequence_parallel=True)
    # Two blocks a layer; embedding and head are one more each.
    layers = 2 * job.model.layers * job.parallel.microbatches
    size, head = activation(job), job.parallel.microbatches
    forward, backward = exchanged(job, "forward"), exchanged(job, "backward")
    assert forward[Group.TP, GATHER] == pytest.approx((layers + head) * size)
    assert forward[Group.TP, SCATTER] == pytest.approx((layers + head) * size)
    assert backward[Group.TP, GATHER] == pytest.approx((2 * layers + 2 * head) * size)
    assert backward[Group.TP, SCATTER] == pytest.approx((layers + head) * size)
    # The loss: the largest logit, its sum and the target's, in 32 bits for each token.
    assert forward[Group.TP, REDUCE] == 3 * head * job.batch.micro_batch * job.batch.seq_length // cp * 4


@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize("overlaps", [False, True])
def test_layers_that_split_their_outputs_exchange_alongside_their_gradients(overlaps, sequence_parallel):
    """One of the two layers of each block, and the LM head: what they gather, and the gradients of their inputs."""
    job = job_of(gpus=4, tp=4, overlap_tp=False, sequence_parallel=sequence_parallel)
    job = replace(job, framework=replace(job.framework, overlaps_tp_gradients=overlaps))
    workload, found = workload_of(job), Counter()
    for row in slots(workload, "backward"):
        ops = workload.ops
        if ops.kind_T[row] == Kind.COLLECTIVE and not ops.blocking_T[row]:
            found[Operation(int(ops.operation_T[row]))] += float(ops.size_bytes_T[row] * ops.repeats_T[row])
    size = (2 * job.model.layers + 1) * job.parallel.microbatches * activation(job)
    wanted = {GATHER: size, SCATTER: size} if sequence_parallel else {REDUCE: size}
    assert found == pytest.approx(wanted if overlaps else {})


@pytest.mark.parametrize(
    ("gpus", "tp", "ranks_per_node", "hidden"),
    [(64, 8, 8, True), (64, 4, 8, True), (64, 16, 8, False), (48, 6, 8, False), (48, 6, 6, True), (8, 8, 72, True)],
)
def test_tensor_transfers_hide_only_inside_one_domain(gpus, tp, ranks_per_node, hidden):
    """Kernels that overlap them write to the memory of their peers; a group that crosses nodes shows all of it."""
    wide = replace(TINY, hidden=768, attention=replace(TINY.attention, heads=48, kv_heads=48), ffn_hidden=2304)
    job = job_of(wide, gpus=gpus, tp=tp, overlap_tp=True, global_batch=64 if gpus == 64 else 48, seq_length=3072)
    builder = WorkloadBuilder("w", job.parallel, job.pipeline.schedule)
    emit = RowEmitter(job, rank_share(job, ranks_per_node), builder)
    assert emit.unhidden(Group.TP) == (job.framework.unhidden_tp if hidden else 1.0)
    notes = [note.code for note in workload_of(job, ranks_per_node).assumptions]
    assert ("overlap-tp-across-nodes" in notes) is not hidden


def test_what_nothing_hides_is_one_transfer_and_no_part_of_one():
    """Hidden in part, a transfer is two operations, of which the share that nothing hides is named so."""
    for overlap, names in ((False, 1), (True, 2)):
        job = job_of(gpus=4, tp=4, sequence_parallel=True, overlap_tp=overlap)
        ops = workload_of(replace(job, framework=replace(job.framework, overlaps_tp_gradients=False))).ops
        gathers = [at for at, name in enumerate(ops.name_T) if name.startswith("tp all_gather")]
        forward = {(ops.name_T[at], int(ops.cost_class_T[at])) for at in gathers if ops.phase_T[at] == Phase.BACKWARD}
        assert len(forward - {("tp all_gather", int(CostClass.NONE))}) == 2 * (names - 1)
        unhidden = {("tp all_gather (unhidden)", int(CostClass.UNHIDDEN))}
        assert (unhidden <= forward) is overlap


def test_splitting_the_sequence_sends_as_many_bytes_in_the_forward_pass():
    """Korthikanti et al., arXiv 2205.05198, section 4.2.2."""
    split = job_of(gpus=4, tp=4, sequence_parallel=True)
    whole = job_of(gpus=4, tp=4, sequence_parallel=False)
    assert exchanged(whole, "forward")[Group.TP, GATHER] == 0
    sent = [ring_bytes(exchanged(job, "forward"), Group.TP, 4) for job in (split, whole)]
    assert sent[0] == pytest.approx(sent[1])


def test_one_tensor_parallel_rank_exchanges_nothing():
    assert not [key for key in of_step(job_of(gpus=2)) if key[0] in (Group.TP, Group.ETP, Group.CP, Group.EP)]


@pytest.mark.parametrize("layout", [{"gpus": 8, "ep": 8}, {"gpus": 8, "tp": 2, "ep": 4, "etp": 1}])
def test_tokens_go_to_their_experts_and_come_back(layout):
    job = job_of(TINY_EXPERTS, framework="nanotron-2024", **layout)
    tokens = job.batch.micro_batch * job.batch.seq_length // job.parallel.tp
    size = tokens * job.model.experts.topk * job.model.hidden * 2
    for which in ("forward", "backward"):
        found = exchanged(job, which)[Group.EP, Operation.ALL_TO_ALL]
        assert found == pytest.approx(2 * size * job.model.layers * job.parallel.microbatches)


def test_tokens_cross_the_network_once_for_each_node_of_their_experts():
    job, every = (job_of(**UNWEIGHTED, moe_dispatcher=name) for name in ("deepep", "alltoall"))
    key = (Group.EP, Operation.ALL_TO_ALL)

    def share(gpus_per_node):
        return exchanged(job, "forward", gpus_per_node)[key] / exchanged(every, "forward", gpus_per_node)[key]

    # Two of 8 experts are on one node of n with a chance of (8 / n - 1) / 7: 3/7 of two nodes, 1/7 of four.
    assert share(8) == 1
    assert share(4) == pytest.approx((2 - 3 / 7) / 2, rel=1e-4)
    assert share(2) == pytest.approx((2 - 1 / 7) / 2, rel=1e-4)


def test_dispatchers_send_copies_or_tokens_or_all_to_all_ranks():
    """Bytes in closed form; 8 bits on the way out with 4 bytes of scale for 128 values, 16 bits on the way back."""
    layers, topk, hidden = TINY_EXPERTS.layers, TINY_EXPERTS.experts.topk, TINY_EXPERTS.hidden
    tokens = 1024

    def sent(name, dtype="bf16"):
        job = job_of(**UNWEIGHTED, moe_dispatcher=name, moe_dispatch_dtype=dtype)
        found = exchanged(job, "forward", 8)
        return {operation: size for (group, operation), size in found.items() if group is Group.EP}

    each = tokens * hidden * layers
    # Before it every rank tells all others how many tokens come to each expert, in 64 bits.
    experts = TINY_EXPERTS.experts.experts
    counts = pytest.approx(8 * 8 * experts * layers)
    assert sent("alltoall") == {Operation.ALL_TO_ALL: pytest.approx(2 * each * topk * 2), GATHER: counts}
    whole = pytest.approx(8 * each * 2)
    assert sent("allgather") == {GATHER: whole, SCATTER: whole}
    assert sent("alltoall", "fp8")[Operation.ALL_TO_ALL] == pytest.approx(each * topk * (1 + 4 / 128 + 2))
    # Inside a domain a token goes once to each rank of its experts, here one each.
    assert sent("deepep") == {Operation.ALL_TO_ALL: sent("alltoall")[Operation.ALL_TO_ALL]}
    # With it go the fp32 weights of all experts, and before it a byte for each token and expert to all ranks.
    weights = 4 * experts * tokens * layers * topk
    assert sent("hybridep") == {
        Operation.ALL_TO_ALL: pytest.approx(2 * each * topk * 2 + weights),
        GATHER: pytest.approx(8 * tokens * experts * layers),
    }


@pytest.mark.parametrize("which", ["forward", "backward"])
def test_the_weights_of_a_router_follow_the_copies_of_its_tokens(which):
    """In 32 bits each, where the experts multiply by them, and their gradients back; nobody asks for counts twice."""
    old, new = (job_of(**UNWEIGHTED | {"framework": f"megatron-core-{year}"}) for year in (2024, 2025))
    old, new = (exchanged(job.with_values(moe_dispatcher="alltoall"), which) for job in (old, new))
    copies = 1024 * TINY_EXPERTS.experts.topk * TINY_EXPERTS.layers
    key = (Group.EP, Operation.ALL_TO_ALL)
    assert new[key] - old[key] == pytest.approx(4 * copies)
    assert new[Group.EP, GATHER] == old[Group.EP, GATHER]
    assert (old[Group.EP, GATHER] > 0) is (which == "forward")


def test_experts_in_their_order_are_on_few_ranks():
    """Two consecutive of 8 experts are on one of 4 ranks with two each, where drawn ones are on 1 + 6 / 7 of them."""
    given = {"model": TINY_EXPERTS, "gpus": 8, "ep": 4, "moe_dispatcher": "deepep"}
    drawn, ordered = (exchanged(job_of(**given, moe_routing=name), "forward") for name in ("balanced", "consecutive"))
    key = (Group.EP, Operation.ALL_TO_ALL)
    assert ordered[key] * (1 + 6 / 7) == pytest.approx(drawn[key], rel=1e-4)


def test_no_counts_are_exchanged_where_they_are_fixed():
    fixed = replace(TINY_EXPERTS, experts=replace(TINY_EXPERTS.experts, capacity_factor=1.0))
    found = exchanged(job_of(**UNWEIGHTED | {"model": fixed}, moe_dispatcher="alltoall"), "forward")
    assert not found[Group.EP, GATHER]


@pytest.mark.parametrize("name", ["alltoall", "deepep", "allgather"])
def test_the_busiest_rank_decides_what_an_exchange_takes(name):
    """It sends or receives so much more; gathered tokens go to all ranks whatever their experts are."""
    even, uneven = (
        exchanged(job_of(TINY_EXPERTS, gpus=8, ep=8, moe_dispatcher=name, expert_imbalance=factor), "forward")
        for factor in (1.0, 1.5)
    )
    for key, size in even.items():
        grows = key == (Group.EP, Operation.ALL_TO_ALL)
        assert uneven[key] == pytest.approx(size * (1.5 if grows else 1.0), rel=1e-6)


def test_no_rank_takes_more_tokens_than_its_capacity():
    key = (Group.EP, Operation.ALL_TO_ALL)

    def sent(capacity, factor):
        model = replace(TINY_EXPERTS, experts=replace(TINY_EXPERTS.experts, capacity_factor=capacity))
        return exchanged(job_of(model, gpus=8, ep=8, expert_imbalance=factor), "forward")[key]

    assert sent(1.0, 3.0) == sent(1.0, 1.0) == sent(None, 1.0)
    assert sent(1.25, 3.0) == pytest.approx(1.25 * sent(None, 1.0), rel=1e-6)
    assert sent(1.25, 1.1) == pytest.approx(1.1 * sent(None, 1.0), rel=1e-6)
    assert sent(0.5, 3.0) == pytest.approx(0.5 * sent(None, 1.0), rel=1e-6)


def test_node_limited_routing_bounds_what_crosses_where_a_token_is_sent_once():
    """Both experts of a token in one of four groups, a group on each of four nodes: one node each."""
    groups = replace(TINY_EXPERTS, experts=replace(TINY_EXPERTS.experts, groups=4, group_topk=1))
    key = (Group.EP, Operation.ALL_TO_ALL)
    for once, share in ((True, 1 / 2), (False, 1.0)):
        each = ({**UNWEIGHTED, "model": model} for model in (groups, TINY_EXPERTS))
        limited, free = (job_of(**given, deduplicated_dispatch=once) for given in each)
        every = exchanged(job_of(**UNWEIGHTED, moe_dispatcher="alltoall"), "forward", 2)[key]
        assert exchanged(limited, "forward", 2)[key] == pytest.approx(share * every)
        texts = [note.text for note in workload_of(limited, 2).assumptions if note.code == "node-limited-routing"]
        assert len(texts) == 1
        assert ("on 1.00 nodes on average instead of 1.86" in texts[0]) is once
        assert not [note for note in workload_of(free, 2).assumptions if note.code == "node-limited-routing"]
        assert not [note for note in workload_of(limited, 8).assumptions if note.code == "node-limited-routing"]


def test_capacity_bounds_what_is_sent():
    half = replace(TINY_EXPERTS, experts=replace(TINY_EXPERTS.experts, capacity_factor=0.5))
    key = (Group.EP, Operation.ALL_TO_ALL)
    sent = [exchanged(job_of(model, gpus=8, ep=8), "forward")[key] for model in (TINY_EXPERTS, half)]
    assert sent[1] == pytest.approx(sent[0] / 2)


def test_split_experts_gather_their_tokens_and_sum_their_outputs():
    job = job_of(TINY_EXPERTS, gpus=8, tp=2, ep=2, etp=2)
    tokens = job.batch.micro_batch * job.batch.seq_length
    size = tokens * job.model.experts.topk * job.model.hidden * 2 * job.model.layers * job.parallel.microbatches
    for which in ("forward", "backward"):
        found = exchanged(job, which)
        assert found[Group.ETP, GATHER] == found[Group.ETP, SCATTER] == pytest.approx(size)


@pytest.mark.parametrize("model", [TINY, TINY_LATENT])
def test_context_parallel_ranks_gather_keys_and_values(model):
    job = job_of(model, gpus=4, cp=4)
    attention, latent = model.attention, model.attention.latent
    width = 2 * attention.kv_heads * attention.head_dim
    if latent is not None:
        width = attention.heads * (latent.nope_head_dim + latent.rope_head_dim + latent.v_head_dim)
    size = job.batch.seq_length * width * 2 * model.layers * job.parallel.microbatches
    assert exchanged(job, "forward")[Group.CP, GATHER] == pytest.approx(size)
    assert exchanged(job, "backward")[Group.CP, GATHER] == pytest.approx(size)
    assert exchanged(job, "backward")[Group.CP, SCATTER] == pytest.approx(size)


OVERLAPS = [(reduce, gather) for reduce in (False, True) for gather in (False, True)]


def _state(job):
    weights = [stage.weights() for stage in stages_of(job, 8)]
    return sum(each.dense for each in weights), sum(each.experts for each in weights)


@pytest.mark.parametrize(("overlap_grad_reduce", "overlap_param_gather"), OVERLAPS)
@pytest.mark.parametrize("layout", [{"gpus": 4}, {"gpus": 4, "cp": 2}, {"gpus": 16, "tp": 2, "pp": 2, "vpp": 2},
                                    {"gpus": 8, "pp": 2, "stage_layers": (8, 0), "vpp": None}])  # fmt: skip
@pytest.mark.parametrize("zero", [0, 1, 2])
def test_gradients_are_reduced_and_parameters_gathered_by_the_kind_of_sharding(
    layout, zero, overlap_grad_reduce, overlap_param_gather
):
    """Once a step; gradients that are kept in shares after every microbatch."""
    job = job_of(
        **layout, zero=zero, overlap_grad_reduce=overlap_grad_reduce, overlap_param_gather=overlap_param_gather
    )
    found, (dense, _) = of_step(job), _state(job)
    gradients = dense * job.framework.grad_reduce_bytes * (job.parallel.microbatches if zero == 2 else 1)
    assert found[Group.DP, REDUCE] == pytest.approx(0 if zero else gradients)
    assert found[Group.DP, SCATTER] == pytest.approx(gradients if zero else 0)
    assert found[Group.DP, GATHER] == pytest.approx(dense * 2 if zero else 0)


@pytest.mark.parametrize("zero", [0, 1, 2])
def test_experts_are_reduced_over_their_own_replicas(zero):
    job = job_of(TINY_EXPERTS, gpus=8, ep=4, zero=zero, global_batch=16)
    found, (dense, expert) = of_step(job), _state(job)
    reduced = REDUCE if zero == 0 else SCATTER
    often = job.parallel.microbatches if zero == 2 else 1
    assert found[Group.DP, reduced] == pytest.approx(often * dense * job.framework.grad_reduce_bytes)
    assert found[Group.EDP, reduced] == pytest.approx(often * expert * job.framework.grad_reduce_bytes)
    alone = of_step(job_of(TINY_EXPERTS, gpus=8, ep=8, zero=zero))
    assert not [key for key in alone if key[0] is Group.EDP]


def test_sharded_parameters_are_gathered_in_each_pass_and_gradients_scattered_in_each():
    """Zhao et al., arXiv 2304.11277, section 3: two all-gathers and one reduce-scatter per microbatch."""
    job = job_of(gpus=4, zero=3, micro_batch=1, global_batch=12)
    found, (dense, _) = of_step(job), _state(job)
    passes = job.parallel.microbatches
    assert passes == 3
    assert found[Group.DP, GATHER] == pytest.approx(2 * passes * dense * 2)
    assert found[Group.DP, SCATTER] == pytest.approx(passes * dense * job.framework.grad_reduce_bytes)
    assert found[Group.DP, REDUCE] == 0


def test_hybrid_shards_sum_their_share_over_the_replicas_once():
    job = job_of(gpus=8, zero=3, shard=2, global_batch=16)
    found, (dense, _) = of_step(job), _state(job)
    passes = job.parallel.microbatches
    assert passes == 2
    assert found[Group.SHARD, GATHER] == pytest.approx(2 * passes * dense * 2)
    assert found[Group.SHARD, SCATTER] == pytest.approx(passes * dense * job.framework.grad_reduce_bytes)
    assert found[Group.REPLICA, REDUCE] == pytest.approx(dense / 2 * job.framework.grad_reduce_bytes)
    assert not [key for key in found if key[0] is Group.DP]


def test_frozen_weights_are_not_reduced():
    job = job_of(gpus=4, task="lora", lora_rank=8, zero=1)
    weights = stages_of(job, 8)[0].weights()
    found = of_step(job)
    assert found[Group.DP, SCATTER] == pytest.approx(weights.trained_dense * job.framework.grad_reduce_bytes)
    assert found[Group.DP, GATHER] == pytest.approx(weights.trained_dense * 2)


def test_one_replica_exchanges_no_state():
    found = of_step(job_of(gpus=8, tp=4, pp=2, zero=0))
    assert {key[0] for key in found} == {Group.TP, Group.WORLD}
    assert found[Group.WORLD, REDUCE] == 2 * 4


@pytest.mark.parametrize(("split", "share"), [(True, 4), (False, 1)])
def test_messages_are_the_hidden_state_of_a_rank(split, share):
    job = job_of(gpus=16, tp=4, cp=2, pp=2, micro_batch=2, sequence_parallel=split)
    assert set(workload_of(job).message_bytes_Q.tolist()) == {activation(job) // share}


def test_recomputed_layers_exchange_again():
    plain, again = (exchanged(job_of(gpus=4, tp=4, recompute=each), "backward") for each in ("none", "full"))
    forward = exchanged(job_of(gpus=4, tp=4), "forward")
    head = activation(job_of(gpus=4, tp=4)) * 8
    assert again[Group.TP, GATHER] - plain[Group.TP, GATHER] == pytest.approx(forward[Group.TP, GATHER] - head)


def first_pass(job, which):
    """Return the names of the operations of the first pass of that direction, in order."""
    workload = workload_of(job)
    held = {"forward": "forward_QM", "backward": "backward_QM"}[which]
    segment = int(getattr(workload.templates[0], held)[0, 0])
    return [workload.ops.name_T[row] for row in workload.segments[segment].tolist()]


@pytest.mark.parametrize("recompute", ["full", "none"])
def test_sharded_parameters_come_while_layers_are_recomputed_and_experts_exchange(recompute):
    """FSDP asks for a layer's parameters before the layer ahead of it runs, whatever that does."""
    job = job_of(TINY_EXPERTS, gpus=8, ep=4, zero=3, recompute=recompute)
    for which in ("forward", "backward"):
        names = first_pass(job, which)
        computed = [name for name in names if name.startswith("layers")]
        assert ("layers recompute" in computed) == (recompute == "full" and which == "backward")
        gathered, arrived = names.index("edp all_gather"), names.index("wait_dp")
        assert gathered < names.index(computed[0])
        last = max(at for at, name in enumerate(names) if name in computed or name.startswith("ep all_to_all"))
        assert last < arrived < names.index("edp all_gather (unhidden)")


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_stages_send_each_rank_s_part_of_what_all_of_them_have_and_gather_it(sequence_parallel):
    """A message is a tp-th; each stage gathers one before every pass that receives one. A split sequence is a part."""
    job = job_of(gpus=8, tp=4, pp=2, sequence_parallel=sequence_parallel)
    split = replace(job, framework=replace(job.framework, splits_messages=True))
    parts, whole = workload_of(split), workload_of(job)
    assert parts.message_bytes_Q.tolist() == [activation(job) // 4] * 2
    if sequence_parallel:
        assert of_step(split) == of_step(job)
        return
    assert whole.message_bytes_Q.tolist() == [activation(job)] * 2
    more = of_step(split) - of_step(job)
    assert set(more) == {(Group.TP, GATHER)}
    # Over both stages there is one forward and one backward message for every microbatch.
    assert more[Group.TP, GATHER] == 2 * job.parallel.microbatches * activation(job)
