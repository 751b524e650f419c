"""Parts that all views share: headings, tables, lists of notes, columns of times."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from traincast.diagnostics import Note
from traincast.report.plain import shown
from traincast.units import parse_time

_SHOWN_PER_CODE = 3
_ALL_SHOWN = frozenset({"shared-links", "flag-not-modelled", "flag-unknown"})
"""Codes of notes that each say something of their own: another link that holds something back, another flag."""
_GAP = 2


@dataclass(frozen=True, slots=True)
class TimeUnit:
    """The unit of a column of times, chosen by its largest so that the numbers line up.

    Parameters
    ----------
    name : str
        ``"s"``, ``"ms"`` or ``"us"``.
    """

    name: str

    @classmethod
    def of(cls, largest_s: float) -> "TimeUnit":
        """Return the unit in which the largest time, in seconds, is 1 or more."""
        return cls(next((name for name in ("s", "ms") if largest_s >= parse_time(f"1{name}")), "us"))

    def text(self, time_s: float) -> str:
        """Return a time as a number of this unit with three decimals."""
        return f"{time_s / parse_time(f'1{self.name}'):,.3f}"


def text(content: str, style: str = "") -> Text:
    """Return text as it is, without markup, with control characters made visible."""
    return Text(shown(content), style=style)


def heading(content: str) -> RenderableType:
    """Return a section's heading with an empty line above it."""
    return text(f"\n{content}", "bold")


def number(count: int, one: str, many: str) -> str:
    """Return ``"1 rank"``, ``"1,024 ranks"``."""
    return f"{count:,} {one if count == 1 else many}"


def percent(part: float, whole: float) -> str:
    """Return a share as ``"84.6 %"``; a little is never shown as nothing."""
    share = 100 * part / whole if whole else 0.0
    return "<0.1 %" if 0 < share < 0.05 else f"{share:.1f} %"


def signed_percent(share: float | None) -> str:
    """Return a relative difference as ``"+1.24 %"``; ``"-"`` where there is none."""
    return "-" if share is None else f"{signed(f'{100 * share:,.2f}')} %"


def signed(figure: str) -> str:
    """Return a written number with its sign; without one where it was rounded to zero."""
    if not figure.strip("-0.,"):
        return figure.removeprefix("-")
    return figure if figure.startswith("-") else f"+{figure}"


def table(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    labels: Sequence[str] = (),
    spare: Sequence[str] = (),
) -> RenderableType:
    """Return an indented table without lines.

    Parameters
    ----------
    headings : sequence of str
        Heading of each column.
    rows : sequence of sequence of str
        Cells.
    labels : sequence of str
        Headings of the columns that hold words: they are set left and may wrap at blanks. The
        others hold numbers and are set right.
    spare : sequence of str
        Headings of the columns that a narrow terminal does without, in this order; a line says so.
    """
    return indented(_FittedTable(headings, rows, labels, spare))


@dataclass(frozen=True, slots=True)
class _FittedTable:
    """A table without lines, of as many columns as there is room for; it breaks no words.

    Parameters
    ----------
    headings : sequence of str
        Heading of each column.
    rows : sequence of sequence of str
        Cells.
    labels : sequence of str
        Headings of the columns that hold words, which may wrap at blanks.
    spare : sequence of str
        Headings of the columns to do without where there is no room, the first one first.
    """

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    labels: Sequence[str]
    spare: Sequence[str]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        """Yield the table, and what was left out of it."""
        shown = list(range(len(self.headings)))
        left_out = []
        for name in self.spare:
            if self._needed(shown) <= options.max_width:
                break
            shown.remove(self.headings.index(name))
            left_out.append(" ".join(name.split()))
        yield self._grid(shown, options.max_width)
        if left_out:
            yield text(f"no room for: {', '.join(left_out)}", "dim")

    def _grid(self, shown: Sequence[int], width: int) -> Table:
        full = {column: max(map(_longest_line, self._cells(column))) for column in shown}
        # A closer table is easier to read than one with two lines in every row.
        gap = 1 if 0 <= width - sum(full.values()) - (len(shown) - 1) < len(shown) - 1 else _GAP
        grid = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="dim")
        widths = full if gap == 1 else self._widths(shown, full, width)
        for column in shown:
            is_label = self._wraps(column)
            grid.add_column(
                text(self.headings[column]),
                justify="left" if is_label else "right",
                no_wrap=not is_label,
                overflow="fold",
                width=widths.get(column),
            )
        for row in self.rows:
            grid.add_row(*(text(row[column]) for column in shown))
        return grid

    def _widths(self, shown: Sequence[int], full: Mapping[int, int], width: int) -> dict[int, int]:
        """Return widths that fit without breaking a word; nothing where there are none."""
        if self._needed(shown) > width:
            return {}
        widths = dict(full)
        excess = sum(widths.values()) + _GAP * (len(shown) - 1) - width
        for column in sorted(shown, key=lambda column: self._least(column) - widths[column]):
            less = max(0, min(excess, widths[column] - self._least(column)))
            widths[column] -= less
            excess -= less
        return widths

    def _needed(self, shown: Sequence[int]) -> int:
        """Return the least width that breaks no word and no number."""
        return sum(map(self._least, shown)) + _GAP * (len(shown) - 1)

    def _least(self, column: int) -> int:
        longest = _longest_word if self._wraps(column) else _longest_line
        return max(map(longest, self._cells(column)))

    def _wraps(self, column: int) -> bool:
        return self.headings[column] in self.labels

    def _cells(self, column: int) -> list[str]:
        return [shown(cell) for cell in (self.headings[column], *(row[column] for row in self.rows))]


def _longest_line(cell: str) -> int:
    return max(map(cell_len, cell.split("\n")))


def _longest_word(cell: str) -> int:
    """Return the width of the longest word; the first one keeps the blanks before it."""
    indent = len(cell) - len(cell.lstrip())
    return max((cell_len(word) + (0 if position else indent) for position, word in enumerate(cell.split())), default=0)


def hanging(mark: str, content: str) -> RenderableType:
    """Return text after a mark; its further lines stand below its first."""
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=len(mark))
    grid.add_column(overflow="fold")
    grid.add_row(text(mark), text(content))
    return grid


def indented(content: RenderableType) -> RenderableType:
    """Return content two columns to the right."""
    return Padding(content, (0, 0, 0, 2), expand=False)


def notes(title: str, entries: Sequence[Note], style: str = "", files: Sequence[str] = ()) -> Iterator[RenderableType]:
    """Yield a list of notes under a title, or nothing where there are none.

    Long notes wrap with a hanging indent. Of many notes with one code only the first few
    are shown, and the list says how many more there are; links that are shared are all shown.

    Parameters
    ----------
    title : str
        Heading of the list.
    entries : sequence of Note
        The notes.
    style : str
        Of their texts.
    files : sequence of str
        Paths of all files that the notes may be about; places show their short names.
    """
    if not entries:
        return
    yield heading(title)
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=1)
    grid.add_column(overflow="fold")
    by_code: dict[str, list[Note]] = {}
    for entry in entries:
        by_code.setdefault(entry.code, []).append(entry)
    names = short_names(files)
    for code, alike in by_code.items():
        most = len(alike) if code in _ALL_SHOWN else _SHOWN_PER_CODE
        for entry in alike[:most]:
            place = text(f" ({_short(entry.place, names)})", "dim") if entry.place else Text()
            grid.add_row("-", Text.assemble(text(entry.text, style), place))
        if len(alike) > most:
            grid.add_row("-", text(f"and {len(alike) - most:,} more of this kind", "dim"))
    yield indented(grid)


def short_names(files: Iterable[str]) -> dict[str, str]:
    """Return for each path its base name, with as many folders before it as tell it from the others."""
    ends = {file: _ends(file) for file in files}
    seen = Counter(end for each in ends.values() for end in each)
    return {file: next((end for end in each if seen[end] == 1), file) for file, each in ends.items()}


def _ends(file: str) -> list[str]:
    """Return the last part of a path, the last two, ... the whole path."""
    parts = Path(file).parts
    return [str(Path(*parts[-count:])) for count in range(1, len(parts) + 1)]


def _short(place: str, names: Mapping[str, str]) -> str:
    """Return a place with the short name of its file: ``trace.txt:4``."""
    # A path may begin another one's; the longest that fits is meant.
    found = [file for file in names if place == file or (place.startswith(file) and place[len(file)] in ":[")]
    file = max(found, key=len, default="")
    return names[file] + place[len(file) :] if file else place
