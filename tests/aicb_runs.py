"""Run small AICB files and look at what every rank did."""

import math
from typing import NamedTuple

from traincast import api
from traincast.workload.words import Group, Kind, Operation, Phase, Stream

TRANSFORMER = "HYBRID_TRANSFORMER_FWD_IN_BCKWD"


class Seen(NamedTuple):
    """One operation of one simulated rank."""

    name: str
    kind: Kind
    phase: Phase
    group: Group
    operation: Operation
    size_bytes: int
    stream: Stream
    microbatch: int
    virtual_stage: int
    layer: int
    start_s: float
    end_s: float

    @property
    def what(self):
        """Name and operation, or ``compute``."""
        return self.name, "compute" if self.kind is Kind.COMPUTE else self.operation.name.lower()


def write_text(path, header, rows, count=None):
    """Write a file with any header and return its path."""
    path.write_text("\n".join([header, str(len(rows) if count is None else count), *rows]) + "\n", encoding="utf-8")
    return path


def header_of(**keys):
    """Write a header; a key's underscores stay, and ``more`` is appended as it is."""
    more = keys.pop("more", "")
    named = {"tp": "model_parallel_NPU_group"}
    policy = keys.pop("policy", TRANSFORMER)
    return " ".join([policy, *(f"{named.get(key, key)}: {value}" for key, value in keys.items()), more])


def seen(result, stage=0):
    """Return the operations of the lowest simulated rank of a stage, in program order."""
    program, timeline = result.program, result.timeline
    index = [int(each) for each in program.stage_R].index(stage)
    ops = program.ops
    found = []
    for at in range(*program.rank_slice(index).indices(len(program))):
        row = int(program.row_N[at])
        found.append(
            Seen(
                ops.name_T[row],
                Kind(int(ops.kind_T[row])),
                Phase(int(ops.phase_T[row])),
                Group(int(ops.group_T[row])),
                Operation(int(ops.operation_T[row])),
                int(ops.size_bytes_T[row]),
                Stream(int(ops.stream_T[row])),
                int(program.microbatch_N[at]),
                int(program.virtual_stage_N[at]),
                int(ops.layer_T[row]),
                float(timeline.start_s_N[at]),
                float(timeline.end_s_N[at]),
            )
        )
    return found


def work(result, stage=0):
    """Return the computations and collectives of a stage: neither messages nor waits."""
    return [op for op in seen(result, stage) if op.kind in (Kind.COMPUTE, Kind.COLLECTIVE)]


def codes(result):
    """Return the codes of all that is said beside the numbers."""
    return {note.code for note in (*result.assumptions, *result.warnings)}


def check_sums(result):
    """Check what holds for every result."""
    step_s = result.iteration_time_s
    assert math.isfinite(step_s)
    assert step_s >= 0
    for breakdown in (result.breakdown_s, *(rank.breakdown_s for rank in result.ranks)):
        assert all(value >= 0 for value in breakdown.values())
        assert math.isclose(sum(breakdown.values()), step_s, rel_tol=1e-9, abs_tol=1e-12)
    assert sum(rank.represents for rank in result.ranks) == result.parallel.world_size


def run(path, cluster="ideal", **options):
    """Simulate with the engine that needs no compilation, and check the sums."""
    result = api.simulate(path, cluster=cluster, engine="reference", **options)
    check_sums(result)
    return result
