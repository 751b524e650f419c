"""The pipeline's stages, one line each: the rank that ends last speaks for its stage."""

from collections.abc import Iterator, Sequence

from rich.console import RenderableType

from traincast.report.terminal.parts import TimeUnit, heading, indented, table, text
from traincast.simulation.result import BREAKDOWN_KEYS, RankResult, Result
from traincast.units import format_size

_LONGEST_RUN = 16
_KEPT = 2
_ALIKE = 0.01
"""Stages are alike if their numbers differ by less than this share of the step."""


def stages(result: Result) -> Iterator[RenderableType]:
    """Yield a table with a line per stage, long runs of like stages elided."""
    last = [ranks for ranks in _last_of_stages(result.ranks) if ranks]
    if not last:
        return
    hidden = _elided(last, _ALIKE * result.iteration_time_s)
    unit = TimeUnit.of(result.iteration_time_s)
    has_memory = any(_peak(result, rank.stage) for rank in last)
    headings = ["stage", "rank", "compute", "exposed comm", "bubble", "other", "end"]
    rows: list[list[str]] = []
    for position, rank in enumerate(last):
        run = next((run for run in hidden if position in run), None)
        if run is None:
            times = [rank.compute_s, *_rest(rank), rank.end_s]
            cells = [str(rank.stage), str(rank.rank), *(unit.text(time_s) for time_s in times)]
            rows.append(cells + [_peak(result, rank.stage)] * has_memory)
        elif position == run.start:
            rows.append(["..."] + [""] * (len(headings) - 1 + has_memory))
    yield heading(f"Stages, {unit.name} (of each the rank that ends last)")
    yield table(headings + ["peak memory"] * has_memory, rows)
    for run in hidden:
        model, first, final = (last[position].stage for position in (run.start - _KEPT, run.start, run.stop - 1))
        told = f"... stages {first} to {final} are like stage {model}, within {_ALIKE:.0%} of the step"
        yield indented(text(told.replace("%", " %"), "dim"))


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


def _elided(last: Sequence[RankResult], tolerance_s: float) -> list[range]:
    """Return the positions to leave out: the middles of long runs of like stages."""
    hidden, start = [], 0
    for position in range(1, len(last) + 1):
        if position < len(last) and _alike(last[start], last[position], tolerance_s):
            continue
        if position - start > _LONGEST_RUN:
            hidden.append(range(start + _KEPT, position - _KEPT))
        start = position
    return hidden


def _alike(one: RankResult, other: RankResult, tolerance_s: float) -> bool:
    pairs = zip((one.compute_s, *_rest(one)), (other.compute_s, *_rest(other)), strict=True)
    return all(abs(a - b) <= tolerance_s for a, b in pairs)


def _peak(result: Result, stage: int) -> str:
    if result.memory_bytes is None or stage >= len(result.memory_bytes):
        return ""
    peak = result.memory_bytes[stage].get("peak")
    return "" if peak is None else format_size(peak)
