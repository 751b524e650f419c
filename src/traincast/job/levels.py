"""Levels of effort as a framework file says them: how the program comes, and what its published recipes set.

``[out_of_the_box]`` has the fields of a job as the program has them where no flag is given; ``[[habits]]`` have what
its recipes set, each with the conditions under which they do::

    [[habits]]
    when = ["experts", "precision=mxfp8", "gpu=gb200|gb300"]
    settings = { cuda_graph_impl = "full_iteration", moe_paged_stash = true }
    source = "repository, file, commit"
"""

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from msgspec import Struct

from traincast.errors import ConfigError
from traincast.job.conditions import Condition, broken, read_conditions
from traincast.job.fields import FIELDS
from traincast.names import known_names
from traincast.tables import decoded
from traincast.units import quoted

OUT_OF_THE_BOX, USUAL, BEST = "out-of-the-box", "usual", "best"
LEVELS = (OUT_OF_THE_BOX, USUAL, BEST)
"""As the program comes, as its published recipes set it, and with all that it can do, which a plan searches."""


class Habit(Struct, frozen=True, kw_only=True, dict=True):
    """What is set under some conditions, and where that stands."""

    settings: tuple[tuple[str, Any], ...]
    """Fields of a job with their values."""
    when: tuple[str, ...] = ()
    """Conditions, all of which must hold (`traincast.job.conditions`)."""
    source: str = ""

    def applies(self, facts: Mapping[str, Any]) -> bool:
        """Say whether all its conditions hold."""
        return broken(self._conditions, facts) is None

    @property
    def asks(self) -> tuple[str, ...]:
        """The facts that these are about."""
        return tuple(each.name for each in self._conditions)

    @cached_property
    def _conditions(self) -> tuple[Condition, ...]:
        return read_conditions(";".join(self.when), "habits.when")


def read_plain(table: object, shown: str) -> Habit:
    """Return the table ``[out_of_the_box]`` of a framework file, or what `Habit` became in a result.

    Raises
    ------
    ConfigError
        If a key is not a field of a job, a value not one of that field's, or the source is missing.
    """
    place = "out_of_the_box"
    if not isinstance(table, Mapping):
        raise ConfigError(f"is {quoted(table)}; it must be a table (in {shown})", place)
    if "settings" not in table:
        table = {"source": table.get("source"), "settings": {k: v for k, v in table.items() if k != "source"}}
    return _habit(table, shown, place)


def read_habits(tables: object, shown: str) -> tuple[Habit, ...]:
    """Return the tables ``[[habits]]`` of a framework file; errors as `read_plain`."""
    if not isinstance(tables, list | tuple):
        raise ConfigError(f"is {quoted(tables)}; it must be tables, each [[habits]] (in {shown})", "habits")
    return tuple(_habit(each, shown, "habits") for each in tables)


def _habit(table: object, shown: str, place: str) -> Habit:
    known = ("when", "settings", "source")
    if not isinstance(table, Mapping):
        raise ConfigError(f"is {quoted(table)}; it must be a table (in {shown})", place)
    unknown = next((key for key in table if key not in known), None)
    if unknown is not None:
        raise ConfigError(f"is unknown; {known_names(unknown, known)} (in {shown})", f"{place}.{unknown}")
    source = table.get("source")
    if not isinstance(source, str) or not source:
        raise ConfigError(f"is {quoted(source)}; say where it stands (in {shown})", f"{place}.source")
    settings = tuple(_setting(name, raw, shown, place) for name, raw in _pairs(table.get("settings"), shown, place))
    return Habit(settings=settings, when=_conditions(table.get("when", []), shown, f"{place}.when"), source=source)


def _pairs(settings: object, shown: str, place: str) -> list[tuple[str, Any]]:
    """Return settings one by one: of a table of a file, or as a result holds them."""
    found = list(settings.items()) if isinstance(settings, Mapping) else settings
    if isinstance(found, list | tuple) and all(isinstance(each, list | tuple) and len(each) == 2 for each in found):
        return [(str(name), raw) for name, raw in found]
    raise ConfigError(f"is {quoted(settings)}; it must be a table of fields of a job (in {shown})", f"{place}.settings")


def _conditions(when: object, shown: str, place: str) -> tuple[str, ...]:
    """Return conditions whose facts are known."""
    from traincast.job.condition_facts import FACTS  # it asks jobs, which have a framework

    if not isinstance(when, list | tuple) or not all(isinstance(each, str) for each in when):
        raise ConfigError(f"is {quoted(when)}; it must be a list of conditions (in {shown})", place)
    try:
        found = read_conditions(";".join(when), place)
    except ConfigError as error:
        raise ConfigError(f"{str(error).removeprefix(f'{place}: ')} (in {shown})", place) from None
    for each in found:
        if each.name not in FIELDS and each.name not in FACTS:
            text = f"{each.name} is not a fact; {known_names(each.name, [*FACTS, *FIELDS])} (in {shown})"
            raise ConfigError(text, place)
    return tuple(when)


def _setting(name: str, raw: object, shown: str, place: str) -> tuple[str, Any]:
    """Return a field of a job with its value, checked as a job file's is."""
    from traincast.job.choices import choices_of  # both ask frameworks, which have levels
    from traincast.job.request import JOB_FIELDS

    settable = [each for each in JOB_FIELDS if FIELDS[each].group != "run"]
    if name not in settable:
        text = f"is not a field that software sets; {known_names(name, settable)} (in {shown})"
        raise ConfigError(text, f"{place}.{name}")
    plain = list(raw) if isinstance(raw, tuple) else raw
    try:
        return name, decoded(name, JOB_FIELDS[name].type, plain, choices_of(FIELDS[name]))
    except ConfigError as error:
        raise ConfigError(f"{error} (in {shown})", f"{place}.{name}") from None
