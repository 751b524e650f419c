"""The best layouts of a space while it is worked out: the fastest that fit, and the fastest for less memory.

Letters: K shares, L levels of memory, N choices of overlaps of shares, X all else.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import numpy as np
from msgspec import Struct

from traincast.crew import Crew
from traincast.planning.execution import Variant
from traincast.planning.layout import Estimate, Layout
from traincast.planning.screen.block import BlockPart, LayoutBlock
from traincast.workload.ops import FloatArray, IntArray

Other = TypeVar("Other")


class _Kept(Struct, frozen=True):
    """A layout that is kept; which it is is worked out when somebody asks, or takes it to another process."""

    step_s: float
    peak_bytes: float
    variant: Variant
    found: Layout | Callable[[], Layout]

    @property
    def layout(self) -> Layout:
        """The layout itself."""
        return self.found if isinstance(self.found, Layout) else self.found()

    def __reduce__(self) -> tuple[Any, ...]:
        """Say how it goes through a pipe."""
        return _Kept, (self.step_s, self.peak_bytes, self.variant, self.layout)


@dataclass(slots=True)
class Frontier:
    """The best layouts so far: the fastest that fit, and the fastest for less memory."""

    limit_bytes: float
    keep: int
    told: "Callable[[Frontier], None] | None" = None
    """Who is handed what each part of the space has."""
    lists: bool = False
    """Whether all layouts that fit are listed."""
    listed: list[Estimate] = field(default_factory=list)
    levels: int = 48
    evaluated: int = 0
    feasible: int = 0
    _cut_L: FloatArray = field(init=False)
    """Step that a layout must be below to be kept, by level of its memory: the less memory, the longer it may be."""
    _found: list[_Kept] = field(default_factory=list)
    _fresh: int = 0

    def __post_init__(self) -> None:
        """Begin with nothing."""
        self._cut_L = np.full(self.levels + 1, np.inf)
        self._cut_L[-1] = -np.inf

    def better_of(self, blocks: Iterable[LayoutBlock]) -> "Frontier":
        """Return what blocks have that is better than what is there, which stays as it is."""
        found = Frontier(self.limit_bytes, self.keep, lists=self.lists, levels=self.levels)
        found._cut_L = self._cut_L.copy()
        for block in blocks:
            found.add(block)
        return found

    def work_out(self, parts: Iterable[Iterable[LayoutBlock]], crew: Crew) -> list["Frontier"]:
        """Work blocks out part by part, those of a crew together, and keep what is better; return what each has."""
        return self.work_out_with(parts, (), crew)[0]

    def work_out_with(
        self, parts: Iterable[Iterable[LayoutBlock]], others: Iterable[Callable[[], Other]], crew: Crew
    ) -> tuple[list["Frontier"], list[Other]]:
        """Do the same with other pieces of work next to it, and return what these find, too."""
        pieces = [partial(self.better_of, each) for each in parts]
        both: list[Any] = crew.each([*pieces, *others], self._tell, sent=self._sent)
        found: list[Frontier] = both[: len(pieces)]
        for each in found:
            self.evaluated += each.evaluated
            self.feasible += each.feasible
            self._found += each._found
            self._fresh += len(each._found)
        self._tidy()
        return found, both[len(pieces) :]

    def _sent(self, found: dict[int, Any]) -> dict[int, Any]:
        """Return what a process found without layouts that are worse than others of it: in the end none is kept."""
        parts = {number: found[number] for number in sorted(found) if isinstance(found[number], Frontier)}
        best = set(map(id, _best([one for each in parts.values() for one in each._found], self.keep)))
        light = {number: copy(each) for number, each in parts.items()}
        for each in light.values():
            each._found = [one for one in each._found if id(one) in best]
        return {**found, **light}

    def _tell(self, found: object) -> None:
        if self.told is not None and isinstance(found, Frontier):
            self.told(found)

    def add(self, block: LayoutBlock) -> None:
        """Work a block out and keep what is better than what is there."""
        for part in block.parts(self.limit_bytes):
            self.take(block, part)
        self._tidy()

    def take(self, block: LayoutBlock, part: BlockPart) -> None:
        """Keep what is better of a part of a block than what is there."""
        steps, peaks = part.step_s, part.peak_bytes
        choices, shares = part.shape[:2]
        self.evaluated += math.prod(part.shape)
        if not steps.size:
            return
        self.feasible += choices * int(np.count_nonzero(peaks < self.limit_bytes))
        if self.lists:
            self.listed += block.estimates(part, self.limit_bytes)
        # Few shares have a layout that is fast enough for the least memory that any of theirs needs.
        steps_NX = steps.reshape(choices * shares, -1)
        peaks_KX = peaks.reshape(shares, -1)
        least_N = np.tile(self._cut_L[self._level(peaks_KX.min(axis=1))], choices)
        fast_N = np.flatnonzero(steps_NX.min(axis=1) < least_N)
        if len(fast_N):
            self._take(block, part, fast_N, steps_NX[fast_N], peaks_KX[fast_N % shares])

    def _take(
        self, block: LayoutBlock, part: BlockPart, fast_N: IntArray, steps: FloatArray, peaks: FloatArray
    ) -> None:
        """Keep the best of some choices of overlaps and shares, [N, X]."""
        rows, columns = np.nonzero(steps < self._cut_L[self._level(peaks)])
        places = fast_N[rows] * steps.shape[1] + columns
        steps, peaks = steps[rows, columns], peaks[rows, columns]
        light, variant = part.light(), block.filled.family.variant
        for each in front(steps, peaks, self.keep).tolist():
            layout = partial(block.layout, light, int(places[each]))
            self._found.append(_Kept(float(steps[each]), float(peaks[each]), variant, layout))
            self._fresh += 1
        if self._fresh > 4 * self.keep:
            self._tidy()

    def _level(self, peaks: FloatArray) -> IntArray:
        found: IntArray = np.minimum(peaks * (self.levels / self.limit_bytes), self.levels).astype(np.int64)
        return found

    @property
    def fastest_s(self) -> float:
        """The least step so far; without end where nothing fits."""
        self._tidy()
        return self._found[0].step_s if self._found else math.inf

    @property
    def last_s(self) -> float:
        """The step of the last of the fastest; without end where there are fewer."""
        self._tidy()
        return self._found[self.keep - 1].step_s if len(self._found) >= self.keep else math.inf

    @property
    def fastest(self) -> Layout | None:
        """The layout that has it."""
        self._tidy()
        return self._found[0].layout if self._found else None

    @property
    def fastest_variant(self) -> Variant | None:
        """The way of execution that has it."""
        self._tidy()
        return self._found[0].variant if self._found else None

    def _tidy(self) -> None:
        """Drop what is neither among the fastest nor the fastest for its memory."""
        if not self._fresh:
            return
        self._fresh = 0
        self._found = _best(self._found, self.keep)
        last_s = self.last_s
        # What is slower than a layout of a lower level is not the fastest for its memory.
        least_s = np.inf
        below = sorted(self._found, key=lambda each: each.peak_bytes)
        place = 0
        for level in range(self.levels):
            bound = level * self.limit_bytes / self.levels
            while place < len(below) and below[place].peak_bytes < bound:
                least_s = min(least_s, below[place].step_s)
                place += 1
            self._cut_L[level] = min(self._cut_L[level], max(last_s, least_s))

    def best(self) -> tuple[tuple[float, ...], tuple[float, ...], tuple[Layout, ...]]:
        """Return steps, peaks and layouts, the fastest first."""
        self._tidy()
        steps, peaks = (tuple(getattr(each, name) for each in self._found) for name in ("step_s", "peak_bytes"))
        return steps, peaks, tuple(each.layout for each in self._found)


def _best(found: Sequence[_Kept], keep: int) -> list[_Kept]:
    """Return the fastest so many, and those that none faster beats in memory, the fastest first."""
    steps, peaks = (np.array([getattr(each, name) for each in found]) for name in ("step_s", "peak_bytes"))
    return [found[place] for place in front(steps, peaks, keep)]


def front(steps: FloatArray, peaks: FloatArray, keep: int) -> IntArray:
    """Return the places of the fastest so many, and of those that none faster beats in memory, the fastest first."""
    order = np.lexsort((peaks, steps))
    least = np.minimum.accumulate(peaks[order])
    first = np.ones(len(order), dtype=np.bool_)
    first[1:] = peaks[order][1:] < least[:-1]
    first[:keep] = True
    found: IntArray = order[first]
    return found
