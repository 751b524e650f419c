"""Columns of a table of runs under their common names (docs/data-files.md), and those of a second table with them."""

from collections.abc import Mapping
from pathlib import Path

from msgspec.structs import replace

from traincast.calibration.tables import MeasurementTable, Row, read_table
from traincast.errors import FormatError

ALIASES = {
    "gpus": "num_gpus",
    "seq_length": "seq_len",
    "sharding": "zero_or_fsdp",
    "task": "x_task",
    "step_time_s": "x_iter_time_s",
    "peak_memory_gib": "x_peak_mem_gib",
    "recompute_granularity": "recompute",
    "recompute_num_layers": "recompute_layers",
    "tp_comm_overlap": "overlap_tp",
    "account_embed": "embedding_as_layer",
    "account_loss": "head_as_layer",
}
"""Other names of columns."""
_ONLY_WITH = {
    "recompute": ("recompute_modules", "recompute_layers"),
    "cuda_graphs": ("cuda_graph_impl", "cuda_graph_scope"),
    "cuda_graph_impl": ("cuda_graphs", "cuda_graph_scope"),
    "stage_layers": ("pp_layout", "embedding_as_layer", "head_as_layer"),
}
"""Column of a row to what a recipe says more of it, which is the row's own only where both agree on it."""


def read_measurements(path: Path, recipes: Path | None = None) -> MeasurementTable:
    """Read a table of measurements, with settings of its runs from a second one; `read_table` says what it raises."""
    table = read_table(path)
    return table if recipes is None else with_recipes(table, read_table(recipes))


def with_recipes(table: MeasurementTable, recipes: MeasurementTable) -> MeasurementTable:
    """Return a table of runs with what their recipes add, by the column ``id``; what a row says itself wins.

    Raises
    ------
    FormatError
        If the recipes have no column ``id``, two for one row, or none for any row.
    """
    if "id" not in recipes.columns:
        raise FormatError("has no column id, which says whose recipe a row is", recipes.path, 1)
    of_run: dict[str, Row] = {}
    for recipe in recipes.rows:
        if of_run.setdefault(recipe.id, recipe) is not recipe:
            raise FormatError(f"is a second recipe of {recipe.id}", recipes.path, recipe.line)
    if not any(row.id in of_run for row in table.rows):
        raise FormatError(f"has a recipe of no row of {table.path}: none has an id that it names", recipes.path, 1)
    rows = tuple(_with_recipe(row, of_run[row.id]) if row.id in of_run else row for row in table.rows)
    return replace(table, columns=tuple(dict.fromkeys((*table.columns, *recipes.columns))), rows=rows)


def _with_recipe(row: Row, recipe: Row) -> Row:
    own, said = under_common_names(row.cells), under_common_names(recipe.cells)
    apart = [name for name in _ONLY_WITH if name in own and own[name] != said.get(name)]
    without = {each for name in apart for each in _ONLY_WITH[name]}
    return replace(row, cells={**{name: text for name, text in said.items() if name not in without}, **own})


def under_common_names(cells: Mapping[str, str]) -> dict[str, str]:
    """Return cells under the common names of their columns; where both are filled, the common one counts."""
    found = {name: text for name, text in cells.items() if name not in ALIASES}
    for name, text in cells.items():
        found.setdefault(ALIASES.get(name, name), text)
    return found
