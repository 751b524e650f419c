"""Expert ranks that get unequal shares of the tokens: who computes and exchanges how much.

Loads are relative to the mean, so that they sum to the number of expert ranks and all ranks
together do the work of the balanced run. The expert rank of a rank is its place in its `ep` group.

Letters: E expert ranks of a group, T template operations, S segments, W ranks, D distinct loads, X stretched rows.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from traincast.errors import ConfigError, ProgramError
from traincast.job.experts import check_imbalance
from traincast.job.options import LayoutOptions
from traincast.job.parallel import Parallel
from traincast.units import counted
from traincast.workload.ops import BoolArray, FloatArray, IntArray, OpTable
from traincast.workload.words import Group, Operation, Provenance
from traincast.workload.workload import Template, Workload

ExpertLoads = tuple[float, ...]
"""Load of each expert rank over the mean; the mean is 1."""

_LARGEST = 2.0**62
"""Upper bound of a size in bytes, as of the formats."""


def expert_loads(options: LayoutOptions, ep: int) -> ExpertLoads | None:
    """Return the loads that the user asks for, [E]; None where all are equal.

    Of a single factor F one expert rank, the first, has F times the mean, and the others share
    the rest equally: (ep - F) / (ep - 1) each, which is none at F = ep.

    Raises
    ------
    ConfigError
        If there are not as many loads as expert ranks, or one of them has more than all tokens.
    """
    given = options.expert_loads
    if isinstance(given, Path):
        raise ConfigError("is a path of traces, which traincast.read reads; give the loads themselves", "expert_loads")
    if given is not None:
        if len(given) != ep:
            raise ConfigError(
                f"gives {counted(len(given), 'load')}, but there {'is' if ep == 1 else 'are'} "
                f"{counted(ep, 'expert rank')} (ep); give one for each",
                "expert_loads",
            )
        # The largest first: the sum of huge loads would be infinite.
        share_E = [load / max(given) for load in given]
        mean = math.fsum(share_E) / ep
        return None if min(given) == max(given) else tuple(share / mean for share in share_E)
    busiest = options.expert_imbalance or 1.0
    check_imbalance(busiest, ep)
    return None if busiest == 1 else (busiest, *[(ep - busiest) / (ep - 1)] * (ep - 1))


def describe(loads: ExpertLoads) -> str:
    """Return loads in words: ``expert rank 0 of 4 has 1.9 x the mean tokens, the others 0.7 x``."""
    busiest = loads.index(max(loads))
    others = [load for rank, load in enumerate(loads) if rank != busiest]
    low, high = (f"{load:.3g}" for load in (min(others), max(others)))
    return (
        f"expert rank {busiest} of {len(loads)} has {max(loads):.3g} x the mean tokens, the "
        f"{'other' if len(others) == 1 else 'others'} {low if low == high else f'{low} to {high}'} x"
    )


def expert_rank_W(parallel: Parallel) -> IntArray:
    """Return the place of each rank in its `ep` group, [W] (see `traincast.workload.groups`)."""
    place_W = np.arange(parallel.world_size, dtype=np.int64) % parallel.ranks_per_stage
    return place_W // parallel.expert_stride % parallel.ep


def load_of_rank(parallel: Parallel, loads: ExpertLoads) -> FloatArray:
    """Return the load of each rank's experts, [W]."""
    return np.array(loads)[expert_rank_W(parallel)]


def exchanges_T(ops: OpTable) -> BoolArray:
    """Tell which operations dispatch tokens to experts or combine what they made of them, [T]."""
    of_experts_T: BoolArray = (ops.group_T == Group.EP) & (ops.operation_T == Operation.ALL_TO_ALL)
    return of_experts_T


def with_expert_loads(workload: Workload, loads: ExpertLoads, rows: Sequence[int]) -> Workload:
    """Give every rank the work of its load, and the all-to-alls over `ep` unequal ones.

    Ranks of different load get templates of their own, so that they fold apart. Where loads are unequal the all-to-all
    that follows waits for the busiest rank, and the others wait there. `rows` are the template operations that grow
    with the tokens of a rank's experts: computations by their time, communications by their size.

    Raises
    ------
    ProgramError
        If an expert computation has no known duration.
    """
    load_D, class_E = np.unique(np.array(loads), return_inverse=True)
    row_X = np.array(sorted(rows), dtype=np.int64)
    segments: list[IntArray] = list(workload.segments)
    templates_D: list[list[Template]] = []
    for place in range(len(load_D)):
        row_T = np.arange(len(workload.ops), dtype=np.int32)
        if place:
            row_T[row_X] = len(workload.ops) + (place - 1) * len(row_X) + np.arange(len(row_X))
        number_S = _replaced(segments, len(workload.segments), row_T)
        templates_D.append([_renumbered(template, number_S) for template in workload.templates])
    class_W = class_E.reshape(-1)[expert_rank_W(workload.parallel)]
    return replace(
        workload,
        ops=_stretched(workload.ops, row_X, load_D, loads),
        segments=tuple(segments),
        templates=tuple(template for templates in templates_D for template in templates),
        template_W=(class_W * len(workload.templates) + workload.template_W).astype(np.int32),
        expert_load_W=load_of_rank(workload.parallel, loads),
    )


def _replaced(segments: list[IntArray], count: int, row_T: IntArray) -> IntArray:
    """Add the segments that change when rows are replaced; return the number of each, and -1 for -1."""
    number_S = np.append(np.arange(count, dtype=np.int32), np.int32(-1))
    for number in range(count):
        changed = row_T[segments[number]]
        if not np.array_equal(changed, segments[number]):
            number_S[number] = len(segments)
            segments.append(changed)
    return number_S


def _renumbered(template: Template, number_S: IntArray) -> Template:
    before_DQM = template.before_recv_DQM
    return replace(
        template,
        forward_QM=number_S[template.forward_QM],
        backward_QM=number_S[template.backward_QM],
        start_P=number_S[template.start_P],
        after_forward_P=number_S[template.after_forward_P],
        end_P=number_S[template.end_P],
        before_recv_DQM=None if before_DQM is None else number_S[before_DQM],
    )


def _stretched_sizes(table: OpTable, load_T: FloatArray) -> IntArray:
    size_T = table.size_bytes_T.copy()
    at = np.flatnonzero((load_T != 1) & (size_T > 0))
    stretched = np.rint(size_T[at] * load_T[at])
    if (stretched >= _LARGEST).any():
        raise ProgramError(
            f"a communication of {stretched.max():.3g} bytes is too large to represent; give smaller loads"
        )
    size_T[at] = stretched.astype(np.int64)
    return size_T


def _stretched(ops: OpTable, row_X: IntArray, load_D: FloatArray, loads: ExpertLoads) -> OpTable:
    """Return the table with the stretched rows of the first load in place, and those of the others at its end."""
    computes_X = ops.group_T[row_X] == Group.NONE
    unknown = row_X[computes_X & np.isnan(ops.duration_s_T[row_X])]
    if len(unknown):
        raise ProgramError(f"the duration of {ops.name_T[unknown[0]]!r} is unknown, so no load can stretch it")
    take_T = np.concatenate([np.arange(len(ops)), np.tile(row_X, len(load_D) - 1)])
    columns: dict[str, Any] = {}
    for each in ops.__struct_fields__:
        column = getattr(ops, each)
        columns[each] = tuple(column[row] for row in take_T) if isinstance(column, tuple) else column[take_T]
    table = OpTable(**columns)
    load_T = np.ones(len(take_T))
    load_T[row_X] = load_D[0]
    load_T[len(ops) :] = np.repeat(load_D[1:], len(row_X))
    known_T = (load_T != 1) & (table.group_T == Group.NONE)
    unequal_T = exchanges_T(table)
    return replace(
        table,
        duration_s_T=table.duration_s_T * load_T,
        flops_T=table.flops_T * load_T,
        size_bytes_T=_stretched_sizes(table, load_T),
        provenance_T=np.where(known_T, Provenance.ASSUMED, table.provenance_T).astype(np.int8),
        loads_T=tuple(loads if unequal_T[row] else before for row, before in enumerate(table.loads_T)),
    )
