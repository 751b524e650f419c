"""Published runs forecast with what a user's own job would say, next to the same with all that is known of them.

Without their source, address, notes and facts a run is what its table and its recipe's flags say: what else its
software switched on is a default of the framework, as it is for every job. Kept are facts without which there is no
such job, or no measured step (`SAID`): a user knows the precision and the release that he runs.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from msgspec.structs import replace

from datafiles import table_path
from forecasts import shipped_forecasts, timed_rows
from judges.board import Board, board_of
from published.facts import facts_of
from published.reading import in_common_schema
from traincast.calibration.columns import read_measurements
from traincast.calibration.kinds.runs import BOARD, labels_of
from traincast.calibration.runs import MeasuredRun, read_runs
from traincast.calibration.tables import MeasurementTable, Row

BLANK = ("id", "source", "source_url_or_repo_path", "notes")
SAID = ("precision", "framework", "software_year", "pp", "micro_batch", "nic_gbit_per_gpu", "flop_count", "memory_kind")
"""Facts that every job says of itself, or that tell how its step was measured."""
ASKED: Mapping[str, Mapping[str, float]] = {
    "LoRA": {"median": 8, "p90": 20},
    "SFT": {"median": 6, "p90": 15},
    "hybrids": {"median": 7, "p90": 18},
}
_NAMES = {"lora": "LoRA", "sft": "SFT"}
_EVERY = {"dense BF16/FP16": 6, "dense FP8": 4}
"""One row in so many of the large boards, of which other judges forecast every row."""


class Pair(NamedTuple):
    """A run with all that is known of it, and as its user's own job."""

    board: str
    known: MeasuredRun
    blank: MeasuredRun


def boards() -> list[Board]:
    """Return the boards of each kind of runs, both ways."""
    subjects = "runs, without facts of their sources", "runs, with facts of their sources"
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    judged = list(chosen(pairs()))
    known = shipped_forecasts([pair.known for pair in judged])
    blank = shipped_forecasts([pair.blank for pair in judged])
    for pair, *both in zip(judged, blank, known, strict=True):
        for subject, each in zip(subjects, both, strict=True):
            if each.step_s is not None and pair.known.measured_s is not None:
                found.setdefault((subject, pair.board), []).append((each.step_s, pair.known.measured_s))
    made = []
    for (subject, name), steps in sorted(found.items()):
        forecast, measured = zip(*steps, strict=True)
        board = board_of(subject, name, forecast, measured)
        made.append(board._replace(asked=ASKED.get(name, {}) if subject == subjects[0] else {}))
    return made


def pairs() -> Iterator[Pair]:
    """Yield every published run that has a step, both ways."""
    table = read_measurements(*map(table_path, ("measured_training_runs.csv", "recipe_settings.csv")))
    known = timed_rows()
    rows = {row.line: row for row in table.rows}
    line_of = {row.id: row.line for row in table.rows}
    blanked = tuple(_blanked(row) for row in rows.values())
    blank = {int(run.id.rpartition(":")[2]): run for run in _steps(in_common_schema(replace(table, rows=blanked)))}
    for run, board in zip(known, labels_of(known)[BOARD], strict=True):
        if (own := blank.get(line_of[run.id])) is not None:
            yield Pair(_NAMES.get(board, board), run, own)


def chosen(found: Iterator[Pair]) -> Iterator[Pair]:
    """Yield every pair of small boards, and some of large ones."""
    count: dict[str, int] = {}
    for pair in found:
        count[pair.board] = count.get(pair.board, -1) + 1
        if count[pair.board] % _EVERY.get(pair.board, 1) == 0:
            yield pair


def _blanked(row: Row) -> Row:
    said = {column: value for column, value in facts_of(row.id).items() if column in SAID}
    return replace(row, cells={**{name: text for name, text in row.cells.items() if name not in BLANK}, **said})


def _steps(table: MeasurementTable) -> list[MeasuredRun]:
    return [run for run in read_runs(table).rows if run.measured_s is not None]
