"""Switches of software: settings that a framework offers and that change the time or the memory of a step.

Each is a row of `data/job/switches.csv`: the fields of a job that it sets, which frameworks have it since when, what it
needs, what it changes in the numbers that a model learns from, and the code that says so. Rows of one axis exclude each
other; what a switch needs of another axis stands above it, so that whoever takes them in turn has it. What a switch
needs is written as conditions (`traincast.job.conditions`) on facts of a job
(`traincast.job.condition_facts`); `` or `` stands between conditions of which one is enough.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from msgspec import Struct

from traincast.errors import ConfigError
from traincast.job.choices import choices_of
from traincast.job.condition_facts import FACTS
from traincast.job.conditions import Condition, read_conditions
from traincast.job.fields import FIELDS, JOB
from traincast.job.frameworks import Framework
from traincast.job.request import JOB_FIELDS
from traincast.shipped import shipped_rows
from traincast.tables import decoded, from_row
from traincast.units import quoted

TABLE = "job/switches.csv"
LEVELS = ("usual", "best")
"""``usual``: published recipes have it where it is allowed; ``best``: the framework has it, few recipes use it."""

Need = tuple[Condition, ...]
"""Conditions of which one must hold."""


class Switch(Struct, frozen=True, kw_only=True):
    """One switch."""

    name: str
    """What advice calls it."""
    axis: str
    """Rows of one axis exclude each other."""
    settings: tuple[tuple[str, Any], ...]
    """The fields of a job that it sets, and their values."""
    offered_by: tuple[tuple[str, int], ...]
    """Kin of frameworks (`Framework.kin`), and the first year in which they have it."""
    level: str
    """One of `LEVELS`."""
    always: bool
    """Whether it never makes a forecast longer or larger where it is allowed, so that it need not be tried; of several
    of an axis the last one that is allowed is best."""
    needs: tuple[Need, ...] = ()
    """What must hold."""
    changes: str = ""
    """What it changes in the numbers that a model learns from, in words; empty: nothing."""
    asks: str = ""
    """What else it asks of a user, in words."""
    source: str
    """Code or page that says so, with its release or commit."""

    @property
    def fields(self) -> dict[str, Any]:
        """Return the fields of a job that it sets."""
        return dict(self.settings)

    def is_in(self, framework: Framework) -> bool:
        """Say whether a framework has it."""
        return any(kin in (framework.kin, framework.name) and framework.year >= since for kin, since in self.offered_by)


class _Row(Struct, kw_only=True):
    """A row of the table as it stands there."""

    name: str
    axis: str
    settings: tuple[str, ...]
    offered_by: tuple[str, ...]
    level: str
    always: bool
    needs: tuple[str, ...] = ()
    changes: str = ""
    asks: str = ""
    source: str


def read_switches(rows: Iterable[Mapping[str, str]], shown: str = TABLE) -> tuple[Switch, ...]:
    """Return the switches that rows of a table describe.

    Raises
    ------
    ConfigError
        If a row names a field, value, fact or level that does not exist; the message says the row.
    """
    found = []
    for row in rows:
        try:
            found.append(_switch(from_row(row, _Row)))
        except ConfigError as error:
            raise ConfigError(f"{error} (row {quoted(row.get('name'))} of {shown})") from None
    return tuple(found)


def _switch(row: _Row) -> Switch:
    if row.level not in LEVELS:
        raise ConfigError(f"is {quoted(row.level)}; it must be {' or '.join(LEVELS)}", "level")
    return Switch(
        name=row.name,
        axis=row.axis,
        settings=tuple(map(read_setting, row.settings)),
        offered_by=tuple(map(_offer, row.offered_by)),
        level=row.level,
        always=row.always,
        needs=tuple(map(read_need, row.needs)),
        changes=row.changes,
        asks=row.asks,
        source=row.source,
    )


def read_setting(text: str) -> tuple[str, Any]:
    """Return a field of a job and its value from ``field=value``."""
    name, equals, said = text.partition("=")
    if not equals or name not in FIELDS or JOB not in FIELDS[name].of:
        raise ConfigError(
            f"is {quoted(text)}; write a field of a job and its value, such as fused_router=true", "settings"
        )
    field = FIELDS[name]
    raw: Any = said
    if field.takes == "switch":
        raw = {"true": True, "false": False}.get(said, said)
    elif field.takes in ("names", "counts"):
        raw = [] if said == "none" else said.split("+")
    elif field.is_number:
        raw = float(said) if field.takes == "number" else int(said) if said.isdigit() else said
    try:
        return name, decoded(name, JOB_FIELDS[name].type, raw, choices_of(field), least=field.least)
    except ConfigError as error:
        raise ConfigError(str(error), f"settings.{name}") from None


def _offer(text: str) -> tuple[str, int]:
    """Return a kin of frameworks and a year from ``kin:year``."""
    kin, _, year = text.partition(":")
    if not kin or not year.isdigit():
        raise ConfigError(f"is {quoted(text)}; write a kin and its first year, such as megatron:2025", "offered_by")
    return kin, int(year)


def read_need(text: str) -> Need:
    """Return the conditions of a cell of ``needs``, of which one must hold."""
    found = tuple(condition for each in text.split(" or ") for condition in read_conditions(each))
    for each in found:
        if each.name not in FIELDS and each.name not in FACTS:
            raise ConfigError(f"is {quoted(text)}; {each.name} is neither a field of a job nor a known fact", "needs")
    return found


SWITCHES = read_switches(shipped_rows(TABLE))
"""All switches, in the order of the table."""


def offered(framework: Framework, facts: Mapping[str, Any] = MappingProxyType({})) -> tuple[Switch, ...]:
    """Return the switches that a framework has, without those that what is known already excludes."""
    return tuple(each for each in SWITCHES if each.is_in(framework) and allowed(each, facts) is None)


def allowed(switch: Switch, facts: Mapping[str, Any]) -> str | None:
    """Return why a switch cannot be taken where this holds, in words; None where nothing that is known is against it.

    Facts are those of the job with the switch and all others that go with it.
    """
    broken = next((need for need in switch.needs if not any(each.holds(facts) for each in need)), None)
    return None if broken is None else " or ".join(_words(each, facts[each.name]) for each in broken)


def _words(condition: Condition, found: object) -> str:
    """Return a condition that does not hold in words, with what was found instead: ``needs ep > 1, not 1``."""
    name, values = FACTS.get(condition.name, condition.name), " or ".join(condition.values)
    if not condition.sign or values == "true":
        return f"needs {name}"
    if values == "false":
        return f"cannot be combined with {name}"
    if condition.sign == "!=":
        return f"cannot be combined with {name} {values}"
    sign = "" if condition.sign == "=" else f"{condition.sign} "
    shown = " ".join(map(str, found)) if isinstance(found, tuple | list) else found
    return f"needs {name} {sign}{values}, not {'unknown' if found is None else shown}"
