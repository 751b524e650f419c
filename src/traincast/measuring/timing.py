"""Time a list of tasks, the most important first, into a CSV file that a later run continues.

The loop knows no GPU: a `Backend` makes the tensors and times a launch, so that the loop, its order, its limits and its
file can be tested without one.
"""

import csv
import io
import math
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

Key = tuple[str, ...]
"""What tells a task apart: the cells of the columns of its kind."""

FEWEST, MOST = 10, 1000
"""Repetitions of one task, warm-up apart."""
TASK_S = 3.0
"""Most seconds that repetitions of one task may take."""
ROUND_S = 0.05
"""About the length of one round of repetitions, after which the spread is looked at."""
WARM_UP = 3
NORMAL_95 = 1.96
"""Two-sided 95 % point of the normal distribution, of which the ranks around the median are approximately."""


class MeasureError(Exception):
    """Nothing can be measured; the message says why and what to do."""


class CannotTimeError(Exception):
    """One task cannot be timed; the message says why, and the others go on."""


@dataclass(frozen=True)
class Task:
    """One thing to time."""

    cells: Mapping[str, str]
    """What it is, by column of the CSV file."""
    count: float = 1.0
    """How often a rank runs it in a step."""
    share: float = 0.0
    """Expected share of the step's time of its kind."""

    @property
    def key(self) -> Key:
        """What tells it apart."""
        return tuple(self.cells.values())

    @property
    def name(self) -> str:
        """What it is, for people."""
        return " ".join(cell for cell in self.cells.values() if cell not in ("", "0", "false", "forward"))


class Backend(Protocol):
    """What the loop needs of a GPU, or of a group of them."""

    def about(self) -> Mapping[str, str]:
        """Return what the rows say of the machine: GPU, driver, versions, clocks."""

    def prepare(self, cells: Mapping[str, str]) -> object:
        """Return what runs a task once; its tensors are made here.

        Raises
        ------
        CannotTimeError
            If this machine cannot run it: no kernel for it, or not enough memory.
        """

    def times_s(self, launch: Any, repeats: int) -> list[float]:  # noqa: ANN401
        """Return the seconds of each repetition; where several ranks take part those of the slowest, on all alike."""

    def host_s(self, launch: Any) -> float | None:  # noqa: ANN401
        """Return the seconds that the host needs to launch it once; None where that is not asked."""

    def release(self) -> None:
        """Give the tensors of the last task back."""

    def agreed(self, value: Any) -> Any:  # noqa: ANN401
        """Return the value that the writing rank has, so that all ranks decide alike."""

    @property
    def writes(self) -> bool:
        """Whether this rank writes the file."""


@dataclass(frozen=True)
class Timing:
    """Repetitions of one task."""

    time_s: float
    """Median."""
    spread: float
    """Half the 95 % interval of the median, over the median."""
    repeats: int
    host_s: float | None = None

    def said(self) -> str:
        """Return it for people."""
        return f"{self.time_s * 1e6:.4g} us (+- {self.spread:.1%} of {self.repeats})"


@dataclass
class Summary:
    """What a run of the loop did."""

    done: int = 0
    """Timed now."""
    known: int = 0
    """In the file already."""
    left: int = 0
    """Not reached within the time limit."""
    share: float = 0.0
    """Share of the expected time of all tasks that is in the file now."""
    skipped: list[tuple[str, str]] = field(default_factory=list)
    """Tasks that could not be timed, and why."""
    host_s: list[float] = field(default_factory=list)
    """What the host took to launch each that was timed now."""
    writes: bool = True
    """Whether this rank wrote the file."""

    def take(self, timing: Timing, share: float) -> None:
        """Count a task that was timed now, with its share of the expected time."""
        self.done, self.share = self.done + 1, self.share + share
        self.host_s += [] if timing.host_s is None else [timing.host_s]

    def lines(self, out: Path) -> list[str]:
        """Return what was done, for people; nothing of a rank that does not write."""
        if not self.writes:
            return []
        counts = f"timed {self.done}, {self.known} in {out} before, {len(self.skipped)} skipped, {self.left} left"
        found = [counts, *(f"skipped {name}: {why}" for name, why in self.skipped)]
        if self.host_s:
            found.append(f"the host launches an operator in {_median(self.host_s) * 1e6:.3g} us (median)")
        if self.left:
            found.append("the time is up; the same command continues where it stopped (--minutes gives it more)")
        if self.done or self.known:
            found.append(f"{min(self.share, 1.0):.0%} of the expected time is in {out}")
        return found


RESULTS = ("time_s", "spread", "repeats", "host_s", "count", "share", "skipped")
"""Columns of every file after those that say what was timed; those that say on what come last."""


def measure(
    tasks: Sequence[Task],
    backend: Backend,
    out: Path,
    *,
    read_text: Callable[[Path], str],
    limit_s: float = math.inf,
    spread: float = 0.01,
    clock: Callable[[], float] = time.monotonic,
    tell: Callable[[str], None] = lambda _: None,
) -> Summary:
    """Time tasks, the greatest share first, and write each at once; what the file holds is not timed again.

    Parameters
    ----------
    tasks : sequence of Task
        All with the same columns.
    backend : Backend
        What runs and times them.
    out : Path
        The CSV file; it is continued where it is there.
    limit_s : float
        Seconds after which no further task is begun.
    spread : float
        Half the 95 % interval of the median over the median at which repetitions end.
    read_text, clock, tell : callable
        What reads the file then; the time in seconds, for the limit; told a line about each task.

    Raises
    ------
    MeasureError
        If the file is not one of these tasks and this machine.
    """
    start_s, about = clock(), dict(backend.about())
    ordered = sorted(tasks, key=lambda task: -task.share)
    rows = TimesFile(out, tuple(ordered[0].cells), about, read_text) if ordered and backend.writes else None
    known = backend.agreed(None if rows is None else {key for key, row in rows.found.items() if row["time_s"]}) or set()
    total = sum(task.share for task in ordered) or 1.0
    found = Summary(writes=backend.writes)
    for task in (task for task in ordered if task.key in known):
        found.known, found.share = found.known + 1, found.share + task.share / total
    for number, task in enumerate(ordered, 1):
        if task.key in known:
            continue
        left_s = backend.agreed(limit_s - (clock() - start_s))
        if left_s <= 0:
            found.left += 1
            continue
        timing = _tried(backend, task, spread, min(TASK_S, left_s), clock)
        if isinstance(timing, Timing):
            found.take(timing, task.share / total)
            cells = _cells(timing) | {name: backend.about()[name] for name in about}
            said = f"{timing.said()}; {found.share:.0%} of the time is covered"
        else:
            found.skipped.append((task.name, timing))
            cells, said = {"skipped": timing}, f"skipped, {timing}"
        if rows is not None:
            rows.add(task, cells)
        tell(f"[{number}/{len(ordered)}] {task.name}: {said}")
    return found


def _tried(backend: Backend, task: Task, spread: float, most_s: float, clock: Callable[[], float]) -> Timing | str:
    """Return the time of a task, or why it cannot be timed."""
    try:
        return _timed(backend, backend.prepare(task.cells), spread, most_s, clock)
    except CannotTimeError as why:
        return str(why)
    finally:
        backend.release()


def _timed(backend: Backend, launch: object, spread: float, most_s: float, clock: Callable[[], float]) -> Timing:
    """Repeat a launch until its median is known well enough, or the time is over."""
    begin_s = clock()
    warm = backend.times_s(launch, WARM_UP)
    host_s = backend.host_s(launch)
    each_s = max(min(warm), 1e-6)
    times: list[float] = []
    while True:
        times += backend.times_s(launch, max(2, min(FEWEST * 2, round(ROUND_S / each_s)), FEWEST - len(times)))
        known = half_interval(times) <= spread and len(times) >= FEWEST
        if known or len(times) >= MOST or backend.agreed(clock() - begin_s >= most_s):
            return Timing(_median(times), half_interval(times), len(times), host_s)


def _median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def half_interval(values: Sequence[float]) -> float:
    """Return half the 95 % interval of the median, over the median.

    The interval is that between two values of the sample, by their ranks (Conover, Practical Nonparametric Statistics,
    1999, section 3.2): no distribution of the values is assumed.
    """
    ordered, count = sorted(values), len(values)
    reach = NORMAL_95 * math.sqrt(count) / 2
    low, high = max(0, math.floor(count / 2 - reach)), min(count - 1, math.ceil(count / 2 + reach))
    return (ordered[high] - ordered[low]) / 2 / _median(ordered)


def _cells(timing: Timing) -> dict[str, str]:
    return {
        "time_s": f"{timing.time_s:.6g}",
        "spread": f"{timing.spread:.3g}",
        "repeats": str(timing.repeats),
        "host_s": "" if timing.host_s is None else f"{timing.host_s:.3g}",
        "skipped": "",
    }


class TimesFile:
    """The CSV file: read once, written whole after each row, so that it is never half a row."""

    def __init__(
        self, path: Path, columns: tuple[str, ...], about: Mapping[str, str], read_text: Callable[[Path], str]
    ) -> None:
        self.path, self.names, self.about, self._read_text = path, columns, about, read_text
        self.columns = (*columns, *RESULTS, *about)
        self.found: dict[Key, dict[str, str]] = {}
        if path.exists():
            self._read()

    def add(self, task: Task, cells: Mapping[str, str]) -> None:
        """Put a row in the place of an older one of the same task, and write the file."""
        row = dict.fromkeys(self.columns, "") | dict(self.about) | dict(task.cells)
        self.found[task.key] = row | {"count": f"{task.count:g}", "share": f"{task.share:.3g}"} | dict(cells)
        text = io.StringIO()
        writer = csv.DictWriter(text, self.columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.found.values())
        try:
            handle, temporary = tempfile.mkstemp(dir=self.path.parent, prefix=".traincast-")
            with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
                file.write(text.getvalue())
            Path(temporary).chmod(0o644)
            Path(temporary).replace(self.path)
        except OSError as error:
            raise MeasureError(f"{self.path} cannot be written: {error.strerror or error}") from None

    def _read(self) -> None:
        try:
            lines = list(csv.DictReader(io.StringIO(self._read_text(self.path), newline=""), strict=True))
            columns = tuple(lines[0]) if lines else self.columns
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise MeasureError(f"{self.path} cannot be continued: {error}; give another --out") from None
        if columns != self.columns or any(None in line.values() or None in line for line in lines):
            raise MeasureError(f"{self.path} does not have these columns; give another --out, or move it away")
        for line in lines:
            if line["gpu"] != self.about["gpu"]:
                raise MeasureError(
                    f"{self.path} was measured on {line['gpu']}, and this is {self.about['gpu']}; give another --out"
                )
            self.found[tuple(line[name] for name in self.names)] = line
