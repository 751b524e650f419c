"""What a view prints, as sections of texts and tables: a page shows the same words as a terminal."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from msgspec import Struct, field
from rich.console import RenderableType
from rich.text import Text

from traincast.report.terminal import layout as ui


class TableShown(Struct, frozen=True, kw_only=True):
    """A table."""

    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: tuple[bool, ...]
    """Which columns hold words; others hold numbers, and are set right."""


class ShownLine(Struct, frozen=True, kw_only=True):
    """A text or a table of a section."""

    text: str = ""
    mark: str = ""
    """What a text of a list hangs after."""
    style: str = ""
    """``bold``, ``dim``, or a colour."""
    table: TableShown | None = None


class Section(Struct, kw_only=True):
    """What stands below a heading."""

    title: str = ""
    """Empty of what comes before the first heading."""
    lines: list[ShownLine] = field(default_factory=list)


def sections_of(printer: Any, *args: object, **options: object) -> list[Section]:  # noqa: ANN401 what `ui.printed` returns
    """Return what a printer of a view prints, such as `traincast.report.print_result`."""
    return sections(printer.__wrapped__(*args, **options))


def sections(view: Iterable[RenderableType]) -> list[Section]:
    """Return the parts of a view by their headings."""
    found = [Section()]
    for part in view:
        if isinstance(part, Text) and part.plain.startswith("\n"):
            found.append(Section(title=part.plain.strip()))
        elif isinstance(part, ui.Drawing):
            continue
        else:
            found[-1].lines += _lines(part)
    return [each for each in found if each.lines]


def _lines(part: RenderableType, style: str = "") -> Iterator[ShownLine]:
    match part:
        case ui.Indented():
            yield from _lines(part.content)
        case ui.FittedTable():
            yield ShownLine(table=_table(part))
        case ui.Notes():
            yield from (
                ShownLine(text=row.plain, mark="-", style=part.style)
                for row in part.rows(all_of_them=True, in_full=True)
            )
        case ui.Hanging():
            yield ShownLine(text=part.content, mark=part.mark)
        case ui.Below():
            yield ShownLine(text=part.content, mark=" ", style=part.style)
        case Text():
            yield ShownLine(text=part.plain, style=str(part.style or style))
        case _:
            yield ShownLine(text=str(part))


def _table(part: ui.FittedTable) -> TableShown:
    """Return a table without the bars of a terminal."""
    kept = [at for at in range(len(part.headings)) if not any(ui.BLOCK in row[at] for row in part.rows)]

    def cells_of(cells: Sequence[str]) -> tuple[str, ...]:
        return tuple(" ".join(cells[at].split()) if not part.words[at] else cells[at] for at in kept)

    headings = tuple(" ".join(part.headings[at].replace("/\n", "/").split()) for at in kept)
    return TableShown(
        headings=headings, rows=tuple(map(cells_of, part.rows)), words=tuple(part.words[at] for at in kept)
    )
