"""What a dialect of training logs is: how one framework says a step, and what its figures mean.

A dialect is one file in `traincast.formats.training_log.dialects`. It knows lines (or, of a document, entries) and not
runs: it says what one of them tells. What ranks, restarts and evaluations make of them is the business of
`traincast.formats.training_log.assembly`.
"""

from collections.abc import Callable, Mapping
from typing import Literal

from msgspec import Struct

QUANTITIES = (
    "step_s",
    "tokens_per_s",
    "job_tokens_per_s",
    "samples_per_s",
    "flops_per_s",
    "memory_bytes",
    "global_batch",
    "loss",
    "clock_s",
)
"""What a line may say of its steps, in SI, each a column of `traincast.formats.training_log.record.Steps`."""
TIMES = ("step_s", "tokens_per_s", "job_tokens_per_s", "samples_per_s", "clock_s")
"""Those that the time of a step can be told from."""


class CutError(ValueError):
    """A line of a step that lacks a part."""


class WrongError(ValueError):
    """A line of a step with a number that cannot be one; the message says which and what it must be."""


class RunsError(ValueError):
    """A table of several runs; the message says how it tells."""


class Found(Struct, frozen=True, kw_only=True):
    """What one line says of the step that it names."""

    values: Mapping[str, float]
    """Some of `QUANTITIES`."""
    number: int | None = None
    """Number of the step, from 1, in its epoch; None where the line does not say it."""
    epoch: int = 0
    planned: int | None = None
    """Steps that the run, or the epoch, is to have."""
    series: str = ""
    """What tells lines of different things apart, such as several progress bars."""
    framework: str = ""
    """Name of the dialect whose figures they are, where another wrote them down."""
    doubtful: bool = False
    """Whether `step_s` may as well be the time since the beginning."""
    steps: int | None = None
    """Steps of which the line tells the mean; None: those since the line before."""


class Definition(Struct, frozen=True, kw_only=True):
    """What a figure means, where frameworks differ."""

    text: str
    """For people, as a clause: ``"the most that PyTorch's allocator reserved since the line before"``."""
    source: str
    """The framework's file and function."""


class MemoryDefinition(Definition, frozen=True, kw_only=True):
    """What the memory of a line means."""

    kind: Literal["allocated", "reserved", "device"]
    """As of tables of measured memory: by PyTorch's allocator, or all that the device shows."""


class FlopsDefinition(Definition, frozen=True, kw_only=True):
    """How the operations behind the FLOP/s of a line are counted."""

    counts: tuple[Literal["causal", "full", "full+recompute"], ...]
    """How versions count, the newest first, as tables of runs call it: causal attention halved, the full square, or
    with what is recomputed."""


Line = Callable[[str], Found | None]
"""Says what a line, or an entry as JSON, tells of a step; None where it is none.

Raises `CutError` and `WrongError` for lines of steps that cannot be read.
"""


def no_lines() -> Line:
    """Return what reads the lines of a dialect that has none."""
    return lambda _: None


class Dialect(Struct, frozen=True, kw_only=True):
    """How one framework, or a line of versions of it, says a step."""

    name: str
    title: str
    """For people."""
    example: str
    """What a line looks like, for messages."""
    marks: tuple[str, ...]
    """Texts of which every such line has one, so that others are passed over at once; none for what has no lines."""
    opened: Callable[[], Line]
    """Returns what reads the lines of one file; it may remember what came before, such as a header."""
    flops: FlopsDefinition | None = None
    memory: MemoryDefinition | None = None
