"""A program that ran: its operations, when each of them ran, and what is worked out of the two once.

Letters: N operations, B borders between instants, E edges.
"""

from functools import cached_property
from typing import NamedTuple

from msgspec import Struct, field

from traincast.analysis.critical_path import CriticalPath, critical_path
from traincast.engine.graph import Graph, build_graph
from traincast.workload.ops import FloatArray, IntArray
from traincast.workload.program import Program, Timeline

MOST_KEPT = 500_000
"""Operations of a program up to which the owners of its instants are kept, and not only worked out."""

Claims = tuple[IntArray, FloatArray, FloatArray]
"""Who claims something for each operation of a rank, and from when to when."""


class RankOwners(NamedTuple):
    """Who owns every instant of a rank's step (`traincast.analysis.breakdown`)."""

    claims: tuple[Claims, Claims]
    """What its operations claim: transferring, and waiting."""
    border_B: FloatArray
    owner_B: IntArray
    """Owner of the instants from each border to the next."""


class TimedProgram(Struct, frozen=True, kw_only=True, dict=True):
    """A program with its times; whoever explains, draws or tries something of a step takes it from here."""

    program: Program
    timeline: Timeline
    graph: Graph
    """Who follows whom."""
    engine: str = "auto"
    """What ran it, or whoever asks for its path."""
    owners: dict[int, RankOwners] = field(default_factory=dict)
    """Those of ranks that were asked for, by index; threads that ask at the same time find the same."""

    @cached_property
    def path(self) -> CriticalPath:
        """A chain of operations as long as the step."""
        return critical_path(self.graph, self.timeline, self.engine)

    def __repr__(self) -> str:
        """Say how long it is, in a line."""
        return f"<TimedProgram: {len(self.program)} operations>"


def graph_of(program: Program) -> Graph:
    """Return who follows whom in a program, as the engine takes it."""
    return build_graph(program.stream_N, program.edge_src_E, program.edge_dst_E, program.rendezvous_N)


def timed_program(program: Program, timeline: Timeline) -> TimedProgram:
    """Return a program with its times, whose graph is not known yet."""
    return TimedProgram(program=program, timeline=timeline, graph=graph_of(program))
