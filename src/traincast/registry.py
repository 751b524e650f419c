"""One small registry for everything that can be added: formats, schedules, collectives, reports.

A plug-in is one module in the registry's package with one decorated name in it, or an
entry point of another distribution in the group of the same name.
"""

import importlib
import pkgutil
import sys
from collections.abc import Callable, Iterable
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from traincast.errors import UnknownNameError
from traincast.names import find_name
from traincast.shipped import constant

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

T = TypeVar("T")


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


class Registry(Generic[T]):
    """Names of one kind and what they stand for.

    `kind` is what an entry is in messages (``"schedule"``), `package` the one whose modules hold the built-in entries,
    and the entry-point group of entries from elsewhere (``"traincast.schedules"``) unless a `group` is given.
    """

    def __init__(self, kind: str, package: str, *, group: str = "") -> None:
        self.kind, self.package, self.group = kind, package, group or package
        self._entries: dict[str, T] = {}
        self._modules: dict[str, str] = {}
        """Where entries are that are not yet imported."""
        self._loaded = False

    def register(self, name: str, *aliases: str) -> Callable[[T], T]:
        """Return a decorator that enters what it decorates under a name and its aliases."""

        def enter(entry: T) -> T:
            for key in (name, *aliases):
                self._entries[key] = entry
            return entry

        return enter

    def registered_in(self, module: str, name: str) -> None:
        """Say which module registers a name; it is imported when that entry is first asked for."""
        self._modules[name] = module

    def get(self, name: str) -> T:
        """Return the entry of that name (errors as `known_name`)."""
        self._load()
        return self._entry(name if name in self._entries else known_name(self.kind, name, self.names()))

    def names(self) -> list[str]:
        """Every known name and alias, sorted."""
        self._load()
        return sorted({*self._entries, *self._modules})

    def entries(self) -> list[T]:
        """Every distinct entry, in the order of its first name."""
        return list(dict.fromkeys(self._entry(name) for name in self.names()))

    def _entry(self, name: str) -> T:
        if name not in self._entries:
            importlib.import_module(self._modules[name])
        return self._entries[name]

    def _load(self) -> None:
        if self._loaded:
            return
        self._loaded = True
        package = importlib.import_module(self.package)
        for module in sorted(pkgutil.iter_modules(package.__path__), key=lambda found: found.name):
            importlib.import_module(f"{self.package}.{module.name}")
        installed = constant(_installed, *sys.path)
        for point in sorted(installed(group=self.group), key=lambda found: found.name):
            self.register(point.name)(point.load())


def _installed(*folders: str) -> Callable[..., "Iterable[EntryPoint]"]:
    """Return what chooses among all that the distributions in some folders offer: to read them takes its time."""
    if not any(map(_may_offer, folders)) and not any(map(_finds_others, sys.meta_path)):
        return lambda **_: ()
    from importlib.metadata import entry_points

    return entry_points().select


def _may_offer(folder: str) -> bool:
    """Say whether a distribution in a folder may offer an entry; of an archive of some it may."""
    path = Path(folder)
    try:
        infos = [each / "entry_points.txt" for each in path.iterdir() if each.name.lower().endswith("-info")]
        return any(b"[traincast." in each.read_bytes() for each in infos if each.is_file())
    except OSError:
        return path.is_file()


def _finds_others(finder: object) -> bool:
    """Say whether something finds distributions elsewhere than in folders."""
    return finder is not PathFinder and hasattr(finder, "find_distributions")
