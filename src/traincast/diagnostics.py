"""What is said to the user in addition to the numbers: assumptions and warnings."""

from collections.abc import Sequence

from msgspec import Struct, field


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
