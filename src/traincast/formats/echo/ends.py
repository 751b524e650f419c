"""What two ranks ended together, on the clock of each.

A message ends on both of its ranks at nearly the same time, and so does a synchronous collective
on its members: the differences of these ends tell how far one clock is ahead of the other.
"""

from collections import defaultdict
from itertools import pairwise
from statistics import median

from traincast.formats.echo.files import RankTrace, Run
from traincast.formats.echo.lines import TraceOp
from traincast.formats.echo.vocabulary import MESSAGES
from traincast.workload.words import Group

_ONE_MEETING_S = 0.005
"""Spread of the differences between two members of one group; more, and they are not of one group."""

Ends = dict[tuple[int, int], list[float]]
_Message = tuple[str, int, int, int | None]
_Place = tuple[str, int | None, int]
"""Operation, microbatch, and number among the collectives of the operation."""


def matched_ends(run: Run, stride: int) -> Ends:
    """Match what ranks ended together.

    Parameters
    ----------
    run : Run
        Traces of a run; some ranks may be missing.
    stride : int
        Ranks per pipeline stage: how far apart the two ends of a message are.

    Returns
    -------
    dict
        By two ranks: the end at the second less the end at the first in seconds, of each message
        from the first to the second. Collectives of two tensor-parallel neighbours have no
        direction and are there both ways, as messages without a delay would be.
    """
    return _message_ends(run, stride) | _collective_ends(run, stride)


def _message_ends(run: Run, stride: int) -> Ends:
    sent_s: dict[_Message, list[float]] = defaultdict(list)
    received_s: dict[_Message, list[float]] = defaultdict(list)
    for rank, trace in run.traces.items():
        for op in trace.ops:
            if op.op in MESSAGES and op.end_s is not None:
                side_s = sent_s if op.op.startswith("send") else received_s
                side_s[_message(op, rank, stride)].append(op.end_s)
    found: Ends = defaultdict(list)
    for message, ends_s in sent_s.items():
        for sent, received in zip(ends_s, received_s.get(message, ()), strict=False):
            found[message[1], message[2]].append(received - sent)
    return found


def _message(op: TraceOp, rank: int, stride: int) -> _Message:
    """Return direction, source, target and microbatch of the message that an operation sends or receives."""
    side, direction = op.op.split("_")
    if direction == "forward":
        source = rank if side == "send" else rank - stride
        return direction, source, source + stride, op.batch_id
    source = rank if side == "send" else rank + stride
    return direction, source, source - stride, op.batch_id


def _collective_ends(run: Run, stride: int) -> Ends:
    """Match the collectives of neighbours in the tensor-parallel groups that the names of the files tell."""
    ends_s = {rank: ends for rank, trace in run.traces.items() if (ends := _tensor_ends(trace))}
    found: Ends = {}
    for here, there in pairwise(sorted(ends_s)):
        tp = run.traces[here].name.tp or 1
        if stride % tp or here // tp != there // tp:
            continue
        places = ends_s[here].keys() & ends_s[there].keys()
        apart_s = [ends_s[there][place] - ends_s[here][place] for place in places]
        if apart_s and _is_tight(apart_s):
            found[here, there], found[there, here] = apart_s, [-each for each in apart_s]
    return found


def _tensor_ends(trace: RankTrace) -> dict[_Place, float]:
    """Return the ends of a rank's synchronous tensor-parallel collectives that other ranks took part in."""
    found: dict[_Place, float] = {}
    for op in trace.ops:
        # one GPU that plays all ranks does so one after the other: alike places are not one meeting
        if op.sub_ops and not op.is_simulated:
            meetings = [sub for sub in op.sub_ops if sub.group is Group.TP and not sub.is_async]
            for number, sub in enumerate(meetings):
                if sub.end_s is not None:
                    found[op.op, op.batch_id, number] = sub.end_s
    return found


def _is_tight(apart_s: list[float]) -> bool:
    middle_s = median(apart_s)
    return median([abs(each - middle_s) for each in apart_s]) <= _ONE_MEETING_S
