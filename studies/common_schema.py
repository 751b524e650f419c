"""Write a public table in the common schema: runs with all that rules fill in, kernels as `validate` reads them.

    python studies/common_schema.py IN.csv OUT.csv

docs/data-files.md describes the columns; `traincast.calibration.published` brings a table there.
"""

import argparse
import csv
import gzip
import io
import sys
from pathlib import Path

from traincast.calibration.published import read_measurements
from traincast.errors import TraincastError


def main() -> int:
    """Read, fill in, write; return the exit code."""
    parser = argparse.ArgumentParser(description="bring a public table to the common schema")
    parser.add_argument("table", type=Path, metavar="IN.csv")
    parser.add_argument("out", type=Path, metavar="OUT.csv")
    given = parser.parse_args()
    try:
        table = read_measurements(given.table)
    except TraincastError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    columns = dict.fromkeys((*table.columns, *sorted({name for row in table.rows for name in row.cells})))
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, [*columns], restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(row.cells for row in table.rows)
    data = text.getvalue().encode()
    given.out.write_bytes(gzip.compress(data, mtime=0) if given.out.suffix == ".gz" else data)
    print(f"wrote {len(table.rows)} rows with {len(columns)} columns to {given.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
