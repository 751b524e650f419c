"""What a training log says, as one record: steps in arrays, what it says of the run, and what cannot be read."""

from collections.abc import Mapping
from typing import Self

import numpy as np
import numpy.typing as npt
from msgspec import Struct, field
from msgspec.structs import fields

from traincast.diagnostics import Note
from traincast.formats.training_log.contract import Dialect

Whole = npt.NDArray[np.int64]
Column = npt.NDArray[np.int64] | npt.NDArray[np.float64] | npt.NDArray[np.bool_]
Real = npt.NDArray[np.float64]


class Steps(Struct, frozen=True, kw_only=True):
    """Lines of steps as arrays of one length, in the order of starts and numbers; NaN where a line does not say it.

    What several ranks print of one step is one entry, of their medians.
    """

    step: Whole
    """Number of the step, from 1, over all epochs."""
    start: Whole
    """Which start of the run it belongs to, from 0."""
    line: Whole
    """1-based line of the file, the first of them; of a document or table the entry or row."""
    steps: Whole
    """Steps since the line before, of which it tells the mean; 0 where that is not known."""
    step_s: Real
    """Mean time of a step."""
    tokens_per_s: Real
    """Per GPU."""
    job_tokens_per_s: Real
    """Of all GPUs."""
    samples_per_s: Real
    """Sequences, of all GPUs."""
    flops_per_s: Real
    """Per GPU, as the framework counts them (`Dialect.flops`)."""
    memory_bytes: Real
    """Of a GPU, as the framework means it (`Dialect.memory`)."""
    global_batch: Real
    """Sequences of a step."""
    loss: Real
    clock_s: Real
    """When it was printed, from any origin."""
    interrupted: npt.NDArray[np.bool_]
    """Whether an evaluation or a checkpoint came between the line before and this one."""

    def __len__(self) -> int:
        """Return the number of entries."""
        return int(self.step.size)

    def select(self, chosen: npt.NDArray[np.bool_] | npt.NDArray[np.int64] | slice, **others: Column) -> Self:
        """Return some of the entries, chosen by a mask or by their positions, with other columns where given."""
        return type(self)(**{each.name: getattr(self, each.name)[chosen] for each in fields(self)} | others)


class TrainingLog(Struct, frozen=True, kw_only=True):
    """What a whole log says."""

    path: str
    framework: Dialect
    """Whose lines most of them are."""
    steps: Steps
    facts: Mapping[str, int | str]
    """Facts of the run, by the keys of `traincast.formats.training_log.facts.FACTS`, and ``tokens`` of a step and
    ``gpu``."""
    ranks: int
    """Ranks that printed steps."""
    planned: int | None
    """Steps that the run was to have."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Settings that the framework lists before its first step, as they stand."""
    settings_like: str = ""
    """Whose they are: ``megatron``, ``maxtext`` or ``torchtitan``."""
    warnings: tuple[Note, ...] = ()

    @property
    def starts(self) -> int:
        """How often the run was started."""
        return 1 + int(self.steps.start.max())
