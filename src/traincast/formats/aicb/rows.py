"""What an AICB workload file says, value by value, before anything is made of it.

What cannot be read raises ValueError with a sentence about the value alone; the caller knows the place and turns it
into a FormatError.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache

from traincast.diagnostics import Note
from traincast.formats import values
from traincast.formats.values import shown
from traincast.units import GIGA
from traincast.workload.words import Group, Operation


class Column(StrEnum):
    """The three parts of a row; each has a compute time, a communication and its size."""

    FORWARD = "forward"
    INPUT_GRAD = "input_grad"
    WEIGHT_GRAD = "weight_grad"


@dataclass(frozen=True, slots=True)
class Cell:
    """One column of a row: a computation and the communication after it.

    Parameters
    ----------
    compute_s : float
        Seconds (the file says nanoseconds).
    token : str
        Communication as written, such as ``ALLREDUCE_DP_EP``.
    operation : Operation
        What the token does; NONE for no communication.
    suffix : Group, optional
        Group that the token names; None where column and row decide
        (`traincast.formats.aicb.meaning.group_of`).
    size_bytes : int
        Payload of the whole group: the gathered tensor of an all-gather, the tensor of an
        all-reduce, what leaves one rank in an all-to-all. May be non-zero beside NONE.
    """

    compute_s: float
    token: str
    operation: Operation
    suffix: Group | None
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the file.

    Parameters
    ----------
    line : int
        1-based line in the file.
    name : str
        Layer part, such as ``attention_column``.
    dependency : int
        As written; -1 in all but hand-made files, and used by no tool.
    forward, input_grad, weight_grad : Cell
        The three columns.
    process_s : float
        Seconds after each communication (the file says nanoseconds); SimAI-Analytical ignores it.
    policy : str, optional
        Policy of this row, in files of ``HYBRID_CUSTOMIZED`` only.
    """

    line: int
    name: str
    dependency: int
    forward: Cell
    input_grad: Cell
    weight_grad: Cell
    process_s: float
    policy: str | None

    def cell(self, column: Column) -> Cell:
        """Return the cell of a column."""
        if column is Column.FORWARD:
            return self.forward
        return self.input_grad if column is Column.INPUT_GRAD else self.weight_grad


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The first line; None where it is silent.

    Parameters
    ----------
    policy : str
        First word, such as ``HYBRID_TRANSFORMER_FWD_IN_BCKWD``.
    tp, ep, pp, vpp, ga, all_gpus : int, optional
        Degrees, microbatches per step (`ga`) and world size, as written.
    pp_message_bytes : int, optional
        ``pp_comm``: bytes of one activation message between pipeline stages.
    checkpoints : tuple of int
        Rows (0-based) that are activation checkpoints.
    checkpoint_initiates : tuple of int
        Rows (0-based) at which recomputation starts in the backward pass.
    inference : bool
        The file has a forward pass only: ``mode: 1`` or the policy
        ``DISTRIBUTED_INFERENCE``.
    keys : tuple of str
        Keys in the order of the file, without their colons.
    bare_keys : tuple of str
        Those of them that have no colon.
    extra : dict
        Unknown keys, and known ones that nothing here uses, with their values as written.
    """

    policy: str
    tp: int | None = None
    ep: int | None = None
    pp: int | None = None
    vpp: int | None = None
    ga: int | None = None
    all_gpus: int | None = None
    pp_message_bytes: int | None = None
    checkpoints: tuple[int, ...] = ()
    checkpoint_initiates: tuple[int, ...] = ()
    inference: bool = False
    keys: tuple[str, ...] = ()
    bare_keys: tuple[str, ...] = ()
    extra: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class AicbFile:
    """A whole file.

    Parameters
    ----------
    path : str
        Where it came from, for messages.
    header : Header
        The first line.
    declared_rows : int, optional
        The count line; None where the file has none.
    rows : tuple of Row
        The rows that are used, in order.
    left_out : int, optional
        Line of the first row beyond the declared ones, where there are more; it and those after it
        are not read.
    oddities : tuple of Note
        What is unusual but readable, each with its ``file:line``.
    """

    path: str
    header: Header
    declared_rows: int | None
    rows: tuple[Row, ...]
    left_out: int | None = None
    oddities: tuple[Note, ...] = ()


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


def size_bytes(text: str) -> int:
    """Read a size in bytes; a fraction, which a division by TP can leave, is rounded."""
    return values.whole(text, "bytes", rounded=True)


def time_s(text: str) -> float:
    """Read a time in nanoseconds and return seconds."""
    return values.time_s(text, GIGA, "ns")


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
