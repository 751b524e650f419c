"""Where two recordings differ: floats relatively, everything else exactly."""

import json
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from sameness.running import Record

MOST_SHOWN = 5
"""Differences of one case that are told one by one."""
_LONGEST = 80

ADDED, VANISHED, CHANGED = "added", "vanished", "changed"


@dataclass(frozen=True, slots=True)
class Difference:
    """One place in which two values differ."""

    what: str
    """One of `ADDED`, `VANISHED` and `CHANGED`."""
    path: str
    a: Any = None
    b: Any = None

    def __str__(self) -> str:
        """Say it in a line."""
        if self.what != CHANGED:
            return f"{self.path} {self.what}"
        more = ""
        if _is_float(self.a, self.b) and self.a:
            more = f" ({self.b / self.a - 1:+.2e})"
        return f"{self.path}: {_short(self.a)} -> {_short(self.b)}{more}"


def _short(value: Any) -> str:  # noqa: ANN401
    text = json.dumps(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}... ({len(text)} characters)"


@dataclass(frozen=True, slots=True)
class Allowed:
    """Differences that are meant."""

    globs: tuple[tuple[str, str], ...] = ()
    """Of the name of a case, and of the path in it."""

    @classmethod
    def read(cls, path: Path) -> "Allowed":
        """Read lines of a case and a path, apart by a tab; ``*`` stands for anything, ``#`` begins a comment."""
        lines = (line.strip() for line in path.read_text(encoding="utf-8").splitlines())
        pairs = (line.split("\t") for line in lines if line and not line.startswith("#"))
        return cls(tuple((case.strip(), place.strip()) for case, place in pairs))

    def __call__(self, case: str, path: str) -> bool:
        """Tell whether a difference is meant."""
        # Brackets stand for themselves: they are of lists.
        return any(
            fnmatchcase(case, of.replace("[", "[[]")) and fnmatchcase(path, at.replace("[", "[[]"))
            for of, at in self.globs
        )


@dataclass(slots=True)
class Comparison:
    """What a comparison of recordings found."""

    cases: Counter[str] = field(default_factory=Counter)
    """Cases of each kind."""
    different: dict[str, list[Difference]] = field(default_factory=dict)
    """Differences by case."""
    kinds: Counter[str] = field(default_factory=Counter)
    """Cases of each kind that differ."""
    added: Counter[str] = field(default_factory=Counter)
    """Keys that only the second has, with how often."""
    missing: list[str] = field(default_factory=list)
    """Cases that the second lacks."""
    further: list[str] = field(default_factory=list)
    """Cases that the first lacks."""
    allowed: int = 0
    """Differences that are meant."""

    @property
    def failed(self) -> bool:
        """Whether anything differs that must not."""
        return bool(self.different or self.missing or not self.cases)


def compare(a: Path, b: Path, relative: float, absolute: float = 0.0, allowed: Allowed | None = None) -> Comparison:
    """Compare two recordings case by case."""
    meant, found, others = allowed or Allowed(), Comparison(), {each["case"]: each for each in records(b)}
    for before in records(a):
        name, kind = before["case"], before["kind"]
        found.cases[kind] += 1
        after = others.pop(name, None)
        if after is None:
            found.missing.append(name)
            continue
        kept = []
        for each in differences(before, after, relative, absolute):
            if each.what == ADDED:
                found.added[each.path] += 1
            elif meant(name, each.path):
                found.allowed += 1
            else:
                kept.append(each)
        if kept:
            found.different[name] = kept
            found.kinds[kind] += 1
    found.further = list(others)
    return found


def records(path: Path) -> Iterator[Record]:
    """Yield the cases of a recording."""
    with path.open(encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def differences(a: Any, b: Any, relative: float, absolute: float = 0.0, path: str = "") -> Iterator[Difference]:  # noqa: ANN401
    """Yield every place in which two documents differ; the path of a key that was added has no numbers of lists."""
    if isinstance(a, dict) and isinstance(b, dict):
        for key in dict.fromkeys((*a, *b)):
            place = f"{path}.{key}" if path else key
            if key not in b:
                yield Difference(VANISHED, place)
            elif key not in a:
                yield Difference(ADDED, "".join("[]" if part.isdigit() else part for part in _parts(place)))
            else:
                yield from differences(a[key], b[key], relative, absolute, place)
    elif isinstance(a, list) and isinstance(b, list):
        if len(a) != len(b):
            yield Difference(CHANGED, f"{path}.length", len(a), len(b))
        for index, (one, other) in enumerate(zip(a, b, strict=False)):
            yield from differences(one, other, relative, absolute, f"{path}[{index}]")
    elif not _same(a, b, relative, absolute):
        yield Difference(CHANGED, path, a, b)


def _parts(path: str) -> list[str]:
    return path.replace("]", "[").split("[")


def _same(a: Any, b: Any, relative: float, absolute: float) -> bool:  # noqa: ANN401
    if _is_float(a, b):
        return math.isclose(a, b, rel_tol=relative, abs_tol=absolute)
    return type(a) is type(b) and bool(a == b)


def _is_float(a: Any, b: Any) -> bool:  # noqa: ANN401
    return isinstance(a, float) and isinstance(b, float)


def told(found: Comparison) -> str:
    """Return a comparison for people."""
    lines = [f"MISSING {name}" for name in found.missing]
    for name, each in found.different.items():
        lines += [f"DIFFERENT {name}: {len(each)} places", *(f"    {one}" for one in each[:MOST_SHOWN])]
    lines += [f"added key {path} ({count} times)" for path, count in sorted(found.added.items())]
    lines += [f"further case {name}" for name in found.further]
    for kind, count in found.cases.items():
        lines.append(f"{kind:12} {count:5} cases, {found.kinds[kind]} differ")
    wrong = len(found.different) + len(found.missing)
    lines.append(f"{found.cases.total()} cases: {wrong} differ, {found.allowed} places differ as allowed")
    return "\n".join(lines)
