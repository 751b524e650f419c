"""What the ranks of a traced run computed: the time of each pass of a microbatch that is not communication.

Synchronous communication and the host's gaps between traced operations are left out; asynchronous communication stays
as the GEMM that hides it. The optimizer counts from when the last rank of its norm has come.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

from msgspec.structs import replace

from traincast.diagnostics import Notebook
from traincast.formats.contract import Computation, MeasuredComputations
from traincast.formats.echo.clocks import align
from traincast.formats.echo.files import only_run
from traincast.formats.echo.layout import decide_layouts
from traincast.formats.echo.rendezvous import OPTIMIZER, Rendezvous
from traincast.formats.echo.work import Conversion, Splitter
from traincast.job.options import LayoutOptions
from traincast.schedules.slots import SlotKind
from traincast.workload.groups import rank_groups
from traincast.workload.ops import Op
from traincast.workload.words import Group, Kind, Phase

_PHASES = {SlotKind.F: Phase.FORWARD, SlotKind.BW: Phase.BACKWARD}


def computations(paths: Sequence[Path]) -> MeasuredComputations:
    """Return what each traced rank of one run computed.

    Raises
    ------
    FormatError
        If the files are not of one run, or cannot be read.
    """
    run = only_run(paths)
    run = replace(run, is_profile=all(op.is_simulated for op in run.ops))
    notes = Notebook(str(run.first.path))
    layouts = decide_layouts(run, LayoutOptions(), notes)
    alignment = align(run, layouts.traced.world_size, layouts.traced.pp)
    rendezvous = Rendezvous(run, rank_groups(layouts.traced, list(Group)), alignment.offset_s)
    conversion = Conversion(rendezvous, layouts, run.is_profile, not run.is_profile)
    found: list[Computation] = []
    for file, (rank, trace) in enumerate(run.traces.items()):
        work, stage = Splitter(trace, file, conversion).split(), layouts.stage_of(trace)
        for (kind, microbatch), ops in sorted(work.slots.items()):
            if kind in _PHASES:
                found.append(Computation(rank, stage, _PHASES[kind], microbatch, _compute_s(ops)))
        update_s = _compute_s(op for op in work.end if op.part == OPTIMIZER)
        found.append(Computation(rank, stage, Phase.STEP, -1, update_s))
    files = tuple(str(trace.path) for trace in run.traces.values())
    # A single GPU that played a rank does not know all of the layout.
    parallel = None if run.is_profile else layouts.traced
    timed = tuple(each for each in found if each.time_s > 0)
    return MeasuredComputations(parallel, timed, files, () if run.is_profile else tuple(notes.warnings))


def _compute_s(ops: Iterable[Op]) -> float:
    return sum(op.duration_s or 0.0 for op in ops if op.kind is Kind.COMPUTE)
