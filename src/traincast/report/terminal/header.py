"""The head of a step for people: what ran where, how certain its time is, and the rates that follow, a line each."""

from collections.abc import Iterator

from traincast.job.parallel import DEGREES
from traincast.report.terminal import layout as ui
from traincast.report.terminal.comparison import utilisation
from traincast.simulation.memory_risk import memory_risk
from traincast.simulation.result import Result
from traincast.simulation.result_records import ClusterFacts
from traincast.units import format_count, format_share, format_time

_DAY_S = 86_400.0

Fact = tuple[str, str]
"""What it is, and what it says."""


def facts(result: Result) -> ui.View:
    """Yield what is known of a step in addition to its time."""
    yield ui.facts(facts_of(result))


def facts_of(result: Result) -> list[Fact]:
    """Return what is known of a step in addition to its time, a line each."""
    parts = (_job, _layout, _memory, _measured, _interval, _rates, _spread, _goodput)
    return [fact for part in parts for fact in part(result)]


def _job(result: Result) -> Iterator[Fact]:
    """Model, precision, framework, sequence and batch of a forecast."""
    job = result.job
    if job is None:
        return
    task = "" if job.task == "pretrain" else f", {job.task}"
    yield "model", f"{job.model}{task}, {job.precision}; framework {job.framework}"
    yield "batch", f"{job.global_batch:,} sequences of {job.seq_length:,} tokens; micro batch {job.micro_batch:,}"


def _layout(result: Result) -> Iterator[Fact]:
    """Ranks, degrees above one, microbatches, schedule, cluster: what the input says of them."""
    layout, cluster = result.parallel, result.cluster
    usual = {"etp": layout.tp}
    degrees = [f"{name} {degree}" for name in DEGREES if (degree := getattr(layout, name)) not in (1, usual.get(name))]
    ranks = ": ".join(filter(None, (ui.number(layout.world_size, "rank"), ", ".join(degrees))))
    microbatches = ui.number(layout.microbatches, "microbatch", "microbatches")
    yield "layout", f"{ranks}; {microbatches}; schedule {layout.schedule}"
    nodes = "" if cluster.gpus_used_per_node is None else f": {_nodes(cluster)}"
    yield "cluster", f"{cluster.name}{nodes}"


def _nodes(cluster: ClusterFacts) -> str:
    """Return what a job has of a cluster: ``64 nodes of 8 H100 SXM``."""
    return f"{ui.number(cluster.nodes, 'node')} of {cluster.gpus_used_per_node} {cluster.gpu}"


def _memory(result: Result) -> Iterator[Fact]:
    """Memory of the stage that needs most, and whether that fits."""
    risk = memory_risk(result)
    if risk is not None:
        yield "memory", risk.text


def _measured(result: Result) -> Iterator[Fact]:
    if result.measured_s is None:
        return
    difference = result.iteration_time_s / result.measured_s - 1 if result.measured_s else 0.0
    side = "above" if difference >= 0 else "below"
    yield "measured", f"{format_time(result.measured_s)}; the simulation is {format_share(abs(difference))} {side}"


def _interval(result: Result) -> Iterator[Fact]:
    if result.interval is None:
        return
    low, high = format_time(result.interval.low_s), format_time(result.interval.high_s)
    yield "interval", f"{low} to {high} ({format_share(result.interval.level, 0)})"


def _rates(result: Result) -> Iterator[Fact]:
    """Return tokens of all GPUs, and the figures that Megatron-LM and torchtitan log, in their units."""
    per_gpu, gpus = result.tokens_per_s_per_gpu, result.parallel.world_size
    if per_gpu is not None:
        of_all = f"{per_gpu * gpus:,.0f} a second, {format_count(per_gpu * gpus * _DAY_S)} a day; "
        yield "tokens", f"{of_all}{per_gpu:,.0f} tokens/s/GPU"
    if result.tflops_per_gpu is not None:
        model, hardware = result.tflops_per_gpu, _hardware_tflops(result)
        more = "" if hardware is None or f"{hardware:.1f}" == f"{model:.1f}" else f", {hardware:,.1f} with recompute"
        yield "FLOP/s", f"{model:,.1f} TFLOP/s/GPU of the model{more}"
    dtype = result.mfu_peak.dtype if result.mfu_peak else None
    shares = utilisation(result.mfu, result.hfu, dtype, result.mfu_16_bit, result.hfu_16_bit)
    if shares:
        label = shares.split()[0]
        yield label, shares.removeprefix(f"{label} ")


def _hardware_tflops(result: Result) -> float | None:
    """Return the TFLOP/s of a GPU with what is recomputed; HFU is to it what MFU is to those of the model."""
    if result.tflops_per_gpu is None or result.hfu is None or not result.mfu:
        return None
    return result.tflops_per_gpu * result.hfu / result.mfu


def _spread(result: Result) -> Iterator[Fact]:
    """Return how the step spreads with jitter."""
    told = result.variability
    if told is None:
        return
    low, mean, high = map(format_time, (told.p05_s, told.mean_s, told.p95_s))
    yield "jitter", f"{format_share(told.jitter)}: mean {mean}, 90 % from {low} to {high} ({told.seeds} seeds)"


def _goodput(result: Result) -> Iterator[Fact]:
    """Return how much of a long run is useful, and what that assumes."""
    told = result.goodput
    if told is None:
        return
    best = " (optimal)" if told.interval_s == told.optimal_interval_s else ""
    yield "goodput", f"{format_share(told.goodput)}, {format_time(told.useful_step_s)} for each step in the end"
    restarts = (
        f"one every {_long(told.mtbf_s)}, {_long(told.detection_s)} to detect and {_long(told.restart_s)} to restart"
    )
    yield "failures", restarts
    yield "checkpoints", f"of {_long(told.checkpoint_s)} every {_long(told.interval_s)}{best}"


def _long(time_s: float) -> str:
    """Write a long time for people."""
    for unit, scale in (("days", _DAY_S), ("h", 3600.0), ("min", 60.0)):
        if time_s >= 2 * scale:
            return f"{time_s / scale:.3g} {unit}"
    return format_time(time_s)
