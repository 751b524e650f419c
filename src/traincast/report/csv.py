"""CSV for spreadsheets and data frames: ``ops.csv`` with every simulated operation, and the rows of a validation.

Letters: N operations, R simulated ranks, T template operations, G groups.
Source of the form: RFC 4180, with a bare newline at the end of a line.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from traincast.files import InputFile
from traincast.report.files import file_report
from traincast.report.operations import choose_ranks, described, pieces, simulated
from traincast.report.plain import csv_line, encodable
from traincast.simulation.result import Result
from traincast.workload.words import Provenance

if TYPE_CHECKING:
    from traincast.calibration.validate import Validation
    from traincast.workload.ops import IntArray
    from traincast.workload.program import Program, Timeline

MAX_ROWS = 1_000_000
"""Most lines of a file; above it only chosen ranks are written (`choose_ranks`)."""

COLUMNS = (
    *("rank", "stage", "virtual_stage", "microbatch"),
    *("phase", "kind", "name", "layer", "stream", "group", "operation", "size_bytes"),
    *("ranks", "ready_s", "start_s", "end_s", "duration_s", "wait_s"),
    *("provenance", "source"),
)
"""Times are seconds from the start of the step; ``ranks`` is the size of the group."""


@file_report("csv", "ops.csv", needs_timeline=True)
def write_csv(result: Result, stream: BinaryIO) -> None:
    """Write every operation of the simulated ranks, or of the chosen ones above `MAX_ROWS`, in UTF-8.

    A cell is empty where the column does not apply. Text of the input that a spreadsheet would take for a
    formula has an apostrophe before it.

    Raises
    ------
    ConfigError
        If the result holds no single operations.
    """
    step = simulated(result)
    program, timeline = step.program, step.timeline
    size_R = list(map(int, program.op_ptr_R1[1:] - program.op_ptr_R1[:-1]))
    choice = choose_ranks(result, size_R, MAX_ROWS, "lines")
    cells = _Cells.from_program(program, result.inputs)
    stream.write((",".join(COLUMNS) + "\n").encode())
    for index in choice.indices:
        place = f"{program.rank_R[index]},{program.stage_R[index]}"
        for part in pieces(program, index):
            lines = _lines(program, timeline, part, place, cells, result.inputs)
            stream.write("".join(lines).encode("utf-8", "backslashreplace"))


class _Cells(NamedTuple):
    """Cells that need no formatting per operation."""

    front_T: list[str]
    """Cells before the size of the group, shared by the runs of a template operation."""
    provenance_T: list[str]
    source_T: list[str]
    """Place of each template operation."""
    ranks_G: list[str]
    """Size of each group, and one entry more for the index -1: no group."""

    @classmethod
    def from_program(cls, program: "Program", inputs: Sequence[InputFile]) -> "_Cells":
        """Return the cells of a program."""
        ops = program.ops
        places = zip(ops.file_T.tolist(), ops.line_T.tolist(), strict=True)
        source_T = [_source(file, line, inputs) for file, line in places]
        provenance_T = [Provenance(each).name.lower() for each in ops.provenance_T.tolist()]
        front_T = list(map(csv_line, described(ops)))
        return cls(front_T, provenance_T, source_T, [str(len(group.members)) for group in program.groups] + [""])


def _lines(
    program: "Program", timeline: "Timeline", part: slice, place: str, cells: _Cells, inputs: Sequence[InputFile]
) -> Iterator[str]:
    ready_s_N, start_s_N = timeline.ready_s_N[part], timeline.start_s_N[part]
    columns = zip(
        program.row_N[part].tolist(),
        _known(program.virtual_stage_N[part]),
        _known(program.microbatch_N[part]),
        program.group_N[part].tolist(),
        ready_s_N.tolist(),
        start_s_N.tolist(),
        timeline.end_s_N[part].tolist(),
        timeline.duration_s_N[part].tolist(),
        (start_s_N - ready_s_N).tolist(),
        _sources(program, part, cells, inputs),
        strict=True,
    )
    for row, virtual_stage, microbatch, group, ready_s, start_s, end_s, duration_s, wait_s, source in columns:
        yield (
            f"{place},{virtual_stage},{microbatch},{cells.front_T[row]},{cells.ranks_G[group]},"
            f"{ready_s},{start_s},{end_s},{duration_s},{wait_s},{cells.provenance_T[row]},{source}\n"
        )


def _sources(program: "Program", part: slice, cells: _Cells, inputs: Sequence[InputFile]) -> Iterable[str]:
    """Return the place of each operation: its own one where it was recorded, else that of its template."""
    own = program.recorded
    if own is None:
        return (cells.source_T[row] for row in program.row_N[part].tolist())
    places = zip(own.file_N[part].tolist(), own.line_N[part].tolist(), strict=True)
    return (_source(file, line, inputs) for file, line in places)


def _source(file: int, line: int, inputs: Sequence[InputFile]) -> str:
    """Return the cell of a place; nothing where there is none (alone in its row it would be quoted)."""
    if not 0 <= file < len(inputs):
        return ""
    return csv_line([f"{inputs[file].path}:{line}" if line else inputs[file].path])


def _known(values: "IntArray") -> list[str]:
    return ["" if value < 0 else str(value) for value in values.tolist()]


def predictions_csv(validation: "Validation") -> bytes:
    """Return every row of a validation with its prediction.

    The columns are ``id``, ``measured_`` and ``predicted_`` with the quantity, ``error``, and
    what the row is. A row without a prediction has empty cells there; one that could not be
    used at all is left out.
    """
    found, quantity = validation.predictions, validation.quantity
    lines = [csv_line(["id", f"measured_{quantity}", f"predicted_{quantity}", "error", *found.details])]
    values = zip(found.ids, found.measured.tolist(), found.predicted.tolist(), strict=True)
    for position, (name, measured, predicted) in enumerate(values):
        # NaN is the only number that differs from itself.
        forecast = ["", ""] if predicted != predicted else [predicted, predicted / measured - 1.0]  # noqa: PLR0124
        lines.append(csv_line([name, measured, *forecast, *(column[position] for column in found.details.values())]))
    return encodable("".join(f"{line}\n" for line in lines)).encode()
