"""One small registry for everything that can be added: formats, schedules, collectives, reports.

A plug-in is one module in the registry's package with one decorated name in it, or an
entry point of another distribution in the group of the same name.
"""

import importlib
import importlib.util
import os
import pkgutil
import sys
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from traincast.errors import FormatError, UnknownNameError
from traincast.files import read_bytes
from traincast.names import find_name

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

T = TypeVar("T")

_OURS = b"[traincast."
"""How a group of entry points for a registry begins in the file of a distribution."""


def known_name(kind: str, name: str, known: Iterable[str]) -> str:
    """Return the one of the known names that is meant, whatever its case and spelling; `kind` is said in messages.

    Raises
    ------
    UnknownNameError
        If none is meant; the message lists those near it and the known ones.
    """
    names = list(known)
    found = find_name(name, names)
    if found is None:
        raise UnknownNameError(kind, name, names)
    return found


def _plugins(group: str) -> "list[EntryPoint]":
    """Return the entry points of a group, by name."""
    if not _has_plugins(tuple(sys.path)):
        return []
    # Loading this takes longer than all that registries do.
    from importlib.metadata import entry_points

    return sorted(entry_points(group=group), key=lambda found: found.name)


@cache
def _has_plugins(places: tuple[str, ...]) -> bool:
    """Return whether a distribution in some places (`sys.path`) has entry points for us, or may have: an archive."""
    return any(_has_plugin(Path(place)) for place in places)


def _has_plugin(place: Path) -> bool:
    if not place.is_dir():
        return place.exists()
    try:
        # `Path.iterdir` makes a path of every package.
        names = [name for name in os.listdir(place) if name.lower().endswith("-info")]  # noqa: PTH208
        tables = [place / name / "entry_points.txt" for name in names]
        return any(_OURS in read_bytes(table) for table in tables if table.is_file())
    except (OSError, FormatError):
        return True


class Registry(Generic[T]):
    """Names of one kind and what they stand for.

    `kind` is what an entry is in messages (``"schedule"``), `package` the one whose modules hold the built-in entries,
    and the entry-point group of entries from elsewhere (``"traincast.schedules"``). With an `inner` name they are in
    the module of that name of each subpackage that has it, and `group` is theirs.
    """

    def __init__(self, kind: str, package: str, *, inner: str = "", group: str = "") -> None:
        self.kind, self.package, self.inner, self.group = kind, package, inner, group or package
        self._entries: dict[str, T] = {}
        self._loaded = False

    def register(self, name: str, *aliases: str) -> Callable[[T], T]:
        """Return a decorator that enters what it decorates under a name and its aliases."""

        def enter(entry: T) -> T:
            for key in (name, *aliases):
                self._entries[key] = entry
            return entry

        return enter

    def get(self, name: str) -> T:
        """Return the entry of that name (errors as `known_name`)."""
        self._load()
        known = self._entries
        return known[name] if name in known else known[known_name(self.kind, name, self.names())]

    def names(self) -> list[str]:
        """Every known name and alias, sorted."""
        self._load()
        return sorted(self._entries)

    def entries(self) -> list[T]:
        """Every distinct entry, in the order of its first name."""
        self._load()
        return list(dict.fromkeys(self._entries[name] for name in self.names()))

    def _load(self) -> None:
        if self._loaded:
            return
        self._loaded = True
        package = importlib.import_module(self.package)
        for module in sorted(pkgutil.iter_modules(package.__path__), key=lambda found: found.name):
            name = f"{self.package}.{module.name}"
            if not self.inner:
                importlib.import_module(name)
            elif module.ispkg and importlib.util.find_spec(f"{name}.{self.inner}"):
                importlib.import_module(f"{name}.{self.inner}")
        for point in _plugins(self.group):
            self.register(point.name)(point.load())
