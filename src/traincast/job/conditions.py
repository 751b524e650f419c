"""Conditions on a job, as tables of facts write them: ``ep>1``, ``precision=mxfp8|nvfp4``, ``experts``.

A condition is about one fact: whether it is more or less than a number, one of some words or none of them, or is true
or given. What is not known yet is not held against a job: a plan that has not chosen its recomputation asks again.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

from traincast.errors import ConfigError
from traincast.units import quoted

_FORM = re.compile(r"(?P<name>[a-z_][a-z0-9_]*)(?:(?P<sign>!=|>=|<=|=|>|<)(?P<value>\S+))?")


class Condition(Struct, frozen=True):
    """One condition, taken apart."""

    name: str
    """The fact that it is about."""
    sign: str = ""
    """``>``, ``>=``, ``<``, ``<=``, ``=``, ``!=``; empty: it must be true or given."""
    values: tuple[str, ...] = ()
    """The number, or the words of which it must be one."""

    @property
    def text(self) -> str:
        """The condition as a table has it."""
        return f"{self.name}{self.sign}{'|'.join(self.values)}"

    def holds(self, facts: Mapping[str, Any]) -> bool:
        """Say whether it holds; of a fact that is not known it does."""
        if self.name not in facts:
            return True
        value = facts[self.name]
        if not self.sign:
            return bool(value)
        if self.sign in ("=", "!="):
            return bool(_words(value) & set(self.values)) == (self.sign == "=")
        return value is not None and _compared(float(value), self.sign, float(self.values[0]))


def read_conditions(text: str, where: str = "needs") -> tuple[Condition, ...]:
    """Return the conditions of a cell of a table, which ``;`` separates.

    Raises
    ------
    ConfigError
        If one of them has another form, or compares with what is not a number.
    """
    return tuple(_read(each.strip(), where) for each in text.split(";") if each.strip())


def broken(conditions: Iterable[Condition], facts: Mapping[str, Any]) -> Condition | None:
    """Return the first condition that does not hold of what is known; None where all do."""
    return next((each for each in conditions if not each.holds(facts)), None)


def _read(text: str, where: str) -> Condition:
    found = _FORM.fullmatch(text)
    if found is None:
        raise ConfigError(f"is {quoted(text)}; write a fact, such as experts, ep>1 or precision=fp8|mxfp8", where)
    name, sign, value = found["name"], found["sign"] or "", found["value"] or ""
    if sign in (">", ">=", "<", "<="):
        try:
            float(value)
        except ValueError:
            raise ConfigError(f"is {quoted(text)}; {quoted(value)} is not a number", where) from None
        return Condition(name, sign, (value,))
    return Condition(name, sign, tuple(value.split("|")) if value else ())


def _words(value: object) -> set[str]:
    """Return a fact in words: a switch is true or false, several names are one by one, and nothing is none."""
    if isinstance(value, (tuple, list, frozenset, set)):
        return {str(each) for each in value} or {"none"}
    if isinstance(value, bool) or value is None:
        return {{True: "true", False: "false", None: "none"}[value]}
    return {str(value)}


def _compared(value: float, sign: str, limit: float) -> bool:
    more, less, equal = value > limit, value < limit, value == limit
    return {">": more, ">=": more or equal, "<": less, "<=": less or equal}[sign]
