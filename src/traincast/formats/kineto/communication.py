"""What the communication of a trace means: operations, sizes, and groups with their members.

Kernels are known by their names: those of NCCL say what they do, and most have their arguments in the trace; those of
other libraries (``data/formats/communication_kernels.csv``) tell at least for whom they exchange, such as the experts'
for DeepEP.

Sources: torch/csrc/distributed/c10d (ProcessGroupNCCL.cpp, ParamCommsUtils.hpp) and torch/csrc/profiler/util.cpp of
PyTorch: names of collectives, elements counted on one rank, lists of more than 30 ranks cut short with dots;
NVIDIA/nccl, src/device/generate.py, and ROCm/rccl: names of kernels (``ncclDevKernel_AllReduce_Sum_bf16_RING_LL``,
``ncclKernel_SendRecv`` before 2.19, ``ncclDevKernel_Generic`` of RCCL).
"""

import re
from typing import Any, NamedTuple

from msgspec import Struct

from traincast.formats.kineto.grammar import Communicated, Document, whole
from traincast.shipped import constant, shipped_rows
from traincast.workload.words import Group, Operation

_NAMED: tuple[tuple[str, Operation], ...] = (
    ("allreduce", Operation.ALL_REDUCE),
    ("reducescatter", Operation.REDUCE_SCATTER),
    ("allgather", Operation.ALL_GATHER),
    ("fcollect", Operation.ALL_GATHER),
    ("alltoall", Operation.ALL_TO_ALL),
    ("broadcast", Operation.BROADCAST),
    ("barrier", Operation.ALL_REDUCE),
    ("sendrecv", Operation.SEND_RECV),
    ("gather", Operation.GATHER),
    ("scatter", Operation.SCATTER),
    ("crossdevicereduce", Operation.ALL_REDUCE),
    ("reduce", Operation.REDUCE),
    ("send", Operation.SEND_RECV),
    ("recv", Operation.SEND_RECV),
)
"""What letters of a name mean, without the others; the first that is in it counts."""

_BYTES = {
    **dict.fromkeys(("byte", "char", "bool", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"), 1),
    **dict.fromkeys(("half", "bfloat16", "short", "uint16"), 2),
    **dict.fromkeys(("float", "int", "uint32", "complexhalf"), 4),
    **dict.fromkeys(("double", "long", "uint64", "complexfloat"), 8),
    "complexdouble": 16,
}
"""Bytes of an element, by the names of c10::ScalarType."""
_DTYPES = {"bfloat16": "bf16", "half": "fp16", "float": "fp32", "double": "fp64", "char": "int8", "byte": "int8"}
_GATHERED = frozenset({Operation.ALL_GATHER, Operation.GATHER})
_LONGEST = 10


class LibraryKernel(NamedTuple):
    """What the name of a kernel tells of its communication."""

    library: str
    operation: Operation
    """`Operation.NONE` where the name does not tell."""
    group: Group
    """For whom the library communicates; `Group.NONE` where it does for anyone."""


def _libraries() -> tuple[tuple[re.Pattern[str], LibraryKernel], ...]:
    """Return the kernels of libraries that communicate, by patterns of names; the first that fits counts."""
    return tuple(
        (
            re.compile(row["pattern"], re.IGNORECASE),
            LibraryKernel(
                row["library"],
                Operation[row["operation"].upper() or "NONE"],
                Group[row["group"].upper() or "NONE"],
            ),
        )
        for row in shipped_rows("formats/communication_kernels.csv")
    )


def library_kernel(name: str) -> LibraryKernel | None:
    """Return what the name of a kernel that communicates tells; None where it is not known to communicate."""
    found = next((kernel for pattern, kernel in constant(_libraries) if pattern.search(name)), None)
    if found is None or found.operation is not Operation.NONE:
        return found
    return found._replace(operation=operation_of(name))


def operation_of(name: str) -> Operation:
    """Return what a collective or a kernel does, by its name; `Operation.NONE` where that does not tell."""
    letters = re.sub(r"[^a-z]", "", name.lower())
    return next((operation for word, operation in _NAMED if word in letters), Operation.NONE)


class GroupOfRanks(Struct, frozen=True):
    """A process group."""

    name: str
    """That of the framework; the same on all members."""
    purpose: str
    """Its description."""
    members: tuple[int, ...]


class Communication(Struct, frozen=True):
    """What one communication is on one rank."""

    operation: Operation
    size_bytes: int | None
    """As `Operation` counts it; None where the trace does not say it."""
    dtype: str | None = None
    group: GroupOfRanks | None = None
    """None where its members are not specified."""
    source: int | None = None
    """Sender of a message, where it is known."""
    target: int | None = None
    kind: Group = Group.NONE
    """For whom it is, where only the kernel's library tells that."""


def meaning(said: Communicated | None, kernel: str, document: Document, rank: int) -> Communication:
    """Return what a communication of a rank is, by its arguments, its kernel and what the trace says of its groups."""
    if said is None:
        known = library_kernel(kernel)
        return (
            Communication(Operation.NONE, None)
            if known is None
            else Communication(known.operation, None, kind=known.group)
        )
    name = str(said.collective or "")
    operation = operation_of(name)
    operation = operation_of(kernel) if operation is Operation.NONE else operation
    dtype = str(said.dtype or "").lower()
    counts = {"in": whole(said.in_elements), "out": whole(said.out_elements)}
    elements, width = counts["out" if operation in _GATHERED else "in"], _BYTES.get(dtype)
    group = group_of(said, document)
    source = target = None
    if operation is Operation.SEND_RECV:
        # Only the peer is said: the target of a send, the source of a receive.
        peers = (whole(said.source), whole(said.target))
        elements = max(counts.values())
        if max(peers) >= 0 > min(peers) and max(peers) != rank:
            source, target = (peers[0], rank) if peers[0] >= 0 else (rank, peers[1])
    size = elements * width if elements >= 0 and width else None
    return Communication(operation, size, _DTYPES.get(dtype), group, source, target)


def group_of(said: Communicated, document: Document) -> GroupOfRanks | None:
    """Return the group of a communication; None where its members are nowhere told."""
    name, purpose = str(said.group_name or ""), str(said.group_purpose or "")
    size = whole(said.group_size, 0)
    found = _ranks(said.group_ranks)
    known = _described(document).get(name, {})
    if found is None and whole(said.first_rank) >= 0 and whole(said.rank_stride, 0) > 0 and size > 0:
        first, stride = whole(said.first_rank), whole(said.rank_stride)
        found = tuple(range(first, first + size * stride, stride))
    found = found or _ranks(known.get("ranks"))
    if found is None and size and size == world_size(document):
        found = tuple(range(size))
    if not found or len(set(found)) < len(found) or (size and size != len(found)):
        return None
    return GroupOfRanks(name, purpose or str(known.get("pg_desc") or ""), found)


def world_size(document: Document) -> int:
    """Return how many ranks a trace says there are; 0 where it does not."""
    return max(0, whole((document.distributed or {}).get("world_size"), 0))


def _described(document: Document) -> dict[str, dict[str, Any]]:
    """Return the groups that a trace lists in addition to its events, by name."""
    listed = (document.distributed or {}).get("pg_config")
    listed = listed if isinstance(listed, list) else []
    return {str(each.get("pg_name")): each for each in listed if isinstance(each, dict)}


def _ranks(listed: object) -> tuple[int, ...] | None:
    """Return the ranks of a list, or of the text of one; None where they are not all there."""
    if isinstance(listed, str):
        words = re.findall(r"[^,\s\[\]]+", listed)
        listed = [int(word) if word.isdecimal() and len(word) < _LONGEST else None for word in words]
    if not isinstance(listed, list) or not all(type(each) is int and each >= 0 for each in listed):
        return None
    return tuple(listed) or None
