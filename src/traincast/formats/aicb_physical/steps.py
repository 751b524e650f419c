"""Split the rows of a rank into steps, and a step into the passes of its microbatches; describe them.

A rank's rows are its initialisation and then its steps, each closed by ``epoch_end``. In a step the name of
a row's part begins with ``forward`` or ``backward``; a message to or from another stage, and a change
between the two, ends a pass. What stands outside of both, such as ``step``, is done once per step.

Source: AICB, ``workload_generator/workload_generator.py``, ``generate_megatron_workload.py`` (with a pipeline
and without one), ``generate_deepspeed_stage1_2_workload.py``, ``generate_deepspeed_stage3_workload.py``,
``generate_collective_test.py``.
"""

from collections.abc import Iterator, Sequence
from statistics import median_low

from msgspec import Struct, field

from traincast.errors import FormatError
from traincast.formats.aicb_physical.grammar import MESSAGES, PhysicalFile, PhysicalRow, Section
from traincast.formats.contract import Counted, Inspection, totals_of
from traincast.workload.words import Group, Operation

_BEFORE = ("init", "warmup")
_END = "epoch_end"
_LEAST_CLOSING = 3
"""Rows that a step of AICB closes with at the least; fewer equal ones are just that."""
Rows = tuple[PhysicalRow, ...]


class Passes(Struct):
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
        """Passes of a kind; 0 where the step is not one of training, such as a test of a collective."""
        return max(len(self.forward), len(self.backward))

    def rows(self) -> list[PhysicalRow]:
        """Return every row but the messages."""
        return [*self.start, *(row for rows in (*self.forward, *self.backward) for row in rows), *self.end]


class Steps(Struct, frozen=True):
    """The step that is simulated, stage by stage, and what else the file holds."""

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
    """Split a file into steps and choose the one to simulate: that of median time in the log of a run, else the first.

    Raises
    ------
    FormatError
        If there is no step, stages hold different numbers of steps, or of microbatches.
    """
    split = list(map(_split, file.sections))
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
            text = f"this stage has {found.microbatches} microbatches in a step, the first one {passes[0].microbatches}"
            raise FormatError(text, file.path, section.line)
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
    of_pass: list[PhysicalRow] = []
    before = ""
    for row in rows:
        if row.kind == _END:
            continue
        sent = row.kind in MESSAGES
        now = next((each for each in ("forward", "backward") if row.stage.startswith(each)), "")
        if (sent or now != before) and of_pass:
            (found.forward if before == "forward" else found.backward).append(tuple(of_pass))
            of_pass = []
        if sent:
            found.messages.append(row)
            continue
        before = now
        (of_pass if now else found.end if found.forward or found.backward else found.start).append(row)
    if of_pass:
        (found.forward if before == "forward" else found.backward).append(tuple(of_pass))
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
    if half >= _LEAST_CLOSING and not odd and list(map(_what, found.end[:half])) == list(map(_what, found.end[half:])):
        found.end, found.twice = found.end[:half], True


def _what(row: PhysicalRow) -> tuple[object, ...]:
    return row.kind, row.group, row.ranks, row.size_bytes, row.gemm, row.stage


def written_sizes(file: PhysicalFile) -> dict[Group, int]:
    """Return the members of each kind of group, where the rows say them.

    Raises
    ------
    FormatError
        If two rows disagree.
    """
    sizes: dict[Group, int] = {}
    for row in file.rows:
        if row.ranks is None or row.group is Group.NONE:
            continue
        if sizes.setdefault(row.group, row.ranks) != row.ranks:
            name = row.group.name.lower()
            text = f"a {name} group has {row.ranks} members here and {sizes[row.group]} before"
            raise FormatError(text, file.path, row.line)
    return sizes


def describe(file: PhysicalFile) -> Inspection:
    """Describe a file; totals are those of one step of the first stage."""
    steps, sizes = steps_of(file), written_sizes(file)
    first = steps.passes[0]
    what, reason = _producer(steps)
    timed = any(row.time_s is not None for row in first.rows())
    told = [section.ranks for section in file.sections if section.ranks is not None]
    return Inspection(
        generation=f"AICB physical {'log of a run' if timed else 'workload'}{what}",
        evidence=(f"the columns of AICB's {'log, with times' if timed else 'workload, without times'}", *reason),
        counts={
            "rows": sum(len(section.rows) for section in file.sections),
            "stages": len(file.sections),
            "steps": steps.held,
            "microbatches": first.microbatches,
            "once_per_step_rows": len(first.start) + len(first.end),
        },
        layout={
            **{group.name.lower(): sizes.get(group) for group in (Group.TP, Group.DP, Group.EP, Group.PP)},
            "world_size": sum(told) if told else None,
        },
        totals=tuple(totals_of(_parts([*first.rows(), *first.messages]))),
    )


def _producer(steps: Steps) -> tuple[str, tuple[str, ...]]:
    """Return what wrote the file, and why that is believed; nothing where nothing tells."""
    names = {row.stage.partition(".")[2].partition(".")[0] for passes in steps.passes for row in passes.rows()}
    if any(name.startswith("Megatron") for name in names):
        return ": Megatron", ("rows of Megatron's layers (MegatronRowLinear and the like)",)
    if names & {"allreduce_bucket", "all_gather_dp_groups"}:
        return ": DeepSpeed, ZeRO stage 1 or 2", ("rows of DeepSpeed's buckets",)
    if names & {"allgather_fn", "reduce_scatter_fn"}:
        return ": DeepSpeed, ZeRO stage 3", ("rows that gather parameters in both passes",)
    if not steps.passes[0].forward:
        return ": test of a collective", ("no row is of a forward or backward pass",)
    return "", ()


def _parts(rows: Sequence[PhysicalRow]) -> Iterator[Counted]:
    for row in rows:
        what = row.kind if row.operation is Operation.NONE else row.operation.name.lower()
        yield Counted(row.group, what, row.count, row.size_bytes * row.count, row.time_s)
