"""Read single values of an AICB file: numbers and communication tokens.

What cannot be read raises ValueError with a sentence about the value alone; the caller
knows the place and turns it into a FormatError.
"""

from dataclasses import dataclass
from functools import lru_cache

from traincast.formats.values import number, shown
from traincast.ranges import LARGEST_WHOLE
from traincast.units import GIGA
from traincast.workload.words import Group, Operation

MAX_TIME_NS = 10**18
"""Upper bound of a time in nanoseconds (31 years); anything above is a broken file."""
MAX_BYTES = LARGEST_WHOLE + 1
"""Upper bound of a size (`traincast.ranges`); sums over a file still fit 64 bits below it."""
MAX_WHOLE = 2**31
"""Upper bound of degrees and counts, as SimAI stores them."""

OPERATIONS = {
    "ALLREDUCE": Operation.ALL_REDUCE,
    "ALLGATHER": Operation.ALL_GATHER,
    "REDUCESCATTER": Operation.REDUCE_SCATTER,
    "ALLTOALL": Operation.ALL_TO_ALL,
    "BROADCAST": Operation.BROADCAST,
    "REDUCE": Operation.REDUCE,
}
SUFFIXES = {
    "EP": Group.EP,
    "DP_EP": Group.EDP,
    "EDP": Group.EDP,
    "TP": Group.TP,
    "DP": Group.DP,
    "CP": Group.CP,
    "PP": Group.PP,
    "ETP": Group.ETP,
}


@dataclass(frozen=True, slots=True)
class Token:
    """What a communication token says; ``suffix`` is None where it names no group."""

    operation: Operation
    suffix: Group | None


NO_COMMUNICATION = Token(Operation.NONE, None)


def whole(text: str, least: int = 0) -> int:
    """Read a whole number of at least `least`, written as ``8``, ``8.0`` or ``8e0``.

    Raises
    ------
    ValueError
        If it is not whole, too small, or 2^31 and more.
    """
    value = number(text)
    if value != int(value):
        raise ValueError(f"{shown(text)} is not a whole number")
    if not least <= value < MAX_WHOLE:
        raise ValueError(f"{shown(text)} is not between {least} and 2^31 - 1")
    return int(value)


def size_bytes(text: str) -> int:
    """Read a size in bytes; a fraction, which a division by TP can leave, is rounded.

    Raises
    ------
    ValueError
        If it is negative, or 2^53 and more.
    """
    value = number(text)
    if not 0 <= value < MAX_BYTES:
        raise ValueError(f"{shown(text)} is not a size between 0 and 2^53 bytes")
    return round(value)


def time_s(text: str) -> float:
    """Read a time in nanoseconds and return seconds.

    Raises
    ------
    ValueError
        If it is negative, or 1e18 ns and more.
    """
    value = number(text)
    if not 0 <= value < MAX_TIME_NS:
        raise ValueError(f"{shown(text)} is not a time between 0 and 1e18 ns")
    return value / GIGA


@lru_cache(maxsize=256)
def token(text: str) -> Token:
    """Read a communication token, such as ``NONE`` or ``ALLGATHER_DP_EP``, in any case.

    Raises
    ------
    ValueError
        If it is unknown; the message lists the known ones. SimAI takes such a token for no
        communication at all, or for one without a group, and gives it no time.

    Notes
    -----
    Source: SimAI, ``astra-sim/workload/Workload.cc``, ``Workload::initialize_workload``.
    """
    name = text.upper()
    if name == "NONE":
        return NO_COMMUNICATION
    operation, _, suffix = name.partition("_")
    if operation in OPERATIONS and (not suffix or suffix in SUFFIXES) and not name.endswith("_"):
        return Token(OPERATIONS[operation], SUFFIXES.get(suffix))
    known = f"NONE, {', '.join(OPERATIONS)}, alone or with _{', _'.join(SUFFIXES)}"
    raise ValueError(f"unknown communication {shown(text)}; known: {known}")
