"""Split the rows of a rank into steps, and a step into the passes of its microbatches.

A rank's rows are its initialisation and then its steps, each closed by ``epoch_end``. In a step the name of
a row's part begins with ``forward`` or ``backward``; a message to or from another stage, and a change
between the two, ends a pass. What stands outside of both, such as ``step``, is done once per step.

Source: AICB, ``workload_generator/workload_generator.py``, ``generate_megatron_workload.py`` (with a pipeline
and without one), ``generate_deepspeed_stage1_2_workload.py``, ``generate_deepspeed_stage3_workload.py``,
``generate_collective_test.py``.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median_low

from traincast.errors import FormatError
from traincast.formats.aicb_physical.grammar import MESSAGES, PhysicalFile, PhysicalRow, Section

_BEFORE = ("init", "warmup")
_END = "epoch_end"
_LEAST_CLOSING = 3
"""Rows that a step of AICB closes with at the least; fewer equal ones are just that."""
Rows = tuple[PhysicalRow, ...]


@dataclass(slots=True)
class Passes:
    """One step of one stage."""

    forward: list[Rows] = field(default_factory=list)
    """Rows of the forward pass of each microbatch."""
    backward: list[Rows] = field(default_factory=list)
    start: list[PhysicalRow] = field(default_factory=list)
    """Once per step, before the first pass."""
    end: list[PhysicalRow] = field(default_factory=list)
    """Once per step, after the first pass."""
    messages: list[PhysicalRow] = field(default_factory=list)
    twice: bool = False
    """Whether the rows at the end stood there twice and count once."""

    @property
    def microbatches(self) -> int:
        """Passes of a kind; 0 where the step is none of training, such as a test of a collective."""
        return max(len(self.forward), len(self.backward))

    def rows(self) -> list[PhysicalRow]:
        """Return every row but the messages."""
        return [*self.start, *(row for rows in (*self.forward, *self.backward) for row in rows), *self.end]


@dataclass(frozen=True, slots=True)
class Steps:
    """The step that is simulated, stage by stage, and what the file holds beside it."""

    passes: tuple[Passes, ...]
    """One for each section."""
    held: int
    """Steps in the file."""
    chosen: int
    """Index of the one that is simulated."""
    measured_s: float | None
    """How long it took, where the file says it."""
    initialisation: Rows
    """Rows of the first section that are part of no step."""


def steps_of(file: PhysicalFile) -> Steps:
    """Split a file into steps and choose the one to simulate.

    Returns
    -------
    Steps
        The step of median time where the file is the log of a run, else the first one.

    Raises
    ------
    FormatError
        If there is no step, stages hold different numbers of steps, or of microbatches.
    """
    split = [_split(section) for section in file.sections]
    counts = [len(steps) for _, steps in split]
    if not counts[0]:
        text = "holds an initialisation and no step after it"
        raise FormatError(text, file.path, file.sections[0].rows[-1].line)
    for section, count in zip(file.sections, counts, strict=True):
        if count != counts[0]:
            raise FormatError(f"holds {count} steps, but the first stage {counts[0]}", file.path, section.line)
    chosen, measured_s = _choose([step[-1] for step in split[0][1]])
    passes = tuple(
        _passes(file, section, steps[chosen]) for section, (_, steps) in zip(file.sections, split, strict=True)
    )
    for section, found in zip(file.sections, passes, strict=True):
        if found.microbatches != passes[0].microbatches:
            raise FormatError(
                f"this stage has {found.microbatches} microbatches in a step, the first one {passes[0].microbatches}",
                file.path,
                section.line,
            )
    return Steps(passes, counts[0], chosen, measured_s, split[0][0])


def _split(section: Section) -> tuple[Rows, list[Rows]]:
    """Return the rows of the initialisation, and those of each step with its end."""
    epochs: list[list[PhysicalRow]] = [[]]
    for row in section.rows:
        epochs[-1].append(row)
        if row.kind == _END:
            epochs.append([])
    steps = [tuple(rows) for rows in epochs if any(row.kind != _END for row in rows)]
    if steps and all(row.kind == _END or row.stage.startswith(_BEFORE) for row in steps[0]):
        return steps[0], steps[1:]
    return (), steps


def _choose(ends: Sequence[PhysicalRow]) -> tuple[int, float | None]:
    """Return which step is simulated, and its measured time."""
    times = [row.time_s for row in ends if row.kind == _END and row.time_s]
    if len(times) < len(ends):
        return 0, None
    middle = median_low(times)
    return times.index(middle), middle


def _passes(file: PhysicalFile, section: Section, rows: Rows) -> Passes:
    """Split one step of a stage into its passes."""
    found = Passes()
    block: list[PhysicalRow] = []
    direction = ""

    def close() -> None:
        nonlocal block
        if block:
            (found.forward if direction == "forward" else found.backward).append(tuple(block))
        block = []

    for row in rows:
        if row.kind == _END:
            continue
        if row.kind in MESSAGES:
            close()
            found.messages.append(row)
            continue
        now = next((each for each in ("forward", "backward") if row.stage.startswith(each)), "")
        if now != direction:
            close()
            direction = now
        if now:
            block.append(row)
        else:
            (found.end if found.forward or found.backward else found.start).append(row)
    close()
    if found.forward and found.backward and len(found.backward) != len(found.forward):
        raise FormatError(
            f"a step of this stage has {len(found.forward)} forward and {len(found.backward)} backward passes; "
            "it must have as many of both, or one kind alone",
            file.path,
            section.line,
        )
    if found.messages:
        _once(found)
    return found


def _once(found: Passes) -> None:
    """Keep one of two equal halves of the closing rows: with a pipeline AICB writes its optimizer step twice."""
    half, odd = divmod(len(found.end), 2)
    if (
        half >= _LEAST_CLOSING
        and not odd
        and [_what(row) for row in found.end[:half]] == [_what(row) for row in found.end[half:]]
    ):
        found.end, found.twice = found.end[:half], True


def _what(row: PhysicalRow) -> tuple[object, ...]:
    return row.kind, row.group, row.ranks, row.size_bytes, row.product, row.stage
