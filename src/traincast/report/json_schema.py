"""JSON Schema (draft 2020-12) of what `traincast.report.plain` makes of a type: records become objects, tuples arrays.

Source: json-schema.org/draft/2020-12.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

import msgspec

from traincast.report.plain import Plain

_SIMPLE: Mapping[Any, Mapping[str, Plain]] = {
    NoneType: {"type": "null"},
    None: {"type": "null"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    str: {"type": "string"},
    Any: {},
    object: {},
}


class DocumentShape(msgspec.Struct, frozen=True):
    """An object that is written key by key: the fields of records, less some, and further keys with their types."""

    of: tuple[type, ...] = ()
    without: tuple[str, ...] = ()
    more: Mapping[str, Any] = {}
    """A type, or a `DocumentShape`, or such in a list: an array of them; None and such in a tuple: either."""
    values: Any = None
    """Type of all values, of an object whose keys are names."""


def schema_of(shape: DocumentShape, name: str) -> dict[str, Plain]:
    """Return the schema of the document ``traincast.NAME/1``; no other key is there.

    No key may be missing, but for those that a record omits where they say nothing.

    Raises
    ------
    TypeError
        If a type has no form in JSON.
    """
    found: dict[str, Plain] = {}
    body = _of(DocumentShape(shape.of, shape.without, {"schema": Literal[f"traincast.{name}/1"], **shape.more}), found)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"traincast.{name}/1",
        **body,
        **({"$defs": dict(sorted(found.items()))} if found else {}),
    }


def _of(kind: Any, found: dict[str, Plain]) -> dict[str, Plain]:  # noqa: ANN401, PLR0911
    """Return the schema of a type; those of records go to `found` and are referred to."""
    if kind is None or kind is Any or (isinstance(kind, type) and kind in _SIMPLE):
        return dict(_SIMPLE[kind])
    if isinstance(kind, DocumentShape) and kind.values is not None:
        return {"type": "object", "additionalProperties": _of(kind.values, found)}
    if isinstance(kind, DocumentShape):
        types = {key: each for record in kind.of for key, each in fields_of(record).items() if key not in kind.without}
        first = {key: each for key, each in kind.more.items() if key == "schema"}
        return _object({**first, **types, **kind.more}, found)
    if isinstance(kind, list):
        return {"type": "array", "items": _of(kind[0], found)}
    if isinstance(kind, tuple):
        return {"anyOf": [_of(each, found) for each in kind]}
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return {"anyOf": [_of(each, found) for each in inner]}
    if origin is Literal:
        return {"enum": list(inner)}
    if kind in (tuple, list) or origin in (tuple, list, Sequence):
        return _array(inner, found)
    if kind in (dict, Mapping) or origin in (dict, Mapping):
        return {"type": "object", **({"additionalProperties": _of(inner[1], found)} if inner else {})}
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return {"enum": [each.value for each in kind]}
    if is_typeddict(kind) or (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
        return _record(kind, found)
    raise TypeError(f"{kind} has no form in JSON")


def _array(inner: tuple[Any, ...], found: dict[str, Plain]) -> dict[str, Plain]:
    if not inner:
        return {"type": "array"}
    if len(inner) == 1 or inner[-1] is Ellipsis:
        return {"type": "array", "items": _of(inner[0], found)}
    each: list[Plain] = [_of(one, found) for one in inner]
    return {"type": "array", "prefixItems": each, "minItems": len(each), "maxItems": len(each)}


def _record(kind: type, found: dict[str, Plain]) -> dict[str, Plain]:
    name = f"{kind.__module__.removeprefix('traincast.')}.{kind.__qualname__}"
    if name not in found:
        found[name] = {}  # a record may hold records of its own kind
        found[name] = _object(fields_of(kind), found, _may_be_absent(kind))
    return {"$ref": f"#/$defs/{name}"}


def fields_of(kind: type) -> dict[str, Any]:
    """Return the types of a record's fields, in their order."""
    types = get_type_hints(kind)
    return {name: types[name] for name in getattr(kind, "__struct_fields__", types)}


def _may_be_absent(kind: type) -> Sequence[str]:
    """Return the fields that a record omits where they have their default."""
    if not (issubclass(kind, msgspec.Struct) and kind.__struct_config__.omit_defaults):
        return ()
    return [each.name for each in msgspec.structs.fields(kind) if not each.required]


def _object(types: Mapping[str, Any], found: dict[str, Plain], may_be_absent: Sequence[str] = ()) -> dict[str, Plain]:
    properties: dict[str, Plain] = {name: _of(each, found) for name, each in types.items()}
    required: list[Plain] = [name for name in properties if name not in may_be_absent]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
