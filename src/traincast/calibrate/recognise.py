"""Tell logs and tables of measurements from other files, and which command takes them."""

import csv
from pathlib import Path

from traincast.calibrate.contract import KINDS
from traincast.calibrate.nccl_logs import is_nccl_log
from traincast.calibrate.tables import read_table
from traincast.formats.recognise import Known, Teller

_VALIDATE = "traincast validate takes it"
_TAKEN_BY = {
    "collectives": "traincast calibrate and traincast validate take it",
    "operators": "traincast validate and traincast calibrate --gpu take it",
}
"""Commands that take the measurements of a kind; `validate` alone takes all others."""


def nccl_log(path: Path, head: str) -> Known | None:
    """Tell a log of nccl-tests by its header."""
    if not is_nccl_log(head):
        return None
    rows = read_table(path).rows
    runs = sorted({(row.cells["op"], int(row.cells["ranks"])) for row in rows})
    shown = ", ".join(f"{op} over {ranks} ranks" for op, ranks in runs[:4]) + (", ..." if len(runs) > 4 else "")
    suspect = sum("suspect" in row.cells for row in rows)
    doubt = f", {suspect} of them not to be trusted" if suspect else ""
    return Known("nccl-tests", f"log of nccl-tests ({shown}; {len(rows)} timings{doubt})", _TAKEN_BY["collectives"])


def measurements(path: Path, head: str) -> Known | None:
    """Return the kind of a table of measurements, which its columns say."""
    first = next(csv.reader(head.splitlines()[:1]), [])
    columns = tuple(name.strip().lower() for name in first)
    kind = next((kind for kind in KINDS.entries() if kind.fits(columns)), None)
    if kind is None:
        return None
    rows = len(read_table(path).rows)
    return Known(kind.name, f"table of {kind.title} ({rows} rows)", _TAKEN_BY.get(kind.name, _VALIDATE))


TELLERS: tuple[Teller, ...] = (nccl_log, measurements)
"""What `traincast.formats.recognise` is handed."""
