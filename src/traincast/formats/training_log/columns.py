"""Names of columns, keys and tags under which steps are logged: ``data/formats/log_columns.csv``.

CSV files, JSON lines, histories of W&B and scalars of TensorBoard call one thing by many names. The name decides what a
number is and in which unit; where one framework alone uses it, it says whose figures they are.
"""

import math
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from traincast.formats.training_log.contract import TIMES, Found
from traincast.formats.training_log.printed import checked
from traincast.shipped import constant, shipped_rows
from traincast.units import is_number

_PREFIXES = ("train/", "perf/", "performance/", "metrics/", "time/", "timing/", "throughput/")
"""What loggers put before the names of a group."""
_SIDES = ("__min", "__max")
"""W&B's charts have the least and most of each value next to it."""
_AMBIGUOUS = "throughput"
"""Megatron-LM's FLOP/s, and next to other names of times anything."""
_DOUBTFUL = "time"
"""Of a step, or since the beginning."""
_OF_ALL = re.compile(r"(\d{1,12})/\d{1,12}")
"""A step with how many there are: ms-swift."""
_CLOCK = re.compile(r"(?:(\d{1,6}) days?, )?(\d{1,6}):(\d\d):(\d\d(?:\.\d{1,6})?)")
"""A time as Python's timedelta is written: LLaMA-Factory."""
_EPOCH_S = 1e8
"""A time above this is one since 1970, not that of a step."""


class Column(NamedTuple):
    """What stands under a name."""

    quantity: str
    """One of `QUANTITIES`, ``step``, or ``steps_per_s``."""
    factor: float
    framework: str
    """Whose name it is; empty where many use it."""
    rank: int
    """Its row: of two columns of one quantity the earlier counts."""


def _columns() -> Mapping[str, Column]:
    rows = enumerate(shipped_rows("formats/log_columns.csv"))
    return {row["column"]: Column(row["quantity"], float(row["factor"]), row["framework"], rank) for rank, row in rows}


def column_of(name: str) -> Column | None:
    """Return what stands under a name, whatever its case and the group that a logger puts before it."""
    known = constant(_columns)
    plain = name.strip().lower()
    # W&B's charts: "run name - train/step_time".
    for each in (plain, plain.rpartition(" - ")[2]):
        if each.endswith(_SIDES):
            return None
        if each in known:
            return known[each]
        group = next((prefix for prefix in _PREFIXES if each.startswith(prefix)), "")
        if group and (found := known.get(each.removeprefix(group))) is not None:
            return found
    return None


class Names:
    """The columns of one file, each quantity with the one that counts.

    Parameters
    ----------
    names : iterable of str
        As the file has them.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self.of: dict[str, tuple[str, Column]] = {}
        self.twice: tuple[str, str] | None = None
        """Two names that are the same column, as where several runs stand side by side."""
        for name in names:
            column = column_of(name)
            if column is None:
                continue
            other = self.of.get(column.quantity)
            if other is not None and other[1].rank == column.rank and all(" - " in each for each in (other[0], name)):
                self.twice = (other[0], name)
            if other is None or column.rank < other[1].rank:
                self.of[column.quantity] = (name, column)

        name, column = self.of.get("flops_per_s", ("", None))
        if column is not None and name.strip().lower().endswith(_AMBIGUOUS) and self.framework_of_times != "megatron":
            del self.of["flops_per_s"]

    @property
    def framework_of_times(self) -> str:
        """The framework whose name of the step's time it is."""
        return self.of["step_s"][1].framework if "step_s" in self.of else ""

    @property
    def tell_steps(self) -> bool:
        """Whether a step and something that its time follows from are among them."""
        return "step" in self.of and bool(self.of.keys() & {*TIMES, "steps_per_s"})

    @property
    def framework(self) -> str:
        """The framework that alone uses some of the names; empty where there is none."""
        return next((column.framework for _, column in self.of.values() if column.framework), "")

    def found(self, values: Mapping[str, object]) -> Found | None:
        """Return what a row or an object says of a step; None where it says no step, or nothing of it.

        Raises
        ------
        WrongError
            If a number is out of range.
        """
        step = _number(values.get(self.of["step"][0])) if "step" in self.of else None
        if step is None or not step.is_integer() or not 0 <= step < 2**53:
            return None
        told: dict[str, float] = {}
        for quantity, (name, column) in self.of.items():
            number = None if quantity == "step" else _number(values.get(name))
            if number is None:
                continue
            if quantity == "steps_per_s":
                if number > 0 and "step_s" not in told:
                    told["step_s"] = 1 / number
                continue
            since_1970 = quantity == "step_s" and number * column.factor > _EPOCH_S
            told_as = "clock_s" if since_1970 else quantity
            value = checked(told_as, repr(number), column.factor, f"{name}: {values[name]}")
            if value is not None:
                told[told_as] = value
        if not told.keys() & {*TIMES}:
            return None
        doubtful = "step_s" in self.of and self.of["step_s"][0].strip().lower() == _DOUBTFUL
        return Found(values=told, number=int(step), framework=self.framework, doubtful=doubtful)


def _number(value: object) -> float | None:
    """Return what a cell or value says; None where it says nothing."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int | float):
        return float(value) if math.isfinite(value) else None
    text = str(value).strip()
    if is_number(text):
        return float(text) if math.isfinite(float(text)) else None
    if (counted := _OF_ALL.fullmatch(text)) is not None:
        return float(counted[1])
    parts = _CLOCK.fullmatch(text)
    if parts is None or not text:
        return None
    days, hours, minutes, seconds = (float(each or 0) for each in parts.groups())
    return ((24 * days + hours) * 60 + minutes) * 60 + seconds
