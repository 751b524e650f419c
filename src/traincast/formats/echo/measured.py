"""What a run measured, to be shown beside the simulated step."""

from collections import defaultdict
from collections.abc import Mapping

from traincast.formats.echo.clocks import Alignment, fused_pairs
from traincast.formats.echo.files import RankTrace
from traincast.workload.workload import MeasuredRun


def measured_run(traces: Mapping[int, RankTrace], alignment: Alignment) -> MeasuredRun | None:
    """Return the measured step, ends and parts of a run; None where no operation has a time.

    Times are seconds from the first start of any rank; of a fused exchange the second line says
    the same again and is left out.
    """
    end_s: dict[int, float] = {}
    part_s: dict[int, dict[str, float]] = {}
    starts = []
    for rank, trace in traces.items():
        repeated = {second for _, second in fused_pairs(trace.ops)}
        parts: dict[str, float] = defaultdict(float)
        now_s = alignment.offset_s[rank]
        for index, op in enumerate(trace.ops):
            if op.start_s is None or op.end_s is None:
                continue
            starts.append(op.start_s - alignment.offset_s[rank])
            end_s[rank] = max(end_s.get(rank, 0.0), op.end_s - alignment.offset_s[rank])
            if index not in repeated:
                parts[op.op] += op.duration_s or 0.0
                parts["host_gap"] += max(0.0, op.start_s - now_s)
            now_s = op.end_s
        part_s[rank] = dict(parts)
    if not starts:
        return None
    first_s = min(starts)
    return MeasuredRun(max(end_s.values()) - first_s, {rank: end - first_s for rank, end in end_s.items()}, part_s)
