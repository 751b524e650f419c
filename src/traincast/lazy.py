"""Packages whose names are imported when they are first used (PEP 562).

So each module of such a package imports what it needs at its own top, and a user of the package waits for what is used.
"""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def names_on_demand(
    package: str, modules: Mapping[str, str]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return the functions ``__getattr__`` and ``__dir__`` of a package; modules of its own are names, too.

    Parameters
    ----------
    package : str
        Its ``__name__``.
    modules : mapping
        Module to the names that come from it, with spaces between them.

    Examples
    --------
    >>> find, _ = names_on_demand("traincast", {"traincast.units": "parse_size"})
    >>> find("parse_size")("64MiB")
    67108864
    """
    module_of = {name: module for module, names in modules.items() for name in names.split()}

    def find(name: str) -> object:
        if f"{package}.{name}" in modules:
            return import_module(f"{package}.{name}")
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found: object = getattr(import_module(module_of[name]), name)
        setattr(sys.modules[package], name, found)
        return found

    def names() -> list[str]:
        return sorted(vars(sys.modules[package]).get("__all__", module_of))

    return find, names


def function_on_demand(module: str, name: str) -> Callable[..., Any]:
    """Return a function of a module that is imported when it is first called.

    Examples
    --------
    >>> function_on_demand("traincast.units", "parse_size")("64MiB")
    67108864
    """

    def call(*given: object, **named: object) -> object:
        return getattr(import_module(module), name)(*given, **named)

    return call
