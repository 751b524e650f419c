"""Flags of a job and of the layout of a file on the command line, ours and those that Megatron-LM users type.

The table is `data/job/flags.csv`; what a flag takes follows from the type of its field. Source of the other names:
Megatron-LM, megatron/training/arguments.py.
"""

from collections.abc import Iterator
from typing import NamedTuple, get_args

from traincast.job.feasible import CHOICES
from traincast.job.frameworks import GRAPH_SCOPES
from traincast.job.offload import OFFLOAD_MODULES
from traincast.job.request import JOB_FIELDS
from traincast.model.blocks.share import LORA_TARGETS
from traincast.model.recompute import RECOMPUTE_MODULES
from traincast.shipped import shipped_rows

_OTHER_NAMES = {
    "pp_message_bytes": "--pp-comm",
    "busbw_bytes_per_s": "--busbw",
    "compute_slowdown": "--slow",
    "failures": "--goodput",
    "gpu_power_w": "--gpu-power",
}
"""Field of options to its flag, where that has another name."""
_NAMES = {
    "offload_modules": tuple(OFFLOAD_MODULES),
    "recompute_modules": RECOMPUTE_MODULES,
    "cuda_graph_scope": GRAPH_SCOPES,
    "lora_targets": LORA_TARGETS,
}
"""Field of several names to all that there are."""


class Flag(NamedTuple):
    """One flag."""

    field: str
    """Field of `JobRequest` or `LayoutOptions`, or ``model``."""
    names: tuple[str, ...]
    kind: str
    """``text``, ``count``, ``tokens``, ``number``, ``switch`` (with a ``--no-`` form), ``choice``, or ``names`` for
    several choices."""
    help: str
    choices: tuple[str, ...] = ()
    """All values of a ``choice`` or of ``names``, the built-in ones of a ``text`` to which plug-ins may add."""
    least: int = 1
    """Smallest value of a count or number; the largest below, None: that of `traincast.units.range_of`."""
    most: int | None = None
    section: str = ""
    """Subject that it belongs to."""


def _flags(of: str) -> Iterator[Flag]:
    types = {name: get_args(each.type) or (each.type,) for name, each in JOB_FIELDS.items()}
    for row in shipped_rows("job/flags.csv"):
        if of not in row["of"].split(";"):
            continue
        field = row["field"]
        kind, choices = _kind(field, types.get(field, (int,)))
        least, most = int(row["least"] or 1), int(row["most"]) if row["most"] else None
        yield Flag(field, tuple(row["names"].split()), kind, row["help"], choices, least, most, row["section"])


def _kind(field: str, types: tuple[object, ...]) -> tuple[str, tuple[str, ...]]:
    """Return what the flag of a field takes, and its choices."""
    if field == "seq_length":
        return "tokens", ()
    if field in CHOICES:
        return "choice", tuple(CHOICES[field][1])
    if field in _NAMES:
        return "names", _NAMES[field]
    plain = {bool: "switch", int: "count", float: "number"}
    return next((plain[each] for each in types if each in plain), "text"), ()


JOB_FLAGS = tuple(_flags("job"))
"""Flags of a command that takes a job."""

LAYOUT_FLAGS = tuple(_flags("layout"))
"""Flags that say otherwise than a file how its work is laid out."""


def flag_of(field: str) -> str:
    """Return the name of the flag that sets a field of a job, of `LayoutOptions` or of `StepOptions`."""
    named = {flag.field: flag.names[0] for flag in (*JOB_FLAGS, *LAYOUT_FLAGS)} | _OTHER_NAMES
    return named.get(field, f"--{field.replace('_', '-')}")
