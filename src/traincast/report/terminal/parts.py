"""Parts that all views share: headings, tables, lists of notes, columns of times."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from traincast.report.plain import printable
from traincast.spec.notes import Note
from traincast.units import parse_time

_SHOWN_PER_CODE = 3


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
    return Text(printable(content), style=style)


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


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], labels: Sequence[str] = ()) -> RenderableType:
    """Return an indented table without lines.

    Parameters
    ----------
    headings : sequence of str
        Heading of each column.
    rows : sequence of sequence of str
        Cells.
    labels : sequence of str
        Headings of the columns that hold words: they are set left and may wrap. The
        others hold numbers and are set right.
    """
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in headings:
        is_label = name in labels
        grid.add_column(text(name), justify="left" if is_label else "right", no_wrap=not is_label, overflow="fold")
    for row in rows:
        grid.add_row(*(text(cell) for cell in row))
    return indented(grid)


def indented(content: RenderableType) -> RenderableType:
    """Return content two columns to the right."""
    return Padding(content, (0, 0, 0, 2), expand=False)


def notes(title: str, entries: Sequence[Note], style: str = "") -> Iterator[RenderableType]:
    """Yield a list of notes under a title, or nothing where there are none.

    Long notes wrap with a hanging indent. Of many notes with one code only the first few
    are shown, and the list says how many more there are.
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
    for alike in by_code.values():
        for entry in alike[:_SHOWN_PER_CODE]:
            place = text(f" ({entry.place})", "dim") if entry.place else Text()
            grid.add_row("-", Text.assemble(text(entry.text, style), place))
        if len(alike) > _SHOWN_PER_CODE:
            grid.add_row("-", text(f"and {len(alike) - _SHOWN_PER_CODE:,} more of this kind", "dim"))
    yield indented(grid)
