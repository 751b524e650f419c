"""Values of a table of a cluster file, each checked by the field of the dataclass that it is of.

The type of the field says what may stand there, and its name the unit and the range (`traincast.units`). A value may
stand beside its source: ``{ value = ..., source = "..." }``.
"""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields, replace
from typing import Any, NamedTuple, TypeVar, get_args, get_origin

from traincast.errors import ConfigError
from traincast.names import known_names
from traincast.units import RANGES, parse_rate, parse_size, parse_time, quoted, range_of

T = TypeVar("T")

_UNITS: tuple[tuple[str, Callable[[str], float]], ...] = (
    ("_bytes_per_s", parse_rate),
    ("_bytes", parse_size),
    ("_latency_s", parse_time),
)
"""How a text is read, by the first ending of the field's name that fits."""


class Value(NamedTuple):
    """A checked value; where it comes from, or None for what is no number."""

    value: Any
    source: str | None


def read_table(kind: type, prefix: str, table: object, shown: str, without: tuple[str, ...] = ()) -> dict[str, Value]:
    """Return the values of a table by field path.

    Parameters
    ----------
    kind : type
        The dataclass whose fields are the keys.
    prefix : str
        Path of the table with a dot at its end; empty at the top.
    table : object
        As TOML or JSON reads it. One number may stand for a list of one.
    shown : str
        The file, for messages and as the source of what names none.
    without : tuple of str
        Fields that are no keys.

    Raises
    ------
    ConfigError
        With the path of the field, if a key is unknown or a value of the wrong type, out of range, or a zero that is
        not the field's default.
    """
    if not isinstance(table, Mapping):
        raise ConfigError(f"is {quoted(table)}; it must be a table (in {shown})", prefix.rstrip("."))
    known = {field.name: field for field in fields(kind) if field.name not in without}
    checked = {}
    for key, raw in table.items():
        path = f"{prefix}{key}"
        if key not in known:
            raise ConfigError(f"is unknown; {known_names(key, known)} (in {shown})", path)
        try:
            checked[path] = _value(known[key], raw, shown)
        except ConfigError as error:
            raise ConfigError(f"{error} (in {shown})", path) from error
    return checked


def built(kind: type[T], prefix: str, values: Mapping[str, Value], shown: str, remedy: str = "give it") -> T:
    """Return the dataclass of checked values.

    Parameters
    ----------
    kind : type
        The dataclass.
    prefix : str
        Path of its table with a dot at its end; empty at the top.
    values : mapping
        By field path.
    shown : str
        The file, for messages.
    remedy : str
        What to do where a field that has no default is missing.

    Raises
    ------
    ConfigError
        If one is missing, or values contradict each other.
    """
    said = {}
    for field in fields(kind):  # type: ignore[arg-type]
        path = f"{prefix}{field.name}"
        if path in values:
            said[field.name] = values[path].value
        elif field.default is MISSING:
            raise ConfigError(f"is missing; {remedy} (in {shown})", path)
    try:
        return kind(**said)
    except ConfigError as error:
        what = str(error).removeprefix(f"{error.field}: ")
        raise ConfigError(f"{what} (in {shown})", error.field) from error


def _value(field: "Field[Any]", raw: object, shown: str) -> Value:
    source = f"set in {shown}"
    if isinstance(raw, dict):
        if not {"value"} <= set(raw) <= {"value", "source"} or not isinstance(raw.get("source", ""), str):
            raise ConfigError('must be a value, or { value = ..., source = "..." }')
        source = raw.get("source", source)
        raw = raw["value"]
    if get_origin(field.type) is tuple:
        each = (get_args(field.type)[0],)
        found = tuple(_single(field, each, one) for one in (raw if isinstance(raw, list) else [raw]))
        return Value(found, source if all(map(_is_number, found)) else None)
    single = _single(field, get_args(field.type) or (field.type,), raw)
    return Value(single, source if _is_number(single) else None)


def _single(field: "Field[Any]", types: tuple[Any, ...], raw: object) -> str | bool | float:
    for plain in (str, bool):
        if plain in types:
            if not isinstance(raw, plain):
                raise ConfigError(f"is {quoted(raw)}; it must be {'a text' if plain is str else 'true or false'}")
            return raw
    return _number(field, raw, whole=int in types)


def _number(field: "Field[Any]", raw: object, *, whole: bool) -> float:
    """Return a number in the range of its field, from a number or from a text with a unit."""
    parse = next((parse for ending, parse in _UNITS if field.name.endswith(ending)), None)
    if isinstance(raw, str) and parse is not None:
        raw = parse(raw)
    if not _is_number(raw):
        raise ConfigError(
            f"is {quoted(raw)}; it must be a number" + ("" if parse is None else " or a text with its unit")
        )
    found = replace(range_of(field.name) or RANGES["figure"], whole=whole).checked(raw)
    if found == 0 and field.default != 0:
        raise ConfigError(f"is {quoted(raw)}; it must be positive")
    return found


def _is_number(raw: object) -> bool:
    return isinstance(raw, int | float) and not isinstance(raw, bool)
