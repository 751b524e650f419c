"""Dialects that print a step as one line of names and numbers: expressions say where each stands."""

import math
import re
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from traincast.errors import ConfigError
from traincast.formats.training_log.contract import TIMES, CutError, Found, Line, WrongError
from traincast.formats.values import shown
from traincast.units import RANGES, is_number, plain_number

_NUMBER = r"([-+]?[\d.][\d.,]*(?:[eE][-+]?\d+)?|[-+]?nan|[-+]?inf)"
"""A number as logs have them, or what damage left of one; torchtitan puts commas between thousands."""
_KINDS = {"step_s": "time", "global_batch": "count"}


class Quantity(Struct, frozen=True):
    """Where a number stands in a line: after some words and a colon or equals sign, perhaps before a unit."""

    name: str
    """One of `traincast.formats.training_log.contract.QUANTITIES`."""
    after: tuple[str, ...]
    """One of these, the first that is found."""
    before: str = ""
    factor: float = 1.0
    """The number times this is in SI."""


class Printed(Struct, frozen=True):
    """Opens readers of lines (`Dialect.opened`)."""

    head: str
    """Expression that finds a line; its groups ``step``, ``steps``, ``epoch`` and ``clock`` may be missing."""
    quantities: tuple[Quantity, ...]
    telling: str | None = None
    """Finds lines that are of a step even where they have no head, and so are damaged."""
    first: int = 1
    """What the framework calls the first step."""

    @property
    def expressions(self) -> tuple[re.Pattern[str], re.Pattern[str] | None, tuple[re.Pattern[str], ...]]:
        """Those of the head, of what tells a line without it, and of the quantities, each once for each text before."""
        # A text at the beginning of an expression is found many times faster than one of several.
        found = tuple(
            re.compile(rf"{after}\s?[:=]\s{{0,40}}{_NUMBER}{each.before}")
            for each in self.quantities
            for after in each.after
        )
        return re.compile(self.head), None if self.telling is None else re.compile(self.telling), found

    def __call__(self) -> Line:
        """Return what reads the lines of a file."""
        finds, tells, expressions = self.expressions
        named = [each for each in self.quantities for _ in each.after]
        numbers = [*zip(named, expressions, strict=True)]

        def line(text: str) -> Found | None:
            begin = finds.search(text)
            if begin is None:
                if tells is not None and tells.search(text):
                    raise CutError
                return None
            groups = begin.groupdict()
            values = dict(_values(text, numbers))
            if groups.get("clock"):
                values["clock_s"] = elapsed_s(groups["clock"])
            if not values.keys() & {*TIMES}:
                raise CutError
            return Found(values=values, **_numbers(groups, self.first))

        return line


def _numbers(groups: Mapping[str, str | None], first: int) -> dict[str, Any]:
    """Return what the head of a line counts."""
    step, steps = groups.get("step"), groups.get("steps")
    return {
        "number": None if step is None else int(step) + 1 - first,
        "planned": int(steps) + 1 - first if steps else None,
        "epoch": int(groups.get("epoch") or 0),
    }


def _values(text: str, numbers: list[tuple[Quantity, re.Pattern[str]]]) -> dict[str, float]:
    """Return the numbers of a line in SI; one that is damaged is a `WrongError`."""
    found: dict[str, float] = {}
    for quantity, pattern in numbers:
        match = pattern.search(text)
        if match is not None and quantity.name not in found:
            value = checked(quantity.name, match[1].strip(",.").replace(",", ""), quantity.factor, match[0])
            if value is not None:
                found[quantity.name] = value
    return found


def checked(name: str, written: str, factor: float, where: str) -> float | None:
    """Return a number of a line in SI; None where it says that it does not know.

    Raises
    ------
    WrongError
        If it is not a number, or one that the quantity cannot have.
    """
    if name == "loss":
        # A loss may well be NaN; nothing is made of it.
        return float(written) if is_number(written) else math.nan
    try:
        value = RANGES[_KINDS.get(name, "figure")].checked(
            plain_number(written) * factor if is_number(written) else written
        )
    except ConfigError as error:
        raise WrongError(f"{shown(where)}: {error}") from None
    if value > 0 or name == "clock_s":
        return float(value)
    if name == "step_s":
        raise WrongError(f"{shown(where)}: a step takes time")
    # NeMo prints no FLOP/s, and torchtitan no tokens, of a step that it could not time.
    return None


def elapsed_s(clock: str) -> float:
    """Return the seconds of a clock such as ``1:02:33``."""
    seconds = 0
    for part in clock.split(":"):
        seconds = 60 * seconds + int(part)
    return float(seconds)
