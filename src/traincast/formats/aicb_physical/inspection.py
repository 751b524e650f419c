"""Describe a physical AICB workload: what it is of, its steps, groups and totals."""

import math
from collections import defaultdict
from collections.abc import Iterator

from traincast.formats.aicb_physical.grammar import PhysicalFile, PhysicalRow
from traincast.formats.aicb_physical.layout import written_sizes
from traincast.formats.aicb_physical.steps import Steps, steps_of
from traincast.formats.contract import Inspection, Total
from traincast.workload.words import Group, Operation


def describe(file: PhysicalFile) -> Inspection:
    """Describe a file.

    Totals are those of one step of the first stage.
    """
    steps = steps_of(file)
    sizes = written_sizes(file)
    what, evidence = _producer(steps)
    told = [section.ranks for section in file.sections if section.ranks is not None]
    return Inspection(
        generation=what,
        evidence=evidence,
        counts={
            "rows": sum(len(section.rows) for section in file.sections),
            "stages": len(file.sections),
            "steps": steps.held,
            "microbatches": steps.passes[0].microbatches,
            "once_per_step_rows": len(steps.passes[0].start) + len(steps.passes[0].end),
        },
        layout={
            **{group.name.lower(): sizes.get(group) for group in (Group.TP, Group.DP, Group.EP, Group.PP)},
            "world_size": sum(told) if told else None,
        },
        totals=tuple(_totals([*steps.passes[0].rows(), *steps.passes[0].messages])),
    )


def _producer(steps: Steps) -> tuple[str, tuple[str, ...]]:
    """Return what wrote the file, and why that is believed."""
    stages = {row.stage.partition(".")[2].partition(".")[0] for passes in steps.passes for row in passes.rows()}
    timed = any(row.time_s is not None for row in steps.passes[0].rows())
    kind = "log of a run" if timed else "workload"
    reasons = [f"the columns of AICB's {'log, with times' if timed else 'workload, without times'}"]
    if any(name.startswith("Megatron") for name in stages):
        return f"AICB physical {kind}: Megatron", (
            *reasons,
            "rows of Megatron's layers (MegatronRowLinear and the like)",
        )
    if stages & {"allreduce_bucket", "all_gather_dp_groups"}:
        return f"AICB physical {kind}: DeepSpeed, ZeRO stage 1 or 2", (*reasons, "rows of DeepSpeed's buckets")
    if stages & {"allgather_fn", "reduce_scatter_fn"}:
        return f"AICB physical {kind}: DeepSpeed, ZeRO stage 3", (
            *reasons,
            "rows that gather parameters in both passes",
        )
    if not steps.passes[0].forward:
        return f"AICB physical {kind}: test of a collective", (*reasons, "no row is of a forward or backward pass")
    return f"AICB physical {kind}", tuple(reasons)


def _totals(rows: list[PhysicalRow]) -> Iterator[Total]:
    found: dict[tuple[Group, str], list[PhysicalRow]] = defaultdict(list)
    for row in rows:
        what = row.kind if row.operation is Operation.NONE else row.operation.name.lower()
        found[row.group, what].append(row)
    for (group, what), those in sorted(found.items()):
        times = [row.time_s for row in those]
        compute = group is Group.NONE
        yield Total(
            group="compute" if compute else group.name.lower(),
            what=what,
            count=sum(row.count for row in those),
            size_bytes=sum(row.size_bytes * row.count for row in those),
            time_s=None if None in times else math.fsum(time for time in times if time is not None),
        )
