"""Write a NeuSight file that was read back: byte for byte, but for compute times that are others in the workload."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from traincast.diagnostics import Note
from traincast.errors import FormatError
from traincast.files import read_unpacked
from traincast.formats.contract import read_again
from traincast.formats.neusight.grammar import MILLISECONDS_PER_SECOND
from traincast.formats.neusight.sniff import COLUMNS
from traincast.formats.writer import Run, Written
from traincast.workload.words import Kind, Phase
from traincast.workload.workload import Workload

FORMATS_OF_NEUSIGHT = frozenset({"neusight", "neusight-graph"})
"""Formats whose files are written back."""
_COLUMN = {
    Phase.FORWARD: "forward_compute_time",
    Phase.BACKWARD: "backward_compute_time",
    Phase.WEIGHT_GRADIENT: "weight_grad_compute_time",
}
_SAME = 1e-9
"""Relative difference of two times up to which they are one."""


def rewritten(run: Run) -> Written:
    """Return the file of a workload that was read from one NeuSight file.

    Raises
    ------
    FormatError
        If times were changed that the form of the file has no place for, or more than times.
    """
    workload = run.workload
    (source,) = workload.inputs
    text = read_unpacked(Path(source.path)).decode("latin-1")
    changed = _changed_times(workload)
    if changed:
        lines = text.split("\n")
        header = lines[0].strip().split("\t")
        if source.format != "neusight" or not set(COLUMNS) <= set(header):
            raise FormatError("changed times are written back into forecasts in text alone", source.path)
        for (line, phase), time_s in changed.items():
            cells = lines[line - 1].split("\t")
            cells[header.index(_COLUMN[phase])] = str(time_s * MILLISECONDS_PER_SECOND)
            lines[line - 1] = "\t".join(cells)
        text = "\n".join(lines)
    return Written([(Path(source.path).name, [text.encode("latin-1")])], tuple(_lost(workload)))


def _changed_times(workload: Workload) -> dict[tuple[int, Phase], float]:
    """Return the compute times in seconds that the workload has otherwise than its file, by line and phase."""
    was, now = read_again(workload).ops, workload.ops
    if len(was) != len(now) or not np.array_equal(was.line_T, now.line_T):
        path = workload.inputs[0].path
        raise FormatError("its operations differ from those of the file; only times can be written back", path)
    known_T = (was.kind_T == Kind.COMPUTE) & ~np.isnan(was.duration_s_T) & (was.line_T > 0)
    other_T = known_T & (np.abs(now.duration_s_T - was.duration_s_T) > _SAME * was.duration_s_T)
    return {
        (int(now.line_T[at]), Phase(int(now.phase_T[at]))): float(now.duration_s_T[at])
        for at in np.flatnonzero(other_T).tolist()
    }


def _lost(workload: Workload) -> Iterator[Note]:
    """Say what was asked for and has no place in the file."""
    yield Note("neusight-cluster", "a file names no cluster: times are those of the file")
    asked = workload.layout
    for name in ("gpus", "tp", "dp", "microbatches", "layers", "dtype"):
        value = getattr(asked, name)
        if value is not None:
            yield Note(f"neusight-{name}", f"the file says no {name}: read it with --{name} {value}")
    if workload.forward_only:
        yield Note("neusight-backward", "what runs forward only is written with its backward columns as they are")
