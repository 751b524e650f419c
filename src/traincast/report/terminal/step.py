"""A simulated step for people: the step time first, then where it goes, then why."""

from collections.abc import Sequence

from traincast.analysis.comparison import compare
from traincast.report.terminal.comparison import Differences, finish_times, parts, utilisation
from traincast.report.terminal.layout import (
    BLOCK,
    Column,
    TimeUnit,
    View,
    alike_runs,
    diagnostics,
    heading,
    indented,
    legend,
    number,
    operation,
    printed,
    share,
    table,
    text,
)
from traincast.simulation.result import (
    BREAKDOWN_KEYS,
    CollectiveResult,
    RankResult,
    Result,
    replayed_side,
    simulated_side,
)
from traincast.units import format_size, format_time

_BAR_WIDTH = 36
_DEGREES = ("tp", "cp", "ep", "etp", "pp", "vpp", "dp")
_SHOWN_COLLECTIVES = 8


@printed
def print_result(result: Result) -> View:
    """Print a simulated step: its time, where the time goes, and what to know about it."""
    yield text(f"Step {format_time(result.iteration_time_s)}", "bold")
    for line in (_job(result), _layout(result), _measured(result), _interval(result), _efficiency(result)):
        if line:
            yield text(line)
    yield from _breakdown(result)
    yield from _stages(result)
    yield from _measured_run(result)
    yield from _collectives(result)
    yield from _stragglers(result)
    yield from _what_if(result)
    files = [each.path for each in result.inputs]
    yield from diagnostics("Assumptions", result.assumptions, files=files)
    yield from diagnostics("Warnings", result.warnings, "yellow", files)


def _job(result: Result) -> str:
    """Model, sequence, batch, precision and framework of a forecast."""
    job = result.job
    if job is None:
        return ""
    return (
        f"{job.model}: sequences of {job.seq_length:,} tokens, global batch {job.global_batch:,}, micro batch "
        f"{job.micro_batch:,}; {job.precision}; framework {job.framework}"
    )


def _layout(result: Result) -> str:
    """Ranks, degrees above one, microbatches, schedule, cluster: what the input says of them."""
    layout = result.parallel
    usual = {"etp": layout.get("tp", 1)}
    degrees = [f"{name} {layout[name]}" for name in _DEGREES if layout.get(name, 1) not in (1, None, usual.get(name))]
    said = []
    if "world_size" in layout:
        said.append(": ".join(filter(None, (number(int(layout["world_size"]), "rank"), ", ".join(degrees)))))
    if "microbatches" in layout:
        said.append(number(int(layout["microbatches"]), "microbatch", "microbatches"))
    if "schedule" in layout:
        said.append(f"schedule {layout['schedule']}")
    if "name" in result.cluster:
        said.append(f"cluster {result.cluster['name']}")
    return "; ".join(said)


def _measured(result: Result) -> str:
    if result.measured_s is None:
        return ""
    difference = result.iteration_time_s / result.measured_s - 1 if result.measured_s else 0.0
    side = "above" if difference >= 0 else "below"
    return f"Measured {format_time(result.measured_s)}; the simulation is {100 * abs(difference):.1f} % {side}"


def _interval(result: Result) -> str:
    if result.interval is None:
        return ""
    low, high = (format_time(result.interval[key]) for key in ("low_s", "high_s"))
    return f"Between {low} and {high} ({100 * result.interval['level']:.0f} % interval)"


def _efficiency(result: Result) -> str:
    """Return the figures that Megatron-LM and torchtitan log, in their units."""
    known = []
    if result.tflops_per_gpu is not None:
        known.append(f"{result.tflops_per_gpu:,.1f} TFLOP/s/GPU")
    if result.tokens_per_s_per_gpu is not None:
        known.append(f"{result.tokens_per_s_per_gpu:,.0f} tokens/s/GPU")
    dtype = result.mfu_peak.dtype if result.mfu_peak else None
    known.append(utilisation(result.mfu, result.hfu, dtype, result.mfu_16_bit, result.hfu_16_bit))
    return ", ".join(filter(None, known))


def _breakdown(result: Result) -> View:
    step_s, time_s = result.iteration_time_s, result.breakdown_s
    unit = TimeUnit.of(step_s)
    columns: tuple[Column[str], ...] = (
        Column("", _spaced, words=True),
        Column(unit.name, lambda key: unit.text(time_s[key])),
        Column("share", lambda key: share(time_s[key], step_s)),
        Column(" ", lambda key: BLOCK * round(_BAR_WIDTH * time_s[key] / step_s) if step_s else "", words=True),
    )
    yield heading("Where the time goes")
    yield table(columns, [key for key in BREAKDOWN_KEYS if time_s[key] != 0])
    empty = [_spaced(key) for key in BREAKDOWN_KEYS if time_s[key] == 0]
    if empty:
        yield indented(f"none: {', '.join(empty)}", "dim")


def _stages(result: Result) -> View:
    """Yield a table with a line per stage, long runs of like stages elided; its last rank speaks for a stage."""
    last = _last_of_stages(result.ranks)
    if not last:
        return
    hidden = alike_runs([(rank.compute_s, *_rest(rank)) for rank in last], result.iteration_time_s)
    unit = TimeUnit.of(result.iteration_time_s)
    columns: list[Column[RankResult]] = [
        Column("stage", lambda rank: str(rank.stage)),
        Column("rank", lambda rank: str(rank.rank)),
        Column("compute", lambda rank: unit.text(rank.compute_s)),
        Column("exposed comm", lambda rank: unit.text(_rest(rank)[0])),
        Column("bubble", lambda rank: unit.text(_rest(rank)[1])),
        Column("other", lambda rank: unit.text(_rest(rank)[2])),
        Column("finish", lambda rank: unit.text(rank.end_s)),
    ]
    if any(_peak(result, rank.stage) for rank in last):
        columns.append(Column("peak memory", lambda rank: _peak(result, rank.stage)))
    yield heading(f"Stages, {unit.name} (of each the rank that finishes last)")
    yield table(columns, last, hidden)
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


def _measured_run(result: Result) -> View:
    """Yield when the measured ranks finished and the sums of their parts; nothing where none was measured."""
    replayed = replayed_side(result, "measured")
    if replayed is None or not replayed.end_s:
        return
    comparison = compare(replayed, simulated_side(result, "simulated"))
    sides = Differences.of(comparison, "measured", "simulated")
    yield heading(f"Measured and simulated: finish times of the ranks, {sides.unit.name}")
    yield from finish_times(comparison, sides, stage_of={rank.rank: rank.stage for rank in result.ranks})
    if comparison.parts:
        yield from parts(comparison, sides, "Measured and simulated")
    unmeasured = dict.fromkeys(part for alone in comparison.only_b.part_s.values() for part in alone)
    named = [part for part in unmeasured if part not in comparison.parts]
    if named:
        yield indented(f"only simulated: {', '.join(named)}", "dim")


_COLLECTIVES: tuple[Column[CollectiveResult], ...] = (
    Column("group", lambda each: each.group, words=True),
    Column("operation", lambda each: operation(each.op), words=True),
    Column("size", lambda each: format_size(each.size_bytes)),
    Column("ranks/\nnodes", lambda each: f"{each.ranks}/{each.nodes}", spare=3),
    Column("count", lambda each: f"{each.count:,}"),
    Column("each", lambda each: format_time(each.time_s), spare=1),
    Column("total", lambda each: format_time(_total_s(each))),
    Column("algo", lambda each: " ".join(filter(None, (each.algorithm, each.protocol))), words=True, spare=2),
)


def _collectives(result: Result) -> View:
    """Yield the communications that take the longest in all, and how much the others take."""
    if not result.collectives:
        return
    longest = sorted(result.collectives, key=_total_s, reverse=True)
    yield heading("Communication (transfer time, overlapped or exposed)")
    yield table(_COLLECTIVES, longest[:_SHOWN_COLLECTIVES])
    others = longest[_SHOWN_COLLECTIVES:]
    if others:
        yield indented(f"and {len(others):,} more, {format_time(sum(map(_total_s, others)))} in all", "dim")


_STRAGGLERS: tuple[Column[dict[str, int | float]], ...] = (
    Column("rank", lambda each: f"{each['rank']:.0f}"),
    Column("stage", lambda each: f"{each['stage']:.0f}"),
    Column("slowdown", lambda each: f"{each['slowdown']:.2f}x"),
    Column("step-time impact", lambda each: format_time(each["cost_s"])),
)


def _stragglers(result: Result) -> View:
    if result.stragglers:
        yield heading("Stragglers")
        yield table(_STRAGGLERS, result.stragglers)


_WHAT_IF: tuple[Column[dict[str, object]], ...] = (
    Column("change", lambda each: str(each["change"]), words=True),
    Column("step", lambda each: _time(each["iteration_time_s"])),
    Column("saves", lambda each: _time(each["saving_s"])),
)


def _what_if(result: Result) -> View:
    """Yield what the step would take after each change; nothing where none was asked for."""
    if result.what_if:
        yield heading("What if")
        yield table(_WHAT_IF, result.what_if)


def _spaced(name: str) -> str:
    return name.replace("_", " ")


def _total_s(entry: CollectiveResult) -> float:
    return entry.count * entry.time_s


def _time(value: object) -> str:
    return format_time(value) if isinstance(value, int | float) else ""
