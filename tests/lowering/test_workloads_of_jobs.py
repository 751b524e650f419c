"""The template of a job: which pass of which microbatch gathers, reduces or waits, and what messages carry."""

from itertools import product

import numpy as np
import pytest
from msgspec.structs import replace

from job_parts import TINY, TINY_EXPERTS, job_of, workload_of
from traincast.lowering.stage import stages_of
from traincast.model.dispatch import DISPATCHERS
from traincast.workload.words import Group, Operation, Phase

FURTHER = replace(TINY, mtp_layers=2)
STATE_BYTES = 1024 * 512 * 2


def names(workload, segment):
    return [workload.ops.name_T[row] for row in workload.segments[segment].tolist()]


def told(job, which, ranks_per_node=8):
    """Return the names of the operations of each slot, [stage][microbatch] or [stage]."""
    workload = workload_of(job, ranks_per_node)
    numbers = getattr(workload.templates[0], which)
    return [
        [names(workload, number) for number in row] if numbers.ndim > 1 else names(workload, row)
        for row in numbers.tolist()
    ]


@pytest.mark.parametrize(
    ("fields", "bytes_Q"),
    [
        ({"gpus": 2, "pp": 2}, [1, 1]),
        ({"gpus": 4, "pp": 2, "tp": 2, "sequence_parallel": False}, [1, 1]),
        ({"gpus": 4, "pp": 2, "tp": 2, "sequence_parallel": True}, [1 / 2, 1 / 2]),
        ({"gpus": 4, "pp": 2, "tp": 2, "sequence_parallel": False, "splits": True}, [1 / 2, 1 / 2]),
        # Behind MTP layers a message carries the hidden states of two further tokens, too.
        ({"model": FURTHER, "gpus": 4, "pp": 4, "pipeline_layout": "Et*4|t*4mm||L", "vpp": None}, [1, 3, 3, 1]),
        ({"gpus": 2, "pp": 2, "streams": 4}, [4, 4]),
    ],
)
def test_messages_are_hidden_states_of_a_microbatch(fields, bytes_Q):
    splits, streams = (fields.get(key) for key in ("splits", "streams"))
    job = job_of(**{key: value for key, value in fields.items() if key not in ("splits", "streams")})
    if splits:
        job = replace(job, framework=replace(job.framework, splits_messages=True))
    if streams:
        job = job_of(replace(TINY, residual_streams=streams), gpus=2, pp=2)
    assert workload_of(job).message_bytes_Q.tolist() == [STATE_BYTES * each for each in bytes_Q]


@pytest.mark.parametrize("name", ["alltoall", "deepep"])
def test_exchanges_take_multiprocessors_only_of_what_they_are_overlapped_with(name):
    for overlap in (False, True):
        job = job_of(TINY_EXPERTS, gpus=8, ep=8, moe_dispatcher=name, moe_a2a_overlap=overlap)
        workload = workload_of(job)
        assert workload.exchange_sms == (DISPATCHERS[name].sms if overlap else 0)
        assert workload.pairs_passes is overlap
    assert DISPATCHERS["deepep"].sms > 0


def codes(job, ranks_per_node):
    return [note.code for note in workload_of(job, ranks_per_node).assumptions]


def test_an_overlap_that_cannot_be_is_told_where_there_is_something_to_overlap():
    wide = {"gpus": 16, "global_batch": 16}
    for tp, overlap, ranks_per_node in product((1, 2, 8), (False, True), (1, 4, 8)):
        job = job_of(tp=tp, overlap_tp=overlap, **wide)
        crosses = tp > ranks_per_node
        assert ("overlap-tp-across-nodes" in codes(job, ranks_per_node)) is (overlap and crosses)


def test_routing_that_no_node_limits_is_not_told():
    groups = replace(TINY_EXPERTS, experts=replace(TINY_EXPERTS.experts, groups=4, group_topk=1))
    limited, free, dense = job_of(groups, gpus=8, ep=8), job_of(TINY_EXPERTS, gpus=8, ep=8), job_of(gpus=8)
    assert [("node-limited-routing" in codes(job, 2)) for job in (limited, free, dense)] == [True, False, False]
    # On one node no token crosses to another.
    assert "node-limited-routing" not in codes(limited, 8)


INTERLEAVED = {"gpus": 8, "pp": 2, "vpp": 2, "schedule": "interleaved"}


def test_updated_parameters_arrive_along_the_first_pass_of_each_virtual_stage():
    """The first one of a rank computes while its own arrive, and launches those of the next; that one waits."""
    job = job_of(**INTERLEAVED, zero=1, overlap_param_gather=True)
    found = told(job, "forward_QM")
    gather, wait = "dp all_gather", "wait_dp"
    for index, of_stage in enumerate(found):
        first, *others = of_stage
        assert all(gather not in each and wait not in each for each in others)
        # Virtual stages 0 and 1 are the first of their ranks, 2 and 3 the last.
        begins = index < 2
        assert first.count(gather) == (1 if begins else 0)
        layers = first.index("layers forward")
        assert (first.index(wait) > layers) is begins
        assert first.count(wait) == 1
    late = told(job_of(**INTERLEAVED, zero=1, overlap_param_gather=False), "forward_QM")
    assert all(gather not in each for of_stage in late for each in of_stage)
    single = told(job_of(gpus=8, pp=2, zero=1, overlap_param_gather=True), "forward_QM")
    for of_stage in single:
        assert gather not in of_stage[0]
        assert of_stage[0].index(wait) > of_stage[0].index("layers forward")


def test_a_rank_launches_the_parameters_of_the_virtual_stage_that_follows():
    """Of four virtual stages on each of two ranks, the last of all holds the LM head, too."""
    job = job_of(gpus=4, pp=2, vpp=4, schedule="interleaved", zero=1, overlap_param_gather=True)
    workload = workload_of(job)
    weights = [each.weights().dense for each in stages_of(job, 8)]
    assert weights[7] > weights[3]
    for index, of_stage in enumerate(workload.templates[0].forward_QM.tolist()):
        rows = workload.segments[of_stage[0]].tolist()
        sizes = [int(workload.ops.size_bytes_T[row]) for row in rows if workload.ops.name_T[row] == "dp all_gather"]
        assert sizes == [2 * weights[following] for following in range(index + 2, 8)][:1]


def test_each_copy_of_the_model_begins_with_its_own_first_microbatch():
    """Two copies of a pipeline of two stages, half of eight microbatches each."""
    job = job_of(gpus=4, pp=2, schedule="dualpipe", zero=1, overlap_param_gather=True, global_batch=16)
    passes = told(job, "forward_QM")
    begins = [[at for at, each in enumerate(of_stage) if "wait_dp" in each] for of_stage in passes]
    half = job.parallel.microbatches // 2
    assert begins == [[0, half]] * 2
    ends = [[at for at, each in enumerate(of_stage) if "dp reduce_scatter" in each]
            for of_stage in told(job.with_values(overlap_grad_reduce=True), "backward_QM")]  # fmt: skip
    assert ends == [[half - 1, 2 * half - 1]] * 2
    # What a rank updates of its two virtual stages is summed with the other copy of each.
    assert [each.count("copy all_reduce") for each in told(job, "end_P")] == [2, 2]
    plain = job_of(gpus=4, pp=2, zero=1, global_batch=16)
    assert [each.count("copy all_reduce") for each in told(plain, "end_P")] == [0, 0]


@pytest.mark.parametrize(("zero", "overlap"), list(product((0, 1, 2), (False, True))))
def test_gradients_are_reduced_with_the_last_backward_pass_with_each_or_at_the_end(zero, overlap):
    job = job_of(gpus=8, pp=2, zero=zero, overlap_grad_reduce=overlap)
    reduced = "dp reduce_scatter" if zero else "dp all_reduce"
    assert job.parallel.microbatches == 2
    for of_stage in told(job, "backward_QM"):
        assert [reduced in each for each in of_stage] == [zero == 2, zero == 2 or overlap]
    late = [each.count(reduced) for each in told(job, "end_P")]
    assert late == ([0, 0] if zero == 2 or overlap else [1, 1])


def test_sharded_parameters_are_gathered_by_the_passes_that_find_none():
    """Without a pipeline by all; a pipeline that keeps them whole by the first, and reduces after the last one."""
    job = job_of(gpus=4, zero=3, global_batch=12)
    for which in ("forward_QM", "backward_QM"):
        (passes,) = told(job, which)
        assert [any(name.startswith("dp all_gather") for name in each) for each in passes] == [True] * 3
    (passes,) = told(job, "backward_QM")
    assert [any(name.startswith("dp reduce_scatter") for name in each) for each in passes] == [True] * 3
    titan = job_of(gpus=16, pp=4, vpp=2, zero=3, framework="torchtitan-2025", global_batch=32, schedule="interleaved")
    gathers = [
        [any("all_gather" in name for name in each) for each in of_stage] for of_stage in told(titan, "forward_QM")
    ]
    assert gathers == [[True] + [False] * 7] * 8
    reduces = [
        [any("reduce_scatter" in name for name in each) for each in of_stage] for of_stage in told(titan, "backward_QM")
    ]
    # The rank ends with its first virtual stage, whose gradients are reduced with what ends the step.
    assert reduces == [[False] * 8] * 4 + [[False] * 7 + [True]] * 4
    assert [sum("reduce_scatter" in name for name in each) for each in told(titan, "end_P")] == [1] * 4


def test_resharded_parameters_are_gathered_by_the_backward_passes_that_follow_no_other():
    """GPipe with parameters sharded after each forward pass: of all backward passes the first gathers."""
    job = job_of(gpus=8, pp=2, zero=3, framework="torchtitan-2025", global_batch=16, schedule="gpipe",
                 reshard_after_forward=True)  # fmt: skip
    assert job.parallel.microbatches == 4
    for of_stage in told(job, "forward_QM"):
        assert all(any("all_gather" in name for name in each) for each in of_stage)
    for of_stage in told(job, "backward_QM"):
        assert [any("all_gather" in name for name in each) for each in of_stage].count(True) == 1


def test_the_host_takes_time_before_each_blocking_receive():
    job = job_of(gpus=2, pp=2, schedule="1f1b")
    slow = replace(job, framework=replace(job.framework, p2p_handover_s=1e-3))
    workload = workload_of(slow)
    before = workload.templates[0].before_recv_DQM
    assert before.shape == (2, 2, job.parallel.microbatches)
    (segment,) = np.unique(before).tolist()
    assert names(workload, segment) == ["P2P launch overhead"]
    (row,) = workload.segments[segment].tolist()
    assert workload.ops.duration_s_T[row] == 1e-3
    fast = replace(job, framework=replace(job.framework, p2p_handover_s=0.0))
    assert workload_of(fast).templates[0].before_recv_DQM is None
    hidden = job_of(**INTERLEAVED)
    hidden = replace(hidden, framework=replace(hidden.framework, p2p_handover_s=1e-3))
    assert workload_of(hidden).templates[0].before_recv_DQM is None


def test_tables_of_the_embedding_are_summed_by_the_stages_that_have_one():
    tied = job_of(replace(TINY, tied_embeddings=True), gpus=4, pp=4)
    assert workload_of(tied).table_stages == (0, 3)
    assert ["emb all_reduce" in each for each in told(tied, "end_P")] == [True, False, False, True]
    assert not any("emb all_reduce" in each for each in told(job_of(gpus=4, pp=4), "end_P"))


def test_the_norm_of_all_gradients_is_one_number():
    workload = workload_of(job_of(gpus=2))
    (row,) = (at for at, name in enumerate(workload.ops.name_T) if name == "world all_reduce")
    assert workload.ops.size_bytes_T[row] == 4
    assert workload.ops.phase_T[row] == Phase.STEP
    assert (workload.ops.group_T[row], workload.ops.operation_T[row]) == (Group.WORLD, Operation.ALL_REDUCE)
