"""Data classes that are made in a fifth of the time, for what has two hundred of them to start.

`dataclasses` writes up to six methods of every class as text and compiles each. Here only ``__init__`` is compiled; the
others are the same functions for all classes, which look up the fields by `operator.attrgetter`.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import MISSING, FrozenInstanceError, InitVar, fields
from operator import attrgetter
from reprlib import recursive_repr
from types import MemberDescriptorType
from typing import TYPE_CHECKING, Any

Methods = dict[str, Any]


class _Unset:
    """What stands for a value that is made anew for each (shown as `dataclasses` shows it)."""

    def __repr__(self) -> str:
        return "<factory>"


_UNSET = _Unset()


def quick_dataclass(
    cls: type | None = None,
    /,
    *,
    frozen: bool = False,
    slots: bool = False,
    kw_only: bool = False,
    eq: bool = True,
) -> Any:  # noqa: ANN401 - a class, or a decorator of one
    """Make a data class as `dataclasses.dataclass` does, with the same meaning of its options."""

    def make(cls: type) -> Any:  # noqa: ANN401
        # Else `dataclasses` writes one, of the signature.
        cls.__doc__ = cls.__doc__ or cls.__name__
        own = dict(cls.__dict__)
        # A class that is frozen by `dataclasses` has two methods more to compile, which one that inherits cannot be
        # without: it is checked that all of them are, or none.
        theirs = frozen and dataclasses.is_dataclass(cls)
        plain: Any = dataclasses.dataclass(
            init=False, repr=False, eq=False, frozen=theirs, slots=slots, kw_only=kw_only
        )
        made = plain(cls)
        methods = {"__init__": _init_of(made, frozen=frozen), "__repr__": _repr}
        if eq:
            methods |= _equality_of(made, frozen=frozen)
        if frozen and not theirs:
            made.__dataclass_params__.frozen = True
            methods |= {"__setattr__": _set_attribute, "__delattr__": _delete_attribute}
            methods |= {"__getstate__": _state, "__setstate__": _set_state} if slots else {}
        for name, method in methods.items():
            # Python gives a class with an __eq__ of its own a __hash__ of None.
            if name not in own or (name == "__hash__" and own[name] is None and "__eq__" in own):
                setattr(made, name, method)
        return made

    return make if cls is None else make(cls)


if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass  # noqa: PLC0414 - the meaning is the same
else:
    dataclass = quick_dataclass


def _init_of(cls: Any, *, frozen: bool) -> Callable[..., None]:  # noqa: ANN401
    """Return the method that takes the fields of a data class, one after the other or by name."""
    positional, by_name, lines = ["self"], ["*"], list[str]()
    known: dict[str, Any] = {"_set": object.__setattr__, "_unset": _UNSET}
    types: dict[str, Any] = {}
    stored = {field.name for field in fields(cls)}
    passed = []
    for name, field in cls.__dataclass_fields__.items():
        if name not in stored and not isinstance(field.type, InitVar):
            continue
        value, default = name, ""
        if field.default_factory is not MISSING:
            known[f"_make_{name}"] = field.default_factory
            value, default = f"_make_{name}()", "=_unset"
            if field.init:
                value = f"{value} if {name} is _unset else {name}"
        elif field.default is not MISSING:
            known[f"_default_{name}"] = field.default
            value, default = (name if field.init else f"_default_{name}"), f"=_default_{name}"
        elif not field.init:
            continue
        if field.init:
            (by_name if field.kw_only else positional).append(name + default)
            types[name] = field.type
        if name not in stored:
            passed.append(name)
        elif not frozen:
            lines.append(f"self.{name} = {value}")
        elif isinstance(slot := getattr(cls, name, None), MemberDescriptorType):
            # Half the time of `object.__setattr__`, which looks it up.
            known[f"_set_{name}"] = slot.__set__
            lines.append(f"_set_{name}(self, {value})")
        else:
            lines.append(f"_set(self, {name!r}, {value})")
    if hasattr(cls, "__post_init__"):
        lines.append(f"self.__post_init__({', '.join(passed)})")
    taken = ", ".join([*positional, *(by_name if len(by_name) > 1 else [])])
    methods: Methods = {}
    exec(f"def __init__({taken}):\n " + "\n ".join(lines or ["pass"]), known, methods)  # noqa: S102 - our own names
    init: Callable[..., None] = methods["__init__"]
    init.__annotations__ = {**types, "return": None}
    init.__qualname__, init.__module__ = f"{cls.__qualname__}.__init__", cls.__module__
    return init


def _equality_of(cls: type, *, frozen: bool) -> Methods:
    """Return the methods that compare a data class by its fields."""
    compared = _values_of([field.name for field in fields(cls) if field.compare])
    hashed = _values_of([field.name for field in fields(cls) if (field.compare if field.hash is None else field.hash)])

    def equals(self: object, other: object) -> bool:
        return compared(self) == compared(other) if other.__class__ is self.__class__ else NotImplemented

    def hash_of(self: object) -> int:
        return hash(hashed(self))

    return {"__eq__": equals, "__hash__": hash_of if frozen else None}


def _values_of(names: list[str]) -> Callable[[object], tuple[Any, ...]]:
    """Return the function that returns the values of some attributes, however many."""
    if len(names) > 1:
        return attrgetter(*names)
    # Of one name `attrgetter` gives the bare value.
    return lambda self: tuple([getattr(self, name) for name in names])


@recursive_repr()
def _repr(self: Any) -> str:  # noqa: ANN401
    said = ", ".join(f"{field.name}={getattr(self, field.name)!r}" for field in fields(self) if field.repr)
    return f"{type(self).__qualname__}({said})"


def _set_attribute(self: object, name: str, value: object) -> None:  # noqa: ARG001
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _delete_attribute(self: object, name: str) -> None:  # noqa: ARG001
    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _state(self: Any) -> list[Any]:  # noqa: ANN401
    """Return the values of a frozen data class with slots, which cannot be set one by one (`pickle`)."""
    return [getattr(self, field.name) for field in fields(self)]


def _set_state(self: Any, state: list[Any]) -> None:  # noqa: ANN401
    for field, value in zip(fields(self), state, strict=True):
        object.__setattr__(self, field.name, value)
