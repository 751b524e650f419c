"""What the server and its workers say to each other: frames of MessagePack, each after its length."""

from typing import BinaryIO

import msgspec
from msgspec import Struct

LENGTH_BYTES = 4
"""Bytes of the length before a frame, the most significant first."""
FILES = "files"
"""Folder of a task with what a page brought."""


class WorkerCall(Struct, frozen=True):
    """What a worker is to do: an endpoint by its name, the JSON of what it takes, and where its files lie."""

    name: str
    body: bytes
    folder: str = ""
    """Folder of the task that the call belongs to; empty where it has none."""


class Message(Struct, frozen=True):
    """What a worker says: ``ready``, an event of its work by name, ``done`` with its answer, or ``failed``."""

    kind: str
    body: bytes = b""
    """JSON."""
    status: int = 200
    """Of HTTP, of what failed."""


def framed(record: WorkerCall | Message) -> bytes:
    """Return a record as a frame."""
    content = msgspec.msgpack.encode(record)
    return len(content).to_bytes(LENGTH_BYTES, "big") + content


def length_of(head: bytes) -> int:
    """Return the length of the frame that follows its first bytes."""
    return int.from_bytes(head, "big")


def read_call(stream: BinaryIO) -> WorkerCall | None:
    """Return the next call of a stream; None where it has ended."""
    head = stream.read(LENGTH_BYTES)
    if len(head) < LENGTH_BYTES:
        return None
    return msgspec.msgpack.decode(stream.read(length_of(head)), type=WorkerCall)
