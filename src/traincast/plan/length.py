"""The length of a pipeline in closed form: for the screen alone; what is chosen is simulated.

For each schedule: what the busiest stage does with all microbatches, and the time in which it waits for the others.
Virtual stages differ (embedding, head, layers that do not divide), and all arrays broadcast over layouts.

Letters: P stages, V virtual stages per stage, Q all of them, M microbatches, C kinds of virtual stages.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from traincast.model.numbers import Number, added
from traincast.workload.ops import FloatArray


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A pipeline whose virtual stages are of a few kinds."""

    stages: int
    kind_Q: tuple[int, ...]
    placement_Q: tuple[int, ...]
    """Stage of each virtual stage."""
    microbatches: Number
    forward_s_C: Sequence[FloatArray]
    """Seconds of a forward pass of each kind."""
    backward_s_C: Sequence[FloatArray]
    """Of a backward pass, both gradients together."""
    input_s_C: Sequence[FloatArray]
    """Of the gradient of the inputs, where that of the weights runs later."""
    weight_s_C: Sequence[FloatArray]
    message_s: Number
    """Of a message to the next stage."""
    handover_s: Number
    """What the host adds where messages hold the stage back."""

    def both_C(self, kind: int) -> FloatArray:
        """Return forward and backward of a kind together."""
        found: FloatArray = self.forward_s_C[kind] + self.backward_s_C[kind]
        return found

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


def step_s(pipeline: Pipeline, schedule: str) -> FloatArray:
    """Return the seconds from the first pass of a pipeline to its last one."""
    found: FloatArray = _LENGTHS.get(schedule, _interleaved)(pipeline)
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
    """Return the busiest stage with its microbatches, the way to it, and what it waits for the last virtual stages."""
    stages, chunks = line.stages, len(line.kind_Q)
    both_C = [line.both_C(kind) for kind in range(len(line.forward_s_C))]
    longest: Number = 0.0
    for kinds, places in line.held_P().items():
        load_s = sum(both_C[kind] for kind in kinds)
        for at in {places[0], places[-1]}:
            before_s = line.sum_of(both_C, 0, at) + 2 * at * line.message_s
            after_s = line.sum_of(both_C, chunks - stages + at + 1, chunks) + 2 * (stages - 1 - at) * line.message_s
            longest = np.maximum(longest, line.microbatches * load_s + before_s + after_s)
    return longest


def _zero_bubble(bubble: Callable[[int, Number, Number, Number], Number]) -> Callable[[Pipeline], Number]:
    """Return the length of a schedule whose weight gradients fill the bubbles, by what is left of these.

    `bubble` takes the stages and the seconds of forward pass, input gradient and weight gradient of a stage.
    """

    def length(line: Pipeline) -> Number:
        split_C = [a + b + c for a, b, c in zip(line.forward_s_C, line.input_s_C, line.weight_s_C, strict=True)]
        busiest = _most([added(split_C[kind] for kind in kinds) for kinds in line.held_P()])
        mean = [
            line.sum_of(times_C, 0, len(line.kind_Q)) / len(line.kind_Q)
            for times_C in (line.forward_s_C, line.input_s_C, line.weight_s_C)
        ]
        hops_s = 2 * (line.stages - 1) * line.message_s
        filled_s = line.microbatches * busiest + np.maximum(bubble(line.stages, *mean), 0.0) + hops_s
        # One microbatch goes all the way there and back.
        way_s = sum(line.sum_of(times_C, 0, len(line.kind_Q)) for times_C in (line.forward_s_C, line.input_s_C))
        return np.maximum(filled_s, way_s + line.weight_s_C[line.kind_Q[0]] + hops_s)

    return length


def _most(times: Sequence[FloatArray]) -> Number:
    found: Number = 0.0
    for each in times:
        found = np.maximum(found, each)
    return found


_LENGTHS: dict[str, Callable[[Pipeline], Number]] = {
    "1f1b": _one_f_one_b,
    "gpipe": _gpipe,
    "interleaved": _interleaved,
    "zb_h1": _zero_bubble(lambda p, f, b, w: (p - 1) * (f + b - w)),
    "zb_v": _zero_bubble(lambda p, f, b, w: (p - 1) * (f + b - 2 * w)),
    "dualpipe": _zero_bubble(lambda p, f, b, w: (p / 2 - 1) * (f + 2 * b - w)),
    "dualpipe_v": _zero_bubble(lambda p, f, b, w: (p - 1) * (f + 2 * b - w)),
}
"""Sources of the bubbles: Narayanan et al. 2021, arXiv 2104.04473, section 2.2; Qi et al., arXiv 2401.10241, table 1,
and arXiv 2405.15362, section 3; deepseek-ai/DualPipe, README. Schedules of plug-ins are taken as interleaved."""
