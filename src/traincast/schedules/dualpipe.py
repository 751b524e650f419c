"""DualPipe: two copies of the model, fed from both ends of the pipeline at once."""

from collections.abc import Iterator
from typing import NamedTuple

from traincast.errors import InfeasibleError
from traincast.model.numbers import Number
from traincast.schedules.in_flight import settled
from traincast.schedules.length import Pipeline, filled_bubbles
from traincast.schedules.plan import SchedulePlan, require_counts
from traincast.schedules.schedule import Pairing, Schedule, register
from traincast.schedules.slots import Slot, SlotKind


class Turn(NamedTuple):
    """One slot of an order between two streams of microbatches, 0 and 1, which a stage passes at the same time."""

    kind: SlotKind
    way: int
    """The stream: 0 is the one that reaches the stage first."""
    number: int
    """0.. : position in its stream."""
    paired: bool = False
    """As in `Slot`."""


def dualpipe(stages: int, virtual_per_stage: int, microbatches: int) -> SchedulePlan:
    """Plan DualPipe with overlapped p2p; any M runs.

    The first half of the microbatches, rounded up, enters at stage 0 and passes the first copy of the model, the
    others enter at stage P - 1 and pass the second, so that every stage holds the parameters of two virtual stages.
    With M >= 2P stages that pass a microbatch in f, backward in b, of which w for the weights, idle for
    ``(P/2 - 1)(f + 2b - 3w)``, where a forward and a backward pass that run as one take f + b: what overlaps of them
    follows from their streams. At most P + 1 microbatches are held.

    Raises
    ------
    InfeasibleError
        If V > 1, or P is odd.

    Notes
    -----
    Source: DeepSeek-AI 2024, arXiv:2412.19437, section 3.2.1 and table 2; the order is that of deepseek-ai/DualPipe,
    dualpipe/dualpipe.py (step).
    """
    require_counts("dualpipe", stages, virtual_per_stage, microbatches)
    if virtual_per_stage > 1:
        raise InfeasibleError(
            f"schedule dualpipe runs one virtual stage per stage and copy, not vpp {virtual_per_stage}; leave vpp out"
        )
    if stages % 2:
        raise InfeasibleError(f"schedule dualpipe needs an even number of stages, not pp {stages}")
    first = (microbatches + 1) // 2
    count = (first, microbatches - first)
    slots = []
    for stage in range(stages):
        # The stream that reaches a stage first is that of the nearer end.
        near, depth = int(stage >= stages // 2), min(stage, stages - 1 - stage)
        order = two_way_order(depth, stages // 2, (count[near], count[1 - near]))
        slots.append(
            tuple(
                Slot(turn.kind, stages - 1 - stage if copy else stage, turn.number + copy * first, copy, turn.paired)
                for turn, copy in ((turn, near ^ turn.way) for turn in order)
            )
        )
    placement = tuple(range(stages)), tuple(reversed(range(stages)))
    return SchedulePlan(name="dualpipe", placement=placement, slots=tuple(slots), overlapped_p2p=True)


def two_way_order(depth: int, length: int, microbatches: tuple[int, int]) -> Iterator[Turn]:
    """Yield the order of a stage that microbatches pass on two ways.

    Parameters
    ----------
    depth : int
        Stages between it and the end at which way 0 begins, below `length`.
    length : int
        Stages from there to the turning point, where way 1 reaches them after way 0.
    microbatches : (int, int)
        Microbatches of each way; of fewer than fill the pipeline those that are missing are left out.
    """
    for together in _full_order(depth, length, max(*microbatches, 2 * length)):
        there = [turn for turn in together if turn.number < microbatches[turn.way]]
        yield from (turn._replace(paired=True) for turn in there[:-1])
        yield from there[-1:]


def _full_order(depth: int, length: int, microbatches: int) -> Iterator[tuple[Turn, ...]]:
    """Yield the order for at least twice as many microbatches as stages, in the eight steps of the source."""
    done: dict[tuple[SlotKind, int], int] = {}
    later: list[Turn] = []

    def run(kind: SlotKind, way: int) -> Turn:
        number = done[kind, way] = done.get((kind, way), -1) + 1
        return Turn(kind, way, number)

    def input_gradient(way: int) -> Turn:
        """Return the next input gradient; its weight gradient waits."""
        turn = run(SlotKind.BW, way)
        later.append(Turn(SlotKind.W, way, turn.number))
        return Turn(SlotKind.B, way, turn.number)

    beyond = length - 1 - depth
    for _ in range(2 * beyond):
        yield (run(SlotKind.F, 0),)
    for _ in range(depth + 1):
        yield (run(SlotKind.F, 0),)
        yield (run(SlotKind.F, 1),)
    for _ in range(beyond):
        yield (input_gradient(1),)
        yield (later.pop(0),)
        yield (run(SlotKind.F, 1),)
    for _ in range(microbatches - 2 * length + depth + 1):
        yield run(SlotKind.F, 0), run(SlotKind.BW, 1)
        yield run(SlotKind.F, 1), run(SlotKind.BW, 0)
    for _ in range(beyond):
        yield (run(SlotKind.BW, 1),)
        yield run(SlotKind.F, 1), run(SlotKind.BW, 0)
    # Of these 2 (depth + 1) backward passes the later half leaves its weight gradients for the drain.
    for index in range(2 * (depth + 1)):
        way = 1 - index % 2
        yield (input_gradient(way) if index > depth else run(SlotKind.BW, way),)
    for _ in range(beyond):
        yield (later.pop(0),)
        yield (input_gradient(0),)
    yield from ((turn,) for turn in later)


def _length(line: Pipeline) -> Number:
    """Return the length with the bubbles that the source's README leaves; `b` is the gradient of the inputs alone."""
    return filled_bubbles(line, lambda p, f, b, w: (p / 2 - 1) * (f + 2 * b - w))


DUALPIPE = register(
    Schedule(
        name="dualpipe",
        plan=dualpipe,
        virtual_stages=1,
        pairing=Pairing.ALWAYS,
        fewer=settled(2, 2),
        length=_length,
    )
)
