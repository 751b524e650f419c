"""Tables of TOML and JSON as records: the one check of what a user writes of a cluster, a framework or a job.

The annotation of a field says what may stand there (msgspec decodes it), its name in which unit a text gives it and in
which range it must be (`traincast.units`). A value may come with its source: ``{ value = ..., source = "..." }``.
"""

from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from functools import reduce
from operator import or_
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar, get_args, get_origin

import msgspec
from msgspec import Struct
from msgspec.structs import FieldInfo, fields, replace

from traincast.errors import ConfigError, UnknownNameError
from traincast.files import parse_toml, read_toml
from traincast.names import find_name, known_names
from traincast.shipped import SHIPPED, constant, shipped_names, shipped_text
from traincast.units import RANGES, parse_rate, parse_size, parse_time, parse_tokens, quoted, range_of

T = TypeVar("T")

_DATA = SHIPPED

_UNITS: tuple[tuple[str, Callable[[str], float] | None], ...] = (
    ("_bytes_per_s", parse_rate),
    ("_per_s", None),
    ("_bytes", parse_size),
    ("_s", parse_time),
    ("seq_length", parse_tokens),
)
"""How a text is read, by the first ending of the field's name that fits."""

_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
_LISTS = {int: "whole numbers", float: "numbers", str: "texts"}
_NO_CHOICES: Mapping[str, Iterable[str]] = MappingProxyType({})


class Value(NamedTuple):
    """A checked value; where it comes from, or None for what is not a number."""

    value: Any
    source: str | None = None


def read_table(
    kind: type,
    table: object,
    shown: str,
    prefix: str = "",
    *,
    without: Iterable[str] = (),
    also: Iterable[str] = (),
    choices: Mapping[str, Iterable[str]] = _NO_CHOICES,
    positive: bool = True,
) -> dict[str, Value]:
    """Return the values of a table by field path.

    Parameters
    ----------
    kind : type
        The record (`msgspec.Struct`) whose fields are the keys.
    table : object
        As TOML or JSON reads it. One number may stand for a list of one.
    shown : str
        The file, for messages and as the source of what names none.
    prefix : str
        Path of the table with a dot at its end; empty at the top.
    without : iterable of str
        Fields that are not keys.
    also : iterable of str
        Keys that are not fields and were read before.
    choices : mapping
        Field to the names that it may have, in any spelling.
    positive : bool
        Whether a zero that is not the field's default is refused.

    Raises
    ------
    ConfigError
        With the path of the field, if a key is unknown or a value of the wrong type or out of range.
    """
    if not isinstance(table, Mapping):
        raise ConfigError(f"is {quoted(table)}; it must be a table (in {shown})", prefix.rstrip("."))
    known = {field.name: field for field in constant(_fields, kind) if field.name not in without}
    checked = {}
    for key, raw in table.items():
        path = f"{prefix}{key}"
        if key not in known:
            raise ConfigError(f"is unknown; {known_names(key, [*also, *known])} (in {shown})", path)
        try:
            plain, source = _with_source(raw, f"set in {shown}")
            field = known[key]
            refuses_zero = positive and field.default != 0
            value = decoded(key, field.type, plain, choices.get(key, ()), positive=refuses_zero)
        except ConfigError as error:
            raise ConfigError(f"{error} (in {shown})", path) from error
        numbers = value if isinstance(value, tuple) else (value,)
        checked[path] = Value(value, source if all(map(_is_number, numbers)) else None)
    return checked


def built(kind: type[T], values: Mapping[str, Value], shown: str, prefix: str = "", remedy: str = "give it") -> T:
    """Return the record of checked values by field path.

    Parameters
    ----------
    remedy : str
        What to do where a field that has no default is missing.

    Raises
    ------
    ConfigError
        If one is missing, or values contradict each other.
    """
    said = {}
    for field in constant(_fields, kind):
        path = f"{prefix}{field.name}"
        if path in values:
            said[field.name] = values[path].value
        elif field.required:
            raise ConfigError(f"is missing; {remedy} (in {shown})", path)
    try:
        return kind(**said)
    except ConfigError as error:
        what = str(error).removeprefix(f"{error.field}: ")
        raise ConfigError(f"{what} (in {shown})", error.field) from error


def decoded(
    name: str,
    annotation: Any,  # noqa: ANN401
    raw: object,
    choices: Iterable[str] = (),
    *,
    positive: bool = False,
    least: float | None = None,
) -> Any:  # noqa: ANN401
    """Return a value of the type of a field, in the range of its name; a text with a unit as a number in SI units.

    A number of this field alone may be `positive`, or have another lowest value.

    Raises
    ------
    ConfigError
        If it is none; without a path, which the caller knows.
    """
    types = [annotation] if get_origin(annotation) is tuple else [*(get_args(annotation) or (annotation,))]
    of_lists = next((kind for kind in types if get_origin(kind) is tuple), None)
    if of_lists is not None:
        kind = get_args(of_lists)[0]
        many = [raw] if _is_number(raw) else raw
        if not isinstance(many, list) or (kind is str and not all(isinstance(each, str) for each in many)):
            raise ConfigError(f"is {quoted(raw)}; it must be a list of {_LISTS[kind]}")
        return tuple(_chosen(_single(name, (kind,), each, positive=positive), choices) for each in many)
    found = _single(name, tuple(kind for kind in types if kind in _WORDS), raw, positive=positive, least=least)
    return _chosen(found, choices)


def _chosen(raw: str | bool | float, choices: Iterable[str]) -> str | bool | float:
    """Return a name as it is known, in whatever spelling it was given; what is not a choice as it is."""
    names = list(choices)
    if not names:
        return raw
    spelled = find_name(str(raw), names)
    if spelled is None:
        raise ConfigError(f"is {quoted(raw)}; {known_names(str(raw), names)}")
    return spelled


def _single(
    name: str, kinds: tuple[Any, ...], raw: object, *, positive: bool, least: float | None = None
) -> str | bool | float:
    parse = next((parse for ending, parse in _UNITS if name.endswith(ending)), None) if str not in kinds else None
    if isinstance(raw, str) and parse is not None:
        raw = parse(raw)
    whole = int in kinds and float not in kinds
    try:
        # A whole number may be written as 1e6; whether it is one, its range says.
        kind = float if whole and isinstance(raw, float) else reduce(or_, kinds)
        found: str | bool | float = msgspec.convert(raw, kind)
    except msgspec.ValidationError:
        unit = " or a text with its unit" if parse else ""
        raise ConfigError(f"is {quoted(raw)}; it must be {_WORDS[kinds[0]]}{unit}") from None
    if isinstance(found, bool | str):
        return found
    found = replace(range_of(name) or RANGES["figure"], whole=whole).checked(raw, least=least)
    if found == 0 and positive:
        raise ConfigError(f"is {quoted(raw)}; it must be positive")
    return found


def _with_source(raw: object, usual: str) -> tuple[object, str]:
    if not isinstance(raw, dict):
        return raw, usual
    if not {"value"} <= set(raw) <= {"value", "source"} or not isinstance(raw.get("source", ""), str):
        raise ConfigError('must be a value, or { value = ..., source = "..." }')
    return raw["value"], raw.get("source", usual)


def _fields(kind: type) -> tuple[FieldInfo, ...]:
    """Return the fields of a record with their types, which are worked out once."""
    return fields(kind)


def _lists(kind: type) -> frozenset[str]:
    """Return the names of the fields of a record that have several values."""
    return frozenset(each.name for each in constant(_fields, kind) if get_origin(each.type) is tuple)


def from_row(row: Mapping[str, str], kind: type[T]) -> T:
    """Return the record that a row of a table describes; an empty cell is unspecified, lists are separated by ``;``."""
    lists = constant(_lists, kind)
    said: dict[str, Any] = {
        column: tuple(cell.split(";")) if column in lists else cell for column, cell in row.items() if cell
    }
    said |= {column: cell == "yes" for column, cell in said.items() if cell in ("yes", "no")}
    return msgspec.convert(said, kind, strict=False)


def as_table(value: Any, leave_out: Iterable[str] = ()) -> Any:  # noqa: ANN401
    """Return a value in the types of JSON and TOML; of a record only the fields that differ from their default."""
    if isinstance(value, Struct):
        known = [each for each in constant(_fields, type(value)) if each.name not in leave_out and is_said(value, each)]
        return {each.name: as_table(getattr(value, each.name)) for each in known}
    if isinstance(value, Mapping):
        return {str(key): as_table(value[key]) for key in sorted(value)}
    if isinstance(value, tuple | list):
        return list(map(as_table, value))
    if isinstance(value, Enum):
        return value.value
    return str(value) if isinstance(value, Path) else value


def is_said(owner: object, each: FieldInfo) -> bool:
    """Say whether a field of a record differs from its default."""
    usual = each.default_factory() if callable(each.default_factory) else each.default
    return bool(getattr(owner, each.name) != usual)


def flat(table: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Return the values of nested tables by dotted path."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        found |= flat(value, f"{above}{key}.") if isinstance(value, Mapping) else {f"{above}{key}": value}
    return found


def _is_number(raw: object) -> bool:
    return isinstance(raw, int | float) and not isinstance(raw, bool)


def _names(folder: str, below: str) -> tuple[str, ...]:  # noqa: ARG001 what is shipped may be elsewhere in a test
    return tuple(shipped_names(folder, _DATA))


class Shelf(Struct, frozen=True):
    """The descriptions of one kind that are shipped, each a TOML file, which others may build on (``base = "..."``).

    Parameters
    ----------
    kind : str
        What they describe, in the words of an error message.
    folder : str
        Below `traincast/data`.
    """

    kind: str
    folder: str

    def names(self) -> list[str]:
        """Return the names of the shipped ones, sorted."""
        return list(constant(_names, self.folder, str(_DATA)))

    def find(self, given: str) -> str | Path | None:
        """Return the name that is meant, or the path of a file; None where it is neither."""
        names = self.names()
        if given in names:
            return given
        path = Path(given)
        return path if path.suffix == ".toml" or path.is_file() else find_name(given, names)

    def read(self, given: str | Path) -> tuple[dict[str, Any], str | None]:
        """Return the table of a file or of a shipped description, without the name of its base, and that.

        Raises
        ------
        FormatError
            If the file cannot be read or is not TOML.
        UnknownNameError
            If the base is not known.
        """
        if isinstance(given, Path):
            table = read_toml(given)
        else:
            table = parse_toml(shipped_text(f"{self.folder}/{given}.toml", _DATA), given)
        base = table.pop("base", None)
        if base is None:
            return table, None
        found = find_name(str(base), self.names())
        if found is None:
            raise UnknownNameError(f"base {self.kind} (in {given})", str(base), self.names())
        return table, found
