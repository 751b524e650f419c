"""The length of a pipeline in closed form, and what the forms of several schedules share; each has its own in its file.

A form adds what the busiest stage does with all microbatches, and the time in which it waits for the others. Virtual
stages differ (embedding, head, layers that do not divide), and all arrays broadcast over layouts.

Letters: P stages, V virtual stages per stage, Q all of them, M microbatches, C kinds of virtual stages.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from msgspec import Struct, field

from traincast.model.numbers import Number, added, larger

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    FloatArray = npt.NDArray[np.float64]

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
        """Return it multiplied by a number."""
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
    forward_s_C: Sequence["FloatArray"]
    """Seconds of a forward pass of each kind, [K, Z, 1] or with R."""
    backward_s_C: "FloatArray"
    """Seconds of a backward pass: both gradients, or that of the inputs alone where the schedule runs the
    other later, [C, K, Z, R]."""
    weight_s_C: Sequence["FloatArray"]
    """Seconds of the gradient of the weights alone, [K, 1, 1]."""
    message_s: Number
    """Seconds of a P2P send to the next stage."""
    handover_s: Number
    """What the host adds where messages hold the stage back."""
    splits_backward: bool = False
    """Whether gradients of the weights run by themselves, so that a backward pass lacks them."""
    saved_s_C: Sequence["FloatArray"] = ()
    """What a forward and a backward pass save that run as one, of each kind; empty where none do."""
    pairs_P: Sequence[Number] = ()
    """How often each stage runs two passes as one."""
    times: Number = 1
    """How often so many microbatches fill it and it runs empty."""

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

    def longest(self, sums: Sequence[Sum]) -> "FloatArray":
        """Return the longest of some sums, [K, Z, R]."""
        # Names of schedules are listed and completed without arrays.
        import numpy as np

        longest, *others = [self._seconds(each) for each in sums]
        for other in others:
            longest = np.maximum(longest, other, out=longest if longest.shape == other.shape else None)
        return longest

    def _seconds(self, each: Sum) -> "FloatArray":
        """Return the seconds of a sum: first of what does not depend on recomputation, which is little."""
        import numpy as np

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


Length = Callable[[Pipeline], Number]
"""The seconds from the first pass of a pipeline to its last one, [K, Z, R]."""


def passes_of(kinds: Sequence[int], *which: str) -> Sum:
    """Return some passes of a stage with virtual stages of some kinds."""
    found: Sum = added(Sum({(each, kind): 1}) for kind in kinds for each in which)
    return found


def looped(line: Pipeline) -> "FloatArray":
    """Return the busiest stage with its microbatches, the way to it, and what it waits for the last virtual stages."""
    stages, chunks = line.stages, len(line.kind_Q)
    found = []
    for kinds, places in line.held_P.items():
        load = passes_of(kinds, FORWARD, BACKWARD)
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


def interleaved_length(line: Pipeline) -> Number:
    """Take as many microbatches as stages round the virtual stages: each comes to the next one as that is free for it.

    But for the messages on its way, that is; and so do the last ones on their way back.
    """
    return looped(line) + 2 * (len(line.kind_Q) - line.stages) * line.message_s


def around(line: Pipeline, group: Number) -> Number:
    """Return what stages wait for the first of so many microbatches to come round to their next virtual stage."""
    turns = len(line.kind_Q) // line.stages - 1
    total: Number = 0.0
    for which in (FORWARD, BACKWARD):
        mean = line.mean_of(which)
        total = total + line.longest([Sum(), ((mean + line.message_s) * line.stages - mean * group) * turns])
    return total


Bubble = Callable[[int, Number, Number, Number], Number]
"""What is left of the bubbles, of the stages and a mean forward pass, input gradient and weight gradient."""


def filled_bubbles(line: Pipeline, bubble: Bubble, around_s: Number = 0.0) -> Number:
    """Return the length of a schedule whose weight gradients fill the bubbles, by what is left of these.

    `around_s` is what stages wait for microbatches to come round.
    """
    every = (FORWARD, BACKWARD, WEIGHT)
    left = bubble(line.stages, *(line.mean_of(which) for which in every))
    saved_s = line.saved_s(line.stages // 2, line.kind_Q)
    hops_s = 2 * (line.stages - 1) * line.message_s
    busy = [passes_of(kinds, *every) * line.microbatches + (hops_s - saved_s) for kinds in line.held_P]
    # One microbatch goes all the way there and back.
    way = line.both(0, len(line.kind_Q)) + Sum({(WEIGHT, line.kind_Q[0]): 1})
    way = way + 2 * (len(line.kind_Q) - 1) * line.message_s
    filled = [*busy, *(each + left for each in busy)]
    if isinstance(around_s, float):
        return line.longest([*filled, way])
    return larger(line.longest(filled) + around_s, line.longest([way]))
