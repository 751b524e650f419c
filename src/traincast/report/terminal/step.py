"""A simulated step for people: the step time first, then where it goes, then why."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from traincast.analysis.comparison import compare
from traincast.analysis.gpu_time import GpuTime, StreamIdle
from traincast.analysis.summary import OtherLayout, Suggestion
from traincast.job.facts import JobFacts
from traincast.report.suggestions import meaning
from traincast.report.terminal import layout as ui
from traincast.report.terminal.advice import advice
from traincast.report.terminal.assumptions import parted
from traincast.report.terminal.comparison import Differences, finish_times, parts
from traincast.report.terminal.explanation import analysis
from traincast.report.terminal.header import facts
from traincast.report.terminal.slowdown import slowdown
from traincast.report.terminal.training_run import training_run
from traincast.simulation.other_layouts import DEGREES
from traincast.simulation.result import BREAKDOWN_KEYS, Result
from traincast.simulation.result_records import (
    BlockResult,
    CollectiveResult,
    RankResult,
    StragglerResult,
    WhatIfResult,
)
from traincast.simulation.sides import replayed_side, simulated_side
from traincast.units import format_share, format_size, format_time

_BAR_WIDTH = 36
_SHOWN_COLLECTIVES = 8
_ALIKE_STAGES = 0.005
"""Share of the step by which the computation and the exposed communication of like stages may differ."""
_SHORTEST_RUN = 3
"""Like stages that are one line."""


@ui.printed
def print_result(result: Result, *, analysed: bool = False, verbose: bool = False) -> ui.View:
    """Print a simulated step: its time, where the time goes, what would help, what to know about it.

    Its analysis is printed where asked (`analysed`), assumptions that hardly move it with `verbose`.
    """
    yield ui.text(f"Step {format_time(result.iteration_time_s)}", "bold")
    yield from facts(result)
    yield from training_run(result.training_run)
    yield from _breakdown(result)
    yield from advice(result.advice, result.iteration_time_s)
    yield from _suggestions(result)
    yield from _other_layouts(result)
    yield from _stages(result)
    yield from _blocks(result)
    yield from gpu_time(result.gpu_time)
    yield from _measured_run(result)
    yield from _collectives(result)
    yield from ui.section("Stragglers", _STRAGGLERS, result.stragglers)
    yield from slowdown(result.slowdown, result.causes)
    yield from _what_if(result)
    if analysed:
        yield from analysis(result)
    files = [each.path for each in result.inputs]
    assumptions, minor = parted(result)
    told = result.assumptions if verbose else assumptions
    yield from ui.diagnostics("Assumptions", told, files=files, in_full=verbose)
    if minor and not verbose:
        count = ui.number(len(minor), "more moves", "more move")
        yield ui.indented(f"{count} the step by less than 1 %; --verbose shows all, in full", "dim")
    elif not verbose and any(ui.in_brief(note) != note.text for note in told):
        yield ui.indented("--verbose shows them in full", "dim")
    yield from ui.diagnostics("Warnings", result.warnings, "yellow", files)


class BreakdownLine(NamedTuple):
    """A part of the step: its key in ``breakdown_s``, and how it is shown."""

    key: str
    name: str
    time_s: float
    time: str
    """In the unit of the largest."""
    share: str


def breakdown_lines(result: Result) -> list[BreakdownLine]:
    """Return where the time goes, a line for each part that takes any."""
    step_s, time_s = result.iteration_time_s, result.breakdown_s
    unit = ui.TimeUnit.from_largest(step_s)
    return [
        BreakdownLine(key, ui.spaced(key), time_s[key], unit.text(time_s[key]), ui.share(time_s[key], step_s))
        for key in BREAKDOWN_KEYS
        if time_s[key] != 0
    ]


def _breakdown(result: Result) -> ui.View:
    step_s = result.iteration_time_s
    columns: tuple[ui.Column[BreakdownLine], ...] = (
        ui.column("", "name", words=True),
        ui.column(ui.TimeUnit.from_largest(step_s).name, "time"),
        ui.column("share", "share"),
        ui.Column(" ", lambda each: ui.BLOCK * round(_BAR_WIDTH * each.time_s / step_s) if step_s else "", words=True),
    )
    yield ui.heading("Where the time goes")
    yield ui.table(columns, breakdown_lines(result))
    empty = [ui.spaced(key) for key in BREAKDOWN_KEYS if result.breakdown_s[key] == 0]
    if empty:
        yield ui.indented(f"none: {', '.join(empty)}", "dim")


def _suggestions(result: Result) -> ui.View:
    """Yield what would help most: of a job its sensitivities, of files changes, too; with what each saves."""
    unit = ui.TimeUnit.from_largest(result.iteration_time_s)

    def sure(each: Suggestion) -> str:
        if each.low_s == each.high_s:
            return "as given"
        return f"{unit.brief(each.low_s)} to {unit.brief(each.high_s)}"

    columns: tuple[ui.Column[Suggestion], ...] = (
        ui.column("change", "change", words=True),
        ui.column("means", "change", meaning, words=True, spare=1),
        ui.column(f"saves, {unit.name}", "saving_s", unit.text),
        ui.Column("share", lambda each: ui.share(each.saving_s, result.iteration_time_s)),
        ui.Column("90 % interval", sure),
    )
    title = "What would help most" if result.job is None else "If the hardware or the code were better"
    yield from ui.section(f"{title} (each alone; try them with --what-if)", columns, result.suggestions)


def _stages(result: Result) -> ui.View:
    """Yield a table with a line per stage; neighbours that compute and communicate alike are one, with their ranges."""
    last = _last_of_stages(result.ranks)
    if not last:
        return
    holds = result.job.stages if result.job is not None and _is_uneven(result.job) else ()
    kinds = [holds[rank.stage] for rank in last] if holds else [""] * len(last)
    times_s = [(rank.compute_s, _rest(rank)[0]) for rank in last]
    lines = _alike(times_s, kinds, _ALIKE_STAGES * result.iteration_time_s)
    unit = ui.TimeUnit.from_largest(result.iteration_time_s)

    def times(of: Callable[[RankResult], float]) -> Callable[[range], str]:
        return lambda run: _span([of(last[at]) for at in run], unit.text, unit.brief)

    columns: list[ui.Column[range]] = [
        ui.Column("stage", lambda run: _span([last[at].stage for at in run], str)),
        ui.Column("rank", lambda run: _span([last[at].rank for at in run], str), spare=1),
        ui.Column("compute", times(lambda rank: rank.compute_s)),
        ui.Column("exposed comm", times(lambda rank: _rest(rank)[0])),
        ui.Column("bubble", times(lambda rank: _rest(rank)[1]), spare=3),
        ui.Column("other", times(lambda rank: _rest(rank)[2]), spare=2),
        ui.Column("finish", times(lambda rank: rank.end_s)),
    ]
    if holds:
        columns.insert(2, ui.Column("holds", lambda run: kinds[run.start], words=True))
    if any(_peak(result, rank.stage) is not None for rank in last):
        columns.append(ui.Column("peak memory", lambda run: _peaks(result, [last[at].stage for at in run])))
    yield from ui.section(f"Stages, {unit.name} (for each, the rank that finishes last)", columns, lines)


def _is_uneven(job: JobFacts) -> bool:
    """Say whether stages differ by more than embedding and loss: by their layers, or by MTP layers."""
    return len(job.stages) > 1 and (len(set(job.stage_layers)) > 1 or "m" in job.pipeline_layout)


def _alike(times: Sequence[tuple[float, ...]], kinds: Sequence[str], within_s: float) -> list[range]:
    """Return runs of neighbouring lines of one kind with the times of the first one; short runs are single lines."""
    runs: list[range] = []
    start = 0
    for at in range(1, len(times) + 1):
        same = at < len(times) and kinds[at] == kinds[start]
        if same and all(abs(a - b) <= within_s for a, b in zip(times[start], times[at], strict=True)):
            continue
        whole = at - start >= _SHORTEST_RUN
        runs.extend([range(start, at)] if whole else [range(each, each + 1) for each in range(start, at)])
        start = at
    return runs


def _span(values: Sequence[float], whole: Callable[[Any], str], brief: Callable[[Any], str] = str) -> str:
    """Return the lowest and the highest of some values, in brief; one of them in whole where they look alike."""
    low, high = brief(min(values)), brief(max(values))
    return whole(max(values)) if low == high else f"{low}-{high}"


def _peaks(result: Result, stages: Sequence[int]) -> str:
    known = [peak for peak in (_peak(result, stage) for stage in stages) if peak is not None]
    if not known:
        return ""
    low, high = format_size(min(known)), format_size(max(known))
    same_unit = low.split()[-1] == high.split()[-1]
    return high if low == high else f"{low.split()[0] if same_unit else low}-{high}"


def _last_of_stages(ranks: Sequence[RankResult]) -> list[RankResult]:
    # The later of equal keys counts, and it is the lowest of the ranks that end last.
    last = {rank.stage: rank for rank in sorted(ranks, key=lambda rank: (rank.end_s, -rank.rank))}
    return [last[stage] for stage in sorted(last)]


def _rest(rank: RankResult) -> tuple[float, float, float]:
    """Exposed communication, bubble and other of a rank, in seconds."""
    exposed_s = sum(rank.breakdown_s[key] for key in BREAKDOWN_KEYS if key.startswith("exposed_"))
    return exposed_s, rank.breakdown_s["bubble"], rank.breakdown_s["other"]


def _peak(result: Result, stage: int) -> float | None:
    if result.memory_bytes is None or stage >= len(result.memory_bytes):
        return None
    return result.memory_bytes[stage].peak


_ENDS, _USUAL_KINDS = ("embedding", "LM head"), 2
"""Blocks in no layer, and the kinds of blocks of a usual model: attention, and MLP or experts."""


def _blocks(result: Result) -> ui.View:
    """Yield a table of the blocks of the stage that they take longest on, where layers are of further kinds."""
    if len({each.block for each in result.blocks if each.block not in _ENDS}) <= _USUAL_KINDS:
        return
    taken_s = [0.0] * (1 + max(each.stage for each in result.blocks))
    for each in result.blocks:
        taken_s[each.stage] += each.count * (each.forward_s + each.backward_s)
    stage = max(range(len(taken_s)), key=lambda index: (taken_s[index], -index))
    shown = [each for each in result.blocks if each.stage == stage]
    unit = ui.TimeUnit.from_largest(max(each.backward_s for each in shown))
    columns: tuple[ui.Column[BlockResult], ...] = (
        ui.column("block", "block", words=True),
        ui.column("count", "count"),
        ui.column("forward", "forward_s", unit.text),
        ui.column("backward", "backward_s", unit.text),
        ui.Column("share", lambda each: ui.share(each.count * (each.forward_s + each.backward_s), taken_s[stage])),
    )
    yield from ui.section(f"Blocks of stage {stage}, {unit.name} (of one, for a microbatch)", columns, shown)


def gpu_time(times: Sequence[GpuTime]) -> ui.View:
    """Yield where the time of each GPU went, as profilers' tools define it."""
    if not times:
        return
    unit = ui.TimeUnit.from_largest(max(each.total_s for each in times))
    columns: tuple[ui.Column[GpuTime], ...] = (
        ui.column("rank", "rank"),
        ui.column("compute", "compute_s", unit.text),
        ui.column("exposed comm", "exposed_comm_s", unit.text),
        ui.column("exposed copy", "exposed_copy_s", unit.text),
        ui.column("idle", "idle_s", unit.text),
        ui.column("total", "total_s", unit.text),
        ui.column("comm", "comm_s", unit.text),
        ui.Column("overlapped", lambda each: "" if each.overlap is None else format_share(each.overlap, 1)),
    )
    hidden = ui.alike_runs([(each.compute_s, each.exposed_comm_s, each.idle_s) for each in times], times[0].total_s)
    yield from ui.section(f"GPU time, {unit.name} (as HTA and TraceLens define it)", columns, times, hidden)
    yield from ui.legend("rank", [each.rank for each in times], hidden)
    if len(times) == 1:
        yield from _pauses(times[0].streams)


def _pauses(streams: Sequence[StreamIdle]) -> ui.View:
    """Yield why each stream of a GPU paused."""
    unit = ui.TimeUnit.from_largest(max(each.host_wait_s + each.kernel_wait_s + each.other_s for each in streams))
    columns: tuple[ui.Column[StreamIdle], ...] = (
        ui.column("stream", "stream"),
        ui.column("host wait", "host_wait_s", unit.text),
        ui.column("kernel wait", "kernel_wait_s", unit.text),
        ui.column("other", "other_s", unit.text),
    )
    yield ui.heading(f"Pauses of streams, {unit.name} (as HTA defines them)")
    yield ui.table(columns, streams)


def _measured_run(result: Result) -> ui.View:
    """Yield when the measured ranks finished and the sums of their parts; nothing where none was measured."""
    replayed = replayed_side(result, "measured")
    if replayed is None or not replayed.end_s:
        return
    comparison = compare(replayed, simulated_side(result, "simulated"))
    sides = Differences.from_comparison(comparison, "measured", "simulated")
    yield ui.heading(f"Measured and simulated: finish times of the ranks, {sides.unit.name}")
    yield from finish_times(comparison, sides, stage_of={rank.rank: rank.stage for rank in result.ranks})
    if comparison.parts:
        yield from parts(comparison, sides, "Measured and simulated")
    unmeasured = dict.fromkeys(part for alone in comparison.only_b.part_s.values() for part in alone)
    named = [part for part in unmeasured if part not in comparison.parts]
    if named:
        yield ui.indented(f"only simulated: {', '.join(named)}", "dim")


_COLLECTIVES: tuple[ui.Column[CollectiveResult], ...] = (
    ui.column("group", "group", words=True),
    ui.column("operation", "op", ui.operation, words=True),
    ui.column("size", "size_bytes", format_size),
    ui.Column("ranks/\nnodes", lambda each: f"{each.ranks}/{each.nodes}", spare=3),
    ui.column("count", "count", ui.count),
    ui.column("each", "time_s", format_time, spare=1),
    ui.Column("total", lambda each: format_time(_total_s(each))),
    ui.Column("algo", lambda each: " ".join(filter(None, (each.algorithm, each.protocol))), words=True, spare=2),
)


def _collectives(result: Result) -> ui.View:
    """Yield the communications that take the longest in all, and how much the others take."""
    if not result.collectives:
        return
    longest = sorted(result.collectives, key=_total_s, reverse=True)
    yield from ui.section(
        "Communication (transfer time, overlapped or exposed)", _COLLECTIVES, longest[:_SHOWN_COLLECTIVES]
    )
    others = longest[_SHOWN_COLLECTIVES:]
    if others:
        yield ui.indented(f"and {len(others):,} more, {format_time(sum(map(_total_s, others)))} in all", "dim")


_STRAGGLERS: tuple[ui.Column[StragglerResult], ...] = (
    ui.Column("rank", lambda each: str(each.rank)),
    ui.Column("stage", lambda each: str(each.stage)),
    ui.Column("slowdown", lambda each: f"{each.slowdown:.2f}x"),
    ui.Column("step-time impact", lambda each: format_time(each.cost_s)),
)


def _other_layouts(result: Result) -> ui.View:
    """Yield the step of each other layout that the files allow; degrees that all have are left out."""
    unit = ui.TimeUnit.from_largest(result.iteration_time_s)
    taken = result.parallel
    open_ = [
        name for name in DEGREES if any(getattr(each, name) != getattr(taken, name) for each in result.other_layouts)
    ]
    columns: tuple[ui.Column[OtherLayout], ...] = (
        *(ui.column(name, name, str) for name in open_),
        ui.column("ranks", "gpus", str),
        ui.column(f"step, {unit.name}", "iteration_time_s", unit.text),
    )
    yield from ui.section("Other layouts that the files allow (flags decide)", columns, result.other_layouts)


def _what_if(result: Result) -> ui.View:
    """Yield what each change that was tried makes of the step."""
    unit = ui.TimeUnit.from_largest(result.iteration_time_s)

    def sure(each: WhatIfResult) -> str:
        if each.saving_low_s is None or each.saving_high_s is None:
            return ""
        return f"{unit.brief(each.saving_low_s)} to {unit.brief(each.saving_high_s)}"

    columns: tuple[ui.Column[WhatIfResult], ...] = (
        ui.Column("change", lambda each: each.change, words=True),
        ui.column(f"step, {unit.name}", "iteration_time_s", unit.text),
        ui.column(f"saves, {unit.name}", "saving_s", unit.text),
        *([ui.Column("90 % interval", sure)] if any(each.saving_low_s is not None for each in result.what_if) else []),
    )
    yield from ui.section("What if", columns, result.what_if)


def _total_s(entry: CollectiveResult) -> float:
    return entry.count * entry.time_s
