"""Bring the ranks of a run on one clock, and tell who met.

Times of a file count from an instant that it says (``baseTimeNanoseconds``), so ranks of one host compare; hosts are
aligned by what ranks ended together (`traincast.workload.clocks`). What is left, some microseconds, is rounding.

Letters: G pieces of work of the GPU of a rank, J ends of what ranks did together.
"""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from traincast.diagnostics import Notebook
from traincast.formats.kineto.grammar import US_PER_S
from traincast.formats.kineto.match import END_TOGETHER, End, Found, Together
from traincast.formats.kineto.step import RankStep
from traincast.units import counted, format_time
from traincast.workload.clocks import Ends, align
from traincast.workload.ops import FloatArray

_SAME_CLOCK_S = 50e-6
"""Clocks nearer than this are one: GPUs of one host agree within some microseconds, hosts within milliseconds."""
_WORTH_SAYING_S = 1e-6
_NS_PER_S = 1e9
_NS_PER_US = 1000


class Times(Struct):
    """When work of each rank began and ended, in seconds from an instant that all ranks share."""

    steps: Mapping[int, RankStep]
    begin_s: dict[int, float]
    """When each rank began its step."""
    start_s: dict[int, FloatArray]
    end_s: dict[int, FloatArray]
    key: dict[End, int]
    """A number of each rendezvous, by what meets there."""

    def seconds(self, rank: int, time_us: FloatArray) -> FloatArray:
        """Return times of a rank's file in seconds on the common clock."""
        return (time_us - self.steps[rank].begin_us) / US_PER_S + self.begin_s[rank]


def common_times(
    steps: Mapping[int, RankStep], found: Mapping[int, Sequence[Found]], met: Together, notes: Notebook
) -> Times:
    """Return the times of all ranks on one clock, and who met."""
    began_ns = {rank: _since_base_ns(step) for rank, step in steps.items()}
    own_s = {rank: (began - min(began_ns.values())) / _NS_PER_S for rank, began in began_ns.items()}
    times = Times(steps, own_s, {}, {}, {})
    if len(steps) > 1:
        alignment = align(own_s, _ends(times, found, met), notes.path, same_clock_s=_SAME_CLOCK_S)
        notes.assumptions += alignment.notes
        times.begin_s = {rank: began_s - alignment.offset_s[rank] for rank, began_s in own_s.items()}
    for rank, step in steps.items():
        times.start_s[rank], times.end_s[rank] = (
            times.seconds(rank, each) for each in (step.start_us_G, step.stop_us_G)
        )
    _meet(times, met, notes)
    return times


def _since_base_ns(step: RankStep) -> int:
    """Return when a rank began its step in nanoseconds since 1970, or what its file counts from; exact."""
    whole_us = int(step.begin_us)
    return step.trace.document.base_ns + whole_us * _NS_PER_US + round((step.begin_us - whole_us) * _NS_PER_US)


def _ends(times: Times, found: Mapping[int, Sequence[Found]], met: Together) -> Ends:
    """Return by how much the ends of what ranks ended together differ on their own clocks."""
    what_of = {(rank, each.at): each.what.operation for rank, own in found.items() for each in own}
    stop_us = {rank: step.stop_us_G for rank, step in times.steps.items()}

    def end_s(end: End) -> float:
        return float(times.seconds(end[0], stop_us[end[0]][end[1]]))

    messages = [(sent[0], received[0], end_s(sent), end_s(received)) for sent, received in met.messages]
    ends = [
        (number, end[0], end_s(end))
        for number, members in enumerate(met.collectives)
        if len(members) > 1 and what_of[members[0]] in END_TOGETHER
        for end in members
    ]
    of_messages = Ends.of_messages(*zip(*messages, strict=True)) if messages else Ends()
    return of_messages | (Ends.of_collectives(*zip(*ends, strict=True)) if ends else Ends())


def _meet(times: Times, met: Together, notes: Notebook) -> None:
    """Give every rendezvous a number, but one that a member had left before another came."""
    apart_s, alone = 0.0, 0
    for members in (*met.collectives, *met.messages):
        starts_s = [times.start_s[rank][at] for rank, at in members]
        ends_s = [times.end_s[rank][at] for rank, at in members]
        if min(ends_s) < max(starts_s):
            alone += 1
            continue
        number = len(times.key)
        for rank, at in members:
            times.key[rank, at] = number
        apart_s = max(apart_s, max(ends_s) - min(ends_s))
    if apart_s > _WORTH_SAYING_S:
        text = f"members of a communication ended up to {format_time(apart_s)} apart; it is taken to end with the first"
        notes.assume("ends-apart", text, None)
    if alone:
        text = (
            f"{counted(alone, 'communication')} ended on a rank before another had begun it, which a broadcast or a "
            "small message can; each keeps its time and waits for no other rank"
        )
        notes.assume("ended-before-all-began", text, None)
