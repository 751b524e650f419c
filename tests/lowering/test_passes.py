"""Passes add up, leave out what others run, and tell ways to experts and back apart; parts become calls, by hand."""

from msgspec.structs import replace

from job_parts import TINY, job_of
from traincast.job.share import rank_share
from traincast.lowering.work import Exchange, Pass, call_of, runs_of, work_of
from traincast.model.blocks.part import Exchange as PartExchange
from traincast.model.blocks.part import Gemm, Kernel, Part
from traincast.workload.ops import OperatorCall
from traincast.workload.words import Group, Operation, Phase

ONE = Gemm(m=64, n=32, k=16, dtype="bf16")
NORM = Kernel(family="norm", shape=(64, 16), dtype="bf16", count=3)
FORWARD, BACKWARD, WEIGHTS = Phase.FORWARD, Phase.BACKWARD, Phase.WEIGHT_GRADIENT


def call(name, size=1):
    return OperatorCall(family=name, shape=(size,), dtype="bf16")


def sent(size_bytes, goes=""):
    return Exchange(Group.EP, Operation.ALL_TO_ALL, size_bytes, goes)


def part(name="p", **fields):
    return Part(name=name, counts_as="mlp", **fields)


def test_a_pass_added_so_many_times_has_calls_and_exchanges_so_many_times_more():
    found = Pass({call("a"): 1.0}, {sent(1): 2.0})
    found.add(Pass({call("a"): 2.0, call("b"): 3.0}, {sent(1): 1.0, sent(2): 1.0}), 2.0)
    assert found.calls == {call("a"): 5.0, call("b"): 6.0}
    assert found.exchanges == {sent(1): 4.0, sent(2): 2.0}
    assert found.launches == 11
    before = Pass(dict(found.calls), dict(found.exchanges))
    found.add(before, 0)
    assert found == before
    found.add(Pass({call("c"): 1.0}))
    assert found.calls[call("c")] == 1.0


def test_nothing_to_do_is_no_call():
    found = Pass()
    found.run(call("a", size=0), 2.0)
    assert found.calls == {}
    found.run(call("a"))
    found.run(call("a"), 2.0)
    assert found.calls == {call("a"): 3.0}


def test_what_others_run_is_left_out_and_so_is_what_rounding_leaves():
    found = Pass({call("a"): 5.0, call("b"): 0.3, call("c"): 2.0})
    some = Pass({call("a"): 2.0, call("b"): 0.1}), Pass({call("a"): 1.0, call("b"): 0.2})
    assert found.without(*some).calls == {call("a"): 2.0, call("c"): 2.0}
    # A millionth is a share of its own, what adding up leaves of it is none.
    assert found.without(Pass({call("c"): 2.0 - 2e-6})).calls[call("c")] > 0
    assert call("c") not in found.without(Pass({call("c"): 2.0 - 1e-12})).calls
    assert call("c") not in found.without(Pass({call("c"): 2.0})).calls
    assert found.without().calls == found.calls
    # What runs no times is no call.
    assert Pass({call("d"): 0.0}).without().calls == {}


def test_a_pass_without_a_part_of_it_has_neither_its_calls_nor_its_exchanges():
    whole = Pass({call("a"): 3.0, call("b"): 1.0}, {sent(4): 2.0, sent(8): 1.0})
    part_of_it = Pass({call("a"): 1.0, call("b"): 1.0 - 1e-12}, {sent(4): 1.0, sent(8): 1.0})
    left = whole.less(part_of_it)
    assert left.calls == {call("a"): 2.0}
    assert left.exchanges == {sent(4): 1.0}
    assert whole.less(Pass()) == whole
    assert whole.less(whole) == Pass()
    assert whole.calls == {call("a"): 3.0, call("b"): 1.0}


def test_a_compiler_makes_pointwise_work_a_part_of_gemms():
    kernels = tuple(replace(NORM, family=family) for family in ("norm", "activation", "elementwise", "rotary"))
    job = job_of()
    for fuses, left in ((False, ["norm", "activation", "elementwise", "rotary"]), (True, ["norm"])):
        own = replace(job, framework=replace(job.framework, fuses_pointwise=fuses))
        found = list(runs_of(part(kernels=kernels), rank_share(own), trained=True))
        for phase in (FORWARD, BACKWARD):
            assert [what.family for each, what, *_ in found if each is phase] == left


def test_tokens_go_out_and_come_back_and_all_else_does_neither():
    exchanges = {sent(8, "out"): 1.0, sent(0, "out"): 1.0, sent(4): 3.0, sent(8, "back"): 2.0, sent(0): 1.0}
    out, back, others = Pass({}, exchanges).with_experts()
    assert out == {sent(8, "out"): 1.0}
    assert back == {sent(8, "back"): 2.0}
    assert others == {sent(4): 3.0, sent(0): 1.0}
    assert Pass({}, {sent(1, "out"): 1.0}).with_experts()[0] == {sent(1, "out"): 1.0}


def test_exchanges_of_a_part_are_met_as_often_as_it_says():
    found = Pass()
    each = PartExchange(group="tp", operation="all_gather", size_bytes=8, count=2)
    found.exchange((each, each, replace(each, group="ep", operation="all_to_all", goes="out", count=1)))
    assert found.exchanges == {
        Exchange(Group.TP, Operation.ALL_GATHER, 8): 4,
        Exchange(Group.EP, Operation.ALL_TO_ALL, 8, "out"): 1,
    }


def test_a_gemm_has_two_gradients_and_a_kernel_those_it_says():
    kernels = (
        NORM,
        replace(NORM, family="sum", backward_alike=True),
        replace(NORM, family="route", has_backward=False),
        replace(NORM, family="accumulate", has_forward=False),
    )
    share = rank_share(job_of())
    found = list(runs_of(part(gemms=(ONE,), kernels=kernels), share, trained=True))
    told = [(phase, getattr(what, "family", "gemm"), direction, count) for phase, what, direction, count in found]
    assert told == [
        (FORWARD, "gemm", "forward", 1),
        (FORWARD, "norm", "forward", 3),
        (FORWARD, "sum", "forward", 3),
        (FORWARD, "route", "forward", 3),
        (BACKWARD, "gemm", "dgrad", 1),
        (WEIGHTS, "gemm", "wgrad", 1),
        (BACKWARD, "norm", "backward", 3),
        (BACKWARD, "sum", "forward", 3),
        (BACKWARD, "accumulate", "backward", 3),
    ]
    assert [what.sums_gradients for phase, what, *_ in found if phase is WEIGHTS] == [True]
    frozen = list(runs_of(part(gemms=(ONE,)), share, trained=False))
    assert [(phase, direction) for phase, _, direction, _ in frozen] == [(FORWARD, "forward"), (BACKWARD, "dgrad")]


def test_casts_and_sums_of_gradients_run_once_with_their_gemm():
    job = job_of(precision="fp8", fp8_recipe="rowwise_with_gw_hp")
    job = replace(job, framework=replace(job.framework, gradient_sum="kernel"))
    found = list(runs_of(part(gemms=(replace(ONE, dtype="fp8"),)), rank_share(job), trained=True))
    told = [(phase, getattr(what, "family", what.dtype), direction, count) for phase, what, direction, count in found]
    assert told == [
        (FORWARD, "cast", "forward", 1),
        (FORWARD, "fp8", "forward", 1),
        (BACKWARD, "cast", "forward", 1),
        (BACKWARD, "fp8", "dgrad", 1),
        # The gradient of the weight reads 16 bits, and a kernel adds it.
        (WEIGHTS, "bf16", "wgrad", 1),
        (WEIGHTS, "accumulate", "forward", 1),
    ]
    assert [what.sums_gradients for phase, what, direction, _ in found if direction == "wgrad"] == [False]
    assert found[-1][1].shape == (32 * 16,)


def test_work_is_added_up_by_pass_place_and_module_and_backward_exchanges_come_last_part_first():
    before = PartExchange(group="tp", operation="all_gather", size_bytes=8)
    after = PartExchange(group="tp", operation="reduce_scatter", size_bytes=4)
    first = part("a", gemms=(ONE,), forward=(before,), backward=(before,), modules=("whole", "attn"))
    second = part("b", kernels=(NORM,), forward=(after,), backward=(after,), modules=("whole",), place="experts")
    found = work_of([first, second], rank_share(job_of()))
    gemm, norm = call_of(ONE), call_of(NORM)
    ahead, behind = (Exchange(Group.TP, operation, size) for operation, size in
                     ((Operation.ALL_GATHER, 8), (Operation.REDUCE_SCATTER, 4)))  # fmt: skip
    assert found.passes[FORWARD] == Pass({gemm: 1, norm: 3}, {ahead: 1, behind: 1})
    assert list(found.passes[BACKWARD].exchanges) == [behind, ahead]
    assert found.passes[BACKWARD].calls == {call_of(ONE, "dgrad"): 1, call_of(NORM, "backward"): 3}
    assert found.passes[WEIGHTS].calls == {call_of(ONE, "wgrad"): 1}
    assert found.modules == {
        "whole": Pass({gemm: 1, norm: 3}, {ahead: 1, behind: 1}),
        "attn": Pass({gemm: 1}, {ahead: 1}),
    }
    assert found.places == {
        ("experts", FORWARD): Pass({norm: 3}),
        ("experts", BACKWARD): Pass({call_of(NORM, "backward"): 3}),
    }
    frozen = work_of([replace(first, adapter=adapter) for adapter in (False, True)],
                     rank_share(job_of(TINY, task="lora", lora_rank=8)))  # fmt: skip
    assert frozen.passes[WEIGHTS].calls == {call_of(ONE, "wgrad"): 1}


def test_one_expert_is_a_plain_gemm_and_several_are_grouped():
    assert call_of(ONE) == OperatorCall(
        family="gemm", shape=(64, 32, 16), dtype="bf16", direction="forward", options=()
    )
    grouped = call_of(replace(ONE, groups=2), "wgrad")
    assert (grouped.family, grouped.shape, grouped.direction) == ("grouped_gemm", (64, 32, 16, 2), "wgrad")
    assert grouped.options == (("kernel", "each"),)
    assert call_of(replace(ONE, groups=2, in_one_kernel=True)).options == ()
    assert call_of(replace(ONE, sums_gradients=False)).options == (("accumulate", "none"),)
    kernel = call_of(replace(NORM, causal=True, window=5, options=(("reads", "2"),)), "backward")
    wanted = OperatorCall(
        family="norm",
        shape=(64, 16),
        dtype="bf16",
        direction="backward",
        causal=True,
        window=5,
        options=(("reads", "2"),),
    )
    assert kernel == wanted
