"""Which settings published runs have: what hardly any has was never timed, whatever its forecast says.

``data/training/published_settings.csv`` counts the runs with each value of each field of a layout, for the code that
frameworks share and each kind of model (`studies/published_settings.py` writes it). Of degrees and sizes what is
between the least and the largest is as good as published.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from traincast.job.fields import FIELDS
from traincast.job.job import DECIDED, Job
from traincast.model.model import Model
from traincast.planning.layout import COLUMNS, Layout, said
from traincast.shipped import constant, shipped_rows

TABLE = "training/published_settings.csv"
KINDS = ("dense", "MoE", "hybrid")
"""Kinds of models: of attention and MLPs alone, with experts, and of layers that are not all alike."""
FEWEST = 2
"""Published runs from which on a setting counts as timed: a single one may have its step from something else."""
_OFF = frozenset({"off", "none", "0", "0.0", "all"})
"""What says that nothing is done, which never is a risk."""
_LEFT_OUT = frozenset(
    (
        *("gpus", "dp", "microbatches", "precision", "fp8_recipe", "shard", "recompute_layers", "loss_kernel"),
        *("dropout", "moe_routing"),
    )
)
"""Fields that follow from others, or that are asked for and not chosen."""
_SOFTWARE = ("parallelism", "pipeline", "precision", "kernels", "experts", "sharding", "recompute", "offload")
_SET = ("switch", "choice", "names")
"""Groups of fields that a plan may set in addition to those of a layout, and what they take."""

Counts = Mapping[tuple[str, str, str], Mapping[str, int]]
"""Published runs by kin, kind of model and field, then by value."""


def kind_of(model: Model) -> str:
    """Return the kind of a model, of `KINDS`."""
    if model.blocks:
        return "hybrid"
    return "dense" if model.experts is None else "MoE"


def settings_of(layout: Layout, software: Iterable[tuple[str, Any]] = ()) -> Iterator[tuple[str, str]]:
    """Yield what a layout and its software have set, each field with its value; of names every one by itself."""
    matter = ((name, getattr(layout, name)) for name in COLUMNS if FIELDS[name].matters(layout))
    for name, value in (*matter, *software):
        if name not in _LEFT_OUT:
            yield from ((name, text) for text in texts_of(value))


def texts_of(value: object) -> Iterator[str]:
    """Yield what a value of a field sets, in words; of several names every one, and nothing of what is off."""
    for each in value if isinstance(value, tuple) else (value,):
        if each is not None and (text := said(each)) not in _OFF:
            yield text


def software_of(job: Job) -> Iterator[tuple[str, Any]]:
    """Yield what of its software a job decided, beyond its layout."""
    for name, field in FIELDS.items():
        if name in DECIDED and name not in COLUMNS and field.group in _SOFTWARE and field.takes in _SET:
            yield name, job.decided(name)


def published_counts() -> Counts:
    """Return how many published runs have each setting."""
    return constant(_counts)


def _counts() -> Counts:
    found: dict[tuple[str, str, str], dict[str, int]] = {}
    for row in shipped_rows(TABLE):
        found.setdefault((row["kin"], row["kind"], row["field"]), {})[row["value"]] = int(row["runs"])
    return found


def unpublished(layout: Layout, job: Job, counts: Counts | None = None) -> tuple[tuple[str, str], ...]:
    """Return the settings of a layout that fewer than `FEWEST` published runs of such code and such a model have."""
    known, kind = published_counts() if counts is None else counts, kind_of(job.model)
    return tuple(
        (name, value)
        for name, value in settings_of(layout, software_of(job))
        if not is_known(value, known.get((job.framework.kin, kind, name), {}))
    )


def is_known(value: str, counts: Mapping[str, int]) -> bool:
    """Say whether enough of the counted runs have a value, or values on both sides of it."""
    values = [each for each, runs in counts.items() if runs >= FEWEST]
    if not value.isdecimal():
        return value in values
    numbers = [int(each) for each in values if each.isdecimal()]
    return bool(numbers) and min(numbers) <= int(value) <= max(numbers)
