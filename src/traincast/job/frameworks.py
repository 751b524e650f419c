"""Load a framework: one of the named ones, or a TOML file that may build on one of them.

A file has the fields of `traincast.job.framework` under their own names. A value is plain, or stands
with its source::

    base = "megatron-core-2025"         # everything else is as in this framework

    cuda_graphs = true
    host_layer_s = { value = "180us", source = "our profile of May" }
"""

from collections.abc import Mapping
from dataclasses import MISSING, Field, fields
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from traincast.errors import ConfigError
from traincast.files import parse_toml, read_toml
from traincast.hardware.attention_kernels import ATTENTION_KERNELS
from traincast.job.framework import UNEVEN_SPLITS, Framework
from traincast.job.job import CP_KINDS
from traincast.model.recompute import RECOMPUTE
from traincast.names import find_name, known_names
from traincast.registry import known_name
from traincast.units import checked_field, parse_time, quoted

DEFAULT_FRAMEWORK = "megatron-core-2025"
"""What runs a job that names neither framework nor year."""

_BY_YEAR = (
    (2021, "megatron-2021"),
    (2023, "megatron-2022"),
    (2024, "megatron-core-2024"),
    (2025, "megatron-core-2025"),
)
"""Last year and framework. Source: releases of Megatron-LM and NeMo."""
_NEWEST = "megatron-core-2026"

_CHOICES = {
    "attention_kernel": ATTENTION_KERNELS,
    "recompute": RECOMPUTE,
    "uneven_split": UNEVEN_SPLITS,
    "cp_kind": CP_KINDS,
}
_AT_LEAST_ONE = ("layers_per_chunk", "vocab_multiple")
_SHIPPED = "data/frameworks/frameworks.toml"


def framework_names() -> list[str]:
    """Return the names of the shipped frameworks, sorted."""
    return sorted(_shipped())


def framework_of_year(year: int | None) -> str:
    """Return the name of the Megatron framework of a year; `DEFAULT_FRAMEWORK` where none is given."""
    if year is None:
        return DEFAULT_FRAMEWORK
    return next((name for last, name in _BY_YEAR if year <= last), _NEWEST)


def load_framework(name_or_path: str) -> Framework:
    """Return a named framework, or the one that a TOML file describes.

    Parameters
    ----------
    name_or_path : str
        A name in `framework_names`, or the path of a TOML file.

    Returns
    -------
    Framework
        With a source for every number.

    Raises
    ------
    FormatError
        If the file cannot be read or is not TOML.
    ConfigError
        If a field is unknown or missing, or its value is not allowed.
    UnknownNameError
        If it is neither a file nor the name of a framework.
    """
    path = Path(name_or_path)
    if name_or_path in _shipped() or (path.suffix != ".toml" and not path.is_file()):
        return _named(known_name("framework", name_or_path, framework_names()))
    table = read_toml(path)
    return _build(path.stem, _with_base(table, name_or_path), name_or_path)


def framework_from_table(table: Mapping[str, Any], shown: str) -> Framework:
    """Return the framework that a table describes in full, with its name.

    Parameters
    ----------
    table : mapping
        Fields of a framework by name; those that are as their default may be left out.
    shown : str
        Where it comes from, for messages.

    Raises
    ------
    ConfigError
        If a field is unknown or missing, or its value is not allowed.
    """
    own = {key: value for key, value in table.items() if key != "name"}
    return _build(str(table.get("name", "own")), own, shown)


@cache
def _shipped() -> dict[str, dict[str, Any]]:
    text = (resources.files("traincast") / _SHIPPED).read_text(encoding="utf-8")
    return parse_toml(text, _SHIPPED)


@cache
def _named(name: str) -> Framework:
    return _build(name, _with_base(_shipped()[name], _SHIPPED), f"{_SHIPPED} [{name}]")


def _with_base(table: dict[str, Any], shown: str) -> dict[str, Any]:
    """Return a table over those of its bases."""
    base = table.get("base")
    own = {key: value for key, value in table.items() if key != "base"}
    if base is None:
        return own
    base = known_name(f"base framework (in {shown})", str(base), framework_names())
    return _with_base(_shipped()[base], _SHIPPED) | own


def _build(name: str, table: dict[str, Any], shown: str) -> Framework:
    known = {field.name: field for field in fields(Framework) if field.name not in ("name", "sources")}
    unknown = sorted(set(table) - set(known))
    if unknown:
        raise ConfigError(f"is unknown; {known_names(unknown[0], ['base', *known])} (in {shown})", unknown[0])
    missing = [key for key, field in known.items() if field.default is MISSING and key not in table]
    if missing:
        raise ConfigError(f"is missing; give it, or a base (in {shown})", missing[0])
    values: dict[str, Any] = {}
    sources = []
    for key, raw in table.items():
        plain, source = _split_source(raw)
        try:
            values[key] = _value(known[key], plain)
        except ConfigError as error:
            raise ConfigError(f"{error} (in {shown})", key) from error
        if not isinstance(values[key], bool | str):
            sources.append((key, source or f"set in {shown}"))
    return Framework(name=name, sources=tuple(sources), **values)


def _split_source(raw: object) -> tuple[object, str | None]:
    if isinstance(raw, dict) and "value" in raw and set(raw) <= {"value", "source"}:
        return raw["value"], str(raw["source"]) if "source" in raw else None
    return raw, None


def _value(field: "Field[Any]", raw: object) -> Any:  # noqa: ANN401
    """Return a value of the type and in the range of its field."""
    if field.type in (bool, str):
        if not isinstance(raw, bool if field.type is bool else str):
            raise ConfigError(f"is {quoted(raw)}; it must be {'true or false' if field.type is bool else 'a text'}")
        choices = _CHOICES.get(field.name)
        if choices and find_name(str(raw), choices) is None:
            raise ConfigError(f"is {quoted(raw)}; {known_names(str(raw), choices)}")
        return find_name(str(raw), choices) if choices else raw
    if isinstance(raw, str) and field.name.endswith("_s"):
        raw = parse_time(raw)
    if isinstance(raw, bool) or not isinstance(raw, int | float):
        what = "a number or a time" if field.name.endswith("_s") else "a number"
        raise ConfigError(f"is {quoted(raw)}; it must be {what}")
    found = checked_field(field.name, raw, least=1 if field.name in _AT_LEAST_ONE else None)
    return int(found) if field.type is int else found
