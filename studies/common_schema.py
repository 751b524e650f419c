"""Bring a public table of training runs to the common schema: write it with all that rules fill in.

    python studies/common_schema.py IN.csv OUT.csv

The rules are `src/traincast/data/runs/published.toml` and `remarks.csv` beside it; docs/measurements.md describes the
columns. What is read from OUT.csv needs no rule any more.
"""

import argparse
import csv
import sys
from pathlib import Path

from traincast.calibrate.runs.schema import common_row
from traincast.calibrate.tables import Table, read_table
from traincast.errors import TraincastError


def brought(table: Table) -> tuple[list[str], list[dict[str, str]]]:
    """Return the columns and the rows of a table in the common schema; its own columns come first."""
    rows = [dict(common_row(row, table.columns).cells) for row in table.rows]
    names = dict.fromkeys((*table.columns, *sorted({name for row in rows for name in row})))
    return [name for name in names if any(name in row for row in rows)], rows


def main() -> int:
    """Read, fill in, write; return the exit code."""
    parser = argparse.ArgumentParser(description="bring a public table of training runs to the common schema")
    parser.add_argument("table", type=Path, metavar="IN.csv")
    parser.add_argument("out", type=Path, metavar="OUT.csv")
    given = parser.parse_args()
    try:
        columns, rows = brought(read_table(given.table))
    except TraincastError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    with given.out.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, columns, restval="")
        writer.writeheader()
        writer.writerows(rows)
    print(f"wrote {len(rows)} rows with {len(columns)} columns to {given.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
