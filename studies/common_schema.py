"""Write a public table as `traincast validate` reads it: runs with all that rules fill in, kernels under common names.

    python studies/common_schema.py IN.csv OUT.csv [--recipes SETTINGS.csv]

docs/data-files.md describes the columns; `published.reading` brings a table there. SETTINGS are those of the
recipes that its runs were made with, by their ``id``.
"""

import argparse
import csv
import gzip
import io
import sys
from pathlib import Path

from published.reading import read_published
from traincast.errors import TraincastError


def write_common(path: Path, out: Path, recipes: Path | None = None) -> str:
    """Write a public table in the common schema; return a line that says what was written.

    Raises
    ------
    FormatError
        If the table or that of the recipes cannot be read.
    """
    table = read_published(path, recipes)
    columns = dict.fromkeys((*table.columns, *sorted({name for row in table.rows for name in row.cells})))
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, [*columns], restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(row.cells for row in table.rows)
    data = text.getvalue().encode()
    out.write_bytes(gzip.compress(data, mtime=0) if out.suffix == ".gz" else data)
    return f"wrote {len(table.rows)} rows with {len(columns)} columns to {out}"


def main() -> int:
    """Read, fill in, write; return the exit code."""
    parser = argparse.ArgumentParser(description="bring a public table to the common schema")
    parser.add_argument("table", type=Path, metavar="IN.csv")
    parser.add_argument("out", type=Path, metavar="OUT.csv")
    parser.add_argument("--recipes", type=Path, metavar="SETTINGS.csv", help="settings of the recipes of its runs")
    given = parser.parse_args()
    try:
        print(write_common(given.table, given.out, given.recipes))
    except TraincastError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
