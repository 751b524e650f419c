"""Write a simulated run as execution traces: ``PREFIX.RANK.et`` of every rank, and the comm-group file of ASTRA-sim.

An operation is a node, and what it follows on its rank (its stream, its edges) are its data dependencies. Waits take no
time and become dependencies of what follows them: simulators that finish a node without time do not look for what it
frees. Attributes have the types that the feeders of Chakra read them as. Whole microseconds are coarse, so that
computations of a rank are rounded to microseconds in sum, and every node has its exact duration besides.

Ranks that do the same differ in groups and peers alone: nodes are encoded once for all of them.

Source: mlcommons/chakra, schema/protobuf/et_def.proto and src/feeder/et_feeder_node.cpp; ASTRA-sim,
astra-sim/workload/Workload.cc.

Letters: N operations of all ranks, L of one, K nodes of one, J messages.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np
from msgspec import Struct, field

from traincast import __version__
from traincast.diagnostics import Note
from traincast.errors import ConfigError
from traincast.formats.chakra.grammar import COLLECTIVES, EXACT, PHASE, PIECES, NodeType
from traincast.formats.chakra.groups import DEGREES, DESCRIPTIONS, groups_file
from traincast.formats.chakra.wire import bytes_field, delimited, double_field, int_field, uint_field, uints_field
from traincast.formats.writer import WRITERS, Run, Writer, WriterOption, Written
from traincast.units import counted
from traincast.workload.ops import BoolArray, FloatArray, IntArray, OpTable
from traincast.workload.program import Program, Timeline
from traincast.workload.rendezvous import keys, occurrences
from traincast.workload.words import Kind, Operation, Phase

VERSION = "0.0.4"
GROUPS_NAME = "comm_group.json"
_SIMULATED = frozenset(
    {
        Operation.ALL_REDUCE,
        Operation.ALL_GATHER,
        Operation.REDUCE_SCATTER,
        Operation.ALL_TO_ALL,
        Operation.BROADCAST,
    }
)
"""Collectives that ASTRA-sim runs; it ends with an error at others."""
_TYPES = {operation: number for number, operation in reversed(list(enumerate(COLLECTIVES)))}
_OF_KIND = {Kind.COLLECTIVE: NodeType.COMM_COLL, Kind.SEND: NodeType.COMM_SEND, Kind.RECV: NodeType.COMM_RECV}


def write(run: Run, options: Mapping[str, str]) -> Written:
    """Write a run (see `traincast.formats.writer.Writer`)."""
    program, timeline = run.simulated()
    prefix = options["prefix"]
    if not prefix or "/" in prefix or "\\" in prefix:
        raise ConfigError(f"is {prefix!r}; it must be the beginning of file names", "option prefix")
    traces = _Traces.from_program(program, timeline, run)
    return Written(traces.files(prefix), _lost(program))


class _Traces(Struct):
    """The nodes of all ranks."""

    program: Program
    duration_s_N: FloatArray
    peer_N: IntArray
    """Rank at the other end of each message; -1 for what is none, or where it is not known."""
    tag_N: IntArray
    """What tells each message from the others of its pair; -1 for what is none."""
    stream_N: IntArray
    edge_ptr_R1: IntArray
    name_G: list[str]
    """Name of each group."""
    facts: bytes
    """Metadata that all ranks share."""
    sequences: "dict[bytes, _Sequence]" = field(default_factory=dict)
    of_row: dict[int, bytes] = field(default_factory=dict)
    """Attributes of template operations."""
    of_group: dict[tuple[int, int], bytes] = field(default_factory=dict)
    """Attributes of collectives by group and row."""

    @classmethod
    def from_program(cls, program: Program, timeline: Timeline, run: Run) -> "_Traces":
        peer_N, tag_N = _ends(program)
        parallel = run.workload.parallel
        values = {name: getattr(parallel, "expert_tp" if name == "etp" else name) for name in DEGREES}
        facts = {"world_size": parallel.world_size, **values}
        texts = [_attribute("producer", bytes_field(29, f"traincast {__version__}".encode()))]
        numbers = [_attribute(name, int_field(9, value)) for name, value in facts.items()]
        return cls(
            program=program,
            duration_s_N=timeline.duration_s_N,
            peer_N=peer_N,
            tag_N=tag_N,
            stream_N=program.stream_N,
            edge_ptr_R1=np.searchsorted(program.edge_src_E, program.op_ptr_R1),
            name_G=[str(1 + index) for index in range(len(program.groups))],
            facts=bytes_field(1, VERSION.encode()) + b"".join(bytes_field(2, each) for each in [*texts, *numbers]),
        )

    def files(self, prefix: str) -> Iterator[tuple[str, Iterable[bytes]]]:
        """Yield the files of the ranks, then that of the groups."""
        program = self.program
        for index, rank in enumerate(program.rank_R.tolist()):
            yield f"{prefix}.{rank}.et", self._trace(index)
        collective_N = program.ops.kind_T[program.row_N] == Kind.COLLECTIVE
        used = np.unique(program.group_N[collective_N & (program.group_N >= 0)]).tolist()
        if used:
            yield GROUPS_NAME, [groups_file({1 + group: program.groups[group].members.tolist() for group in used})]

    def _trace(self, index: int) -> Iterator[bytes]:
        """Yield the bytes of a rank's trace."""
        mine = self.program.rank_slice(index)
        rank, group_L = int(self.program.rank_R[index]), self.program.group_N[mine]
        sequence = self._sequence(index, mine)
        pieces = sequence.pieces(rank, group_L, self.peer_N[mine], self._group)
        groups = sorted(set(group_L[sequence.collective_K].tolist()))
        kinds = {self.name_G[group]: self.program.groups[group].kind.name.lower() for group in groups}
        said = _attribute(DESCRIPTIONS, bytes_field(29, json.dumps(kinds).encode()))
        yield delimited(self.facts + bytes_field(2, said))
        yield b"".join(pieces)

    def _group(self, group: int, row: int) -> bytes:
        """Return the attributes of a collective that its group decides: its name, and what a rank puts in."""
        found = self.of_group.get((group, row))
        if found is not None:
            return found
        ops = self.program.ops
        said = [_attribute("pg_name", bytes_field(29, self.name_G[group].encode()))]
        size = int(ops.size_bytes_T[row]) * float(ops.repeats_T[row])
        if size >= 0:
            pieces = len(self.program.groups[group].members) if int(ops.operation_T[row]) in PIECES else 1
            said.append(_attribute("comm_size", int_field(9, round(size / pieces))))
        self.of_group[group, row] = b"".join(bytes_field(10, each) for each in said)
        return self.of_group[group, row]

    def _sequence(self, index: int, mine: slice) -> "_Sequence":
        program = self.program
        edges = slice(int(self.edge_ptr_R1[index]), int(self.edge_ptr_R1[index + 1]))
        source_E, target_E = program.edge_src_E[edges] - mine.start, program.edge_dst_E[edges] - mine.start
        stream_L = self.stream_N[mine]
        stream_L = stream_L - min(stream_L.tolist(), default=0)
        columns = (program.row_N[mine], self.duration_s_N[mine], self.tag_N[mine], stream_L, source_E, target_E)
        alone_L = program.rendezvous_N[mine] < 0
        key = b"|".join(column.tobytes() for column in (*columns, alone_L))
        if key not in self.sequences:
            self.sequences[key] = _Sequence.from_columns(program.ops, self.of_row, *columns, alone_L)
        return self.sequences[key]


class _Sequence(Struct):
    """The nodes of ranks that do the same, but for their groups and peers."""

    parts: list[bytes]
    """Encoded nodes: those before the first communication, those between it and the second, ..."""
    open_K: IntArray
    """Operation of each communication."""
    collective_K: IntArray
    """Operations that are collectives."""
    heads: list[tuple[bytes, bytes]]
    """Fields of each communication before the attributes of group or peers, and after them."""
    row_K: list[int]
    """Template row of each communication."""
    kinds: list[NodeType]
    known: dict[tuple[int, int], bytes] = field(default_factory=dict)

    @classmethod
    def from_columns(
        cls,
        ops: OpTable,
        of_row: dict[int, bytes],
        row_L: IntArray,
        duration_s_L: FloatArray,
        tag_L: IntArray,
        stream_L: IntArray,
        source_E: IntArray,
        target_E: IntArray,
        alone_L: BoolArray,
    ) -> "_Sequence":
        kind_L = ops.kind_T[row_L]
        communicates_L = np.isin(kind_L, list(_OF_KIND))
        dropped_L = (kind_L == Kind.WAIT) | (communicates_L & alone_L & (duration_s_L == 0))
        needs = _dependencies(dropped_L, stream_L, source_E, target_E)
        number_L = np.cumsum(~dropped_L)
        us_L = _microseconds(duration_s_L, kind_L)
        parts: list[bytes] = []
        run_of: list[bytes] = []
        heads: list[tuple[bytes, bytes]] = []
        open_K: list[int] = []
        kinds: list[NodeType] = []
        columns_L = (row_L, kind_L, duration_s_L, us_L, tag_L, stream_L)
        columns = zip(*(column_L.tolist() for column_L in columns_L), strict=True)
        one_of = Kind.COMPUTE if len(np.unique(stream_L[kind_L == Kind.COMPUTE])) == 1 else None
        for at, (row, kind, duration_s, us, tag, stream) in enumerate(columns):
            if dropped_L[at]:
                continue
            node = _OF_KIND.get(Kind(kind), NodeType.COMP)
            if row not in of_row:
                of_row[row] = _attributes(ops, row)
            fields = [
                uint_field(1, int(number_L[at])),
                bytes_field(2, ops.name_T[row].encode(errors="replace")),
                uint_field(3, node),
                uints_field(5, [int(number_L[need]) for need in needs[at]]),
                uint_field(7, us) if us else b"",
            ]
            exact = bytes_field(10, _attribute(EXACT, double_field(3, 1e9 * duration_s)))
            if node is NodeType.COMP:
                # In order on a thread of the host, or a stream of the GPU, where there are several.
                engine = "tid" if kind == Kind.GAP else "stream"
                own = bytes_field(10, _attribute(engine, int_field(9, stream)))
                run_of.append(delimited(b"".join((*fields, of_row[row], b"" if kind == one_of else own, exact))))
                continue
            said = bytes_field(10, _attribute("comm_tag", int_field(7, tag))) if tag >= 0 else b""
            parts.append(b"".join(run_of))
            run_of = []
            heads.append((b"".join((*fields, of_row[row], said)), exact))
            open_K.append(at)
            kinds.append(node)
        parts.append(b"".join(run_of))
        where_K = np.array(open_K, dtype=np.int64)
        collective_K = where_K[kind_L[where_K] == Kind.COLLECTIVE]
        return cls(parts, where_K, collective_K, heads, row_L[where_K].tolist(), kinds)

    def pieces(
        self, rank: int, group_L: IntArray, peer_L: IntArray, of_group: Callable[[int, int], bytes]
    ) -> Iterator[bytes]:
        """Yield the nodes of a rank; `of_group` gives the attributes of a row's collective that its group decides."""
        yield self.parts[0]
        groups, peers = group_L[self.open_K].tolist(), peer_L[self.open_K].tolist()
        for number, (group, peer, part) in enumerate(zip(groups, peers, self.parts[1:], strict=True)):
            before, after = self.heads[number]
            if self.kinds[number] is NodeType.COMM_COLL:
                if (number, group) not in self.known:
                    self.known[number, group] = delimited(before + of_group(group, self.row_K[number]) + after)
                record = self.known[number, group]
            else:
                record = delimited(before + _peers(rank, peer, self.kinds[number]) + after)
            yield record
            yield part


def _peers(rank: int, peer: int, kind: NodeType) -> bytes:
    """Return the attributes of a message that say its ends."""
    ends = {"comm_src": rank, "comm_dst": peer} if kind is NodeType.COMM_SEND else {"comm_src": peer, "comm_dst": rank}
    return b"".join(bytes_field(10, _attribute(name, int_field(7, end))) for name, end in ends.items() if end >= 0)


def _ends(program: Program) -> tuple[IntArray, IntArray]:
    """Return the rank at the other end of each message, and what tells it from the others of its pair, [N]."""
    peer_N = np.full(len(program), -1, dtype=np.int64)
    tag_N = np.full(len(program), -1, dtype=np.int64)
    kind_N = program.ops.kind_T[program.row_N]
    at = np.flatnonzero((kind_N == Kind.SEND) | (kind_N == Kind.RECV))
    if not len(at):
        return peer_N, tag_N
    group_J, rank_J, stage_J = program.group_N[at], program.rank_N[at], program.peer_stage_N[at]
    for group in np.unique(group_J).tolist():
        mine, members = np.flatnonzero(group_J == group), program.groups[group].members
        staged = stage_J[mine] >= 0
        peer_N[at[mine[staged]]] = members[stage_J[mine[staged]]]
        if len(members) == 2:
            others = mine[~staged]
            peer_N[at[others]] = np.where(members[0] == rank_J[others], members[1], members[0])
    sends_J = kind_N[at] == Kind.SEND
    source_J, target_J = np.where(sends_J, rank_J, peer_N[at]), np.where(sends_J, peer_N[at], rank_J)
    pair_J, rendezvous_J = keys(source_J, target_J), program.rendezvous_N[at].astype(np.int64)
    # A send and its receive share a rendezvous; what has none is counted on its own rank.
    rendezvous_J = np.where(rendezvous_J >= 0, rendezvous_J, len(program) + at)
    found, first, inverse_J = np.unique(rendezvous_J, return_index=True, return_inverse=True)
    tag_N[at] = occurrences(pair_J[first])[inverse_J] if len(found) else 0
    return peer_N, tag_N


def _dependencies(dropped_L: IntArray, stream_L: IntArray, source_E: IntArray, target_E: IntArray) -> list[list[int]]:
    """Return the kept operations that each one follows directly, the last of every stream that it follows."""
    before: list[list[int]] = [[] for _ in range(len(stream_L))]
    for source, target in zip(source_E.tolist(), target_E.tolist(), strict=True):
        before[target].append(source)
    last: dict[int, int] = {}
    streams, dropped = stream_L.tolist(), dropped_L.tolist()
    found: list[list[int]] = []
    for at, stream in enumerate(streams):
        parents = before[at]
        if stream in last:
            parents.append(last[stream])
        last[stream] = at
        latest: dict[int, int] = {}
        for parent in parents:
            for need in found[parent] if dropped[parent] else (parent,):
                latest[streams[need]] = max(need, latest.get(streams[need], need))
        found.append(sorted(latest.values()))
    return found


def _microseconds(duration_s_L: FloatArray, kind_L: IntArray) -> IntArray:
    """Return durations in whole microseconds, those of computations so that their sums are rounded, and not they."""
    us_L = np.rint(1e6 * duration_s_L).astype(np.int64)
    for kind in (Kind.COMPUTE, Kind.GAP):
        mine = np.flatnonzero(kind_L == kind)
        us_L[mine] = np.diff(np.rint(1e6 * np.cumsum(duration_s_L[mine])), prepend=0.0).astype(np.int64)
    return us_L


def _attribute(name: str, value: bytes) -> bytes:
    return bytes_field(1, name.encode()) + value


def _attributes(ops: OpTable, row: int) -> bytes:
    """Return the attributes that all runs of a template operation share."""
    kind, phase = Kind(int(ops.kind_T[row])), Phase(int(ops.phase_T[row]))
    found = [
        _attribute("is_cpu_op", uint_field(27, kind is Kind.GAP)),
        _attribute(PHASE, bytes_field(29, phase.name.lower().encode())),
    ]
    size = int(ops.size_bytes_T[row])
    if kind is Kind.COLLECTIVE:
        found.append(_attribute("comm_type", int_field(9, _TYPES[Operation(int(ops.operation_T[row]))])))
        if ops.unequal_T[row]:
            found.append(_attribute("unequal", uint_field(27, 1)))
    if kind in (Kind.SEND, Kind.RECV) and size >= 0:
        found.append(_attribute("comm_size", int_field(9, round(size * float(ops.repeats_T[row])))))
    if kind is Kind.COMPUTE and ops.flops_T[row] >= 0 and ops.bytes_moved_T[row] >= 0:
        found.append(_attribute("num_ops", int_field(9, round(float(ops.flops_T[row])))))
        found.append(_attribute("tensor_size", uint_field(13, round(float(ops.bytes_moved_T[row])))))
    return b"".join(bytes_field(10, each) for each in found)


def _lost(program: Program) -> tuple[Note, ...]:
    """Return what of a program the format or its simulators cannot say."""
    ops, rows = program.ops, np.unique(program.row_N)
    found = [Note("placement", "virtual stages, microbatches and layers of operations are not written")]
    collective = rows[ops.kind_T[rows] == Kind.COLLECTIVE]
    others = sorted({Operation(int(each)) for each in ops.operation_T[collective]} - _SIMULATED)
    if others:
        shown = ", ".join(each.name.lower() for each in others)
        found.append(Note("collective-of-astra-sim", f"ASTRA-sim runs no {shown} and ends there; other readers do"))
    repeated = int(np.sum(ops.repeats_T[rows] != 1))
    if repeated:
        kinds = counted(repeated, "communication")
        found.append(
            Note(
                "repeats",
                f"{kinds} that stand for several, or for part of one, are written as a single one with all their bytes",
            )
        )
    unequal = int(np.sum(ops.received_bytes_T[rows] >= 0) + sum(ops.loads_T[row] is not None for row in rows.tolist()))
    if unequal:
        kinds = counted(unequal, "communication")
        found.append(Note("unequal", f"{kinds} of unequal members say what each puts in, not what it gets"))
    return tuple(found)


WRITERS.register("chakra")(
    Writer(
        name="chakra",
        title="Chakra execution traces",
        write=write,
        needs_step=True,
        options=(WriterOption(name="prefix", help="Beginning of the files' names: PREFIX.RANK.et.", default="chakra"),),
    )
)
