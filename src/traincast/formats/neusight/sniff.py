"""Tell NeuSight's files by the names of their columns."""

import re

from traincast.formats.contract import Sniff

PARTS = ("forward", "backward", "weight_grad")
"""Of a row of a forecast."""
COLUMNS = (
    "name",
    *(f"{part}_{what}" for part in PARTS for what in ("compute_time", "comm_type", "comm_size")),
    "process_time",
)
GRAPH_COLUMNS = ("Name", "OpName", "FwOps", "BwOps", "AccOps", "Prev", "Next", "InputShapes", "OutputShape")

_COLUMN_OBJECT = re.compile(r'\{\s*"name"\s*:\s*[\[{]')


def looks_like(head: str) -> Sniff:
    """Tell from the names of the columns, in the beginning of a file, whose last line may be cut."""
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


def looks_like_graph(head: str) -> Sniff:
    """Tell from the names of the columns, in the beginning of a file."""
    header = head.removeprefix("\ufeff").lstrip().split("\n", 1)[0]
    names = {name.strip() for name in header.split(",")}
    there = sum(name in names for name in GRAPH_COLUMNS)
    if there == len(GRAPH_COLUMNS):
        return Sniff(0.97, "all columns of a NeuSight operator graph")
    if {"FwOps", "BwOps"} & names and there > 1:
        return Sniff(0.6, f"{there} of the {len(GRAPH_COLUMNS)} columns of a NeuSight operator graph")
    return Sniff(0.0, f"the columns are not {', '.join(GRAPH_COLUMNS[:3])} ...")


def is_json(text: str) -> bool:
    """Tell whether a text begins like JSON."""
    return text.lstrip("\ufeff \t\r\n")[:1] in ("[", "{")
