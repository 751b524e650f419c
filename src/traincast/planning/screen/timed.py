"""Operations of a rank as the seconds that they take, and what running some of them comes to.

They are numbers or arrays of layouts, as `traincast.planning.screen.moments` makes and runs them.
"""

from typing import NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from traincast.lowering.work import Exchange
from traincast.model.numbers import Number, larger
from traincast.workload.ops import IntArray
from traincast.workload.words import Stream


class Busy(Struct, frozen=True):
    """What keeps a stream busy for a time."""

    stream: Stream
    time_s: Number
    blocking: bool = True
    """Whether what follows waits for it."""
    computes: Number = 0.0
    """The share of it that is computation."""
    slowdown: Number = 0.0
    """The share by which it is longer where all of it is overlapped with communication."""

    def at(self, rows: IntArray | None) -> "Busy":
        """Return it on some of its layouts."""
        if rows is None:
            return self
        return Busy(
            self.stream,
            _taken(self.time_s, rows),
            self.blocking,
            _taken(self.computes, rows),
            _taken(self.slowdown, rows),
        )

    def between(self, begin: int, end: int) -> "Busy":
        """Return it on neighbouring layouts of many."""
        found = [
            each[begin:end] if isinstance(each, np.ndarray) and len(each) > 1 else each
            for each in (self.time_s, self.computes, self.slowdown)
        ]
        return replace(self, time_s=found[0], computes=found[1], slowdown=found[2])

    def often(self, count: int) -> "Busy":
        """Return it so many times, one after another."""
        return self if count == 1 else replace(self, time_s=self.time_s * count)


def _taken(value: Number, rows: IntArray) -> Number:
    # Of arrays with two axes that takes a third of the time of an index.
    return value.take(rows, axis=0) if isinstance(value, np.ndarray) and value.ndim else value


class Wait(Struct, frozen=True):
    """What lets nothing go on before a stream is free."""

    stream: Stream
    where: Number = True

    def often(self, count: int) -> "Wait":  # noqa: ARG002
        """Return it once."""
        return self


def at_rows(row: Busy | Wait, rows: IntArray) -> Busy | Wait:
    """Return a row on some of its layouts."""
    return row.at(rows) if isinstance(row, Busy) else row


class Moment(Struct):
    """When the program of a rank has come so far, and from when on each of its other streams is free."""

    now_s: Number = 0.0
    free_s: dict[Stream, Number] = {}
    """Of those on which something was launched that nothing has waited for."""

    @property
    def left_s(self) -> dict[Stream, Number]:
        """What these still have to do."""
        return {stream: larger(free_s - self.now_s, 0.0) for stream, free_s in self.free_s.items()}


class Cycle(NamedTuple):
    """Passes that a rank runs again and again."""

    passes_s: list[Number]
    left_s: dict[Stream, Number]
    """How long the streams are busy with what all of them leave to do, of those that have some left when they end."""


class TimedExchange(Exchange):
    """An exchange whose seconds are known: they are its size."""

    __slots__ = ()
