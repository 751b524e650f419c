"""Two steps side by side: how far apart they are as a whole, by rank, by part and by owner.

Nothing is assumed of what only one side knows: it is listed as such.
"""

import math
from collections.abc import Hashable, Mapping
from pathlib import PurePath

from msgspec import Struct, field
from msgspec.structs import replace

from traincast.analysis.part_words import common_part, in_common_words, times_whole_passes
from traincast.analysis.summary import Interval, Ratio, TrainingRun
from traincast.diagnostics import Note
from traincast.errors import ConfigError
from traincast.units import format_share, format_time
from traincast.workload.workload import MeasuredStep


class Side(Struct, frozen=True, kw_only=True):
    """One of the two steps that are compared.

    Raises
    ------
    ConfigError
        If a rank has parts but no end.
    """

    name: str
    """For people: the file or folder it comes from."""
    what: str
    """``simulated`` or ``measured``."""
    step_s: float
    end_s: dict[int, float]
    """End of each known rank, in seconds from the first start of any."""
    part_s: dict[int, dict[str, float]] = field(default_factory=dict)
    """Seconds in each part of the step, for ranks in `end_s`."""
    wait_s: dict[int, dict[str, float]] = field(default_factory=dict)
    """Of them waiting for other ranks; nothing for a part of which that is not known."""
    breakdown_s: dict[str, float] | None = None
    """Who owned each instant of the step; None where that is not known."""
    mfu: float | None = None
    """Model FLOP/s over the dense peak of `mfu_peak`; None where the model is not known."""
    mfu_peak: str | None = None
    """Type of that peak: ``"fp8"``; None where `mfu` is of the 16-bit one, or not known."""
    mfu_16_bit: float | None = None
    """Model FLOP/s over the dense 16-bit peak, by which precisions compare."""
    interval: Interval | None = None
    """Where most steps lie: forecast of runs like this one, or measured; None where that is not known."""
    tokens_per_s_per_gpu: float | None = None
    gpus: int | None = None
    gpu_tdp_w: float | None = None
    """Thermal design power of a GPU, in W; None where it is not known."""
    training_run: TrainingRun | None = None
    """What a whole run takes, where its tokens are given and the side says those of a step."""
    how: str = ""
    """What a measured step is, where it is not one that was traced."""
    doubts: Mapping[str, Mapping[Hashable, float]] | None = None
    """Of a forecast: what it may be off by (`traincast.simulation.differences`)."""
    notes: tuple[Note, ...] = ()
    """How the step was measured."""
    warnings: tuple[Note, ...] = ()
    """Where it contradicts the other side."""

    def __post_init__(self) -> None:
        for rank in self.part_s:
            if rank not in self.end_s:
                raise ConfigError(f"rank {rank} has parts, but no end", self.name)


def measured_side(measured: MeasuredStep, name: str) -> Side:
    """Return a measured run, under a name for people."""
    timed = {rank: parts for rank, parts in measured.part_s.items() if parts}
    return Side(
        name=name, what="measured", step_s=measured.step_s, end_s=measured.end_s, part_s=timed, wait_s=measured.wait_s
    )


class Difference(Struct, frozen=True):
    """One quantity of both sides, in seconds."""

    a_s: float
    b_s: float

    @property
    def difference_s(self) -> float:
        """How much more it is on side b."""
        return self.b_s - self.a_s

    def without(self, part: "Difference") -> "Difference":
        """Return this quantity without a part of it."""
        return Difference(self.a_s - part.a_s, self.b_s - part.b_s)

    @property
    def relative(self) -> float | None:
        """The difference as a share of side a; None where a is zero, or too close to it to divide by."""
        if self.a_s == 0:
            return None
        share = self.b_s / self.a_s - 1
        return share if math.isfinite(share) else None


class Unmatched(Struct, frozen=True):
    """What only one side has."""

    ranks: tuple[int, ...]
    part_s: dict[int, dict[str, float]]
    """Parts of ranks that both sides know, in seconds."""


class Comparison(Struct, frozen=True, kw_only=True):
    """Two steps side by side."""

    a: Side
    b: Side
    step: Difference
    ratio: Ratio | None = None
    """How many times as long as the step of `a` that of `b` is, with the interval of that; None but of two forecasts,
    of whose errors it holds those that they do not share."""
    breakdown: dict[str, Difference] | None
    """By owner of the instant; None where a side has no breakdown."""
    parts: dict[str, Difference]
    """Sums over the ranks that both sides know, of parts that both sides have. Where only one
    side has the part on a rank, the other spent nothing in it there (see `only_a`)."""
    waits: dict[str, Difference]
    """Of `parts` waiting for other ranks, where both sides know it."""
    ends: dict[int, Difference]
    """By rank that both sides know."""
    rank_parts: dict[int, dict[str, Difference]]
    """By rank that both sides know, and part that both have there."""
    only_a: Unmatched
    only_b: Unmatched

    def __repr__(self) -> str:
        """Say how the two steps differ, in a line."""
        relative = format_share(self.step.relative, 1, "+") if self.step.relative is not None else "new"
        a, b = (f"{PurePath(side.name).name} {format_time(side.step_s)}" for side in (self.a, self.b))
        return f"<Comparison: {a}, {b} ({relative})>"


def compare(a: Side, b: Side) -> Comparison:
    """Compare two steps.

    Relative differences are shares of `a`. Ranks are in rising order, parts in the order in which they first occur.
    Where a measured side names other parts than the other side does, both speak of the parts that all sides know
    (`traincast.analysis.part_words`).
    """
    a, b = _in_one_vocabulary(a, b)
    common = sorted(a.end_s.keys() & b.end_s.keys())
    return Comparison(
        a=a,
        b=b,
        step=Difference(a.step_s, b.step_s),
        breakdown=_both(a.breakdown_s, b.breakdown_s) if a.breakdown_s and b.breakdown_s else None,
        parts=_both(_sums(a.part_s, common), _sums(b.part_s, common)),
        waits=_both(_sums(a.wait_s, common), _sums(b.wait_s, common)),
        ends={rank: Difference(a.end_s[rank], b.end_s[rank]) for rank in common},
        rank_parts={rank: _both(a.part_s.get(rank, {}), b.part_s.get(rank, {})) for rank in common},
        only_a=_unmatched(a, b, common),
        only_b=_unmatched(b, a, common),
    )


def _in_one_vocabulary(a: Side, b: Side) -> tuple[Side, Side]:
    """Return two sides whose parts have the same names as far as they mean the same."""
    a_names, b_names = ({name for known in side.part_s.values() for name in known} for side in (a, b))
    whole = times_whole_passes(a_names | b_names)
    alone = ({common_part(name, whole_passes=whole) for name in own} for own in (a_names - b_names, b_names - a_names))
    if (a.what, b.what) == ("simulated", "simulated") or set.isdisjoint(*alone):
        return a, b
    first, second = (
        replace(
            side,
            part_s=in_common_words(side.part_s, whole_passes=whole),
            wait_s=in_common_words(side.wait_s, whole_passes=whole),
        )
        for side in (a, b)
    )
    return first, second


def _both(a_s: Mapping[str, float], b_s: Mapping[str, float]) -> dict[str, Difference]:
    return {key: Difference(a_s[key], b_s[key]) for key in a_s if key in b_s}


def _sums(part_s: Mapping[int, Mapping[str, float]], ranks: list[int]) -> dict[str, float]:
    terms: dict[str, list[float]] = {}
    for rank in ranks:
        for part, time_s in part_s.get(rank, {}).items():
            terms.setdefault(part, []).append(time_s)
    # Exact, so that two sides with the same terms have the same sum whatever their order.
    return {part: math.fsum(times_s) for part, times_s in terms.items()}


def _unmatched(side: Side, other: Side, common: list[int]) -> Unmatched:
    alone = {}
    for rank in common:
        known = other.part_s.get(rank, {})
        mine = {part: time_s for part, time_s in side.part_s.get(rank, {}).items() if part not in known}
        if mine:
            alone[rank] = mine
    return Unmatched(tuple(sorted(side.end_s.keys() - other.end_s.keys())), alone)
