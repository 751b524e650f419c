"""The common schema of training runs: which columns there are, and what rules fill in that a table leaves unsaid.

docs/measurements.md describes the columns. A table of one's own fills them in; what public tables say in other
words, or not at all, is data: `data/runs/published.toml` has rules by the text of columns, and
`data/runs/remarks.csv` what is known of single rows.
"""

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib import resources

import msgspec

from traincast.calibrate.tables import Row
from traincast.files import parse_toml
from traincast.hardware.gpu import find_gpu
from traincast.units import is_number, plain_number

ALIASES = {
    "gpus": "num_gpus",
    "seq_length": "seq_len",
    "sharding": "zero_or_fsdp",
    "task": "x_task",
    "step_time_s": "x_iter_time_s",
    "peak_memory_gib": "x_peak_mem_gib",
}
"""Other names of columns."""

_PEAKS = ("bf16", "fp16", "fp32", "fp8", "fp4")
"""What ``gpu.peaks`` lists, as far as the datasheet has it."""
_RULES, _REMARKS = "data/runs/published.toml", "data/runs/remarks.csv"


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What some rows mean beyond what they say; `data/runs/published.toml` explains the fields."""

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


def common_columns(columns: Sequence[str]) -> set[str]:
    """Return the columns of the common schema that a table with these columns can fill."""
    names = {ALIASES.get(name, name) for name in columns}
    # A rule for all rows of a table may give a column another name.
    given = dict.fromkeys(names, "")
    for rule in published_rules():
        if rule.table and rule.holds(given, columns):
            names |= set(rule.filled(given))
    return names


@cache
def published_rules() -> tuple[Rule, ...]:
    """Return the rules for public tables, in the order in which they apply."""
    text = (resources.files("traincast") / _RULES).read_text(encoding="utf-8")
    return msgspec.convert(parse_toml(text, _RULES), _Rules).rule


@cache
def _excluded() -> dict[str, str]:
    """Return why single rows are left out of all figures, by id."""
    file = io.StringIO((resources.files("traincast") / _REMARKS).read_text(encoding="utf-8"))
    return {row["id"]: f"excluded: {row['reason']}" for row in csv.DictReader(file) if row["status"] == "exclude"}


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
