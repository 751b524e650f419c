"""The length of a pipeline in closed form: for the screen alone; what is chosen is simulated.

For each schedule: what the busiest stage does with all microbatches, and the time in which it waits for the others.
Virtual stages differ (embedding, head, layers that do not divide), and all arrays broadcast over layouts.

Letters: P stages, V virtual stages per stage, Q all of them, M microbatches, C kinds of virtual stages.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import groupby

import numpy as np
from msgspec import Struct, field

from traincast.model.numbers import Number, added, ceil_div
from traincast.workload.ops import FloatArray

FORWARD, BACKWARD, WEIGHT = "forward", "backward", "weight"

Pass = tuple[str, int]
"""A kind of pass, and the kind of virtual stage that it is of."""


class Sum(Struct, frozen=True):
    """So many passes of each kind, and other seconds: a time that is worked out together with others."""

    counts: Mapping[Pass, Number] = field(default_factory=dict)
    rest_s: Number = 0.0

    __array_ufunc__ = None
    """Arrays leave products with it to it."""

    def __add__(self, other: "Sum | Number") -> "Sum":
        """Return it with other passes, or with other seconds."""
        if not isinstance(other, Sum):
            return Sum(self.counts, self.rest_s + other)
        counts = dict(self.counts)
        for each, count in other.counts.items():
            counts[each] = counts.get(each, 0) + count
        return Sum(counts, self.rest_s + other.rest_s)

    def __mul__(self, times: Number) -> "Sum":
        """Return it so many times."""
        return Sum({each: count * times for each, count in self.counts.items()}, self.rest_s * times)

    __radd__, __rmul__ = __add__, __mul__

    def __sub__(self, other: "Sum | Number") -> "Sum":
        """Return it without other passes or seconds."""
        return self + -1 * other


class Pipeline(Struct, frozen=True, eq=False, dict=True):
    """A pipeline whose virtual stages are of a few kinds."""

    stages: int
    kind_Q: tuple[int, ...]
    placement_Q: tuple[int, ...]
    """Stage of each virtual stage."""
    microbatches: Number
    forward_s_C: Sequence[FloatArray]
    """Seconds of a forward pass of each kind, [K, Z, 1] or with R."""
    backward_s_C: FloatArray
    """Of a backward pass: both gradients, or that of the inputs alone where the schedule runs the other later, [C, K,
    Z, R]."""
    weight_s_C: Sequence[FloatArray]
    """Of the gradient of the weights alone, [K, 1, 1]."""
    message_s: Number
    """Of a message to the next stage."""
    handover_s: Number
    """What the host adds where messages hold the stage back."""
    saved_s_C: Sequence[FloatArray] = ()
    """What a forward and a backward pass save that run as one, of each kind; empty where none do."""
    pairs_P: Sequence[Number] = ()
    """How often each stage runs two passes as one."""

    def saved_s(self, stage: int, kinds: Sequence[int]) -> Number:
        """Return what a stage with virtual stages of some kinds saves where two of its passes run as one."""
        if not self.saved_s_C:
            return 0.0
        return self.pairs_P[stage] * added(self.saved_s_C[kind] for kind in kinds) / len(kinds)

    @cached_property
    def held_P(self) -> dict[tuple[int, ...], list[int]]:
        """The stages by the kinds of virtual stages that they hold."""
        held: list[list[int]] = [[] for _ in range(self.stages)]
        for kind, stage in zip(self.kind_Q, self.placement_Q, strict=True):
            held[stage].append(kind)
        found: dict[tuple[int, ...], list[int]] = {}
        for stage, kinds in enumerate(held):
            found.setdefault(tuple(kinds), []).append(stage)
        return found

    def passes(self, which: str, begin: int, end: int) -> Sum:
        """Return the passes of the virtual stages from one up to another."""
        counts: dict[Pass, int] = {}
        for kind in self.kind_Q[begin:end]:
            counts[which, kind] = counts.get((which, kind), 0) + 1
        return Sum(counts)

    def both(self, begin: int, end: int) -> Sum:
        """Return their forward and backward passes."""
        return self.passes(FORWARD, begin, end) + self.passes(BACKWARD, begin, end)

    def mean_of(self, which: str) -> Sum:
        """Return the mean pass of all virtual stages."""
        return self.passes(which, 0, len(self.kind_Q)) * (1 / len(self.kind_Q))

    def longest(self, sums: Sequence[Sum]) -> FloatArray:
        """Return the longest of some sums, [K, Z, R]."""
        longest, *others = [self._seconds(each) for each in sums]
        for other in others:
            longest = np.maximum(longest, other, out=longest if longest.shape == other.shape else None)
        return longest

    def _seconds(self, each: Sum) -> FloatArray:
        """Return the seconds of a sum: first of what does not hang on what is recomputed, which is little."""
        seconds = {FORWARD: self.forward_s_C, BACKWARD: [*self.backward_s_C], WEIGHT: self.weight_s_C}
        parts = [(seconds[which][kind], count) for (which, kind), count in each.counts.items()]
        total: FloatArray = each.rest_s + np.zeros((self.backward_s_C.shape[1], 1, 1))
        for pass_s, count in parts:
            if pass_s.shape[-1] == 1:
                total = total + pass_s * count
        for pass_s, count in parts:
            if pass_s.shape[-1] > 1:
                product = pass_s * count
                total = np.add(product, total, out=product if product.shape[1] >= total.shape[1] else None)
        return total


def splits_backward(schedule: str) -> bool:
    """Return whether a schedule runs the gradients of the weights by themselves."""
    return schedule in _BUBBLES or schedule == "interleaved_zb"


def step_s(pipeline: Pipeline, schedule: str) -> FloatArray:
    """Return the seconds from the first pass of a pipeline to its last one."""
    # Passes that run as one send their messages as interleaved ones do.
    length = _interleaved if schedule == "1f1b" and pipeline.saved_s_C else _LENGTHS.get(schedule, _interleaved)
    found: FloatArray = length(pipeline)
    return found


def _one_f_one_b(line: Pipeline) -> FloatArray:
    """Take each stage as the one that holds all others back: its work with its messages, and the way to it and back."""
    stages, count, hop = line.stages, line.microbatches, line.message_s + line.handover_s
    way = line.both(0, stages) + 2 * (stages - 1) * hop
    found = []
    place = 0
    for _, run in groupby(line.kind_Q):
        place += len(list(run))
        at = place - 1
        messages_s = hop * ((at > 0) + (at < stages - 1))
        found.append(line.both(0, at) + 2 * at * hop + (line.both(at, place) + messages_s) * count)
        if place == stages:
            break  # the last stage waits for none
        turn = (line.passes(BACKWARD, at, place) + messages_s / 2) * (count - 1)
        steady = np.maximum(count - stages + at, 0)
        found.append(way + turn + (line.passes(FORWARD, at, place) + messages_s / 2) * steady)
    return line.longest(found)


def _gpipe(line: Pipeline) -> Number:
    """All forwards in a row, then all backwards: twice a ramp and the busiest stage."""
    hop = line.message_s + line.handover_s
    between_s = hop * (2 if line.stages > 2 else 1)
    total: Number = 0.0
    for which in (FORWARD, BACKWARD):
        ramp = line.passes(which, 0, line.stages) + (line.stages - 1) * hop
        again = ((Sum({(which, kind): 1}) + between_s) * (line.microbatches - 1) for kind in dict.fromkeys(line.kind_Q))
        total = total + line.longest([ramp + each for each in again])
    return total


def _interleaved(line: Pipeline) -> Number:
    """Take as many microbatches as stages round the virtual stages: each comes to the next one as that is free for it.

    But for the messages on its way, that is; and so do the last ones on their way back.
    """
    return _looped(line) + 2 * (len(line.kind_Q) - line.stages) * line.message_s


def _looped_bfs(line: Pipeline) -> Number:
    """Take all microbatches round together."""
    return _looped(line) + _around(line, line.microbatches)


def _around(line: Pipeline, group: Number) -> Number:
    """Return what stages wait for the first of so many microbatches to come round to their next virtual stage."""
    turns = len(line.kind_Q) // line.stages - 1
    total: Number = 0.0
    for which in (FORWARD, BACKWARD):
        mean = line.mean_of(which)
        total = total + line.longest([Sum(), ((mean + line.message_s) * line.stages - mean * group) * turns])
    return total


def _looped(line: Pipeline) -> FloatArray:
    """Return the busiest stage with its microbatches, the way to it, and what it waits for the last virtual stages."""
    stages, chunks = line.stages, len(line.kind_Q)
    found = []
    for kinds, places in line.held_P.items():
        load = _of_kinds(kinds, FORWARD, BACKWARD)
        for at in dict.fromkeys((places[0], places[-1])):
            busy = load * line.microbatches - line.saved_s(at, kinds)
            begun = busy + line.both(0, at) + 2 * at * line.message_s
            left = chunks - stages + at + 1
            ended = begun + line.both(left, chunks) + 2 * (stages - 1 - at) * line.message_s
            if line.saved_s_C:
                # While its first microbatch is on the way there and back a stage runs twice as many forward passes.
                ended = ended - 2 * line.passes(FORWARD, left, chunks)
                found.append(begun)
            found.append(ended)
    return line.longest(found)


def _of_kinds(kinds: Sequence[int], *which: str) -> Sum:
    """Return some passes of a stage with virtual stages of some kinds."""
    found: Sum = added(Sum({(each, kind): 1}) for kind in kinds for each in which)
    return found


def _zero_bubble(
    bubble: Callable[[int, Number, Number, Number], Number], around: Callable[[Pipeline], Number] = lambda _: 0.0
) -> Callable[[Pipeline], Number]:
    """Return the length of a schedule whose weight gradients fill the bubbles, by what is left of these.

    `bubble` takes the stages and the seconds of forward pass, input gradient and weight gradient of a stage; `around`
    is what stages wait for microbatches to come round.
    """

    def length(line: Pipeline) -> Number:
        every = (FORWARD, BACKWARD, WEIGHT)
        left = bubble(line.stages, *(line.mean_of(which) for which in every))
        saved_s = line.saved_s(line.stages // 2, line.kind_Q)
        hops_s = 2 * (line.stages - 1) * line.message_s
        busy = [_of_kinds(kinds, *every) * line.microbatches + (hops_s - saved_s) for kinds in line.held_P]
        # One microbatch goes all the way there and back.
        way = line.both(0, len(line.kind_Q)) + Sum({(WEIGHT, line.kind_Q[0]): 1})
        way = way + 2 * (len(line.kind_Q) - 1) * line.message_s
        filled = [*busy, *(each + left for each in busy)]
        around_s = around(line)
        if isinstance(around_s, float):
            return line.longest([*filled, way])
        return np.maximum(line.longest(filled) + around_s, line.longest([way]))

    return length


def _in_rounds(line: Pipeline) -> Number:
    """Take microbatches round in groups that are all as large, at least one for each stage where there are so many."""
    return _around(line, ceil_div(line.microbatches, np.maximum(1, line.microbatches // line.stages)))


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
