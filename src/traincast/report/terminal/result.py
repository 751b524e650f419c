"""A simulated step for people: the step time first, then where it goes, then why."""

from collections.abc import Iterator

from rich.console import RenderableType

from traincast.report.terminal.findings import collectives, stragglers, what_if
from traincast.report.terminal.measured import measured
from traincast.report.terminal.parts import TimeUnit, heading, indented, notes, number, percent, table, text
from traincast.report.terminal.stages import stages
from traincast.report.terminal.utilisation import utilisation
from traincast.simulation.result import BREAKDOWN_KEYS, Result
from traincast.units import format_time

_BAR_WIDTH = 36
_DEGREES = ("tp", "cp", "ep", "etp", "pp", "vpp", "dp")


def view(result: Result, *, ascii_only: bool) -> Iterator[RenderableType]:
    """Yield what to print of a result, from the step time to the warnings.

    Parameters
    ----------
    result : Result
        The simulated step.
    ascii_only : bool
        Whether the terminal cannot show block characters.
    """
    yield text(f"Step {format_time(result.iteration_time_s)}", "bold")
    for line in (_job(result), _layout(result), _measured(result), _interval(result), _efficiency(result)):
        if line:
            yield text(line)
    yield from _breakdown(result, "#" if ascii_only else "\u2588")
    yield from stages(result)
    yield from measured(result)
    yield from collectives(result)
    yield from stragglers(result)
    yield from what_if(result)
    files = [each.path for each in result.inputs]
    yield from notes("Assumptions", result.assumptions, files=files)
    yield from notes("Warnings", result.warnings, "yellow", files)


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
    parts = []
    if "world_size" in layout:
        parts.append(": ".join(filter(None, (number(int(layout["world_size"]), "rank", "ranks"), ", ".join(degrees)))))
    if "microbatches" in layout:
        parts.append(number(int(layout["microbatches"]), "microbatch", "microbatches"))
    if "schedule" in layout:
        parts.append(f"schedule {layout['schedule']}")
    if "name" in result.cluster:
        parts.append(f"cluster {result.cluster['name']}")
    return "; ".join(parts)


def _measured(result: Result) -> str:
    if result.measured_s is None:
        return ""
    difference = result.iteration_time_s / result.measured_s - 1 if result.measured_s else 0.0
    side = "above" if difference >= 0 else "below"
    return f"Measured {format_time(result.measured_s)}; the simulation is {abs(difference):.1%} {side}".replace(
        "%", " %"
    )


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


def _breakdown(result: Result, block: str) -> Iterator[RenderableType]:
    step_s = result.iteration_time_s
    unit = TimeUnit.of(step_s)
    rows, empty = [], []
    for key in BREAKDOWN_KEYS:
        time_s, label = result.breakdown_s[key], key.replace("_", " ")
        if time_s == 0:
            empty.append(label)
            continue
        bar = block * round(_BAR_WIDTH * time_s / step_s) if step_s else ""
        rows.append((label, unit.text(time_s), percent(time_s, step_s), bar))
    yield heading("Where the time goes")
    yield table(("", unit.name, "share", " "), rows, labels=("", " "))
    if empty:
        yield indented(text(f"none: {', '.join(empty)}", "dim"))
