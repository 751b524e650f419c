"""In which order layers, exchanges with experts and the host's launches run, and what hides what."""

# ruff: noqa: ARG002 - passes of made-up layers are alike

import pytest
from msgspec.structs import replace

from job_parts import TINY_EXPERTS, job_of
from told import Told
from traincast.lowering.launches import Launches
from traincast.lowering.layers import layers_backward, layers_forward
from traincast.lowering.work import Exchange, Pass
from traincast.workload.ops import OperatorCall
from traincast.workload.words import Group, Operation, Phase

OUT = Exchange(Group.EP, Operation.ALL_TO_ALL, 100, "out")
BACK = Exchange(Group.EP, Operation.ALL_TO_ALL, 200, "back")
REDUCE = Exchange(Group.TP, Operation.ALL_REDUCE, 10)
GATHER = Exchange(Group.TP, Operation.ALL_GATHER, 20)
STATE = Exchange(Group.DP, Operation.ALL_GATHER, 30)


def runs(name, often):
    return Pass({OperatorCall(family=name, shape=(1,), dtype="bf16"): often})


ATTENTION, EXPERTS, FC1, FC2 = (
    runs(name, often)
    for name, often in (("attention", 5.0), ("experts", 4.0), ("shared fc1", 2.0), ("shared fc2", 1.0))
)
PLACES = {"experts": EXPERTS, "with dispatch": FC1, "with combine": FC2}


class Stage:
    """Layers with routed and shared experts, which exchange tokens out and back once."""

    like = "one kind"

    def __init__(self, host=None, exchanges=(OUT, REDUCE, BACK), own=()):
        self.exchanges, self.launched, self.own = exchanges, host or Launches(), own

    def host(self, phase):
        return self.launched

    def in_pass(self, phase):
        found = Pass()
        for each in (ATTENTION, EXPERTS, FC1, FC2):
            found.add(each)
        if phase is not Phase.WEIGHT_GRADIENT:
            found.exchanges.update(dict.fromkeys(self.exchanges, 1.0))
        return found

    def at(self, place, phase):
        return PLACES[place]

    def alongside(self, without=()):
        return list(self.own)

    def nothing(self):
        return Pass()


def emitter(*, paired=False, overlap_shared=False, delay=False):
    """An emitter of a job that hides exchanges with experts if it pairs passes or overlaps shared experts."""
    job = job_of(TINY_EXPERTS, gpus=8, ep=8)
    experts = replace(job.experts, a2a_overlap=paired, shared_expert_overlap=overlap_shared, delay_wgrad=delay)
    job = replace(job, experts=experts, framework=replace(job.framework, host_layer_s=11.0, module_launches=1.0))
    assert bool(job.experts.hides_exchanges) is (paired or overlap_shared)
    return Told(job)


WHOLE = [("compute", "layers forward", 12.0), ("EP ALL_TO_ALL", 100, "blocks"), ("TP ALL_REDUCE", 10, "blocks"),
         ("EP ALL_TO_ALL", 200, "blocks")]  # fmt: skip


def test_what_nothing_hides_follows_a_pass_as_it_is():
    assert layers_forward(emitter(), Stage(), []) == WHOLE
    assert layers_forward(emitter(), Stage(), [STATE]) == [*WHOLE, ("DP ALL_GATHER", 30, "blocks")]
    assert layers_backward(emitter(), Stage()) == [
        ("compute", "layers backward", 12.0),
        ("compute", "layers weight gradient", 12.0),
        *WHOLE[1:],
    ]


def test_shared_experts_run_while_tokens_are_on_their_way():
    assert layers_forward(emitter(overlap_shared=True), Stage(), []) == [
        ("compute", "layers forward", 5.0),
        ("EP ALL_TO_ALL", 100, "launched"),
        ("compute", "shared experts forward", 2.0),
        ("joined",),
        ("compute", "experts forward", 4.0),
        ("EP ALL_TO_ALL", 200, "launched"),
        ("compute", "shared experts forward", 1.0),
        ("joined",),
        ("TP ALL_REDUCE", 10, "blocks"),
    ]


@pytest.mark.parametrize("delay", [False, True])
def test_the_backward_pass_is_the_forward_pass_turned_round(delay):
    weight = [("compute", "experts weight gradient", 4.0)]
    assert layers_backward(emitter(overlap_shared=True, delay=delay), Stage()) == [
        ("EP ALL_TO_ALL", 100, "launched"),
        ("compute", "shared experts backward", 1.0),
        ("compute", "shared experts weight gradient", 1.0),
        ("joined",),
        ("compute", "experts backward", 4.0),
        *([] if delay else weight),
        ("EP ALL_TO_ALL", 200, "launched"),
        ("compute", "shared experts backward", 2.0),
        ("compute", "shared experts weight gradient", 2.0),
        *(weight if delay else []),
        ("joined",),
        ("compute", "layers backward", 5.0),
        ("compute", "layers weight gradient", 5.0),
        ("TP ALL_REDUCE", 10, "blocks"),
    ]


def test_paired_passes_leave_shared_experts_with_the_layers():
    assert layers_forward(emitter(paired=True), Stage(), []) == [
        ("compute", "layers forward", 8.0),
        ("EP ALL_TO_ALL", 100, "launched"),
        ("joined",),
        ("compute", "experts forward", 4.0),
        ("EP ALL_TO_ALL", 200, "launched"),
        ("joined",),
        ("TP ALL_REDUCE", 10, "blocks"),
    ]


def test_a_stage_without_exchanges_has_nothing_to_hide():
    stage = Stage(exchanges=(REDUCE,))
    emit = emitter(overlap_shared=True)
    assert layers_forward(emit, stage, []) == [WHOLE[0], ("TP ALL_REDUCE", 10, "blocks")]
    assert layers_backward(emit, stage)[:2] == [
        ("compute", "layers backward", 12.0),
        ("compute", "layers weight gradient", 12.0),
    ]


def test_a_host_that_waits_for_counts_of_tokens_launches_in_two_parts():
    """Ten launches of which six follow the wait; a launch takes a second, a wait leaves the GPU idle for two."""
    host = Launches(10, after_wait=6, waits=1)
    after = [
        ("EP ALL_TO_ALL", 100, "blocks"),
        ("compute", "experts forward", 4.0),
        ("EP ALL_TO_ALL", 200, "blocks"),
    ]
    assert layers_forward(emitter(), Stage(host), [STATE]) == [
        ("launched", 4.0),
        ("compute", "layers forward", 8.0),
        ("TP ALL_REDUCE", 10, "blocks"),
        ("joined",),
        ("launched", 6.0),
        *after,
        ("gap", "waits of the host", 2.0),
        ("joined",),
        ("DP ALL_GATHER", 30, "blocks"),
    ]
    # Backward the host knows the counts.
    assert layers_backward(emitter(), Stage(Launches(10)))[0] == ("launched", 10.0)


def test_a_host_that_does_not_wait_launches_a_pass_in_one_part():
    assert layers_forward(emitter(), Stage(Launches(10)), [STATE]) == [
        ("launched", 10.0),
        *WHOLE,
        ("DP ALL_GATHER", 30, "blocks"),
        ("joined",),
    ]
    # Passes of two microbatches at once are launched together, whatever one of them waits for.
    paired = layers_forward(emitter(paired=True), Stage(Launches(10, after_wait=6, waits=1)), [])
    assert [row for row in paired if row[0] in ("launched", "gap")] == [
        ("launched", 10.0),
        ("gap", "waits of the host", 2.0),
    ]


def test_an_exchange_of_a_part_runs_alongside_its_own_gemms_and_the_rest_as_before():
    """Of 12 calls of each kind of gradients two and three are alongside an exchange, and one exchange is left."""
    one, two = runs("attention", 2.0), runs("attention", 3.0)
    one.exchanges[GATHER], two.exchanges[REDUCE] = 1.0, 1.0
    stage = Stage(exchanges=(GATHER, REDUCE, STATE), own=(("dgrad", one), ("wgrad", two)))
    emit = emitter()
    assert layers_backward(emit, stage) == [
        ("TP ALL_GATHER", 20, "launched"),
        ("compute", "layers backward", 2.0),
        ("joined",),
        ("TP ALL_REDUCE", 10, "launched"),
        ("compute", "layers weight gradient", 3.0),
        ("joined",),
        ("compute", "layers backward", 10.0),
        ("compute", "layers weight gradient", 9.0),
        ("DP ALL_GATHER", 30, "blocks"),
    ]
    emit.job = replace(emit.job, framework=replace(emit.job.framework, overlaps_tp_gradients=False))
    assert layers_backward(emit, stage)[2:] == [
        ("TP ALL_GATHER", 20, "blocks"),
        ("TP ALL_REDUCE", 10, "blocks"),
        ("DP ALL_GATHER", 30, "blocks"),
    ]
