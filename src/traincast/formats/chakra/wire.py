"""The wire format of protobuf, as far as execution traces use it: varints, fixed numbers, and what has a length.

A message is a sequence of fields, each a key (number and wire type) and a value; a file is a sequence of messages, each
after its length. What a field means is not here, and a field that nobody knows can be passed over by its wire type.

Source: https://protobuf.dev/programming-guides/encoding.
"""

import struct
from collections.abc import Iterator
from enum import IntEnum

MOST_VARINT_BYTES = 10
"""Bytes of a varint of 64 bits, seven in a byte."""
_ALL_BITS = 2**64 - 1
_MOST_FIELDS = 2**29


class Wire(IntEnum):
    """How the value of a field is written."""

    VARINT = 0
    FIXED64 = 1
    LENGTH = 2
    """A length and so many bytes: text, a message, or numbers one after the other."""
    GROUP = 3
    END_GROUP = 4
    FIXED32 = 5


_SHORT = tuple(bytes([value]) for value in range(0x80))
_FIXED = {Wire.FIXED64: 8, Wire.FIXED32: 4}
"""Bytes of numbers that are always as long."""


class DamagedError(Exception):
    """Bytes that are not a message; `at` is the first of them, counted from the beginning of the data."""

    def __init__(self, what: str, at: int) -> None:
        self.what, self.at = what, at
        super().__init__(what)


Value = int | bytes
"""A number without a sign, eight or four bytes of a fixed one, or what has a length."""


def varint(value: int) -> bytes:
    """Return a number from 0 to 2^64 - 1 as a varint."""
    if value < len(_SHORT):
        return _SHORT[value]
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def uint_field(number: int, value: int) -> bytes:
    """Return a field of an unsigned number, an enumeration or a truth value."""
    return varint(number << 3 | Wire.VARINT) + varint(value)


def int_field(number: int, value: int) -> bytes:
    """Return a field of a signed number (int32, int64): a negative one takes ten bytes."""
    return uint_field(number, value & _ALL_BITS)


def double_field(number: int, value: float) -> bytes:
    """Return a field of a double."""
    return varint(number << 3 | Wire.FIXED64) + struct.pack("<d", value)


def bytes_field(number: int, value: bytes) -> bytes:
    """Return a field of text, bytes or a message."""
    return varint(number << 3 | Wire.LENGTH) + varint(len(value)) + value


def uints_field(number: int, values: list[int]) -> bytes:
    """Return a field of several unsigned numbers, packed; nothing where there are none."""
    return bytes_field(number, b"".join(map(varint, values))) if values else b""


def delimited(message: bytes) -> bytes:
    """Return a message after its length."""
    return varint(len(message)) + message


def read_varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Return the varint that begins at a byte, and where it ends.

    Raises
    ------
    DamagedError
        If it goes on beyond `end`, or has more than 64 bits.
    """
    value = shift = 0
    for place in range(at, min(end, at + MOST_VARINT_BYTES)):
        byte = data[place]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > _ALL_BITS:
                break
            return value, place + 1
        shift += 7
    raise DamagedError("a number has more than 64 bits" if end - at >= MOST_VARINT_BYTES else "a number is cut off", at)


def fields(data: bytes, at: int, end: int, until: tuple[int, ...] = ()) -> Iterator[tuple[int, int, Value]]:
    """Yield number, wire type and value of each field of a message; groups, which nothing here uses, are passed over.

    What begins with a byte of `until` is the last value, of number 0, to the end of the message.

    Raises
    ------
    DamagedError
        If the bytes are not a message.
    """
    while at < end:
        begin = at
        if data[at] in until:
            yield 0, Wire.LENGTH, data[at:end]
            return
        # Most numbers have one byte.
        key, at = (data[at], at + 1) if data[at] < 0x80 else read_varint(data, at, end)
        number, wire = key >> 3, key & 7
        if not 0 < number < _MOST_FIELDS:
            raise DamagedError(f"a field has the number {number}", begin)
        if wire in (Wire.VARINT, Wire.LENGTH):
            value, at = (data[at], at + 1) if at < end and data[at] < 0x80 else read_varint(data, at, end)
            if wire == Wire.VARINT:
                yield number, wire, value
                continue
        elif wire in _FIXED:
            value = _FIXED[Wire(wire)]
        elif wire == Wire.GROUP:
            at = _after_group(data, at, end, number)
            continue
        else:
            raise DamagedError(f"field {number} has the wire type {wire}, which does not begin anything", begin)
        if value > end - at:
            raise DamagedError(f"field {number} has {value} bytes, and {end - at} are left", begin)
        yield number, wire, data[at : at + value]
        at += value


def _after_group(data: bytes, at: int, end: int, number: int) -> int:
    """Return where a group ends."""
    open_groups = [number]
    while open_groups:
        begin = at
        key, at = read_varint(data, at, end)
        found, wire = key >> 3, key & 7
        if wire == Wire.GROUP:
            open_groups.append(found)
        elif wire == Wire.END_GROUP:
            if open_groups.pop() != found:
                raise DamagedError(f"group {found} ends and did not begin", begin)
        elif wire == Wire.VARINT:
            _, at = read_varint(data, at, end)
        elif wire == Wire.LENGTH:
            size, at = read_varint(data, at, end)
            at += size
        else:
            at += _FIXED[Wire(wire)] if wire in _FIXED else end
        if at > end:
            raise DamagedError(f"group {number} is cut off", begin)
    return at


def signed(value: int, bits: int = 64) -> int:
    """Return the signed number (int32, int64) that a varint stands for."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def zigzag(value: int) -> int:
    """Return the signed number (sint32, sint64) that a varint stands for: 0, -1, 1, -2, ..."""
    return value >> 1 ^ -(value & 1)


def uints(value: Value) -> list[int]:
    """Return the unsigned numbers of a repeated field, of one entry or packed."""
    if isinstance(value, int):
        return [value]
    found, at = [], 0
    while at < len(value):
        number, at = read_varint(value, at, len(value))
        found.append(number)
    return found
