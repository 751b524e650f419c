"""Public tables as they were published, brought to the columns that `traincast validate` reads (docs/data-files.md).

What public tables of runs say in other words, or not at all, is data: ``run_facts.csv.gz`` has what single runs
switched on and where that stands (`published.facts`), ``rules.toml`` what words mean in any table, ``recipes.toml``
what settings of recipes mean, and ``remarks.csv`` what is known of single rows. Kernels are NeuSight's operators and
SimuMax's efficiencies (`published.kernels`). A table that has these columns stays as it is.
"""

import csv
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path

import msgspec
from msgspec.structs import replace

from published.facts import facts_of
from published.kernels import kernel_reader
from published.maxtext import maxtext_cells
from published.network import card_gbit_per_gpu
from traincast.calibration.columns import ALIASES, read_measurements, under_common_names
from traincast.calibration.tables import MeasurementTable, Row
from traincast.hardware.gpu import find_gpu
from traincast.units import is_number, plain_number

RULES = Path(__file__).parent
_RUN_COLUMNS = {"model", "gpu", "num_gpus"}
_MEASURED_COLUMNS = {"measured_metric", "x_iter_time_s", "x_peak_mem_gib"}
"""A table of training runs has all of the first and one of these, as it is or by a rule for all of its rows."""
_OF_RECIPE = "rs_"
"""What the columns begin with in which a table says settings of recipes itself (`recipe_settings.csv`)."""
_PEAKS = ("bf16", "fp16", "fp32", "fp8", "fp4")
"""What ``gpu.peaks`` lists, as far as the datasheet has it."""


def read_published(path: Path, recipes: Path | None = None) -> MeasurementTable:
    """Read a public table in the common schema; a `FormatError` if it cannot be read (see `read_measurements`)."""
    return in_common_schema(with_own_recipes(read_measurements(path, recipes)))


def in_common_schema(table: MeasurementTable) -> MeasurementTable:
    """Return a table in the columns of the common schema: kernels by what they are called, runs filled in by rules."""
    kernels = kernel_reader(table.columns)
    if kernels is not None:
        columns, common_kernel = kernels
        kept, damaged = table.read(common_kernel)
        return replace(table, columns=columns, rows=tuple(brought for _, brought in kept), damaged=damaged)
    filled = _filled_columns(table.columns)
    if not (set(filled) >= _RUN_COLUMNS and _MEASURED_COLUMNS & set(filled)):
        return table
    return replace(table, columns=filled, rows=tuple(common_row(row, table.columns) for row in table.rows))


def with_own_recipes(table: MeasurementTable) -> MeasurementTable:
    """Return a table with the settings of recipes that stand in it under the names that a table of recipes has."""
    if not any(name.startswith(_OF_RECIPE) for name in table.columns):
        return table
    columns = dict.fromkeys(name.removeprefix(_OF_RECIPE) for name in table.columns)
    rows = (replace(row, cells=_under_recipe_names(row.cells)) for row in table.rows)
    return replace(table, columns=tuple(columns), rows=tuple(rows))


def _under_recipe_names(cells: Mapping[str, str]) -> dict[str, str]:
    own = {name: text for name, text in cells.items() if not name.startswith(_OF_RECIPE)}
    return {name.removeprefix(_OF_RECIPE): text for name, text in cells.items() if name not in own} | own


def _filled_columns(columns: Sequence[str]) -> tuple[str, ...]:
    """Return the columns of the common schema that a table with these columns fills, by rules for all rows too."""
    given = {ALIASES.get(name, name): "" for name in columns}
    rules = [rule for rule in published_rules() if rule.table and rule.holds(given, columns)]
    return tuple(dict.fromkeys([*given, *(name for rule in rules for name in rule.filled(given))]))


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What some rows mean beyond what they say; `rules.toml` explains the fields."""

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
            and all(_exceeds(cells.get(name, ""), least) for name, least in self.above.items())
        )

    def filled(self, cells: Mapping[str, str]) -> dict[str, str]:
        """Return the cells that the rule fills in; those whose value rests on an empty cell stay empty.

        A value may name what a pattern of `when` found, too.
        """
        parts = {
            name: text
            for column, pattern in self.when.items()
            if (match := re.search(pattern, _fact(cells, column), re.IGNORECASE))
            for name, text in match.groupdict().items()
        }
        known, found = {**cells, **parts}, {}
        for name, value in self.set.items():
            if name not in cells or self.replace:
                try:
                    found[name] = value.format_map(known)
                except KeyError:
                    continue
        return found


class Setting(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a setting of a recipe means as a column of the common schema; `recipes.toml` explains the fields.

    With `when` it also replaces what the row says in fewer words, and so do other spellings of one column.
    """

    column: str
    fills: str
    means: dict[str, str] = {}
    matches: str = ""
    """Pattern of further values, whose first group is what they mean."""
    when: dict[str, str] = {}

    def filled(self, cells: Mapping[str, str]) -> dict[str, str]:
        """Return the cell that the setting of a row fills in."""
        said = cells.get(self.column, "").lower()
        known = self.means.get(said)
        if known is None and self.matches and (match := re.fullmatch(self.matches, said)):
            known = match[1]
        if known is None or not all(_found(pattern, cells.get(name, "")) for name, pattern in self.when.items()):
            return {}
        return {self.fills: known} if self.fills not in cells or self.fills in self.when else {}


class _Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    setting: tuple[Setting, ...]


@cache
def recipe_settings() -> tuple[Setting, ...]:
    """Return what settings of recipes mean, in the order in which they are read."""
    return msgspec.toml.decode((RULES / "recipes.toml").read_bytes(), type=_Settings).setting


class _Rules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    rule: tuple[Rule, ...]


def common_row(row: Row, columns: Sequence[str] | None = None) -> Row:
    """Return a row with the columns of the common schema filled in as far as a rule tells them.

    `columns` are those of its table; by default those that the row fills.
    """
    cells = under_common_names(row.cells)
    cells |= maxtext_cells(cells)
    for setting in recipe_settings():
        cells |= setting.filled(cells)
    cells |= facts_of(row.id)
    for rule in published_rules():
        if rule.holds(cells, row.cells if columns is None else columns):
            cells |= rule.filled(cells)
    if "nic_gbit_per_gpu" not in cells and (gbit := card_gbit_per_gpu(cells)) is not None:
        cells["nic_gbit_per_gpu"] = f"{gbit:.12g}"
    if (remark := _remarks().get(row.id)) is not None:
        cells = dict([remark]) | cells
    return replace(row, cells=cells)


@cache
def published_rules() -> tuple[Rule, ...]:
    """Return the rules for public tables, in the order in which they apply."""
    return msgspec.toml.decode((RULES / "rules.toml").read_bytes(), type=_Rules).rule


def remarks() -> list[dict[str, str]]:
    """Return what is known of single rows: id, status and reason."""
    with (RULES / "remarks.csv").open(encoding="utf-8", newline="") as stream:
        return [*csv.DictReader(stream)]


@cache
def _remarks() -> dict[str, tuple[str, str]]:
    """Return the column that a remark on a single row fills and its reason, by id.

    ``exclude``: what the row says is wrong or not enough. ``hard``: it is far off for a reason that no column tells;
    nothing is fitted to it, and all figures count it.
    """
    rows = remarks()
    words = {"exclude": "excluded: ", "hard": ""}
    return {row["id"]: (row["status"], words[row["status"]] + row["reason"]) for row in rows if row["status"] in words}


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


def _exceeds(text: str, least: float) -> bool:
    return is_number(text) and plain_number(text) > least
