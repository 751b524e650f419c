"""Tell NeuSight operator forecasts from other files."""

import re

from traincast.formats.contract import Sniff
from traincast.formats.neusight.table import COLUMNS, is_json

_COLUMN_OBJECT = re.compile(r'\{\s*"name"\s*:\s*[\[{]')


def looks_like(head: str) -> Sniff:
    """Tell from the beginning of a file how sure it is a NeuSight operator forecast.

    Parameters
    ----------
    head : str
        First part of the file; its last line may be cut.

    Returns
    -------
    Sniff
        Near 1 where all column names are there.
    """
    if is_json(head):
        there = sum(f'"{name}"' in head for name in COLUMNS)
        if there == 1 and _COLUMN_OBJECT.match(head.lstrip("\ufeff \t\r\n")):
            return Sniff(0.3, "a JSON object that begins with a list of names")
    else:
        # A BOM and empty lines may come first.
        header = head.removeprefix("\ufeff").lstrip().split("\n", 1)[0].split()
        there = sum(name in header for name in COLUMNS)
    if there == len(COLUMNS):
        return Sniff(0.95, "all columns of a NeuSight operator forecast")
    if "forward_compute_time" in head and there > 1:
        return Sniff(0.6, f"{there} of the {len(COLUMNS)} columns of a NeuSight operator forecast")
    return Sniff(0.0, f"the columns are not {COLUMNS[0]}, {COLUMNS[1]} ...")
