"""What is said to the user in addition to the numbers: assumptions, warnings, and how far long work is.

Long work says how long it is before it begins, and now and then how far it is. Who wants to know listens
(`listening`); the rooms that work only tell (`announce`, `advanced`).
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

from msgspec import Struct, field

T = TypeVar("T")


class Note(Struct, frozen=True):
    """One assumption or warning."""

    code: str
    """Short, stable, kebab-case: ``"microbatches-from-blocks"``."""
    text: str
    """What it says, with its arithmetic."""
    place: str | None = None
    """``file:line`` or a field path, where it belongs to one."""
    brief: str | None = None
    """The same in a few words, on one line of a terminal; None where the text is short itself."""
    effect: float | None = None
    """Share of the step that it moves at most; None where that is not known."""


_FEW = 70
"""Characters of a list that a line of a terminal has room for, after what it is a list of."""


def in_brief(what: str, names: Sequence[str]) -> str | None:
    """Return a list as the first of its names and how many more there are; None where it is short."""
    if len(", ".join(names)) <= _FEW:
        return None
    kept, length = 0, 0
    while length + len(names[kept]) + 2 < _FEW:
        length += len(names[kept]) + 2
        kept += 1
    first = f"{', '.join(names[:kept])} and {len(names) - kept} more" if kept else f"{len(names)} in all"
    return f"{what}: {first}"


class Notebook(Struct):
    """Collects what was assumed and what looks wrong while an input is read."""

    path: str = ""
    """File of the places; empty where there is none."""
    assumptions: list[Note] = field(default_factory=list)
    warnings: list[Note] = field(default_factory=list)

    def assume(self, code: str, text: str, line: int | None = 1, *, brief: str | None = None) -> None:
        """Record something that was not in the input; `brief` says it on one line where the text is longer."""
        self.assumptions.append(Note(code, text, self._place(line), brief))

    def warn(self, code: str, text: str, line: int | None = 1) -> None:
        """Record something that looks wrong."""
        self.warnings.append(Note(code, text, self._place(line)))

    def _place(self, line: int | None) -> str | None:
        return f"{self.path}:{line}" if self.path and line is not None else self.path or None


class _Repeated(Struct):
    text: str
    first: int
    last: int
    count: int


class FileWarnings:
    """What looks odd in a file, by code and text; a repeated one keeps its first and last line and its count.

    With `entries` places are entries of a list, from 0, and not lines.
    """

    def __init__(self, path: str, *, entries: bool = False) -> None:
        self.path, self.entries = path, entries
        self._found: dict[tuple[str, str], _Repeated] = {}

    def add(self, code: str, text: str, line: int, kind: str | None = None) -> None:
        """Take what is odd on a line; those with one code and kind (default: text) are one note."""
        known = self._found.get((code, text if kind is None else kind))
        if known is None:
            self._found[code, text if kind is None else kind] = _Repeated(text, line, line, 1)
        else:
            known.last = line
            known.count += 1

    def notes(self) -> tuple[Note, ...]:
        """Return every one as a note, in the order of the lines."""
        found = sorted(self._found.items(), key=lambda item: (item[1].first, item[0]))
        return tuple(Note(code, self._full(repeated), self._place(repeated.first)) for (code, _), repeated in found)

    def _place(self, number: int) -> str:
        return f"{self.path}[{number}]" if self.entries else f"{self.path}:{number}"

    def _full(self, repeated: _Repeated) -> str:
        if repeated.count == 1:
            return repeated.text
        unit = "entry" if self.entries else "line"
        return f"{repeated.text}; {repeated.count} times, the last in {unit} {repeated.last}"


Listener = Callable[[str, float], None]
"""Told what is done, and the share of it that is behind, 0 to 1."""


class _Work(Struct):
    listener: Listener
    every: bool
    what: str | None = None
    """What was announced; None where the work is short."""
    begin: float = 0.0
    share: float = 1.0
    """Where the part that is being done begins in the whole, and how much of the whole it is."""

    def tell(self, share: float) -> None:
        """Tell which share of the part is behind."""
        if self.what is not None or self.every:
            self.listener(self.what or "", self.begin + self.share * share)


_WORK: ContextVar[_Work | None] = ContextVar("work", default=None)


@contextmanager
def listening(listener: Listener, *, every: bool = False) -> Iterator[None]:
    """Tell a listener of the long work in the body; with `every` also of work that nobody announced, as ``""``."""
    token = _WORK.set(_Work(listener, every))
    try:
        yield
    finally:
        _WORK.reset(token)


def announce(what: str) -> None:
    """Say that long work begins, with its size (``simulating 5,000,000 operations of 16 ranks``).

    Without it `advanced` tells nothing to who listens to long work alone. Work that is a part of other work begins
    where that one is.
    """
    work = _WORK.get()
    if work is not None:
        if work.what is None or work.share == 1:
            work.what = what
        work.tell(0.0)


def advanced(share: float) -> None:
    """Say which share of the work, or of its part that is being done, is behind, 0 to 1."""
    work = _WORK.get()
    if work is not None:
        work.tell(share)


@contextmanager
def part(begin: float, end: float) -> Iterator[None]:
    """Let what the body tells count from one share of the work to another."""
    work = _WORK.get()
    if work is None:
        yield
        return
    before = work.begin, work.share
    work.begin, work.share = work.begin + work.share * begin, work.share * (end - begin)
    try:
        work.tell(0.0)
        yield
        work.tell(1.0)
    finally:
        work.begin, work.share = before


def parts(each: Sequence[T], begin: float = 0.0, end: float = 1.0) -> Iterator[T]:
    """Yield the pieces of work from one share of it to another; each takes as much of it."""
    step = (end - begin) / max(1, len(each))
    for number, element in enumerate(each):
        with part(begin + number * step, begin + (number + 1) * step):
            yield element


def told(what: str, each: Sequence[T], least: int) -> Iterator[T]:
    """Yield the elements of long work, saying how far it is, where there are so many or more of them."""
    work = _WORK.get() if len(each) >= least else None
    if work is None:
        yield from each
        return
    before, work.what = work.what, what
    try:
        yield from parts(each)
    finally:
        work.what = before
