"""What all views are made of: text, headings, tables of declared columns, lists of diagnostics.

Colour appears on a terminal only. A view is imported when something is printed, because loading
rich takes longer than most answers of the command line.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import wraps
from operator import attrgetter
from pathlib import Path
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from msgspec import Struct
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from traincast.diagnostics import Note
from traincast.report.plain import shown
from traincast.report.terminal.console import is_plain, is_verbose
from traincast.units import format_share, parse_time
from traincast.workload.words import Operation

S = TypeVar("S")
T = TypeVar("T")
P = ParamSpec("P")
View = Iterator[RenderableType]

BLOCK = "\u2588"
_SHORTEST_BAR = 10
"""Width of the longest bar of a table, where there is no room for more."""
"""Cells of bars; a terminal that cannot show it gets ``#``."""
ALIKE = 0.01
"""Lines of a table are alike if their times differ by less than this share of the step."""
_LONGEST_RUN = 16
_KEPT = 2
_LEGENDS = 2
_SHOWN_PER_CODE = 3
_ONE_LINE = 100
"""Characters of a note that a line of a wide terminal has room for, with its place."""
_ALL_SHOWN = frozenset({"shared-links", "flag-not-modelled", "flag-unknown"})
"""Codes of which each entry says something of its own: another link that holds something back, another flag."""
_GAP = 2
_UNITS = ("s", "ms", "us")
"""Headings that are the unit of their column."""


def printed(view: Callable[P, View]) -> Callable[Concatenate[Console, P], None]:
    """Return what prints the parts of a view on a console."""

    @wraps(view)
    def print_view(console: Console, /, *args: P.args, **options: P.kwargs) -> None:
        if console.is_terminal:
            for part in view(*args, **options):
                console.print(part)
            return
        # rich fills lines up to a box's width; who reads a file or a pipe does not want the blanks.
        with console.capture() as captured:
            for part in view(*args, **options):
                console.print(part)
        console.file.write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))

    return print_view


def text(content: str, style: str = "") -> Text:
    """Return text as it is, without markup, with control characters made visible."""
    return Text(shown(content), style=style)


def heading(content: str) -> RenderableType:
    """Return a section's heading with an empty line above it."""
    return text(f"\n{content}", "bold")


def indented(content: RenderableType | str, style: str = "") -> RenderableType:
    """Return content two columns to the right."""
    return Indented(text(content, style) if isinstance(content, str) else content)


class Indented(Struct, frozen=True):
    """Content two columns to the right; in plain words where it is."""

    content: RenderableType

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        """Yield it."""
        yield self.content if is_plain(console) else Padding(self.content, (0, 0, 0, 2), expand=False)


class Drawing(Struct, frozen=True):
    """Lines that only eyes can read, with their heading; nothing in plain words."""

    title: str
    lines: Sequence[str]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        """Yield them."""
        if not is_plain(console):
            yield heading(self.title)
            yield from map(indented, self.lines)


def hanging(mark: str, content: str) -> RenderableType:
    """Return text after a mark; its further lines stand below its first."""
    return Hanging(mark, content)


class Hanging(Struct, frozen=True):
    """Text after a mark."""

    mark: str
    content: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        """Yield it."""
        grid = _list(len(self.mark))
        grid.add_row(text(self.mark), text(self.content))
        yield grid


def below(mark: str, content: str, style: str = "") -> RenderableType:
    """Return text that stands below what hangs after a mark."""
    return Below(mark, content, style)


class Below(Struct, frozen=True):
    """Text as far to the right as what hangs after a mark; in plain words where it is."""

    mark: str
    content: str
    style: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        """Yield it."""
        yield text(self.content, self.style) if is_plain(console) else hanging(" " * len(self.mark), self.content)


def _list(width: int) -> Table:
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=width)
    grid.add_column(overflow="fold")
    return grid


def operation(name: str) -> str:
    """Return what people call an operation: ``all-gather``, ``send/recv``, ``reduce-scatter``; others with blanks."""
    if name == "send_recv":
        return "send/recv"
    return name.replace("_", "-" if name.upper() in Operation.__members__ else " ")


class TimeUnit(Struct, frozen=True):
    """The unit of a column of times (``s``, ``ms`` or ``us``), chosen by its largest so that the numbers line up."""

    name: str

    @classmethod
    def from_largest(cls, largest_s: float) -> "TimeUnit":
        """Return the unit in which the largest time, in seconds, is 1 or more."""
        return cls(next((name for name in ("s", "ms") if largest_s >= parse_time(f"1{name}")), "us"))

    def text(self, time_s: float) -> str:
        """Return a time as a number of this unit with three decimals."""
        return f"{time_s / parse_time(f'1{self.name}'):,.3f}"

    def brief(self, time_s: float) -> str:
        """Return a time in it with three digits, or whole where it has more."""
        value = time_s / parse_time(f"1{self.name}")
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:#.3g}" if abs(value) >= 1e-3 else "0"


def number(count: int, one: str, many: str | None = None) -> str:
    """Return ``"1 rank"``, ``"1,024 ranks"``."""
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"


def count(number: int) -> str:
    """Return ``"1,024"``."""
    return f"{number:,}"


def percent(fraction: float) -> str:
    """Return a share as whole percent: ``"85 %"``."""
    return format_share(fraction, 0)


def spaced(name: str) -> str:
    """Return a name of ours as words: ``exposed_tp`` is ``exposed tp``."""
    return name.replace("_", " ")


def share(part: float, whole: float) -> str:
    """Return a part of a whole as ``"84.6 %"``; a little is never shown as nothing."""
    found = part / whole if whole else 0.0
    return "<0.1 %" if 0 < found < 0.0005 else format_share(found)


def error(fraction: float | None, sign: str = "") -> str:
    """Return an error as ``"12.3 %"``, with the sign ``"+"`` as ``"+12.3 %"``; ``"-"`` where there is none."""
    return "-" if fraction is None else format_share(fraction, 1, sign)


def bias(fraction: float | None) -> str:
    """Return an error with its sign."""
    return error(fraction, "+")


def change(fraction: float | None) -> str:
    """Return a relative difference as ``"+1.24 %"``; ``"-"`` where there is none."""
    return "-" if fraction is None else f"{signed(f'{100 * fraction:,.2f}')} %"


def signed(figure: str) -> str:
    """Return a written number with its sign; without one where it was rounded to zero."""
    if not figure.strip("-0.,"):
        return figure.removeprefix("-")
    return figure if figure.startswith("-") else f"+{figure}"


class Column(Struct, Generic[T], frozen=True):
    """A column of a table: its heading, and what it shows of each line."""

    heading: str
    cell: Callable[[T], str]
    words: bool = False
    """It holds words: set left, and wraps at blanks. Others hold numbers and are set right."""
    spare: int = 0
    """When a narrow terminal leaves it out, and says so: 1 is the first to go, 0 stays."""
    least: int = 0
    """Least characters of words next to each other; spare columns make room for them."""

    def over(self, part: Callable[[S], T | None]) -> "Column[S]":
        """Return the column of lines of which it shows a part; empty where a line has none."""

        def cell(line: S) -> str:
            known = part(line)
            return "" if known is None else self.cell(known)

        return Column(self.heading, cell, self.words, self.spare, self.least)


def column(
    heading: str, field: str, show: Callable[[Any], str] = str, *, words: bool = False, spare: int = 0, least: int = 0
) -> Column[Any]:
    """Return the column of one field of each line, by its name or path (``after.rows``), as `show` writes it.

    A field that is None is shown as ``-``. The rest is as in `Column`.
    """
    value = attrgetter(field)

    def cell(line: object) -> str:
        known = value(line)
        return "-" if known is None else show(known)

    return Column(heading, cell, words, spare, least)


def table(columns: Sequence[Column[T]], lines: Iterable[T], hidden: Sequence[range] = ()) -> RenderableType:
    """Return an indented table without rules; a row of an ellipsis stands for each hidden run of lines."""
    rows: list[list[str]] = []
    for position, line in enumerate(lines):
        run = next((run for run in hidden if position in run), None)
        if run is None:
            rows.append([column.cell(line) for column in columns])
        elif position == run.start:
            rows.append(["...", *[""] * (len(columns) - 1)])
    spare = sorted((index for index, column in enumerate(columns) if column.spare), key=lambda at: columns[at].spare)
    words, least = [column.words for column in columns], [column.least for column in columns]
    return indented(FittedTable([column.heading for column in columns], rows, words, spare, least))


def facts(lines: Collection[tuple[str, str]]) -> RenderableType:
    """Return a line for each fact: what it is, and what it says."""
    columns: tuple[Column[tuple[str, str]], ...] = (
        Column("", lambda line: line[0], words=True),
        Column("", lambda line: line[1], words=True),
    )
    return table(columns, lines)


def section(
    title: str, columns: Sequence[Column[T]], lines: Collection[T], hidden: Sequence[range] = ()
) -> Iterator[RenderableType]:
    """Yield a table under a heading; nothing where it has no lines."""
    if lines:
        yield heading(title)
        yield table(columns, lines, hidden)


class FittedTable(Struct, frozen=True):
    """A table of as many columns as there is room for; it breaks no words."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: Sequence[bool]
    spare: Sequence[int]
    """Columns to do without where there is no room, the first one first."""
    least: Sequence[int]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        """Yield the table, and what was left out of it; in plain words a line for each of its rows."""
        if is_plain(console):
            yield from map(text, map(self._sentence, self.rows))
            return
        kept = list(range(len(self.headings)))
        left_out = []
        for column in self.spare:
            if self._needed(kept) <= options.max_width:
                break
            kept.remove(column)
            left_out.append(" ".join(self.headings[column].split()))
        yield self._grid(kept, options)
        if left_out:
            yield text(f"columns that do not fit: {', '.join(left_out)}", "dim")

    def _sentence(self, row: Sequence[str]) -> str:
        """Return a row in words: ``stage 0: compute 7.076, bubble 6.905``; bars and empty cells are left out."""
        headings = [" ".join(each.replace("/\n", "/").split()) for each in self.headings]
        cells = [" ".join(each.replace(BLOCK, "").split()) for each in row]
        said = [_labelled(label, cell) for label, cell in zip(headings[1:], cells[1:], strict=True) if cell]
        first = " ".join(filter(None, (headings[0], cells[0])))
        return ": ".join(filter(None, (first, ", ".join(said))))

    def _grid(self, kept: Sequence[int], options: ConsoleOptions) -> Table:
        width = options.max_width
        full = {column: max(map(_longest_line, self._cells(column))) for column in kept}
        # A closer table is easier to read than one with two lines in every row.
        gap = 1 if 0 <= width - sum(full.values()) - (len(kept) - 1) < len(kept) - 1 else _GAP
        headed = any(self.headings[column].strip() for column in kept)
        grid = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="dim", show_header=headed)
        widths = full if gap == 1 else self._widths(kept, full, width)
        for column in kept:
            grid.add_column(
                text(self.headings[column]),
                justify="left" if self.words[column] else "right",
                no_wrap=not self.words[column],
                overflow="fold",
                width=widths.get(column),
            )
        for row in self.rows:
            cells = [_bar(row[at], full[at], widths.get(at, full[at])) for at in kept]
            grid.add_row(*(text(cell.replace(BLOCK, "#") if options.ascii_only else cell) for cell in cells))
        return grid

    def _widths(self, kept: Sequence[int], full: Mapping[int, int], width: int) -> dict[int, int]:
        """Return widths that fit without breaking a word; nothing where there are none."""
        if self._needed(kept) > width:
            return {}
        widths = dict(full)
        excess = sum(widths.values()) + _GAP * (len(kept) - 1) - width
        for column in sorted(kept, key=lambda column: self._least(column) - widths[column]):
            less = max(0, min(excess, widths[column] - self._least(column)))
            widths[column] -= less
            excess -= less
        return widths

    def _needed(self, kept: Sequence[int]) -> int:
        """Return the least width that breaks no word and no number."""
        return sum(map(self._least, kept)) + _GAP * (len(kept) - 1)

    def _least(self, column: int) -> int:
        cells = self._cells(column)
        whole = max(map(_longest_line, cells))
        if any(BLOCK in cell for cell in cells):
            return min(whole, _SHORTEST_BAR)
        return max(min(whole, self.least[column]), *map(_longest_word, cells)) if self.words[column] else whole

    def _cells(self, column: int) -> list[str]:
        return list(map(shown, (self.headings[column], *(row[column] for row in self.rows))))


def _bar(cell: str, full: int, width: int) -> str:
    """Return a bar at the scale of a narrower column; another cell as it is."""
    return BLOCK * round(len(cell) * width / full) if BLOCK in cell and width < full else cell


def _labelled(label: str, cell: str) -> str:
    """Return a cell after its heading, and before the unit that this ends with: ``saves, s`` is ``saves 0.6 s``."""
    what, _, unit = label.rpartition(", ")
    if unit in _UNITS:
        label, cell = what, f"{cell} {unit}"
    return " ".join(filter(None, (label, cell)))


def _longest_line(cell: str) -> int:
    return max(map(cell_len, cell.split("\n")))


def _longest_word(cell: str) -> int:
    """Return the width of the longest word; the first one keeps the blanks before it."""
    indent = len(cell) - len(cell.lstrip())
    return max((cell_len(word) + (0 if position else indent) for position, word in enumerate(cell.split())), default=0)


def alike_runs(times: Sequence[Sequence[float]], step_s: float) -> list[range]:
    """Return the lines that a table leaves out: the middles of long runs of like ones.

    Parameters
    ----------
    times : sequence of sequence of float
        The times of each line, in seconds; those of a run are close to those of its first line.
    step_s : float
        The step; `ALIKE` is a share of it.
    """
    hidden, start = [], 0
    for position in range(1, len(times) + 1):
        if position < len(times) and all(
            abs(a - b) <= ALIKE * step_s for a, b in zip(times[start], times[position], strict=True)
        ):
            continue
        if position - start > _LONGEST_RUN:
            hidden.append(range(start + _KEPT, position - _KEPT))
        start = position
    return hidden


def legend(kind: str, numbers: Sequence[int], hidden: Sequence[range]) -> View:
    """Yield what to say of the lines that were left out; a line is a `kind` (``"stage"``) with its number."""
    told = []
    for run in hidden:
        model, first, final = (numbers[position] for position in (run.start - _KEPT, run.start, run.stop - 1))
        told.append(f"... {kind}s {first} to {final} are like {kind} {model}")
    if len(told) > _LEGENDS:
        told = [f"... {kind}s like the two above and below them"]
    for line in told:
        yield indented(f"{line}, within {format_share(ALIKE, 0)} of the step", "dim")


def diagnostics(
    title: str,
    entries: Sequence[Note],
    style: str = "",
    files: Iterable[str] = (),
    *,
    in_full: bool | None = None,
) -> View:
    """Yield a list of assumptions or warnings under a title, or nothing where there are none.

    Of many entries with one code only the first few are shown, and the list says how many more there are;
    links that are shared are all shown. Places show the short names of `files`. Each entry is in full where that is
    said, or asked for (``--verbose``), and of warnings; else it is one line: what it says in brief, and its place where
    that is more than the one file that was read.
    """
    if entries:
        yield heading(title)
        yield indented(Notes(entries, style, tuple(files), in_full or (in_full is None and bool(style)) or None))


class Notes(Struct, frozen=True):
    """A list of notes."""

    entries: Sequence[Note]
    style: str
    files: tuple[str, ...]
    in_full: bool | None
    """None: as the user asks."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        """Yield it as a list, in plain words as lines."""
        rows = list(self.rows(all_of_them=is_verbose(console), in_full=self.in_full or is_verbose(console)))
        if is_plain(console):
            yield from rows
            return
        grid = _list(1)
        for row in rows:
            grid.add_row("-", row)
        yield grid

    def rows(self, *, all_of_them: bool, in_full: bool) -> Iterator[Text]:
        """Yield a line for each note."""
        by_code: dict[str, list[Note]] = {}
        for entry in self.entries:
            by_code.setdefault(entry.code, []).append(entry)
        names = _short_names(self.files)
        for code, alike in by_code.items():
            most = len(alike) if code in _ALL_SHOWN or all_of_them else _SHOWN_PER_CODE
            for entry in alike[:most]:
                obvious = not in_full and self.files == (entry.place,)
                place = text(f" ({_short(entry.place, names)})", "dim") if entry.place and not obvious else Text()
                yield Text.assemble(text(entry.text if in_full else in_brief(entry), self.style), place)
            if len(alike) > most:
                yield text(f"and {len(alike) - most:,} more of this kind", "dim")


def in_brief(note: Note) -> str:
    """Return a note on one line: what it says of itself, else a long text up to where a clause of it ends."""
    if note.brief is not None or len(note.text) <= _ONE_LINE:
        return note.brief or note.text
    clauses = [note.text.rfind(mark, 0, _ONE_LINE) for mark in ("; ", ": ", " (", ", ")]
    end = max(clauses) if max(clauses) > _ONE_LINE // 2 else max(note.text.rfind(" ", 0, _ONE_LINE), 0)
    return f"{note.text[: end or _ONE_LINE]} ..."


def _short_names(files: Iterable[str]) -> dict[str, str]:
    """Return for each path its base name, with as many folders before it as tell it from the others."""
    ends = {}
    for file in files:
        parts = Path(file).parts
        ends[file] = [str(Path(*parts[-count:])) for count in range(1, len(parts) + 1)]
    seen = Counter(end for each in ends.values() for end in each)
    return {file: next((end for end in each if seen[end] == 1), file) for file, each in ends.items()}


def _short(place: str, names: Mapping[str, str]) -> str:
    """Return a place with the short name of its file: ``trace.txt:4``."""
    # A path may begin another one's; the longest that fits is meant.
    found = [file for file in names if place == file or (place.startswith(file) and place[len(file)] in ":[")]
    file = max(found, key=len, default="")
    return names[file] + place[len(file) :] if file else place
