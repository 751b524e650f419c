"""Collect what is unusual in a file, one note per kind however often it occurs."""

from dataclasses import dataclass

from traincast.diagnostics import Note


@dataclass(slots=True)
class _Remark:
    text: str
    first: int
    last: int
    count: int


class Remarks:
    """Oddities by code and text; a repeated one keeps its first and last line and its count.

    Parameters
    ----------
    path : str
        File of the notes' places.
    entries : bool
        Whether places are entries of a list, from 0, and not lines.
    """

    def __init__(self, path: str, *, entries: bool = False) -> None:
        self.path, self.entries = path, entries
        self._found: dict[tuple[str, str], _Remark] = {}

    def add(self, code: str, text: str, line: int, kind: str | None = None) -> None:
        """Take a remark on a line; those with one code and kind (default: text) are one note."""
        known = self._found.get((code, text if kind is None else kind))
        if known is None:
            self._found[code, text if kind is None else kind] = _Remark(text, line, line, 1)
        else:
            known.last = line
            known.count += 1

    def notes(self) -> tuple[Note, ...]:
        """Every remark as a note, in the order of the lines."""
        found = sorted(self._found.items(), key=lambda item: (item[1].first, item[0]))
        return tuple(Note(code, self._full(remark), self._place(remark.first)) for (code, _), remark in found)

    def _place(self, number: int) -> str:
        return f"{self.path}[{number}]" if self.entries else f"{self.path}:{number}"

    def _full(self, remark: _Remark) -> str:
        if remark.count == 1:
            return remark.text
        unit = "entry" if self.entries else "line"
        return f"{remark.text}; {remark.count} times, the last in {unit} {remark.last}"
