"""The pipeline's stages, one line each: the rank that ends last speaks for its stage."""

from collections.abc import Iterator, Sequence

from rich.console import RenderableType

from traincast.report.terminal.parts import TimeUnit, heading, table
from traincast.report.terminal.runs import ALIKE, hidden_runs, legend, shorten
from traincast.simulation.result import BREAKDOWN_KEYS, RankResult, Result
from traincast.units import format_size


def stages(result: Result) -> Iterator[RenderableType]:
    """Yield a table with a line per stage, long runs of like stages elided."""
    last = _last_of_stages(result.ranks)
    if not last:
        return
    hidden = hidden_runs([(rank.compute_s, *_rest(rank)) for rank in last], ALIKE * result.iteration_time_s)
    unit = TimeUnit.of(result.iteration_time_s)
    has_memory = any(_peak(result, rank.stage) for rank in last)
    headings = ["stage", "rank", "compute", "exposed comm", "bubble", "other", "end"]
    rows = []
    for rank in last:
        times = (rank.compute_s, *_rest(rank), rank.end_s)
        cells = [str(rank.stage), str(rank.rank), *(unit.text(time_s) for time_s in times)]
        rows.append(cells + [_peak(result, rank.stage)] * has_memory)
    yield heading(f"Stages, {unit.name} (of each the rank that ends last)")
    yield table(headings + ["peak memory"] * has_memory, shorten(rows, hidden))
    yield from legend("stage", [rank.stage for rank in last], hidden)


def _last_of_stages(ranks: Sequence[RankResult]) -> list[RankResult]:
    last: dict[int, RankResult] = {}
    for rank in sorted(ranks, key=lambda rank: rank.rank):
        if rank.stage not in last or rank.end_s > last[rank.stage].end_s:
            last[rank.stage] = rank
    return [last[stage] for stage in sorted(last)]


def _rest(rank: RankResult) -> tuple[float, float, float]:
    """Exposed communication, bubble and other of a rank, in seconds."""
    exposed_s = sum(rank.breakdown_s[key] for key in BREAKDOWN_KEYS if key.startswith("exposed_"))
    return exposed_s, rank.breakdown_s["bubble"], rank.breakdown_s["other"]


def _peak(result: Result, stage: int) -> str:
    if result.memory_bytes is None or stage >= len(result.memory_bytes):
        return ""
    peak = result.memory_bytes[stage].get("peak")
    return "" if peak is None else format_size(peak)
