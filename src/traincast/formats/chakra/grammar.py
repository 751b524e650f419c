"""What the bytes of an execution trace say: its metadata and its nodes, in either dialect of the schema.

A file is ``[length][message]`` again and again to its end: GlobalMetadata, then a Node each.

==============  ===================================  ====================================
what            schema 0.0.4 and later               schema up to 0.0.3
==============  ===================================  ====================================
metadata        version (1), attributes (2)          attributes (1), or none at all
node            id (1), name (2), type (3)           the same
dependencies    control (4), data (5)                parents (4)
times           start (6), duration (7), in us       attribute ``runtime``
tensors         inputs (8), outputs (9): messages    six texts (5 to 10)
attributes      10: one of 30 kinds of value         11: a type and one of 10 kinds
collectives     10 of them, ``ALL_TO_ALL`` is 6      5 of them, ``ALL_TO_ALL`` is 1
==============  ===================================  ====================================

Zeros are not written (proto3), so that a node without an id is node 0 and a duration of 0 is none; values of attributes
are written even where they are zero. Fields that are not known are passed over.

Source: mlcommons/chakra, schema/protobuf/et_def.proto (0.0.4, with the storage nodes of 2026) and et_def/et_def.proto
before October 2023 (0.0.3).
"""

import struct
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct, field

from traincast.errors import FormatError
from traincast.files import chunks_of
from traincast.formats.chakra.wire import DamagedError, Value, Wire, fields, read_varint, signed, uints, zigzag
from traincast.workload.words import Operation

Attribute = int | float | str | bytes | list[int] | list[float] | list[str] | list[bytes]

MOST_BYTES = 2**32
"""Largest trace of a rank, packed or not; it is read at once."""
_CHUNK = 2**20
_MOST_NAME = 2**16


class NodeType(IntEnum):
    """What a node is."""

    INVALID = 0
    METADATA = 1
    MEM_LOAD = 2
    MEM_STORE = 3
    COMP = 4
    COMM_SEND = 5
    COMM_RECV = 6
    COMM_COLL = 7
    STORAGE = 8
    BATCH = 9
    CHECKPOINT = 10


COLLECTIVES: tuple[Operation, ...] = (
    *(Operation.ALL_REDUCE, Operation.REDUCE, Operation.ALL_GATHER, Operation.GATHER, Operation.SCATTER),
    *(Operation.BROADCAST, Operation.ALL_TO_ALL, Operation.REDUCE_SCATTER, Operation.REDUCE_SCATTER),
)
"""By the number of ``CollectiveCommType``; a barrier (9) moves nothing."""
PIECES = (Operation.ALL_GATHER, Operation.GATHER)
"""Collectives that make as many times what a rank puts in, which their size is, as there are ranks."""
EXACT = "duration_ns"
"""Attribute of our own traces: the duration as a double, because whole microseconds are coarse."""
PHASE = "phase"
"""Attribute of our own traces: name of the phase."""
BARRIER = 9
_OLD_COLLECTIVES = (
    *(Operation.ALL_REDUCE, Operation.ALL_TO_ALL, Operation.ALL_GATHER),
    *(Operation.REDUCE_SCATTER, Operation.BROADCAST),
)


class Body(Struct, frozen=True, eq=False):
    """What a node says but for its id and dependencies; nodes of the same bytes share it.

    Texts of tensors are left out but for the values of the inputs.
    """

    name: str
    type: int
    duration_us: int
    """0 where none is said."""
    attributes: Mapping[str, Attribute]
    inputs: str
    """Values of the input tensors, of process groups their members; not kept of schema 0.0.3."""
    old: bool
    """Whether it is of schema 0.0.3."""

    def number(self, name: str) -> int | None:
        """Return an attribute that is an integer of any kind; None where it is not there."""
        value = self.attributes.get(name)
        return value if isinstance(value, int) else None

    def text(self, name: str) -> str:
        """Return an attribute that is a text, or a number as one; empty where it is not there."""
        value = self.attributes.get(name, "")
        return value if isinstance(value, str) else str(value) if isinstance(value, int) else ""

    @property
    def collective(self) -> Operation | None:
        """The operation of a collective; None for a barrier or a number that is not known."""
        number, known = self.number("comm_type") or 0, _OLD_COLLECTIVES if self.old else COLLECTIVES
        return known[number] if 0 <= number < len(known) else None

    @property
    def is_message(self) -> bool:
        """Whether it is a send or a receive."""
        return self.type in (NodeType.COMM_SEND, NodeType.COMM_RECV)

    @property
    def is_collective(self) -> bool:
        """Whether it is a collective, and not the host's call of one, which converters write with the same type."""
        return self.type == NodeType.COMM_COLL and not (self.number("is_cpu_op") and "comm_type" not in self.attributes)

    @property
    def is_computation(self) -> bool:
        """Whether it is work of the GPU."""
        return self.type == NodeType.COMP and not self.number("is_cpu_op")

    @property
    def peer(self) -> int | None:
        """Rank at the other end of a send or receive; None where it is not specified."""
        return self.number("comm_dst" if self.type == NodeType.COMM_SEND else "comm_src")

    @property
    def has_duration(self) -> bool:
        """Whether it says how long it takes; of whole microseconds 0 is nothing said."""
        return isinstance(self.attributes.get(EXACT), float) or bool(self.duration_us or self.number("runtime"))

    @property
    def duration_s(self) -> float:
        """How long it takes, 0 where nothing is said."""
        exact = self.attributes.get(EXACT)
        return 1e-9 * exact if isinstance(exact, float) else 1e-6 * (self.duration_us or self.number("runtime") or 0)


class Node(NamedTuple):
    """One node."""

    id: int
    body: Body
    control: tuple[int, ...]
    data: tuple[int, ...]
    start_us: int
    byte: int
    """Where it begins in the unpacked file."""

    def __str__(self) -> str:
        """Return what it is and where, as the subject of a sentence."""
        return f"node {self.id} ({self.body.name[:60]!r}), at byte {self.byte},"


Bodies = dict[tuple[object, ...], Body]
"""Bodies by their bytes, for all files of a run."""


class Trace(Struct):
    """One file."""

    path: str
    version: str = ""
    """``0.0.4``, or the schema that a converter names: ``1.1.0-chakra.0.0.4``."""
    metadata: dict[str, Attribute] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)

    def distinct(self) -> dict[Body, tuple[Node, int]]:
        """Return the first node of each body, and how many there are."""
        first: dict[Body, Node] = {}
        for node in self.nodes:
            first.setdefault(node.body, node)
        count = Counter(node.body for node in self.nodes)
        return {body: (node, count[body]) for body, node in first.items()}


def load(path: Path, known: Bodies | None = None) -> Trace:
    """Read a trace, perhaps packed with gzip (errors as `parse`)."""
    return parse(str(path), b"".join(chunks_of(path, _CHUNK, MOST_BYTES)), known)


def parse(path: str, data: bytes, known: Bodies | None = None) -> Trace:
    """Return what the bytes of a file say; `known` are bodies that were read before.

    Raises
    ------
    FormatError
        If they are not a trace, with the byte and, where it is known, the node.
    """
    trace, at, bodies, count = Trace(path), 0, {} if known is None else known, len(data)
    nodes = trace.nodes
    try:
        while at < count:
            begin = at
            size, at = read_varint(data, at, count)
            if size > count - at:
                raise DamagedError(f"a message of {size} bytes begins, and {count - at} are left", begin)
            if not size and begin:
                raise DamagedError("a message is empty, which ends the file for other readers", begin)
            if begin or not _read_metadata(trace, data, at, at + size):
                nodes.append(_node(data, at, at + size, begin, bodies))
            at += size
    except DamagedError as error:
        place = f"the node after {nodes[-1].id} ({nodes[-1].body.name[:40]!r})" if nodes else "the first node"
        raise FormatError(f"{place} cannot be read: {error.what}, at byte {error.at}", path) from None
    if not nodes:
        raise FormatError(f"holds no node: it ends at byte {count}", path)
    return trace


def _read_metadata(trace: Trace, data: bytes, at: int, end: int) -> bool:
    """Read the first message if it is metadata: fields 1 and 2 that have a length, and no number as a node has."""
    found = list(fields(data, at, end))
    if any(wire != Wire.LENGTH or number > 2 for number, wire, _ in found):
        return False
    for number, _, value in found:
        if not isinstance(value, bytes):
            continue
        if number == 1 and value.isascii() and not value.startswith(b"\n"):
            trace.version = value.decode()
            continue
        old = number == 1
        try:
            name, said = (_old_attribute if old else _attribute)(value)
        except DamagedError as error:
            raise DamagedError(error.what, at + error.at) from None
        trace.metadata[name] = said
    schema = trace.metadata.get("schema")
    if not trace.version and isinstance(schema, str):
        trace.version = schema
    return True


def _node(data: bytes, at: int, end: int, begin: int, known: Bodies) -> Node:
    number, start_us, parents, head = _parts(fields(data, at, end, _ATTRIBUTES))
    key = tuple(head)
    body = known.get(key)
    if body is None:
        rest = [value for number, value in head if number == 0 and isinstance(value, bytes)]
        if any(number in _OWN for each in rest for number, _, _ in fields(each, 0, len(each))):
            # Fields in an order that no writer uses.
            number, start_us, parents, head = _parts(fields(data, at, end))
            body = _body(head, begin)
        else:
            body = known[key] = _body(head, begin)
    control: list[int] = []
    found: list[int] = []
    for number_of, value in parents:
        if number_of == 5 and body.old:
            continue
        try:
            (control if number_of == 4 else found).extend(uints(value))
        except DamagedError as error:
            raise DamagedError(f"dependencies: {error.what}", begin) from None
    return Node(number, body, tuple(control), tuple(found), start_us, begin)


_ATTRIBUTES = (10 << 3 | Wire.LENGTH, 11 << 3 | Wire.LENGTH)
"""Keys of attributes in the two dialects; they are the last fields of a node."""
_OWN = (1, 4, 5, 6)
"""Fields that are not part of a body: the id, dependencies and the start."""


def _parts(
    found: Iterator[tuple[int, int, Value]],
) -> tuple[int, int, list[tuple[int, Value]], list[tuple[int, Value]]]:
    """Return id, start, dependencies and the other fields of a node."""
    number = start_us = 0
    parents: list[tuple[int, Value]] = []
    head: list[tuple[int, Value]] = []
    for key, _, value in found:
        if key == 1 and isinstance(value, int):
            number = value
        elif key in (4, 5):
            parents.append((key, value))
        elif key == 6 and isinstance(value, int):
            start_us = value
        else:
            head.append((key, value))
    return number, start_us, parents, head


def _body(head: Sequence[tuple[int, Value]], begin: int) -> Body:
    """Return a body from its fields; number 0 holds fields that were not taken apart."""
    numbers: dict[int, int] = {}
    texts: dict[int, list[bytes]] = {}
    for key, value in head:
        inner = [(key, value)]
        if key == 0 and isinstance(value, bytes):
            inner = [(number, each) for number, _, each in fields(value, 0, len(value))]
        for number, each in inner:
            if isinstance(each, int):
                numbers[number] = each
            else:
                texts.setdefault(number, []).append(each)
    kind, name = numbers.get(3, 0), texts.get(2, [b""])[-1]
    old = 11 in texts and kind < NodeType.STORAGE
    read, attributes = (_old_attribute, texts[11]) if old else (_attribute, texts.get(10, []))
    if len(name) > _MOST_NAME:
        raise DamagedError(f"a name has {len(name)} bytes", begin)
    try:
        said = dict(map(read, attributes))
    except DamagedError as error:
        raise DamagedError(f"an attribute: {error.what}", begin) from None
    inputs = "" if old else _inputs(texts.get(8, [b""])[-1], begin)
    return Body(name.decode(errors="replace"), kind, numbers.get(7, 0), said, inputs, old)


def _inputs(value: bytes, begin: int) -> str:
    try:
        texts = [text for number, _, text in fields(value, 0, len(value)) if number == 1 and isinstance(text, bytes)]
    except DamagedError as error:
        raise DamagedError(f"inputs: {error.what}", begin) from None
    return texts[-1].decode(errors="replace") if texts else ""


def _double(value: Value) -> float:
    (number,) = struct.unpack("<d", value) if isinstance(value, bytes) and len(value) == 8 else (0.0,)
    return float(number)


def _float(value: Value) -> float:
    (number,) = struct.unpack("<f", value) if isinstance(value, bytes) and len(value) == 4 else (0.0,)
    return float(number)


def _fixed(value: Value) -> int:
    return int.from_bytes(value, "little") if isinstance(value, bytes) else value


def _fixed_signed(value: Value) -> int:
    return int.from_bytes(value, "little", signed=True) if isinstance(value, bytes) else value


def _of_varint(read: Callable[[int], int]) -> Callable[[Value], int]:
    return lambda value: read(value) if isinstance(value, int) else 0


def _string(value: Value) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _bytes(value: Value) -> bytes:
    return value if isinstance(value, bytes) else b""


_Read = Callable[[Value], int] | Callable[[Value], float] | Callable[[Value], str] | Callable[[Value], bytes]
_INT32, _INT64 = _of_varint(lambda value: signed(value, 32)), _of_varint(signed)
_UINT, _SINT = _of_varint(lambda value: value), _of_varint(zigzag)
_SCALARS: dict[int, tuple[_Read, int]] = {
    3: (_double, Wire.FIXED64),
    5: (_float, Wire.FIXED32),
    7: (_INT32, Wire.VARINT),
    9: (_INT64, Wire.VARINT),
    11: (_UINT, Wire.VARINT),
    13: (_UINT, Wire.VARINT),
    15: (_SINT, Wire.VARINT),
    17: (_SINT, Wire.VARINT),
    19: (_fixed, Wire.FIXED32),
    21: (_fixed, Wire.FIXED64),
    23: (_fixed_signed, Wire.FIXED32),
    25: (_fixed_signed, Wire.FIXED64),
    27: (_UINT, Wire.VARINT),
    29: (_string, Wire.LENGTH),
    31: (_bytes, Wire.LENGTH),
}
"""Values of an attribute in schema 0.0.4, by number of the field; the list of each has the next number."""
_OLD_SCALARS: dict[int, tuple[_Read, int]] = {
    4: (_UINT, Wire.VARINT),
    5: (_float, Wire.FIXED32),
    6: (_UINT, Wire.VARINT),
    7: (_INT64, Wire.VARINT),
    8: (_string, Wire.LENGTH),
}
"""The same in schema 0.0.3, where the list of each has a number five higher."""


def _attribute(data: bytes) -> tuple[str, Attribute]:
    name: str = ""
    value: Attribute = 0
    for number, wire, found in fields(data, 0, len(data)):
        if number == 1 and isinstance(found, bytes):
            name = _string(found)
        elif number in _SCALARS and _SCALARS[number][1] == wire:
            value = _SCALARS[number][0](found)
        elif number - 1 in _SCALARS and isinstance(found, bytes):
            entries: list[object] = []
            for key, kind, entry in fields(found, 0, len(found)):
                if key == 1:
                    entries += _entries(entry, kind, *_SCALARS[number - 1])
            value = entries  # type: ignore[assignment]
    return name, value


def _old_attribute(data: bytes) -> tuple[str, Attribute]:
    name: str = ""
    value: Attribute = 0
    lists: dict[int, list[object]] = {}
    for number, wire, found in fields(data, 0, len(data)):
        if number == 1 and isinstance(found, bytes):
            name = _string(found)
        elif number in _OLD_SCALARS and _OLD_SCALARS[number][1] == wire:
            value = _OLD_SCALARS[number][0](found)
        elif number - 5 in _OLD_SCALARS:
            lists.setdefault(number, []).extend(_entries(found, wire, *_OLD_SCALARS[number - 5]))
    for entries in lists.values():
        value = entries  # type: ignore[assignment]
    return name, value


def _entries(value: Value, wire: int, read: _Read, own: int) -> list[object]:
    """Return the entries of a repeated field: one by one, or packed into a single one."""
    if wire == own:
        return [read(value)]
    if wire != Wire.LENGTH or not isinstance(value, bytes):
        return []
    if own == Wire.VARINT:
        return list(map(read, uints(value)))
    size = 8 if own == Wire.FIXED64 else 4
    return [read(value[at : at + size]) for at in range(0, len(value) - len(value) % size, size)]
