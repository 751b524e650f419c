"""Factors: read and written, multiplied over their levels, and where they apply."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from job_parts import TINY_EXPERTS, job_of
from traincast.estimate.factors import (
    CostFactors,
    Factor,
    FactorTable,
    is_found,
    keys_of,
    prior_deviation,
    prior_mean,
    read_factors,
    shipped_factors,
    transfer_classes,
    whole_deviation,
    with_factors,
)
from traincast.estimate.operators.cost import estimate_operator
from traincast.estimate.operators.families import FAMILIES
from traincast.estimate.program import OperatorSeconds, estimate_compute
from traincast.hardware.gpu import gpu_names, load_gpu
from traincast.workload.ops import OperatorCall
from traincast.workload.words import Group
from written import write_factors

H100, H200, H20, A100 = (load_gpu(name) for name in ("h100", "h200", "h20", "a100"))


def factor(level, name, cost_class, value, deviation=0.05, rows=10):
    return Factor(level=level, name=name, cost_class=cost_class, factor=value, deviation=deviation, rows=rows)


TABLE = FactorTable.from_factors(
    [
        factor("all", "*", "gemm bf16", 1.1),
        factor("architecture", H100.architecture, "gemm bf16", 1.2),
        factor("chip", H100.name, "gemm bf16", 1.3),
        factor("all", "*", "compute", 0.9),
        factor("framework", "eager", "compute", 1.5),
        factor("framework", "eager", "transfer ep", 2.0),
        factor("framework", "eager", "grouped_gemm bf16", 3.0),
    ]
)


@pytest.mark.parametrize(
    ("gpu", "framework", "expected"),
    [
        (H100, "nanotron-2024", {"gemm bf16": 1.1 * 1.2 * 1.3, "compute": 0.9, "transfer ep": 1.0}),
        (H200, "nanotron-2024", {"gemm bf16": 1.1 * 1.2 * 1.3, "compute": 0.9, "transfer ep": 1.0}),
        (H20, "nanotron-2024", {"gemm bf16": 1.1 * 1.2, "compute": 0.9, "transfer ep": 1.0}),
        (A100, "eager", {"gemm bf16": 1.1, "compute": 0.9 * 1.5, "transfer ep": 2.0, "grouped_gemm bf16": 3.0}),
    ],
)
def test_a_class_has_the_product_of_what_is_known_of_gpu_and_framework(gpu, framework, expected):
    found = TABLE.for_job(gpu, framework)
    assert {name: found.factor(name) for name in expected} == pytest.approx(expected)


def test_what_is_known_of_tokens_within_a_node_holds_for_those_sent_once_within_it():
    table = FactorTable.from_factors([*TABLE.factors.values(), factor("all", "*", "transfer ep inside", 0.9)])
    found = table.for_job(A100, "eager")
    assert found.factor("transfer ep inside") == found.factor("transfer ep once inside") == pytest.approx(0.9)
    assert found.factor("transfer ep once") == TABLE.for_job(A100, "eager").factor("transfer ep once")


def test_kernels_that_send_tokens_once_have_a_framework_of_their_own():
    """What is known of transfers over ep everywhere holds for them, too, what a framework makes of NCCL's does not."""
    table = FactorTable.from_factors([*TABLE.factors.values(), factor("all", "*", "transfer ep", 1.2)])
    found = table.for_job(A100, "eager")
    assert found.factor("transfer ep") == pytest.approx(1.2 * 2.0)
    assert found.factor("transfer ep once") == pytest.approx(1.2)
    own = factor("framework", "eager", "transfer ep once", 0.9)
    both = FactorTable.from_factors([*table.factors.values(), own]).for_job(A100, "eager")
    assert both.factor("transfer ep once") == pytest.approx(1.2 * 0.9)
    assert both.factor("transfer ep") == found.factor("transfer ep")


@pytest.mark.parametrize(
    ("dispatcher", "within", "across"),
    [
        ("alltoall", "transfer ep inside", "transfer ep"),
        ("allgather", "transfer ep inside", "transfer ep"),
        ("deepep", "transfer ep once inside", "transfer ep once"),
        ("hybridep", "transfer ep once inside", "transfer ep once"),
    ],
)
def test_what_is_sent_within_a_node_is_other_work_than_across_nodes(dispatcher, within, across):
    job = job_of(TINY_EXPERTS, gpus=16, ep=8, global_batch=16, moe_dispatcher=dispatcher)
    classes = [transfer_classes(dispatcher, job.parallel.expert_ranks, ranks) for ranks in (16, 8, 4)]
    assert [each[Group.EP] for each in classes] == [within, within, across]
    assert {each[Group.TP] for each in classes} == {"transfer tp"}


def test_gemms_of_experts_have_what_an_architecture_adds_to_plain_ones():
    """They have their own factor over all GPUs and in all types, and share that of an architecture."""
    table = FactorTable.from_factors([*TABLE.factors.values(), factor("all", "*", "grouped_gemm", 0.7)])
    assert table.for_job(H100, "nanotron-2024").factor("grouped_gemm bf16") == pytest.approx(0.7 * 1.2)
    assert table.for_job(H100, "nanotron-2024").factor("grouped_gemm mxfp8") == pytest.approx(0.7)
    assert ("all", "*", "grouped_gemm") in keys_of("grouped_gemm fp8", H100, "eager")
    assert not is_found(("all", "*", "grouped_gemm fp8"))
    assert TABLE.for_job(H100, "nanotron-2024").factor("grouped_gemm bf16") == pytest.approx(1.2)
    assert ("architecture", "hopper", "gemm bf16") in keys_of("grouped_gemm bf16", H100, "eager")
    assert ("all", "*", "gemm bf16") not in keys_of("grouped_gemm bf16", H100, "eager")
    apart = math.hypot(*(prior_deviation(key) for key in keys_of("grouped_gemm bf16", H100, "eager")))
    assert whole_deviation("grouped_gemm bf16") == pytest.approx(apart)


def test_what_was_not_measured_is_1():
    assert TABLE.for_job(H100, "eager").factor("gemm fp8") == 1.0
    assert FactorTable().for_job(H100, "eager").factor("compute") == 1.0
    assert CostFactors().factor("anything") == 1.0


NAMES = st.sampled_from(["*", "hopper", "H100-SXM-80GB", "eager", 'odd, "name"'])
POSITIVE = st.floats(0.01, 100)


@given(
    st.lists(
        st.builds(
            factor,
            st.sampled_from(["all", "architecture", "chip", "framework"]),
            NAMES,
            st.sampled_from(["gemm bf16", "transfer ep", "compute"]),
            POSITIVE,
            st.floats(0, 2),
            st.integers(0, 999),
        ),
        unique_by=lambda each: each.key,
    )
)
def test_what_is_written_is_read_again(factors):
    again = read_factors(write_factors(factors))
    assert set(again.factors) == {each.key for each in factors}
    for each in factors:
        found = again.factors[each.key]
        assert (found.factor, found.deviation) == pytest.approx((each.factor, each.deviation), abs=6e-5)
        assert found.rows == each.rows
    assert write_factors(again.factors.values()) == write_factors(factors)


def test_order_of_writing_is_that_of_the_keys():
    text = write_factors(TABLE.factors.values())
    assert text == write_factors(reversed(list(TABLE.factors.values())))


def test_shipped_factors_can_be_explained():
    """Each has a level that its class knows, a prior, and is near its mean: within four deviations of its class."""
    gpus = {load_gpu(name).name for name in gpu_names()}
    architectures = {load_gpu(name).architecture for name in gpus}
    for key, each in shipped_factors().factors.items():
        level, name, cost_class = key
        if not is_found(key):
            # Of an earlier fit: it counts until the next one.
            continue
        assert level in {found for found, _, _ in keys_of(cost_class, H100, "eager")}
        assert {"chip": name in gpus, "architecture": name in architectures, "all": name == "*"}.get(level, True)
        prior = prior_deviation(key)
        assert abs(math.log(each.factor / prior_mean(key))) <= 4 * whole_deviation(cost_class), key
        assert 0 < each.deviation <= prior * 1.0001, key


CALLS = {
    "gemm bf16": OperatorCall(family="gemm", shape=(4096, 4096, 4096), dtype="bf16"),
    "grouped_gemm fp8": OperatorCall(family="grouped_gemm", shape=(4096, 2048, 2048, 4), dtype="fp8"),
    "attention fa2": OperatorCall(family="attention", shape=(1, 4096, 4096, 16, 16, 128, 128), dtype="bf16",
                                  options=(("kernel", "fa2"),)),
    "attention unfused": OperatorCall(family="unfused_attention", shape=(1, 512, 512, 16, 16, 128, 128), dtype="bf16"),
    "memory": OperatorCall(family="norm", shape=(4096, 4096), dtype="bf16"),
}  # fmt: skip


@pytest.mark.parametrize("name", list(CALLS))
def test_a_factor_scales_the_calls_of_its_class(name):
    from traincast.workload.ops import Op, table_of
    from traincast.workload.words import Kind, Phase

    assert FAMILIES.get(CALLS[name].family).cost_class(CALLS[name]) == name
    table = table_of([Op(name=other, kind=Kind.COMPUTE, phase=Phase.FORWARD, calls=((call, 2.0),))
                      for other, call in CALLS.items()])  # fmt: skip
    plain = estimate_compute(table, OperatorSeconds(H100, CostFactors()))
    scaled = estimate_compute(table, OperatorSeconds(H100, CostFactors({name: 1.7}), compute_factor=1.1))
    for row, other in enumerate(CALLS):
        alone = 2 * estimate_operator(CALLS[other], H100).time_s
        assert plain.ops.duration_s_T[row] == pytest.approx(alone)
        assert scaled.ops.duration_s_T[row] == pytest.approx(alone * 1.1 * (1.7 if other == name else 1.0))
        assert sum(scaled.shares_T[row].values()) == pytest.approx(scaled.ops.duration_s_T[row])


def test_work_that_says_no_operators_keeps_its_time():
    from support import compute
    from traincast.workload.ops import table_of

    priced = estimate_compute(
        table_of([compute(0.25)]), OperatorSeconds(H100, CostFactors({"memory": 2.0}), compute_factor=3.0)
    )
    assert priced.ops.duration_s_T.tolist() == [0.25]
    assert priced.shares_T == ({},)


def test_shares_that_cannot_be_hidden_stay_at_most_1():
    job = job_of(gpus=8, tp=8)
    assert with_factors(job, CostFactors()).framework == job.framework
    more = with_factors(job, CostFactors({"unhidden tp": 1.2, "unhidden cp": 1e9})).framework
    assert more.unhidden_tp == pytest.approx(min(1.0, 1.2 * job.framework.unhidden_tp))
    assert more.unhidden_cp == 1.0
    assert more.unhidden_fsdp == job.framework.unhidden_fsdp


@pytest.mark.parametrize("group", [group for group in Group if group is not Group.NONE])
def test_every_group_and_class_has_a_prior(group):
    for name in (f"transfer {group.name.lower()}", "compute", "gemm bf16", "host layers", "unhidden tp", "fixed"):
        for key in keys_of(name, H100, "eager"):
            assert prior_deviation(key) > 0
            assert prior_mean(key) > 0


def test_counted_kernels_take_what_they_were_measured_to_take_whatever_all_computation_has():
    """A profiled step has them at 1.095 times their time alone; refits move the factor that all else has, too."""
    computation = shipped_factors().factors[("all", "*", "compute")].factor
    assert prior_mean(("all", "*", "pointwise")) * computation == pytest.approx(1.095, rel=0.03)
