"""CSV files and JSON lines with named columns, and histories that Weights & Biases exports as either.

Names are those of `traincast.formats.training_log.columns`. An object of JSON may stand behind what a logger or
launcher puts before it, and its values in groups: ``{"step": 10, "perf": {"step_time": 1.25}}``.
"""

import csv
import json
from collections.abc import Iterator, Mapping

from traincast.formats.training_log.columns import Names
from traincast.formats.training_log.contract import CutError, Dialect, Found, Line, RunsError
from traincast.formats.values import shown

_DELIMITERS = (",", "\t", ";")
_OF_RUNS = ("run", "run_id", "run_name")
"""Columns that say whose a row is."""
_MOST_SHAPES = 256
"""Different sets of keys of objects that are remembered; loggers have a few."""


class _Runs:
    """The run that rows say they are of."""

    def __init__(self) -> None:
        self._name: tuple[str, object] | None = None

    def see(self, row: Mapping[str, object]) -> None:
        """Take in whose a row is; a second run is a `RunsError`."""
        column = next((each for each in row if each.lower() in _OF_RUNS), None)
        if column is None:
            return
        if self._name is None:
            self._name = column, row[column]
        elif (column, row[column]) != self._name and column == self._name[0]:
            first, second = shown(str(self._name[1])), shown(str(row[column]))
            raise RunsError(f"holds steps of several runs (column {column}: {first}, {second}); give those of one")


def _csv() -> Line:
    runs = _Runs()
    header: list[tuple[list[str], Names, str]] = []
    other = False

    def line(text: str) -> Found | None:
        nonlocal other
        if other or not text.strip():
            return None
        if not header:
            delimiter = max(_DELIMITERS, key=text.count)
            columns = _cells(text, delimiter)
            names = Names(columns)
            other = not names.tell_steps
            if names.twice is not None:
                first, second = names.twice
                raise RunsError(f"the columns {first!r} and {second!r} are of two runs; export one run")
            header.append((columns, names, delimiter))
            return None
        columns, names, delimiter = header[0]
        cells = _cells(text, delimiter)
        if cells == columns:
            # Written again by a run that was started again.
            return None
        if len(cells) != len(columns):
            raise CutError
        row = dict(zip(columns, cells, strict=True))
        runs.see(row)
        return names.found(row)

    return line


def _cells(text: str, delimiter: str) -> list[str]:
    """Return the cells of a line."""
    try:
        return next(csv.reader([text], delimiter=delimiter, strict=True), [])
    except csv.Error:
        raise CutError from None


def is_header(text: str) -> bool:
    """Say whether a line names the columns of a table of steps."""
    try:
        return any(mark in text for mark in _DELIMITERS) and (
            Names(_cells(text, max(_DELIMITERS, key=text.count))).tell_steps
        )
    except CutError:
        return False


def _json() -> Line:
    runs = _Runs()
    shapes: dict[tuple[str, ...], Names] = {}

    def line(text: str) -> Found | None:
        begin = text.find("{")
        if begin < 0:
            return None
        try:
            value = json.loads(text[begin : text.rfind("}") + 1])
        except (ValueError, RecursionError):
            # Of an object that stands alone in its line a part is missing; others are not of this dialect.
            if begin == 0 and text.startswith('{"'):
                raise CutError from None
            return None
        values = dict(_flat(value)) if isinstance(value, dict) else {}
        keys = tuple(values)
        if keys not in shapes and len(shapes) < _MOST_SHAPES:
            shapes[keys] = Names(keys)
        found = (shapes.get(keys) or Names(keys)).found(values)
        if found is not None:
            runs.see(values)
        return found

    return line


def _flat(value: Mapping[str, object], before: str = "") -> Iterator[tuple[str, object]]:
    """Yield the values of an object, those of an inner one under both names."""
    for key, each in value.items():
        if isinstance(each, dict) and not before:
            yield from _flat(each, f"{key}/")
        elif not isinstance(each, dict | list):
            yield f"{before}{key}", each


CSV = Dialect(
    name="csv",
    title="CSV",
    example="step,step_s (or iteration, iter_time_ms, ...)",
    marks=("",),
    opened=_csv,
)
JSON_LINES = Dialect(
    name="json-lines",
    title="JSON lines",
    example='{"step": 10, "step_s": 1.25}',
    marks=('step"', '"iteration"', '"iter"', '_steps"'),
    opened=_json,
)
