"""Small workloads for the tests of the core: AICB files, clusters, and workloads made by hand."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from hypothesis import strategies as st
from msgspec.structs import replace

from traincast.engine import run
from traincast.engine.graph import build_graph
from traincast.hardware.cluster import Cluster
from traincast.hardware.fabric import fabric_of, fabric_values
from traincast.job.job import Job
from traincast.job.options import OVERLAP_CLASSES, StepOptions
from traincast.job.parallel import Parallel
from traincast.schedules.plan import SchedulePlan
from traincast.schedules.schedule import SCHEDULES
from traincast.schedules.slots import SlotKind
from traincast.simulation import forecast as job_forecast
from traincast.simulation import job_step
from traincast.simulation.job_step import JobStep
from traincast.simulation.result import Result
from traincast.simulation.step import Setting
from traincast.workload.builder import WorkloadBuilder
from traincast.workload.expand import expand
from traincast.workload.groups import rank_groups, unfolded
from traincast.workload.ops import Op, OpTable
from traincast.workload.program import Program, Timeline
from traincast.workload.words import STREAM_OF_GROUP, Group, Kind, Operation, Phase, Stream
from traincast.workload.workload import Workload

ALONE = {"overlap_slowdown": dict.fromkeys(OVERLAP_CLASSES, 0.0), "network": "analytical"}
"""Options under which nothing that runs side by side slows anything else down."""

QUIET = (0, "NONE", 0)
"""An AICB cell of no time and no communication."""


def row(name, forward=QUIET, input_grad=QUIET, weight_grad=QUIET, process_ns=0):
    """Write a row of an AICB file; a cell is (compute ns, token, bytes), or the compute time alone."""
    cells = [cell if isinstance(cell, tuple) else (cell, "NONE", 0) for cell in (forward, input_grad, weight_grad)]
    fields = [name, -1, *(value for cell in cells for value in cell), process_ns]
    return "\t".join(str(value) for value in fields)


def write_aicb(path, rows, *, tp=1, ep=1, pp=1, vpp=1, ga=1, gpus=None, pp_comm=0, more=""):
    """Write an AICB file and return its path; `gpus` None is one rank for each tp and stage."""
    header = (
        f"HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: {tp} ep: {ep} pp: {pp} vpp: {vpp} ga: {ga} "
        f"all_gpus: {gpus or tp * pp} {more} checkpoints: 0 checkpoint_initiates: 0 pp_comm: {pp_comm}"
    )
    path.write_text("\n".join([header, str(len(rows)), *rows]) + "\n", encoding="utf-8")
    return path


def pipeline_rows(f_ns, b_ns, microbatches, layers=1):
    """Return rows of a stage whose forward takes f_ns and whose whole backward takes b_ns, communicating nothing."""
    layer = row("attention_layer", f_ns / layers, b_ns / layers / 4, b_ns / layers * 3 / 4)
    return [row("embedding_layer"), *[layer] * layers] * microbatches


def write_pipeline(path, *, f_ns, b_ns, p, v=1, m=1, message_bytes=1, layers=None):
    """Write a pipeline of P equal stages that takes f_ns + b_ns per stage and microbatch."""
    rows = pipeline_rows(f_ns, b_ns, m, layers or v)
    return write_aicb(path, rows, pp=p, vpp=v, ga=m, pp_comm=message_bytes)


def rich_rows(microbatches=2, layers=2, scale=1.0, size=1 << 20):
    """Return rows over tp, ep, dp, edp and emb; times grow with `scale`, sizes with `size`."""
    f, s = round(90_000 * scale), size
    block = [
        row("embedding_layer", (f // 3, "ALLREDUCE", s), QUIET, (f // 4, "NONE", 0)),
        *[
            row("attention_column", (f, "ALLGATHER", s), (f, "REDUCESCATTER", s), (f, "ALLREDUCE_DP", s // 8), 100),
            row("attention_row", (f, "REDUCESCATTER", s), (f, "ALLGATHER", s), f, 100),
            row("mlp_moelayer", (f // 2, "ALLTOALL_EP", s), (f, "ALLTOALL_EP", s), (f, "REDUCESCATTER_DP_EP", s // 4)),
        ]
        * layers,
        row("final_column", (f // 2, "ALLREDUCE", s // 2), f // 2),
    ]
    leading = [
        row("grad_gather", QUIET, QUIET, (1, "ALLGATHER", 2 * s)),
        row("grad_param_comm", QUIET, QUIET, (1, "REDUCESCATTER", 4 * s)),
        row("grad_param_compute", QUIET, f, QUIET),
        row("embedding_grads", QUIET, (1, "ALLREDUCE", s), QUIET),
        row("moe_grad_norm1", QUIET, QUIET, (1, "ALLGATHER_DP_EP", s // 2)),
    ]
    trailing = [row("cross_entropy1", (1, "ALLREDUCE", 8192)), row("optimizer1", (f // 9, "ALLREDUCE", 4))]
    return [*leading, *block * microbatches, *trailing]


def write_cluster(path, base="h100", **sections):
    """Write a cluster file on top of a preset: ``gpus_per_node=4, intra={"base_latency_s": 1e-6}``."""
    lines = [f'base = "{base}"', 'description = "a cluster of the tests"']
    lines += [f"{key} = {str(value).lower()}" for key, value in sections.items() if not isinstance(value, dict)]
    for name, values in sections.items():
        if isinstance(values, dict):
            lines += [f"[{name}]", *(f"{key} = {value!r}" for key, value in values.items())]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


def compute(seconds, name="compute", phase=Phase.FORWARD, **more):
    """Return a computation."""
    return Op(name=name, kind=Kind.COMPUTE, phase=phase, duration_s=float(seconds), **more)


def collective(seconds, group=Group.TP, name="collective", *, blocking=True, size_bytes=8, **more):
    """Return a collective that takes so long once all its members are there."""
    operation = more.pop("operation", Operation.ALL_REDUCE)
    phase = more.pop("phase", Phase.FORWARD)
    return Op(
        name=name,
        kind=Kind.COLLECTIVE,
        phase=phase,
        blocking=blocking,
        stream=STREAM_OF_GROUP[group],
        duration_s=seconds,
        group=group,
        operation=operation,
        size_bytes=size_bytes,
        **more,
    )


def wait(stream=Stream.TP):
    """Return a wait for all that runs on a stream."""
    return Op(name="wait", kind=Kind.WAIT, phase=Phase.STEP, duration_s=0.0, waits_for=stream)


class HandMade:
    """Builds a workload from lists of operations; templates are given one after the other."""

    def __init__(self, parallel: Parallel):
        self.parallel = parallel
        self.builder = WorkloadBuilder("hand-made", parallel, "1f1b")

    def segment(self, ops: Sequence[Op]) -> int:
        """Add a segment and return its number; -1 for an empty one."""
        return self.builder.segment(self.builder.add(*ops))

    def template(self, forward=(), backward=(), start=(), after_forward=(), end=()):
        """Add a template whose work is the same in every virtual stage, microbatch and stage."""
        made = self.builder.template()
        made.start_P[:], made.after_forward_P[:], made.end_P[:] = map(self.segment, (start, after_forward, end))
        made.forward_QM[:], made.backward_QM[:] = map(self.segment, (forward, backward))
        return self

    def workload(self, template_of_rank=None, *, schedule="1f1b", forward_only=False, message_bytes=8):
        """Return the workload; ranks use the first template unless told otherwise."""
        self.builder.schedule = schedule
        template_W = None if template_of_rank is None else np.array(template_of_rank, dtype=np.int32)
        return self.builder.workload(message_bytes, forward_only=forward_only, template_W=template_W)


def plan_for(workload: Workload) -> SchedulePlan:
    """Return the plan of the workload's own schedule."""
    parallel = workload.parallel
    return SCHEDULES.get(workload.schedule).plan(parallel.pp, parallel.vpp, parallel.microbatches)


def expanded(workload: Workload, plan: SchedulePlan | None = None) -> Program:
    """Expand a workload on all of its ranks."""
    kinds = {Group(int(kind)) for kind in workload.ops.group_T} | ({Group.PP} if workload.parallel.pp > 1 else set())
    tables = rank_groups(workload.parallel, kinds)
    return expand(workload, plan or plan_for(workload), unfolded(workload.parallel.world_size), tables)


def timed(program: Program, message_s: float = 0.0, engine: str = "reference") -> Timeline:
    """Run a program whose operations know how long they take; messages take `message_s`."""
    duration_N = program.ops.duration_s_T[program.row_N]
    duration_N = np.where(np.isnan(duration_N), message_s, duration_N)
    graph = build_graph(program.stream_N, program.edge_src_E, program.edge_dst_E, program.rendezvous_N)
    ready_N, start_N, end_N = run(graph, duration_N, engine)
    return Timeline(ready_s_N=ready_N, start_s_N=start_N, end_s_N=end_N, duration_s_N=duration_N)


def with_ops(result: Result, ops: OpTable) -> Result:
    """Return a result whose operations have other names, sizes and so on."""
    assert result.timed is not None
    return replace(result, timed=replace(result.timed, program=replace(result.timed.program, ops=ops)))


@st.composite
def layouts(draw, tps=(1, 2, 3, 4, 6, 8), max_dp=6, max_ranks=96):
    """Draw a layout as keywords of `simulate`: degrees, schedule, microbatches."""
    tp, cp = draw(st.sampled_from(tps)), draw(st.integers(1, 2))
    pp = draw(st.integers(1, 4))
    dp = draw(st.integers(1, min(max_dp, max(1, max_ranks // (tp * cp * pp)))))
    etp = draw(st.sampled_from([None, 1]))
    experts = tp * cp * dp // (etp or tp)
    ep = draw(st.sampled_from([degree for degree in range(1, experts + 1) if experts % degree == 0]))
    schedule, vpp = draw(st.sampled_from([("gpipe", 1), ("1f1b", 1), ("interleaved", 1), ("interleaved", 2)]))
    microbatches = draw(st.integers(1, 4))
    degrees = {"tp": tp, "cp": cp, "dp": dp, "pp": pp, "ep": ep, "etp": etp, "vpp": vpp}
    return {**degrees, "schedule": schedule, "microbatches": microbatches}


def in_flight(plan: SchedulePlan) -> list[int]:
    """Count the peak of microbatches forwarded whose whole backward is not done, per stage, for each virtual stage."""
    peaks = []
    for order in plan.slots:
        held = peak = 0
        for slot in order:
            held += (slot.kind == SlotKind.F) - (slot.kind in (SlotKind.W, SlotKind.BW))
            peak = max(peak, held)
        peaks.append(peak)
    return peaks


def forecast(job: Job, cluster: Cluster, options: StepOptions | None = None, engine: str = "auto", **more) -> Result:
    """Forecast a job on a cluster, by default with no options."""
    return job_forecast.forecast(job, Setting.from_options(options or StepOptions(), cluster, engine), **more)


def run_job(job: Job, cluster: Cluster, options: StepOptions, *factors, engine: str = "auto") -> JobStep:
    """Run the step of a job on a cluster."""
    return job_step.run_job(job, Setting.from_options(options, cluster, engine), *factors)


def fabric_of_table(table, shown):
    """Return the network that a table ``[fabric]`` of a file describes."""
    return fabric_of(fabric_values(table, shown, Path(shown).parent), shown)
