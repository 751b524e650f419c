"""Read single values of a NeuSight file: times, numbers of elements, kinds of communication.

What cannot be read raises ValueError with a sentence about the value alone; the caller
knows the place and turns it into a FormatError.
"""

from functools import lru_cache
from typing import NamedTuple

from traincast.formats.values import number, shown
from traincast.workload.words import Operation

MILLISECONDS_PER_SECOND = 1e3
MAX_TIME_MS = 10**12
"""Upper bound of a time in milliseconds (31 years); anything above is a broken file."""
MAX_ELEMENTS = 2**50
"""Upper bound of a size in elements, so that its bytes stay below 2^53 whatever the type."""

_COLLECTIVES = {
    "ALLREDUCE": Operation.ALL_REDUCE,
    "ALLGATHER": Operation.ALL_GATHER,
    "REDUCESCATTER": Operation.REDUCE_SCATTER,
    "ALLTOALL": Operation.ALL_TO_ALL,
    "BROADCAST": Operation.BROADCAST,
}
_ASYNC = "_ASYNC"


class Token(NamedTuple):
    """What a kind of communication says."""

    operation: Operation
    asynchronous: bool


def time_s(text: str) -> float:
    """Read a time in milliseconds and return seconds.

    Raises
    ------
    ValueError
        If it is no number, negative, or 1e12 ms and more.
    """
    value = number(text)
    if not 0 <= value < MAX_TIME_MS:
        raise ValueError(f"{shown(text)} is not a time between 0 and 1e12 ms")
    return value / MILLISECONDS_PER_SECOND


def elements(text: str) -> int:
    """Read a number of elements.

    Raises
    ------
    ValueError
        If it is not whole, negative, or 2^50 and more.
    """
    value = number(text)
    if value != int(value):
        raise ValueError(f"{shown(text)} is not a whole number of elements")
    if not 0 <= value < MAX_ELEMENTS:
        raise ValueError(f"{shown(text)} is not a number of elements between 0 and 2^50")
    return int(value)


@lru_cache(maxsize=256)
def token(text: str) -> Token:
    """Read a kind of communication, in any case; ``None`` is text here.

    Raises
    ------
    ValueError
        If it is unknown; the message lists the known ones.
    """
    name = text.upper()
    if name == "NONE":
        return Token(Operation.NONE, asynchronous=False)
    if name == "SENDRECV":
        return Token(Operation.SEND_RECV, asynchronous=False)
    collective = name.removesuffix(_ASYNC)
    if collective in _COLLECTIVES:
        return Token(_COLLECTIVES[collective], asynchronous=name.endswith(_ASYNC))
    known = f"None, {', '.join(_COLLECTIVES)} (each also with {_ASYNC}), SENDRECV"
    raise ValueError(f"unknown communication {shown(text)}; write one of {known}")
