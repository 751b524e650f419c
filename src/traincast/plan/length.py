"""The length of a pipeline in closed form: for the screen alone; what is chosen is simulated.

For each schedule: what the busiest stage does with all microbatches, and the time in which it waits for the others.
Virtual stages differ (embedding, head, layers that do not divide), and all arrays broadcast over layouts.

Letters: P stages, V virtual stages per stage, Q all of them, M microbatches, C kinds of virtual stages.
"""

from collections.abc import Callable, Sequence
from itertools import groupby

import numpy as np
from msgspec import Struct

from traincast.model.numbers import Number, added, ceil_div
from traincast.workload.ops import FloatArray


class Pipeline(Struct, frozen=True):
    """A pipeline whose virtual stages are of a few kinds."""

    stages: int
    kind_Q: tuple[int, ...]
    placement_Q: tuple[int, ...]
    """Stage of each virtual stage."""
    microbatches: Number
    forward_s_C: Sequence[FloatArray]
    """Seconds of a forward pass of each kind."""
    backward_s_C: Sequence[FloatArray]
    """Of a backward pass: both gradients, or that of the inputs alone where the schedule runs the other later."""
    weight_s_C: Sequence[FloatArray]
    """Of the gradient of the weights alone."""
    message_s: Number
    """Of a message to the next stage."""
    handover_s: Number
    """What the host adds where messages hold the stage back."""
    saved_s_C: Sequence[FloatArray] = ()
    """What a forward and a backward pass save that run as one, of each kind; empty where none do."""
    pairs_P: Sequence[Number] = ()
    """How often each stage runs two passes as one."""

    def both_C(self, kind: int) -> FloatArray:
        """Return forward and backward of a kind together."""
        found: FloatArray = self.forward_s_C[kind] + self.backward_s_C[kind]
        return found

    def saved_s(self, stage: int, kinds: Sequence[int]) -> Number:
        """Return what a stage with virtual stages of some kinds saves where two of its passes run as one."""
        if not self.saved_s_C:
            return 0.0
        return self.pairs_P[stage] * added(self.saved_s_C[kind] for kind in kinds) / len(kinds)

    def held_P(self) -> dict[tuple[int, ...], list[int]]:
        """Return the stages by the kinds of virtual stages that they hold."""
        held: list[list[int]] = [[] for _ in range(self.stages)]
        for kind, stage in zip(self.kind_Q, self.placement_Q, strict=True):
            held[stage].append(kind)
        found: dict[tuple[int, ...], list[int]] = {}
        for stage, kinds in enumerate(held):
            found.setdefault(tuple(kinds), []).append(stage)
        return found

    def sum_of(self, times_C: Sequence[FloatArray], begin: int, end: int) -> Number:
        """Return the sum of a time over the virtual stages from one up to another."""
        counts = np.bincount(np.asarray(self.kind_Q[begin:end], dtype=np.int64), minlength=len(times_C))
        total: Number = 0.0
        for count, each in zip(counts.tolist(), times_C, strict=True):
            if count:
                total = total + count * each
        return total

    def mean_of(self, times_C: Sequence[FloatArray]) -> Number:
        """Return the mean of a time over all virtual stages."""
        return self.sum_of(times_C, 0, len(self.kind_Q)) / len(self.kind_Q)


def splits_backward(schedule: str) -> bool:
    """Return whether a schedule runs the gradients of the weights by themselves."""
    return schedule in _BUBBLES or schedule == "interleaved_zb"


def step_s(pipeline: Pipeline, schedule: str) -> FloatArray:
    """Return the seconds from the first pass of a pipeline to its last one."""
    # Passes that run as one send their messages as interleaved ones do.
    length = _interleaved if schedule == "1f1b" and pipeline.saved_s_C else _LENGTHS.get(schedule, _interleaved)
    found: FloatArray = length(pipeline)
    return found


def _one_f_one_b(line: Pipeline) -> Number:
    """Take each stage as the one that holds all others back: its work with its messages, and the way to it and back."""
    stages, count, hop = line.stages, line.microbatches, line.message_s + line.handover_s
    both_C = [line.both_C(kind) for kind in range(len(line.forward_s_C))]
    way_s = line.sum_of(both_C, 0, stages) + 2 * (stages - 1) * hop
    longest: Number = 0.0
    place = 0
    for kind, run in groupby(line.kind_Q):
        place += len(list(run))
        at = place - 1
        messages_s = hop * ((at > 0) + (at < stages - 1))
        alone_s = line.sum_of(both_C, 0, at) + 2 * at * hop + count * (both_C[kind] + messages_s)
        steady = np.maximum(count - stages + at, 0)
        turn_s = (count - 1) * (line.backward_s_C[kind] + messages_s / 2)
        waiting_s = way_s + turn_s + steady * (line.forward_s_C[kind] + messages_s / 2)
        longest = np.maximum(longest, np.maximum(alone_s, waiting_s))
    return longest


def _gpipe(line: Pipeline) -> Number:
    """All forwards in a row, then all backwards: twice a ramp and the busiest stage."""
    hop = line.message_s + line.handover_s
    total: Number = 0.0
    for times_C in (line.forward_s_C, line.backward_s_C):
        busiest = _most(times_C)
        between = hop * (2 if line.stages > 2 else 1)
        ramp_s = line.sum_of(times_C, 0, line.stages) + (line.stages - 1) * hop
        total = total + ramp_s + (line.microbatches - 1) * (busiest + between)
    return total


def _interleaved(line: Pipeline) -> Number:
    """Take as many microbatches as stages round the virtual stages: each comes to the next one as that is free for it.

    But for the messages on its way, that is; and so do the last ones on their way back.
    """
    return _looped(line, 2 * (len(line.kind_Q) - line.stages) * line.message_s)


def _looped_bfs(line: Pipeline) -> Number:
    """Take all microbatches round together."""
    return _looped(line, _around(line, line.microbatches))


def _around(line: Pipeline, group: Number) -> Number:
    """Return what stages wait for the first of so many microbatches to come round to their next virtual stage."""
    turns, total = len(line.kind_Q) // line.stages - 1, 0.0
    for times_C in (line.forward_s_C, line.backward_s_C):
        mean = line.mean_of(times_C)
        total = total + turns * np.maximum(0.0, line.stages * (mean + line.message_s) - group * mean)
    return total


def _looped(line: Pipeline, around_s: Number) -> Number:
    """Return the busiest stage with its microbatches, the way to it, and what it waits for the last virtual stages."""
    stages, chunks = line.stages, len(line.kind_Q)
    both_C = [line.both_C(kind) for kind in range(len(line.forward_s_C))]
    longest: Number = 0.0
    for kinds, places in line.held_P().items():
        load_s = sum(both_C[kind] for kind in kinds)
        for at in {places[0], places[-1]}:
            before_s = line.sum_of(both_C, 0, at) + 2 * at * line.message_s
            after_s = line.sum_of(both_C, chunks - stages + at + 1, chunks) + 2 * (stages - 1 - at) * line.message_s
            if line.saved_s_C:
                # While its first microbatch is on the way there and back a stage runs twice as many forward passes.
                warmed_s = 2 * line.sum_of(line.forward_s_C, chunks - stages + at + 1, chunks)
                after_s = np.maximum(0.0, after_s - warmed_s)
            busy_s = line.microbatches * load_s - line.saved_s(at, kinds)
            longest = np.maximum(longest, busy_s + before_s + after_s + around_s)
    return longest


def _zero_bubble(
    bubble: Callable[[int, Number, Number, Number], Number], around: Callable[[Pipeline], Number] = lambda _: 0.0
) -> Callable[[Pipeline], Number]:
    """Return the length of a schedule whose weight gradients fill the bubbles, by what is left of these.

    `bubble` takes the stages and the seconds of forward pass, input gradient and weight gradient of a stage; `around`
    is what stages wait for microbatches to come round.
    """

    def length(line: Pipeline) -> Number:
        split_C = [a + b + c for a, b, c in zip(line.forward_s_C, line.backward_s_C, line.weight_s_C, strict=True)]
        busiest = _most([added(split_C[kind] for kind in kinds) for kinds in line.held_P()])
        mean = [line.mean_of(times_C) for times_C in (line.forward_s_C, line.backward_s_C, line.weight_s_C)]
        hops_s = 2 * (line.stages - 1) * line.message_s
        busiest = line.microbatches * busiest - line.saved_s(line.stages // 2, line.kind_Q)
        filled_s = busiest + np.maximum(bubble(line.stages, *mean), 0.0) + hops_s + around(line)
        # One microbatch goes all the way there and back.
        way_s = sum(line.sum_of(times_C, 0, len(line.kind_Q)) for times_C in (line.forward_s_C, line.backward_s_C))
        way_s = way_s + line.weight_s_C[line.kind_Q[0]] + 2 * (len(line.kind_Q) - 1) * line.message_s
        return np.maximum(filled_s, way_s)

    return length


def _in_rounds(line: Pipeline) -> Number:
    """Take microbatches round in groups that are all as large, at least one for each stage where there are so many."""
    return _around(line, ceil_div(line.microbatches, np.maximum(1, line.microbatches // line.stages)))


def _most(times: Sequence[FloatArray]) -> Number:
    found: Number = 0.0
    for each in times:
        found = np.maximum(found, each)
    return found


_BUBBLES: dict[str, Callable[[int, Number, Number, Number], Number]] = {
    "zb_h1": lambda p, f, b, w: (p - 1) * (f + b - w),
    "zb_v": lambda p, f, b, w: (p - 1) * (f + b - 2 * w),
    "dualpipe": lambda p, f, b, w: (p / 2 - 1) * (f + 2 * b - w),
    "dualpipe_v": lambda p, f, b, w: (p - 1) * (f + 2 * b - w),
}
_LENGTHS: dict[str, Callable[[Pipeline], Number]] = {
    "1f1b": _one_f_one_b,
    "gpipe": _gpipe,
    "interleaved": _interleaved,
    "looped_bfs": _looped_bfs,
    "interleaved_zb": _zero_bubble(_BUBBLES["zb_h1"], _in_rounds),
    **{name: _zero_bubble(bubble) for name, bubble in _BUBBLES.items()},
}
"""Sources of the bubbles: Narayanan et al. 2021, arXiv 2104.04473, section 2.2; Qi et al., arXiv 2401.10241, table 1,
and arXiv 2405.15362, section 3; deepseek-ai/DualPipe, README. Schedules of plug-ins are taken as interleaved."""
