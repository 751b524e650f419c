"""What ranks exchange of weights and update, of round numbers and counted by hand."""

import pytest
from msgspec.structs import replace

from job_parts import TINY_EXPERTS, job_of
from traincast.lowering.state import StateExchange
from traincast.lowering.work import Exchange
from traincast.model.blocks.part import Elements
from traincast.workload.words import Group, Operation

GATHER, SCATTER, REDUCE = Operation.ALL_GATHER, Operation.REDUCE_SCATTER, Operation.ALL_REDUCE
HELD = Elements(dense=1001, experts=331, trained_dense=601, trained_experts=231, matrices=701, tensors=5)
"""Weights of which some are frozen, and of the others more than GEMMs of layers read."""


def state(weights=HELD, framework=None, **fields):
    """The state of some weights over 8 replicas, of which 2 hold a copy of each expert."""
    job = job_of(**{"model": TINY_EXPERTS, "gpus": 8, "ep": 4, "zero": 1, "global_batch": 16} | fields)
    return StateExchange(
        replace(job, framework=replace(job.framework, grad_reduce_bytes=4, **(framework or {}))), weights
    )


def found(exchanges):
    return [(each.group, each.operation, each.size_bytes, each.messages) for each in exchanges]


EIGHT = {"precision": "fp8", "param_gather_bytes": 1}


@pytest.mark.parametrize(
    ("fields", "dense_bytes", "expert_bytes"),
    [
        ({"zero": 1}, 2 * 601, 2 * 231),
        ({"zero": 2}, 2 * 601, 2 * 231),
        # Sharded parameters are gathered whole, frozen ones with them.
        ({"zero": 3}, 2 * 1001, 2 * 331),
        # In 8 bits what GEMMs of layers read, and no more than there is to gather.
        ({"zero": 1, **EIGHT}, 601, 231),
        ({"zero": 3, **EIGHT}, 2 * 1001 - 701, 2 * 331),
    ],
)
def test_parameters_are_gathered_in_16_bits_or_those_of_gemms_in_8(fields, dense_bytes, expert_bytes):
    wanted = [(Group.DP, GATHER, dense_bytes, 1), (Group.EDP, GATHER, expert_bytes, 1)]
    assert found(state(**fields).gathered()) == wanted


@pytest.mark.parametrize(
    ("zero", "dense_bytes", "expert_bytes"), [(1, 2 * 601 + 2 * 601, 4 * 231), (3, 2 * 1001 + 2 * 701, 4 * 331)]
)
def test_parameters_in_fp32_are_gathered_so_where_gemms_read_them(zero, dense_bytes, expert_bytes):
    each = state(zero=zero)
    each = replace(each, job=each.job.with_values(param_gather_bytes=4))
    wanted = [(Group.DP, GATHER, dense_bytes, 1), (Group.EDP, GATHER, expert_bytes, 1)]
    assert found(each.gathered()) == wanted


@pytest.mark.parametrize(
    ("zero", "framework", "operation"),
    [
        (0, {}, REDUCE),
        (1, {}, SCATTER),
        (2, {}, SCATTER),
        (3, {}, SCATTER),
        (1, {"reduces_whole": True}, REDUCE),
        (2, {"owns_tensors": True}, REDUCE),
        (0, {"reduces_whole": True}, REDUCE),
        (3, {"reduces_whole": True}, SCATTER),
    ],
)
def test_trained_gradients_are_scattered_where_the_state_is_sharded(zero, framework, operation):
    each = state(zero=zero, framework=framework)
    assert found(each.reduced()) == [(Group.DP, operation, 4 * 601, 1), (Group.EDP, operation, 4 * 231, 1)]
    assert each.summed() == []
    assert each.all_reduced() == each.reduced()


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_copies_of_shares_sum_their_part_of_the_gradients(zero):
    each = state(zero=zero, shard=4)
    assert found(each.reduced())[0] == (Group.SHARD, SCATTER, 4 * 601, 1)
    # A quarter of 601, rounded up.
    assert found(each.summed()) == [(Group.REPLICA, REDUCE, 4 * 151, 1)]
    assert each.all_reduced() == each.reduced() + each.summed()
    assert found(each.gathered())[0][0] is Group.SHARD
    whole = state(zero=zero, shard=4, framework={"reduces_whole": True})
    assert (whole.summed() == []) is (zero < 3)
    assert found(whole.reduced())[0][:2] == ((Group.DP, REDUCE) if zero < 3 else (Group.SHARD, SCATTER))


@pytest.mark.parametrize(("tensors", "messages"), [(0, 1), (1, 1), (5, 5)])
def test_state_goes_tensor_by_tensor_where_a_framework_says_so_but_for_that_of_experts(tensors, messages):
    each = state(replace(HELD, tensors=tensors), framework={"state_by_tensor": True})
    assert [row[3] for row in found(each.gathered())] == [messages, 1]
    assert [row[3] for row in found(each.reduced())] == [messages, 1]


@pytest.mark.parametrize(
    ("tensors", "fields", "messages"),
    [(0, {}, 1), (5, {}, 5), (40, {}, 8), (40, {"shard": 4}, 4), (3, {"shard": 4}, 3)],
)
def test_owners_of_tensors_broadcast_them_one_after_another(tensors, fields, messages):
    each = state(replace(HELD, tensors=tensors), framework={"owns_tensors": True}, **fields)
    dense, expert = found(each.gathered())
    assert dense[1:] == (Operation.BROADCAST, 2 * 601, messages)
    assert dense[0] is (Group.SHARD if fields else Group.DP)
    assert expert[1] is Operation.BROADCAST
    # Sharded parameters nobody owns whole.
    sharded = state(framework={"owns_tensors": True}, zero=3, **fields)
    assert {row[1] for row in found(sharded.gathered())} == {GATHER}


def test_nothing_is_exchanged_without_anything_to_exchange_or_anyone_to_exchange_it_with():
    each = state(replace(HELD, trained_dense=0))
    assert [row[0] for row in found(each.gathered() + each.reduced())] == [Group.EDP] * 2
    each = state(replace(HELD, trained_experts=0))
    assert [row[0] for row in found(each.gathered() + each.reduced())] == [Group.DP] * 2
    # One copy of each expert, and eight of all else.
    each = state(ep=8)
    assert [row[0] for row in found(each.gathered() + each.reduced())] == [Group.DP] * 2
    alone = StateExchange(job_of(TINY_EXPERTS), HELD)
    assert alone.reduced() == alone.gathered() == []


@pytest.mark.parametrize(
    ("fields", "updated", "held"),
    [
        ({"zero": 0}, 601 + 231, 1001 + 331),
        # An eighth of the dense weights and half of the experts, rounded up.
        ({"zero": 1}, 76 + 116, 126 + 166),
        ({"zero": 3}, 76 + 116, 126 + 166),
        ({"zero": 3, "shard": 2}, 301 + 116, 501 + 166),
    ],
)
def test_a_rank_updates_its_share_of_what_is_trained(fields, updated, held):
    each = state(**fields)
    assert (each.updated(), each.held()) == (updated, held)
    assert each.over_copies() == [Exchange(Group.COPY, REDUCE, 4 * updated)]
    assert each.cast() == 701 + 331


def test_frozen_weights_are_summed_over_no_copies():
    assert state(replace(HELD, trained_dense=0, trained_experts=0)).over_copies() == []
