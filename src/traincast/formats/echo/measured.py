"""What a run measured, to be shown beside the simulated step."""

from collections import defaultdict
from collections.abc import Mapping

from traincast.formats.echo.clocks import Alignment, fused_pairs
from traincast.formats.echo.files import RankTrace
from traincast.formats.echo.meetings import Meetings
from traincast.formats.echo.messages import Messages
from traincast.formats.echo.vocabulary import MESSAGES
from traincast.workload.workload import MeasuredRun


def measured_run(
    traces: Mapping[int, RankTrace], alignment: Alignment, meetings: Meetings, messages: Messages
) -> MeasuredRun | None:
    """Return the measured step, ends and parts of a run; None where no operation has a time.

    Times are seconds from the first start of any rank; of a fused exchange the second line says
    the same again and is left out. What a rank waited is known as far as the others were traced.
    """
    end_s: dict[int, float] = {}
    part_s: dict[int, dict[str, float]] = {}
    wait_s: dict[int, dict[str, float]] = {}
    starts = []
    for rank, trace in traces.items():
        second_of = dict(fused_pairs(trace.ops))
        repeated = set(second_of.values())
        parts, waits = defaultdict[str, float](float), defaultdict[str, float](float)
        now_s = alignment.offset_s[rank]
        for index, op in enumerate(trace.ops):
            if op.start_s is None or op.end_s is None:
                continue
            starts.append(op.start_s - alignment.offset_s[rank])
            end_s[rank] = max(end_s.get(rank, 0.0), op.end_s - alignment.offset_s[rank])
            if index not in repeated:
                parts[op.op] += op.duration_s or 0.0
                parts["host_gap"] += max(0.0, op.start_s - now_s)
                together = [op, trace.ops[second_of[index]]] if index in second_of else [op]
                waits[op.op] += messages.wait_s(together, rank) if op.op in MESSAGES else meetings.wait_s(op, rank)
            now_s = op.end_s
        part_s[rank], wait_s[rank] = dict(parts), dict(waits)
    if not starts:
        return None
    first_s = min(starts)
    ends_s = {rank: end - first_s for rank, end in end_s.items()}
    return MeasuredRun(max(end_s.values()) - first_s, ends_s, part_s, wait_s)
