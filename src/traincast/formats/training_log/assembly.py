"""Put the lines of steps together: ranks that print the same step, starts of the run, lines without a number.

Steps are kept in arrays that grow, so that a log of any length is read in the memory that its steps need; without
`keep` nothing is, and each line is handed on as it comes.
"""

import math
from array import array
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec import Struct, field

from traincast.diagnostics import FileWarnings
from traincast.errors import FormatError
from traincast.formats.training_log.contract import QUANTITIES, TIMES, Found
from traincast.formats.training_log.record import Steps

_WHOLE = ("step", "start", "line", "steps", "series")
_ROUNDING_S = 0.0051
"""Half a unit of the last digit of Megatron-Bridge's ``Step Time``, and what a float adds."""
_FEW_JUMPS, _MANY_JUMPS = 3, 0.25
"""More jumps back than these, and than this share of the lines, are those of several writers and not of a run that was
started again."""
_ALIKE = 2.0
"""Two times of one step further apart than this many times are of two runs."""


class StepLine(NamedTuple):
    """What one line says of a step, as it comes."""

    step: int
    start: int
    """Which start of the run it belongs to, from 0."""
    line: int
    steps: int
    """Steps of which it tells the mean; 0 where that is not known."""
    values: Mapping[str, float]
    """Some of `traincast.formats.training_log.contract.QUANTITIES`."""
    interrupted: bool
    """Whether an evaluation or a checkpoint came between the line before and this one."""


class _Stream(Struct):
    """What one rank printed so far."""

    number: int = 0
    before: int = -1
    """The number that came before that one."""
    epoch: int = 0
    base: int = 0
    start: int = 0
    fresh: bool = True
    """Whether nothing was printed since the start."""


class _Columns:
    """Columns that grow by a row at a time."""

    def __init__(self) -> None:
        self._columns: dict[str, array[Any]] = {name: array("q") for name in _WHOLE}
        self._columns |= {name: array("d") for name in QUANTITIES}
        self._columns["interrupted"] = array("b")

    def __len__(self) -> int:
        return len(self._columns["step"])

    def add(self, point: StepLine, series: int) -> None:
        columns = self._columns
        for name, value in zip(_WHOLE, (point.step, point.start, point.line, point.steps, series), strict=True):
            columns[name].append(value)
        for name in QUANTITIES:
            columns[name].append(point.values.get(name, math.nan))
        columns["interrupted"].append(point.interrupted)

    def raise_last(self, name: str, value: float) -> None:
        """Set a number of the last row to one that is larger, or where it has none."""
        column = self._columns[name]
        if not column[-1] >= value:
            column[-1] = value

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        kinds = {"q": np.int64, "d": np.float64, "b": np.bool_}
        return {name: np.array(column, dtype=kinds[column.typecode]) for name, column in self._columns.items()}


class Assembly(Struct, kw_only=True):
    """Takes lines of steps one by one, and says what all of them are."""

    path: str
    warnings: FileWarnings
    keep: bool = True
    """Whether lines are kept, for `steps`."""
    planned: int | None = None
    interrupted: bool = False
    """Whether something else than training was done since the last line."""
    streams: dict[tuple[str, str], _Stream] = field(default_factory=lambda: defaultdict(_Stream))
    series: dict[str, int] = field(default_factory=dict)
    """Names of series, and the most steps that each was to have."""
    jumps: int = 0
    """How often a number was below the one before, without a word of a start."""
    rows: _Columns = field(default_factory=_Columns)
    loose: _Columns = field(default_factory=_Columns)
    """Lines that say no number."""
    counted: int = 0
    """Lines that said none, since one that did."""
    last_loose: StepLine | None = None

    @property
    def ranks(self) -> int:
        """Ranks that printed steps."""
        return max(1, len({rank for rank, _ in self.streams}))

    def restart(self) -> None:
        """Begin another start of the run."""
        for stream in self.streams.values():
            if not stream.fresh:
                stream.start, stream.fresh = stream.start + 1, True
                stream.number, stream.before, stream.base = 0, -1, 0

    def take(self, found: Found, rank: str, line: int) -> StepLine | None:
        """Take in what a line says; return it where it is of the rank that is followed, the first one that printed."""
        if found.number is None:
            return self._loose(found, line)
        self.counted = 0
        key = (rank, found.series)
        stream = self.streams[key]
        number = self._advance(stream, found.number, found.epoch, line)
        if found.planned is not None:
            self.planned = max(self.planned or 0, found.planned)
        self.series[found.series] = max(self.series.get(found.series, 0), found.planned or 0)
        point = StepLine(number, stream.start, line, found.steps or 0, found.values, self.interrupted)
        self.interrupted = False
        if self.keep:
            self.rows.add(point, [*self.series].index(found.series))
        return point if key == next(iter(self.streams)) else None

    def amend_memory(self, size_bytes: float) -> None:
        """Take in the memory of a rank that a line of its own says, of the step before; the most of ranks counts."""
        if len(self.rows):
            self.rows.raise_last("memory_bytes", size_bytes)

    def _loose(self, found: Found, line: int) -> StepLine | None:
        """Take in a line without a number: it counts as a step of its own only where no others say theirs.

        Others may come next, so that what is returned is the one before.
        """
        self.counted += 1
        before, self.last_loose = (
            self.last_loose,
            StepLine(self.counted, 0, line, found.steps or 1, found.values, self.interrupted),
        )
        if self.keep:
            self.loose.add(self.last_loose, 0)
        return None if self.streams else before

    def _advance(self, stream: _Stream, step: int, epoch: int, line: int) -> int:
        """Return the number of a step over all epochs, and set the start that a stream is in."""
        if epoch > stream.epoch and not stream.fresh:
            stream.base = stream.number
        stream.epoch = max(epoch, stream.epoch)
        number = stream.base + step
        if number == stream.before:
            # A rank without a mark that is late; a run that went back by a line has nothing else to tell, either.
            return number
        if number < stream.number:
            before = stream.number
            stream.base, stream.epoch, number = 0, epoch, step
            stream.start += 1
            self.jumps += 1
            text = f"step numbers go back, from {before} to {number}: a later start of the run, and both count"
            self.warnings.add("restart", text, line, kind="")
            stream.number = -1
        if number != stream.number:
            stream.before, stream.number = stream.number, number
        stream.fresh = False
        return number

    def steps(self) -> Steps:
        """Return the lines that were taken in as steps.

        Raises
        ------
        FormatError
            If lines of two runs are mixed.
        """
        if not len(self.rows):
            loose = self.loose.arrays()
            loose.pop("series")
            loose["step"] = np.arange(1, len(self.loose) + 1)
            return _with_spans(Steps(**loose))
        found = self.rows.arrays()
        series = found.pop("series")
        if len(self.series) > 1:
            # Of several progress bars that of the training is the longest; others are of evaluations and data.
            most = max(range(len(self.series)), key=[*self.series.values()].__getitem__)
            found = {name: column[series == most] for name, column in found.items()}
        rows = Steps(**found)
        if self.jumps > max(_FEW_JUMPS, _MANY_JUMPS * len(rows)):
            rows = self._of_several_writers(rows)
        steps = _with_spans(_of_all_ranks(rows))
        return _with_flops(steps, self.loose.arrays()) if len(self.loose) else steps

    def _of_several_writers(self, rows: Steps) -> Steps:
        """Return lines whose numbers go back all the time as those of ranks that nothing tells apart."""
        flat = rows.select(slice(None), start=np.zeros(len(rows), np.int64))
        order, first = _groups(flat)
        for name in TIMES[:-1]:
            values = getattr(flat, name)[order]
            known = ~np.isnan(values)
            low = np.minimum.reduceat(np.where(known, values, np.inf), first)
            high = np.maximum.reduceat(np.where(known, values, -np.inf), first)
            apart = np.flatnonzero(high > _ALIKE * low)
            if apart.size > _FEW_JUMPS:
                raise FormatError(
                    f"step numbers go back {self.jumps} times in {len(rows)} lines, and step "
                    f"{flat.step[order][first[apart[0]]]} is told with {low[apart[0]]:.6g} and {high[apart[0]]:.6g}: "
                    "lines of two runs are mixed; give the log of one",
                    self.path,
                    int(flat.line[order][first[apart[0]]]),
                )
        text = f"step numbers go back {self.jumps} times: ranks that nothing tells apart; medians of each step count"
        self.warnings.add("mixed-ranks", text, int(rows.line[0]))
        return flat


def _groups(rows: Steps) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the order of lines by start and number, and where in it each step begins."""
    order = np.lexsort((rows.step, rows.start))
    step, start = rows.step[order], rows.start[order]
    new = np.concatenate(([True], (step[1:] != step[:-1]) | (start[1:] != start[:-1])))
    return order, np.flatnonzero(new)


def _of_all_ranks(rows: Steps) -> Steps:
    """Return the steps in order, what several ranks printed of one as its median."""
    order, first = _groups(rows)
    if first.size == len(rows):
        return rows.select(order)
    group = np.repeat(np.arange(first.size), np.diff(np.append(first, len(rows))))
    medians = {name: _medians(getattr(rows, name)[order], group, first) for name in QUANTITIES}
    return rows.select(
        order[first],
        **medians,
        line=np.minimum.reduceat(rows.line[order], first),
        steps=np.maximum.reduceat(rows.steps[order], first),
        interrupted=np.logical_or.reduceat(rows.interrupted[order], first),
    )


def _medians(
    values: npt.NDArray[np.float64], group: npt.NDArray[np.int64], first: npt.NDArray[np.int64]
) -> npt.NDArray[np.float64]:
    """Return the median of the values of each group that are known; NaN where none is."""
    ordered = values[np.lexsort((values, group))]
    known = np.add.reduceat(~np.isnan(values), first, dtype=np.int64)
    # NaN comes last in the order.
    lower, upper = first + np.maximum(known - 1, 0) // 2, first + np.minimum(known // 2, np.maximum(known - 1, 0))
    return np.where(known > 0, (ordered[lower] + ordered[upper]) / 2, np.nan)


def _with_spans(steps: Steps) -> Steps:
    """Return steps with the number of steps since the line before, where the line does not say it."""
    since = np.diff(steps.step, prepend=0)
    begins = np.diff(steps.start, prepend=-1) != 0
    # The first line of a log that begins with the run is of the first step alone.
    since = np.where(begins, steps.step == 1, since)
    return steps.select(slice(None), steps=np.where(steps.steps > 0, steps.steps, since))


def _with_flops(steps: Steps, loose: Mapping[str, npt.NDArray[Any]]) -> Steps:
    """Give each step without FLOP/s those of the nearest line without a number that says the same time.

    Two ranks print the two lines, so that either may stand first.
    """
    flops = steps.flops_per_s.copy()
    lines, times, left = loose["line"], loose["step_s"], 0
    for index in np.flatnonzero(np.isnan(flops) & ~np.isnan(steps.step_s)):
        near = lines[left : left + 3]
        if not near.size:
            break
        # Both are in the order of the log: what stands well before this step belongs to none.
        nearest = left + int(np.argmin(np.abs(near - steps.line[index])))
        if abs(times[nearest] - steps.step_s[index]) <= _ROUNDING_S:
            flops[index] = loose["flops_per_s"][nearest]
            left = nearest + 1
    return steps.select(slice(None), flops_per_s=flops)
