"""Scenarios next to each other, how a step scales, and changes that are tried."""

from msgspec import Struct

from traincast.serve.failures import Problem
from traincast.serve.records.forecasts import ForecastShown
from traincast.serve.records.values import Shown, Value


class Scenario(Struct, frozen=True, kw_only=True):
    """A job with a name."""

    name: str
    job: dict[str, Value]


class Scenarios(Struct, frozen=True, kw_only=True):
    """Up to four jobs."""

    scenarios: tuple[Scenario, ...]


class Compared(Struct, frozen=True, kw_only=True):
    """A scenario that was forecast, or why it was not."""

    name: str
    shown: ForecastShown | None = None
    figures: dict[str, Shown]
    """Numbers that scenarios are compared by: step, tokens/s, MFU, memory; days, GPU-hours, cost, energy of a run."""
    parts: dict[str, float]
    """Seconds of each part of the step."""
    error: Problem | None = None
    command: str


class DifferenceShown(Struct, frozen=True, kw_only=True):
    """How one scenario differs from another."""

    a: int
    b: int
    """Places of the scenarios."""
    ratio: float
    """Step of b over that of a."""
    low: float
    high: float
    """Of its 90 % interval: what both forecasts are off by cancels."""
    chance_shorter: float
    told: bool
    """Whether the forecasts tell which is shorter."""
    text: str
    between: str
    """The interval in words."""


class ComparisonAnswer(Struct, frozen=True, kw_only=True):
    """Scenarios next to each other."""

    scenarios: tuple[Compared, ...]
    differences: tuple[DifferenceShown, ...]
    """Of every pair."""


class ScalingRecord(Struct, frozen=True, kw_only=True):
    """A job, and the values of one of its fields."""

    job: dict[str, Value]
    along: str = "gpus"
    """``gpus``, ``seq_length``, or another field."""
    values: list[str | int | float]
    keep: str = "batch"
    """Along GPUs what stays: ``batch``, the global batch (strong scaling), or ``share``, that of a GPU (weak)."""


class ScalingPoint(Struct, frozen=True, kw_only=True):
    """A forecast with one value."""

    value: str | int | float
    figures: dict[str, Shown] = {}
    low: float | None = None
    high: float | None = None
    """Of the 90 % interval of the step."""
    efficiency: Shown | None = None
    """Tokens/s a GPU over those of the first point."""
    error: str = ""


class Scaling(Struct, frozen=True, kw_only=True):
    """How a step scales."""

    along: str
    points: tuple[ScalingPoint, ...]


class WhatIfRecord(Struct, frozen=True, kw_only=True):
    """A job, or a task that explained a step, and changes to try."""

    job: dict[str, Value] = {}
    task: str = ""
    expression: str | list[str]
    """As ``--what-if`` takes it, such as ``tp_comm*0.5`` or ``rank7.compute=peers``; several are tried together too."""


class WhatIfShown(Struct, frozen=True, kw_only=True):
    """A change that was tried."""

    change: str
    text: str
    step: Shown
    saving: Shown
    low: float | None
    high: float | None


class WhatIfAnswer(Struct, frozen=True, kw_only=True):
    """Changes that were tried, and the step without them."""

    step: Shown
    what_if: tuple[WhatIfShown, ...]
