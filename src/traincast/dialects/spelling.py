"""A change of a job in the words of its framework: what is written of it after, less what was written before.

Flags of Megatron-LM, overrides of Megatron-Bridge's recipes, keys of torchtitan's TOML, of DeepSpeed's JSON, settings
of MaxText, arguments of Transformers' Trainer. What a framework cannot be told is said as a key of a job file of ours.
"""

import fnmatch
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from traincast.dialects.bridge_writing import bridge_said, plain_setting
from traincast.dialects.maxtext_writing import maxtext_said
from traincast.dialects.megatron_writing import written_flags
from traincast.dialects.torchtitan_writing import torchtitan_said
from traincast.dialects.trainer_writing import deepspeed_said, trainer_said
from traincast.dialects.writing import flag_line, toml_value
from traincast.job.frameworks import Framework
from traincast.job.job import Job

OWN = ""
"""Stands for our own job files, which can be told everything."""


class _Speech(Struct, frozen=True):
    """How a framework is told something."""

    name: str
    """Of the framework, for people."""
    of: tuple[str, ...]
    """Patterns of the names of frameworks here."""
    said: Callable[[Job], Mapping[str, Any]]
    """What is written of a job: names and values."""
    one: Callable[[str, Any], str]
    """A name with its value as it is typed."""
    between: str
    prefix: str = ""
    """What stands before a name."""
    off: Callable[[str, Any], str] | None = None
    """What is said where a name was written before with a value, and is no more; None: it is left out."""


def _json(name: str, value: object) -> str:
    return f'"{name}": {toml_value(value)}'


def _argument(name: str, value: object) -> str:
    return f"{name}={value!r}" if isinstance(value, (bool, str)) else f"{name}={value}"


def _overridden(name: str, value: object) -> str:
    """Return what takes a setting of a recipe back: a switch is off, a name is none; a number means nothing then."""
    if isinstance(value, bool):
        return f"{name}=false"
    return "" if isinstance(value, (int, float)) else f"{name}=null"


_SPEECHES: Mapping[str, _Speech] = {
    "bridge": _Speech(
        "Megatron-Bridge",
        ("megatron-bridge-*", "mlperf-*"),
        bridge_said,
        lambda name, value: f"{name}={plain_setting(value)}",
        " ",
        "",
        _overridden,
    ),
    "torchtitan": _Speech(
        "torchtitan",
        ("torchtitan-*", "automodel-*"),
        torchtitan_said,
        lambda name, value: f"{name} = {toml_value(value)}",
        ", ",
    ),
    "maxtext": _Speech(
        "MaxText",
        ("maxtext-*",),
        maxtext_said,
        lambda name, value: f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}",
        " ",
    ),
    "deepspeed": _Speech("DeepSpeed", ("deepspeed-2024",), deepspeed_said, _json, ", "),
    "trainer": _Speech("Transformers", ("transformers-*",), trainer_said, _argument, ", "),
    "megatron": _Speech(
        "Megatron-LM",
        ("megatron-*", "primus-*", "pai-megatron-*", "mindspeed-*"),
        written_flags,
        lambda name, value: flag_line("--", name, value),
        " ",
        "--",
    ),
}
"""Dialect to how it is spoken; the first whose patterns fit a framework is its own."""


def spoken_by(framework: Framework) -> str:
    """Return the dialect that a framework is told things in; `OWN` where none is written here."""
    for dialect, speech in _SPEECHES.items():
        if any(fnmatch.fnmatch(framework.name, pattern) for pattern in speech.of):
            return dialect
    return OWN


def spelled(before: Job, after: Job, fields: Mapping[str, Any]) -> str:
    """Return how a framework is told to run one job rather than another.

    Parameters
    ----------
    before, after : Job
        Of one framework, all decided.
    fields : mapping
        Fields of the request that make the difference, for what the framework's words do not say.
    """
    dialect = spoken_by(after.framework)
    said = "" if dialect == OWN else _difference(_SPEECHES[dialect], before, after)
    own = ", ".join(f"{name} = {toml_value(value)}" for name, value in fields.items() if value is not None)
    return said or (f"in a job file: {own}" if own and dialect != OWN else own)


def _difference(speech: _Speech, before: Job, after: Job) -> str:
    """Return what is new or other, then what is left out; empty where a framework's words do not tell them apart."""
    old, new = speech.said(before), speech.said(after)
    families = {_family(name) for name in {*old, *new} if old.get(name) != new.get(name)}
    whole = families.intersection(_WHOLE)
    said = [speech.one(name, new[name]) for name in new if old.get(name) != new[name] or _family(name) in whole]
    gone = [name for name in old if name not in new]
    if speech.off is not None:
        said, gone = [*said, *filter(None, (speech.off(name, old[name]) for name in gone))], []
    left_out = ", ".join(f"{speech.prefix}{name}" for name in gone)
    return "; ".join(filter(None, (speech.between.join(said), f"without {left_out}" if gone else "")))


_WHOLE = ("recompute", "cuda")
"""First words of settings that mean something together: where one changes, all of them are said."""


def _family(name: str) -> str:
    return name.rpartition(".")[2].replace("_", "-").partition("-")[0]


def dialect_name(framework: Framework) -> str:
    """Return whose words a change is spelled in, for people."""
    dialect = spoken_by(framework)
    return "job file" if dialect == OWN else _SPEECHES[dialect].name
