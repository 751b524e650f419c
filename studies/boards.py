"""Forecast whatever was measured, and hold the errors against the limits of `boards.toml`.

    python studies/boards.py [--only WORD | --write]

Every judge (`judges/`) forecasts its measurements now: with factors, energies, widths or deviations refitted without
what it judges, where they were fitted to its like. Prints every board, in brackets what is asked of it. Ends with 1
where one is worse than its limit by more than `TOLERANCE`, or has gone. ``--write`` makes what was found now the limits
and the tables of the docs: to be used where a board got better, or where the changelog says why it got worse.
On a busy machine say OPENBLAS_NUM_THREADS=1: fits are of small matrices, whose threads wait for each other.
"""

import argparse
import os
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

from fit_differences import TABLES
from forecasts import shipped_forecasts, timed_rows
from judges.board import Board

LIMITS = Path(__file__).with_name("boards.toml")
DOCS = Path(__file__).parent.parent / "docs"
PAGES = tuple(DOCS / name for name in ("ACCURACY.md", "measure-your-gpus.md", "memory.md"))
"""Pages with tables of boards."""
JUDGES = (
    *("runs", "unseen", "differences", "experts", "memory", "golden", "blanked"),
    *("chips", "scaling", "changes", "checks", "own_machine", "watch"),
)
"""In the order of the table."""
_SLOWEST = "experts"
"""The judge that others run beside, so that nobody waits for it at the end."""
FIGURES = ("median", "p90", "worst", "bias", "inside", "within", "accepted", "rightly told", "gap", "called", "refused")
LARGER = frozenset({"inside", "within", "accepted", "rightly told"})
"""Figures that are worse when smaller; of others the size counts."""
TOLERANCE = {"median": 0.5, "p90": 1.5, "worst": 3.0, "bias": 1.0, "inside": 2.0, "within": 2.0, "gap": 2.0}
"""Points by which a figure may get worse unnoticed: what rounding and a row more or less of a small board make."""
_OTHER = 0.5
TABLE = re.compile(r"<!-- boards(?:: (?P<which>[^\n]+))? -->\n.*?<!-- end of boards -->\n", re.DOTALL)
"""A table on a page: of the boards whose subject and kind, joined by a colon, match what it says; else of all."""


class Limit(NamedTuple):
    """Figures of a board that it may not get worse than, in per cent."""

    rows: int
    figures: Mapping[str, float]


Limits = Mapping[tuple[str, str], Limit]
"""By subject and name of the board."""


def judged(names: Iterable[str] = JUDGES) -> list[Board]:
    """Return the boards of judges, in their order, each forecast now."""
    names = list(names)
    if len(names) < 2:
        return [board for name in names for board in _boards(name)]
    # What several judges ask for is made before they part.
    shipped_forecasts([run for name in TABLES for run in timed_rows(name)])
    with ProcessPoolExecutor(min(len(names), os.cpu_count() or 1), get_context("fork")) as pool:
        made = {name: pool.submit(_boards, name) for name in sorted(names, key=lambda name: name != _SLOWEST)}
        return [board for name in names for board in made[name].result()]


def _boards(judge: str) -> list[Board]:
    found: list[Board] = import_module(f"judges.{judge}").boards()
    return [board for board in found if board.rows]


def limits(path: Path = LIMITS) -> Limits:
    """Return the limits of all boards."""
    rows = tomllib.loads(path.read_text(encoding="utf-8")).get("board", [])
    return {(row["subject"], row["name"]): Limit(row["rows"], row["figures"]) for row in rows}


def as_toml(boards: Iterable[Board]) -> str:
    """Return boards as the file of limits."""
    head = "# What boards may not get worse than, in per cent: written by `python studies/boards.py --write`.\n"

    def entry(board: Board) -> str:
        figures = ", ".join(f'"{name}" = {value}' for name, value in board.figures.items())
        return (
            f'\n[[board]]\nsubject = "{board.subject}"\nname = "{board.name}"\nrows = {board.rows}\n'
            f"figures = {{ {figures} }}\n"
        )

    return head + "".join(map(entry, boards))


def worse(boards: Iterable[Board], allowed: Limits) -> Iterator[str]:
    """Yield a line for each figure that is worse than its limit, and for each board that has gone."""
    found = {(board.subject, board.name): board for board in boards}
    for key, limit in allowed.items():
        if key not in found:
            yield f"{': '.join(key)}: is not shown any more"
            continue
        for name, value in limit.figures.items():
            now = found[key].figures.get(name)
            if now is None or is_worse(name, now, value, TOLERANCE.get(name, _OTHER)):
                yield f"{': '.join(key)}: {name} is {now}, the limit {value}"


def is_worse(name: str, value: float, limit: float, tolerance: float = 0.0) -> bool:
    """Say whether a figure is worse than a limit by more than a tolerance."""
    return limit - value > tolerance if name in LARGER else abs(value) - abs(limit) > tolerance


def missed(board: Board) -> list[str]:
    """Return the figures of a board that are worse than what is asked."""
    return [name for name, value in board.asked.items() if is_worse(name, board.figures.get(name, 100.0), value)]


def as_table(boards: Sequence[Board]) -> str:
    """Return boards as the table of the accuracy page; behind a figure stands what is asked of it."""
    shown = [name for name in FIGURES if any(name in board.figures for board in boards)]
    lines = [
        "| what, and what no fit has seen | kind | rows | " + " | ".join(shown) + " |",
        "|---|---|---" + "|---" * len(shown) + "|",
    ]
    for board in boards:
        cells = [_cell(board, name) for name in shown]
        lines.append(f"| {board.subject} | {board.name} | {board.rows:,} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _cell(board: Board, name: str) -> str:
    if name not in board.figures:
        return ""
    text = f"{board.figures[name]:.1f}"
    return text if name not in board.asked else f"{text} ({board.asked[name]:g})"


def with_tables(page: str, boards: Sequence[Board]) -> str:
    """Return a page with its tables of boards replaced."""

    def replaced(table: re.Match[str]) -> str:
        said = "" if table["which"] is None else f": {table['which']}"
        return f"<!-- boards{said} -->\n\n{as_table(shown_in(table, boards))}\n<!-- end of boards -->\n"

    return TABLE.sub(replaced, page)


def shown_in(table: re.Match[str], boards: Iterable[Board]) -> list[Board]:
    """Return the boards that a table of a page shows."""
    return [each for each in boards if re.fullmatch(table["which"] or ".*", f"{each.subject}: {each.name}")]


def main() -> int:
    """Print the boards, or write them as limits and into the page; return the exit code."""
    parser = argparse.ArgumentParser(description="hold boards of accuracy against their limits")
    parser.add_argument("--only", default="", metavar="WORD", help="only judges whose name holds this")
    parser.add_argument("--write", action="store_true", help="make what is found now the limits and the pages' tables")
    given = parser.parse_args()
    if given.write and given.only:
        parser.error("--write takes all judges: leave out --only")
    names = [name for name in JUDGES if given.only in name]
    boards = judged(names)
    for board in boards:
        figures = "  ".join(f"{name} {_cell(board, name)}" for name in FIGURES if name in board.figures)
        short = f"  <- {', '.join(missed(board))}" if missed(board) else ""
        print(f"{board.subject}: {board.name}, {board.rows} rows: {figures}{short}")
    if given.write:
        LIMITS.write_text(as_toml(boards), encoding="utf-8")
        for page in PAGES:
            page.write_text(with_tables(page.read_text(encoding="utf-8"), boards), encoding="utf-8")
        return 0
    subjects = {board.subject for board in boards}
    allowed = {key: limit for key, limit in limits().items() if not given.only or key[0] in subjects}
    found = list(worse(boards, allowed))
    print(*found, sep="\n")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
