"""Bring public tables to the common schema: runs with all that rules fill in, kernels as `validate` reads them.

    python studies/common_schema.py IN.csv OUT.csv

docs/measurements.md describes the columns. What public tables of runs say in other words, or not at all, is data:
`rules/published.toml` has rules by the text of columns, and `rules/remarks.csv` what is known of single rows. Kernels
are NeuSight's operators (``gpu op shape dtype``) and SimuMax's efficiencies (``kernel peak_tflops description
efficiency``); `kernel_tables` reads both. What is read from OUT.csv needs no rule any more.
"""

import argparse
import csv
import gzip
import io
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import msgspec

from kernel_tables import brought_kernels
from traincast.calibrate.runs import ALIASES
from traincast.calibrate.tables import Row, Table, read_table
from traincast.errors import TraincastError
from traincast.files import parse_toml
from traincast.hardware.gpu import find_gpu
from traincast.units import is_number, plain_number

RULES = Path(__file__).parent / "rules"
_PEAKS = ("bf16", "fp16", "fp32", "fp8", "fp4")
"""What ``gpu.peaks`` lists, as far as the datasheet has it."""


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What some rows mean beyond what they say; `rules/published.toml` explains the fields."""

    why: str
    set: dict[str, str]
    when: dict[str, str] = {}
    unless: dict[str, str] = {}
    above: dict[str, float] = {}
    table: tuple[str, ...] = ()
    replace: bool = False

    def holds(self, cells: Mapping[str, str], columns: Iterable[str]) -> bool:
        """Say whether the rule is for a row with these cells, in a table with these columns."""
        if len(set(self.table) - set(columns)) > (1 if self.table else 0):
            return False
        return (
            all(_found(pattern, _fact(cells, name)) for name, pattern in self.when.items())
            and not any(_found(pattern, _fact(cells, name)) for name, pattern in self.unless.items())
            and all(_number(cells.get(name)) > least for name, least in self.above.items())
        )

    def filled(self, cells: Mapping[str, str]) -> dict[str, str]:
        """Return the cells that the rule fills in; those whose value rests on an empty cell stay empty."""
        found = {}
        for name, value in self.set.items():
            if name not in cells or self.replace:
                try:
                    found[name] = value.format_map(cells)
                except KeyError:
                    continue
        return found


class _Rules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    rule: tuple[Rule, ...]


def common_row(row: Row, columns: Sequence[str] | None = None) -> Row:
    """Return a row with the columns of the common schema filled in as far as a rule tells them.

    Parameters
    ----------
    row : Row
        As it stands in its table.
    columns : sequence of str, optional
        Columns of the table; those that the row fills by default.
    """
    cells = {ALIASES.get(name, name): text for name, text in row.cells.items()}
    for rule in published_rules():
        if rule.holds(cells, row.cells if columns is None else columns):
            cells |= rule.filled(cells)
    if "exclude" not in cells and (reason := _excluded().get(row.id)) is not None:
        cells["exclude"] = reason
    return replace(row, cells=cells)


@cache
def published_rules() -> tuple[Rule, ...]:
    """Return the rules for public tables, in the order in which they apply."""
    path = RULES / "published.toml"
    return msgspec.convert(parse_toml(path.read_text(encoding="utf-8"), str(path)), _Rules).rule


@cache
def _excluded() -> dict[str, str]:
    """Return why single rows are left out of all figures, by id."""
    rows = csv.DictReader(io.StringIO((RULES / "remarks.csv").read_text(encoding="utf-8")))
    return {row["id"]: f"excluded: {row['reason']}" for row in rows if row["status"] == "exclude"}


def _fact(cells: Mapping[str, str], name: str) -> str:
    """Return a cell, or a value of the datasheet of the row's GPU."""
    if not name.startswith("gpu."):
        return cells.get(name, "")
    gpu = find_gpu(cells.get("gpu", ""))
    if gpu is None:
        return ""
    if name == "gpu.architecture":
        return gpu.architecture
    return " ".join(dtype for dtype in _PEAKS if gpu.has_peak(dtype))


def _found(pattern: str, text: str) -> bool:
    return re.search(pattern, text, re.IGNORECASE) is not None


def _number(text: str | None) -> float:
    return plain_number(text) if text is not None and is_number(text) else float("-inf")


def brought(table: Table) -> tuple[list[str], list[dict[str, str]]]:
    """Return the columns and the rows of a table in the common schema; those of runs keep their own columns first."""
    kernels = brought_kernels(table)
    if kernels is not None:
        return kernels
    rows = [dict(common_row(row, table.columns).cells) for row in table.rows]
    names = dict.fromkeys((*table.columns, *sorted({name for row in rows for name in row})))
    return [name for name in names if any(name in row for row in rows)], rows


def main() -> int:
    """Read, fill in, write; return the exit code."""
    parser = argparse.ArgumentParser(description="bring a public table to the common schema")
    parser.add_argument("table", type=Path, metavar="IN.csv")
    parser.add_argument("out", type=Path, metavar="OUT.csv")
    given = parser.parse_args()
    try:
        columns, rows = brought(read_table(given.table))
    except TraincastError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    data = text.getvalue().encode()
    given.out.write_bytes(gzip.compress(data, mtime=0) if given.out.suffix == ".gz" else data)
    print(f"wrote {len(rows)} rows with {len(columns)} columns to {given.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
