"""What an AICB workload of the physical kind says, row by row, before anything is made of it."""

from dataclasses import dataclass

from traincast.workload.words import Group, Operation

MESSAGES = ("isend", "irecv")


@dataclass(frozen=True, slots=True)
class PhysicalRow:
    """One row of the file.

    Parameters
    ----------
    line : int
        1-based line in the file.
    kind : str
        ``comm_type`` without its class: ``all_reduce``, ``isend``, ``computation``, ``epoch_end`` ...
    operation : Operation
        What the ranks of a group do; NONE for computations, messages and the ends of steps.
    group : Group
        Who does it; NONE where nobody else is concerned.
    ranks : int, optional
        Members of the group, where the file says them.
    size_bytes : int
        Payload of the whole group as `Operation` counts it; bytes of a message.
    product : tuple of int, optional
        Of a computation: batch, m, n, k of the matrix product.
    stage : str
        Where in the step: ``forward.MegatronRowLinear``.
    time_s : float, optional
        Seconds it took, where the file is the log of a run.
    count : int
        Equal ones, one after the other.
    """

    line: int
    kind: str
    operation: Operation
    group: Group
    ranks: int | None
    size_bytes: int
    product: tuple[int, int, int, int] | None
    stage: str
    time_s: float | None
    count: int


@dataclass(frozen=True, slots=True)
class Section:
    """The rows of one rank, which stand for all ranks of its pipeline stage.

    Parameters
    ----------
    line : int
        Line of its title, or of the first header.
    stage : int, optional
        Pipeline stage; None where the title names none.
    ranks : int, optional
        Ranks that it stands for; None without a title.
    rows : tuple of PhysicalRow
        In program order, ends of steps included.
    """

    line: int
    stage: int | None
    ranks: int | None
    rows: tuple[PhysicalRow, ...]


@dataclass(frozen=True, slots=True)
class PhysicalFile:
    """A whole file: where it came from and the stages that it describes."""

    path: str
    sections: tuple[Section, ...]
