"""Remarks on single published runs: which to leave out, which to distrust, and why (`data/runs/remarks.csv`)."""

import csv
import io
from functools import cache
from importlib import resources
from typing import NamedTuple

STATUSES = ("exclude", "suspect", "unexplained")
"""Left out of all figures; kept, but its columns or its run are doubtful; kept, with an effect no column tells."""


class Remark(NamedTuple):
    """What is known of one run."""

    status: str
    """One of `STATUSES`."""
    reason: str


@cache
def remarks() -> dict[str, Remark]:
    """Return the remarks by the id of their row."""
    file = resources.files("traincast") / "data" / "runs" / "remarks.csv"
    rows = csv.DictReader(io.StringIO(file.read_text(encoding="utf-8")))
    return {row["id"]: Remark(row["status"], row["reason"]) for row in rows}
