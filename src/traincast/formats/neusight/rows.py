"""What a NeuSight file says, value by value, before anything is made of it: times, numbers of elements, communications.

What cannot be read raises ValueError with a sentence about the value alone; the caller knows the place and turns it
into a FormatError.
"""

from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

from traincast.diagnostics import Note
from traincast.formats import values
from traincast.formats.values import shown
from traincast.workload.words import Group, Operation

NEUSIGHT_DTYPE = "fp32"
"""Type of the elements where the user says none; NeuSight forecasts no other."""


class Column(StrEnum):
    """The three parts of a row; each has a compute time, a communication and its size."""

    FORWARD = "forward"
    BACKWARD = "backward"
    """Kernels of the input and of the weight gradient together."""
    WEIGHT_GRAD = "weight_grad"
    """Accumulation of the weight gradient, not the kernel that computes it."""


GRADIENT_SUFFIX = "_grad"
"""Ends the name of a row that reduces the gradient of the node after it."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One column of a row: a computation and the communication after it.

    Parameters
    ----------
    compute_s : float
        Seconds (the file says milliseconds).
    operation : Operation
        What is communicated; NONE for nothing.
    asynchronous : bool
        Whether the communication runs beside what follows (``_ASYNC``).
    elements : int
        Size of the communication in elements; may be non-zero beside NONE.
    group : Group
        Who communicates; NONE for nobody.
    """

    compute_s: float
    operation: Operation
    asynchronous: bool
    elements: int
    group: Group


@dataclass(frozen=True, slots=True)
class Row:
    """One row: an operator, or a communication.

    Parameters
    ----------
    number : int
        1-based line of the text, or 0-based entry of the JSON form.
    name : str
        Node of the traced model, such as ``addmm_1`` or ``transformer_h_0_ln_1_grad``.
    forward, backward, weight_grad : Cell
        The three columns.
    process_s : float
        Seconds after each communication (the file says milliseconds); never filled by the exporter.
    """

    number: int
    name: str
    forward: Cell
    backward: Cell
    weight_grad: Cell
    process_s: float

    def cell(self, column: Column) -> Cell:
        """Return the cell of a column."""
        if column is Column.FORWARD:
            return self.forward
        return self.backward if column is Column.BACKWARD else self.weight_grad

    @property
    def cells(self) -> tuple[Cell, Cell, Cell]:
        """The three columns, in their order."""
        return self.forward, self.backward, self.weight_grad

    @property
    def reductions(self) -> tuple[Cell, ...]:
        """Cells that reduce gradients over dp."""
        return tuple(cell for cell in self.cells[1:] if cell.group is Group.DP)

    @property
    def sends(self) -> bool:
        """Whether the row hands an activation, or its gradient, to the next stage."""
        return any(cell.group is Group.PP for cell in self.cells)


@dataclass(frozen=True, slots=True, kw_only=True)
class NeusightFile:
    """A whole file.

    Parameters
    ----------
    path : str
        Where it came from, for messages.
    rows : tuple of Row
        Every row, in order.
    entries : bool
        Whether it is the JSON form, whose rows have no lines.
    oddities : tuple of Note
        What is unusual about single values, each with its place.
    """

    path: str
    rows: tuple[Row, ...]
    entries: bool
    oddities: tuple[Note, ...] = ()

    @property
    def has_backward(self) -> bool:
        """Whether any row says a time of the backward pass."""
        return any(row.backward.compute_s or row.weight_grad.compute_s for row in self.rows)

    def line(self, index: int) -> int | None:
        """Return the line of a row; None in the JSON form."""
        return None if self.entries else self.rows[index].number

    def place(self, index: int) -> str:
        """Return where a row stands: ``file:line``, or ``file[entry]`` in the JSON form."""
        number = self.rows[index].number
        return f"{self.path}[{number}]" if self.entries else f"{self.path}:{number}"


MILLISECONDS_PER_SECOND = 1e3
MAX_ELEMENTS = 2**50 - 1
"""Largest size in elements, so that its bytes are in range whatever the type."""

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
    """Read a time in milliseconds and return seconds."""
    return values.time_s(text, MILLISECONDS_PER_SECOND, "ms")


def elements(text: str) -> int:
    """Read a number of elements."""
    return values.whole(text, "count", most=MAX_ELEMENTS)


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
