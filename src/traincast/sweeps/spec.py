"""What a sweep is of: a job, the keys of it that vary, and prices; and the points that this makes.

::

    [base.parallel]
    tp = 8

    [base.batch]
    seq_length = 8192
    global_batch = 1024

    [grid]
    "model.name" = ["llama3-8b", "llama3-70b"]
    "cluster.name" = ["h100", "b200"]
    "cluster.gpus" = [64, 128, 256]

    [prices]                 # of one GPU for one hour, in any currency
    h100 = 2.5
    b200 = 4.0

With ``work = "plan"`` before all of that every point is a plan, made as ``[plan]`` says (``space``, ``headroom``,
``fix = { micro_batch = [1, 2] }``, ``most = { tp = 8 }``); what its job says of the layout is fixed.

Every key is ``section.key`` of a job file. ``base`` may also be the path of one. The grid takes every combination;
``[[cases]]`` are combinations of their own, each crossed with the grid.
"""

import hashlib
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, field

from traincast.errors import ConfigError
from traincast.files import read_toml
from traincast.names import known_names
from traincast.planning.options import PlanKeywords
from traincast.units import checked_field, quoted

MAX_POINTS = 10_000_000
"""Most points of a sweep; each takes tens of milliseconds."""
SECTIONS = ("work", "plan", "base", "grid", "cases", "prices")
WORKS = ("predict", "plan")
_PLAN = {"space": str, "headroom": float, "fix": dict, "most": dict}
"""What ``[plan]`` may say."""
_NAMED = {str: "text", float: "a number", dict: "a table"}

Value = str | int | float | bool | list[Any]


class Point(Struct, frozen=True):
    """One job of a sweep."""

    index: int
    said: tuple[tuple[str, Value], ...]
    """What varies: key of the job file and value, in the order of the specification."""
    document: Mapping[str, Any]
    """The whole job, as the tables of a job file."""


class Spec(Struct, frozen=True, kw_only=True):
    """A sweep."""

    path: str
    """File that it was read from; paths in it are relative to it."""
    base: Mapping[str, Any]
    """Tables of the job that every point starts from."""
    grid: Mapping[str, tuple[Value, ...]]
    cases: tuple[Mapping[str, Value], ...]
    prices: Mapping[str, float]
    """Price of a GPU for an hour, by the name of a cluster."""
    work: str = "predict"
    """What is done with every point: one of `WORKS`."""
    plan: PlanKeywords = field(default_factory=PlanKeywords)
    """How plans are made."""

    @property
    def keys(self) -> tuple[str, ...]:
        """Every key that varies, in order."""
        return tuple(dict.fromkeys([*(key for case in self.cases for key in case), *self.grid]))

    @property
    def fingerprint(self) -> str:
        """What tells this sweep from any other: SHA-256 of all that it says."""
        told: list[Any] = [self.base, list(self.grid.items()), [list(case.items()) for case in self.cases], self.prices]
        told += [] if self.work == "predict" else [self.work, self.plan]
        return hashlib.sha256(msgspec.json.encode(told, order="deterministic")).hexdigest()

    def __len__(self) -> int:
        """Return the number of points."""
        count = len(self.cases) or 1
        for values in self.grid.values():
            count *= len(values)
        return count

    def points(self) -> Iterator[Point]:
        """Yield every point, the last key of the grid varying fastest."""
        index = 0
        for case in self.cases or ({},):
            for values in product(*self.grid.values()):
                said = {**case, **dict(zip(self.grid, values, strict=True))}
                yield Point(index, tuple(said.items()), over(self.base, said))
                index += 1


def read_spec(path: Path) -> Spec:
    """Read a specification.

    Raises
    ------
    FormatError
        If it cannot be read or is not TOML.
    ConfigError
        If a section or key is unknown, a value is of the wrong type, or there are too many points.
    """
    return spec_of(read_toml(path), path)


def spec_of(document: Mapping[str, Any], path: Path) -> Spec:
    """Return the specification that the tables of a file say; `path` is for messages, and where its paths begin.

    Raises
    ------
    ConfigError
        As of `read_spec`.
    """
    for name in document:
        if name not in SECTIONS:
            raise ConfigError(f"is not a section of a sweep; {known_names(name, SECTIONS)} (in {path})", name)
    grid = {key: _values(key, raw, path) for key, raw in _table(document, "grid", path).items()}
    cases = document.get("cases", [])
    if not isinstance(cases, list) or not all(isinstance(case, Mapping) and case for case in cases):
        raise ConfigError(f"is {quoted(cases)}; it must be tables, each [[cases]] (in {path})", "cases")
    found = tuple(
        {_key(key, f"cases[{at}]", path): _value(key, raw, path) for key, raw in case.items()}
        for at, case in enumerate(cases)
    )
    if not grid and not found:
        raise ConfigError(f"nothing varies; give [grid] or [[cases]] (in {path})", "grid")
    both = next((key for case in found for key in case if key in grid), None)
    if both is not None:
        raise ConfigError(f"is in [grid] and in [[cases]]; say it once (in {path})", both)
    prices = {
        name: checked_field("price", raw, f"prices.{name}") for name, raw in _table(document, "prices", path).items()
    }
    work, plan = _work(document, path)
    base = base_of(document, path)
    spec = Spec(path=str(path), base=base, grid=grid, cases=found, prices=prices, work=work, plan=plan)
    if len(spec) > MAX_POINTS:
        raise ConfigError(f"makes {len(spec):,} points, and at most {MAX_POINTS:,} are run (in {path})", "grid")
    return spec


def _work(document: Mapping[str, Any], path: Path) -> tuple[str, PlanKeywords]:
    """Return what is done with the points, and how plans are made."""
    work, plan = document.get("work", "predict"), _table(document, "plan", path)
    if work not in WORKS:
        raise ConfigError(f"is {quoted(work)}; {known_names(str(work), WORKS)} (in {path})", "work")
    if plan and work != "plan":
        raise ConfigError(f'says how plans are made; give work = "plan", too (in {path})', "plan")
    for name, raw in plan.items():
        if name not in _PLAN:
            raise ConfigError(f"is unknown; {known_names(name, _PLAN)} (in {path})", f"plan.{name}")
        kinds = (int, float) if _PLAN[name] is float else _PLAN[name]
        if not isinstance(raw, kinds) or isinstance(raw, bool):
            raise ConfigError(f"is {quoted(raw)}; it must be {_NAMED[_PLAN[name]]} (in {path})", f"plan.{name}")
    return work, PlanKeywords(**plan)  # type: ignore[typeddict-item]


def _table(document: Mapping[str, Any], name: str, path: Path) -> Mapping[str, Any]:
    table = document.get(name, {})
    if not isinstance(table, Mapping):
        raise ConfigError(f"is {quoted(table)}; it must be a table (in {path})", name)
    return table


def base_of(document: Mapping[str, Any], path: Path) -> Mapping[str, Any]:
    """Return the tables of the job that all points share."""
    raw = document.get("base", {})
    if isinstance(raw, str):
        return read_toml(path.parent / raw)
    if not isinstance(raw, Mapping):
        raise ConfigError(f"is {quoted(raw)}; it must be tables, or the path of a job file (in {path})", "base")
    return raw


def _key(key: str, place: str, path: Path) -> str:
    section, _, name = key.partition(".")
    if not section or not name or "." in name:
        what = f'is not a key of a job file; write "section.key", such as "parallel.tp" (in {path})'
        raise ConfigError(what, f"{place}.{key}")
    return key


def _values(key: str, raw: Any, path: Path) -> tuple[Value, ...]:  # noqa: ANN401
    _key(key, "grid", path)
    values = tuple(raw) if isinstance(raw, list) else (raw,)
    if not values:
        raise ConfigError(f"is empty; a sweep over nothing has no points (in {path})", f"grid.{key}")
    found = tuple(_value(key, each, path) for each in values)
    repeated = next((each for at, each in enumerate(found) if each in found[:at]), None)
    if repeated is not None:
        raise ConfigError(f"lists {quoted(repeated)} twice (in {path})", f"grid.{key}")
    return found


def _value(key: str, raw: Any, path: Path) -> Value:  # noqa: ANN401
    if not isinstance(raw, (str, int, float, bool, list)):
        raise ConfigError(f"is {quoted(raw)}; it must be text, a number, true or false, or a list (in {path})", key)
    return raw


def over(base: Mapping[str, Any], said: Mapping[str, Value]) -> Mapping[str, Any]:
    """Return the tables of a job with other values for some keys."""
    document = {name: dict(table) if isinstance(table, Mapping) else table for name, table in base.items()}
    for key, value in said.items():
        section, _, name = key.partition(".")
        document.setdefault(section, {})[name] = value
    return document
