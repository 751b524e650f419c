"""Where the computations of a step stand below the GPU's roof.

A computation that moves B bytes for F FLOP cannot take less than F / peak or B / bandwidth (Williams, Waterman,
Patterson 2009, "Roofline"). In addition to its time that says what binds it, and which share of that bound it reaches.
FLOP and bytes are those of the operators that its input names; computations of which only the time is known have none.

Letters: N operations, T template operations.
"""

import numpy as np

from traincast.analysis.summary import RooflineRow
from traincast.workload.ops import FloatArray
from traincast.workload.program import Program, Timeline
from traincast.workload.words import Kind, Phase


def roofline(program: Program, timeline: Timeline) -> tuple[RooflineRow, ...]:
    """Return the computations of the rank that computes longest, by name and phase, the longest first."""
    ops, row_N = program.ops, program.row_N
    duration_N: FloatArray = timeline.end_s_N - timeline.start_s_N
    compute_N = ops.kind_T[row_N] == Kind.COMPUTE
    if not compute_N.any():
        return ()
    busy_s_R = [
        float(duration_N[program.rank_slice(index)][compute_N[program.rank_slice(index)]].sum())
        for index in range(len(program.rank_R))
    ]
    mine = program.rank_slice(busy_s_R.index(max(busy_s_R)))
    rows = row_N[mine][compute_N[mine]]
    runs_T = np.bincount(rows, minlength=len(ops))
    time_T = np.bincount(rows, duration_N[mine][compute_N[mine]], len(ops))
    sums: dict[tuple[str, int], list[float]] = {}
    for row in np.flatnonzero(runs_T).tolist():
        runs = int(runs_T[row])
        of_row = (runs, float(time_T[row]), runs * float(ops.flops_T[row]), runs * float(ops.bytes_moved_T[row]))
        sum_ = sums.setdefault((ops.name_T[row], int(ops.phase_T[row])), [0.0] * 4)
        sum_[:] = [a + b for a, b in zip(sum_, of_row, strict=True)]
    found = [
        RooflineRow(
            name=name,
            phase=Phase(phase).name.lower(),
            runs=int(runs),
            time_s=time_s,
            flops=None if np.isnan(flops) else flops,
            bytes_moved=None if np.isnan(moved) else moved,
        )
        for (name, phase), (runs, time_s, flops, moved) in sums.items()
    ]
    return tuple(sorted(found, key=lambda row: (-row.time_s, row.name, row.phase)))
