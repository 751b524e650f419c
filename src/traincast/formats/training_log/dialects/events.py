"""TensorBoard's event files: records of TFRecord with messages of protobuf, as far as scalars need them.

A record is its length (8 bytes, little endian), the masked CRC-32C of these, the data, and the masked CRC-32C of the
data (tensorflow/core/lib/io/record_writer.h). The data is an ``Event`` (tensorflow/core/util/event.proto):
``wall_time`` 1, ``step`` 2, ``file_version`` 3, ``summary`` 5, a list of ``value`` 1 with ``tag`` 1 and
``simple_value`` 2 (PyTorch's SummaryWriter, tensorboardX) or ``tensor`` 8 (TensorFlow 2: ``dtype`` 1,
``tensor_content`` 4, ``float_val`` 5, ``double_val`` 6).

A file that a run still writes, or that was cut, ends within a record: what is whole counts.
"""

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from traincast.formats.chakra.wire import DamagedError, fields, signed
from traincast.formats.training_log.columns import Names
from traincast.formats.training_log.contract import Dialect, Found, no_lines

_HEADER, _FOOTER = 12, 4
_MOST_BYTES = 2**16
"""Bytes of a record with scalars; those of pictures, histograms and graphs are longer and are passed over."""
_BATCH = 2**12
"""Records that are checked at once."""
_POLYNOMIAL = 0x82F63B78
"""Of CRC-32C (Castagnoli), its bits reversed."""
_MASK_DELTA = 0xA282EAD8
_FLOAT, _DOUBLE = 1, 2
"""Types of a tensor."""


class Damage(NamedTuple):
    """A record whose bytes are not those that were written."""

    number: int
    """1-based."""
    what: str


def _table() -> npt.NDArray[np.uint32]:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, table >> 1 ^ np.uint32(_POLYNOMIAL), table >> 1).astype(np.uint32)
    return table


_TABLE = _table()


def masked_crcs(data: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint32]:
    """Return the masked CRC-32C of each row of bytes."""
    crc = np.full(len(data), 0xFFFFFFFF, np.uint32)
    for column in data.T:
        crc = _TABLE[(crc ^ column) & 0xFF] ^ crc >> np.uint32(8)
    crc = ~crc
    return (crc >> np.uint32(15) | crc << np.uint32(17)) + np.uint32(_MASK_DELTA)


def masked_crc(data: bytes) -> int:
    """Return the masked CRC-32C of some bytes."""
    return int(masked_crcs(np.frombuffer(data, np.uint8).reshape(1, -1))[0])


def is_event_file(head: bytes) -> bool:
    """Say whether a file begins with a record whose length is as it was written."""
    return len(head) >= _HEADER and masked_crc(head[:8]) == struct.unpack("<I", head[8:_HEADER])[0]


def entries_of_events(chunks: Iterable[bytes]) -> Iterator[tuple[int, Found | Damage]]:
    """Yield what each record of an event file says of a step, with its 1-based number, and what is damaged.

    Records without a scalar of a known name are passed over. After a damaged length nothing can be found any more: it
    is the last that comes.
    """
    names: dict[str, Names] = {}
    batch: list[tuple[int, bytes]] = []
    for number, record in _records(chunks):
        if isinstance(record, Damage):
            yield from _checked(batch, names)
            yield number, record
            return
        batch.append((number, record))
        if len(batch) >= _BATCH:
            yield from _checked(batch, names)
            batch = []
    yield from _checked(batch, names)


def _records(chunks: Iterable[bytes]) -> Iterator[tuple[int, bytes | Damage]]:
    """Yield the records of a file with their numbers, each with its footer; long ones are passed over."""
    held, at, number, skip = b"", 0, 0, 0
    for chunk in chunks:
        held, at = held[at:] + chunk, 0
        while True:
            passed = min(skip, len(held) - at)
            at, skip = at + passed, skip - passed
            if skip or len(held) - at < _HEADER:
                break
            size = int.from_bytes(held[at : at + 8], "little")
            if size > _MOST_BYTES or len(held) - at >= _HEADER + size + _FOOTER:
                number += 1
                if masked_crc(held[at : at + 8]) != int.from_bytes(held[at + 8 : at + _HEADER], "little"):
                    yield number, Damage(number, "the length of a record is not what was written")
                    return
                if size > _MOST_BYTES:
                    skip = _HEADER + size + _FOOTER
                    continue
                yield number, held[at + _HEADER : at + _HEADER + size + _FOOTER]
                at += _HEADER + size + _FOOTER
            else:
                break
    if len(held) > at or skip:
        yield number + 1, Damage(number + 1, "the file ends within a record")


def _checked(batch: list[tuple[int, bytes]], names: dict[str, Names]) -> Iterator[tuple[int, Found | Damage]]:
    """Yield what the records of a batch say, those of one length checked together."""
    whole: dict[int, bool] = {}
    by_length: dict[int, list[int]] = {}
    for place, (_, record) in enumerate(batch):
        by_length.setdefault(len(record), []).append(place)
    for length, places in by_length.items():
        data = np.frombuffer(b"".join(batch[place][1] for place in places), np.uint8).reshape(-1, length)
        said = np.ascontiguousarray(data[:, -_FOOTER:]).view("<u4")[:, 0]
        whole |= zip(places, (masked_crcs(data[:, :-_FOOTER]) == said).tolist(), strict=True)
    for place, (number, record) in enumerate(batch):
        if not whole[place]:
            yield number, Damage(number, "a record is not what was written")
            continue
        try:
            yield from ((number, found) for found in _found(record[:-_FOOTER], names))
        except DamagedError as error:
            yield number, Damage(number, f"a record is not an event: {error}")


def _found(event: bytes, names: dict[str, Names]) -> Iterator[Found]:
    """Yield what the scalars of an event say of its step."""
    clock_s, step, summary = None, 0, b""
    for number, _, value in fields(event, 0, len(event)):
        if number == 1 and isinstance(value, bytes):
            clock_s = struct.unpack("<d", value)[0]
        elif number == 2 and isinstance(value, int):
            step = signed(value)
        elif number == 5 and isinstance(value, bytes):
            summary += value
    for number, _, value in fields(summary, 0, len(summary)):
        if number != 1 or not isinstance(value, bytes):
            continue
        tag, scalar = _scalar(value)
        known = names.get(tag)
        if known is None:
            # Megatron-LM's throughput is one of FLOP/s; it stands behind its iteration-time.
            leading = ["iteration-time"] if tag != "iteration-time" and "iteration-time" in names else []
            known = names[tag] = Names((tag, "step", "wall_time", *leading))
        told = known.of.keys() - {"step", "clock_s"}
        if scalar is not None and any(known.of[each][0] == tag for each in told):
            found = known.found({tag: scalar, "step": step, "wall_time": clock_s})
            if found is not None:
                yield found


def _scalar(value: bytes) -> tuple[str, float | None]:
    """Return tag and number of a value of a summary; no number where it is none."""
    tag, scalar = "", None
    for number, _, inner in fields(value, 0, len(value)):
        if number == 1 and isinstance(inner, bytes):
            tag = inner.decode("utf-8", errors="replace")
        elif number == 2 and isinstance(inner, bytes) and len(inner) == 4:
            scalar = struct.unpack("<f", inner)[0]
        elif number == 8 and isinstance(inner, bytes):
            scalar = _tensor(inner)
    return tag, scalar


def _tensor(tensor: bytes) -> float | None:
    """Return the one number of a tensor of floats; None where it is another."""
    kind, content = 0, b""
    for number, _, value in fields(tensor, 0, len(tensor)):
        if number == 1 and isinstance(value, int):
            kind = value
        elif number in (4, 5, 6) and isinstance(value, bytes):
            content = value
    size = {_FLOAT: 4, _DOUBLE: 8}.get(kind)
    if size is None or len(content) != size:
        return None
    return float(struct.unpack("<f" if size == 4 else "<d", content)[0])


EVENTS = Dialect(
    name="tensorboard",
    title="TensorBoard",
    example="an event file with a scalar iteration-time, perf/step_time_seconds, throughput(tps), ...",
    marks=(),
    opened=no_lines,
)
