"""What every format needs to build a workload: segments, a warning."""

from dataclasses import dataclass, field

import numpy as np

from traincast.diagnostics import Notebook
from traincast.workload.ops import IntArray


@dataclass(slots=True)
class Segments:
    """Collects segments and gives each its number."""

    rows: list[IntArray] = field(default_factory=list)

    def add(self, rows: list[int]) -> int:
        """Append a segment and return its number; an empty one is -1."""
        if not rows:
            return -1
        self.rows.append(np.array(rows, dtype=np.int32))
        return len(self.rows) - 1


def warn_single_microbatch(notes: Notebook, stages: int, virtual: int, microbatches: int, line: int | None = 1) -> None:
    """Warn where one microbatch walks a whole pipeline, so that nothing overlaps.

    Parameters
    ----------
    notes : Notebook
        Receives the warning.
    stages, virtual : int
        Pipeline stages, and virtual stages of them all.
    microbatches : int
        Per step.
    line : int, optional
        Line of the file that the warning is about.
    """
    if stages > 1 and microbatches == 1:
        notes.warn(
            "single-microbatch",
            f"one microbatch walks all {virtual} virtual stages one after the other, so {stages - 1} of {stages} "
            "stages always wait and nothing overlaps; give --microbatches if the run had more",
            line,
        )
