"""What single published runs switched on, where their tables do not say it: facts by the id of the row.

`TABLES` have the id of a row, or with ``*`` the beginning of those of one table, a column of the common
schema, its value, and where it stands: in a recipe, in the table or its notes, or nowhere (``assumed``).
"""

import csv
import gzip
from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

from datafiles import table_path

TABLES = ("run_facts.csv", "chip_facts.csv", "xla_facts.csv", "memory_facts.csv", "script_facts.csv")
"""Runs on GPUs of NVIDIA and others; those on TPU and AMD chips, whose tables leave most to their recipes; what
programs in JAX recompute, and how they make their logits; and what decides the memory of others: types of
gradients, and units in which peaks are printed; and what scripts of runs set around the training itself."""
BASES = ("recipe", "table", "notes", "assumed")
"""What ``stands`` begins with."""


class Fact(NamedTuple):
    """A cell that a row has beyond its table."""

    id: str
    column: str
    value: str
    stands: str
    """Where it stands, which begins with one of `BASES`."""


@cache
def run_facts() -> tuple[Fact, ...]:
    """Return all facts, those of whole tables first."""
    found: list[Fact] = []
    for name in TABLES:
        with gzip.open(table_path(name), "rt", encoding="utf-8", newline="") as stream:
            found += [Fact(**row) for row in csv.DictReader(stream)]
    return tuple(found)


def facts_of(row_id: str) -> Mapping[str, str]:
    """Return the cells that a row has beyond its table; they count before what the table says."""
    whole = f"{row_id.rpartition('-')[0]}-*"
    return _by_id().get(whole, {}) | _by_id().get(row_id, {})


@cache
def _by_id() -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for fact in run_facts():
        found.setdefault(fact.id, {})[fact.column] = fact.value
    return found
