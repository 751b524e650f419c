"""Measured collectives as columns: one row per timing, whatever file it came from."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from traincast.estimate.collective_table import spread
from traincast.hardware.cluster import Cluster

__all__ = ["CollectiveMeasurements", "FloatArray", "IntArray", "Skipped", "spread"]

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]


class Skipped(NamedTuple):
    """A row that is left out, and why; ``id`` is the row's own, or ``file:line``."""

    id: str
    reason: str


@dataclass(frozen=True, slots=True)
class CollectiveMeasurements:
    """Timings of collectives; all columns have the same length.

    Parameters
    ----------
    op : tuple of str
        Names of `Operation` in lower case: ``"all_reduce"``.
    ranks : array of int
        Members of the group.
    nodes : array of int
        Nodes they sit on; 0 where the file does not say (see `on`).
    size_bytes : array of int
        Size as `Operation` defines it for the operation.
    time_s : array of float
        Measured seconds.
    source : tuple of str
        ``file:line``.
    gpu : tuple of (str or None)
        The GPU as the file names it; None where it does not.
    """

    op: tuple[str, ...]
    ranks: IntArray
    nodes: IntArray
    size_bytes: IntArray
    time_s: FloatArray
    source: tuple[str, ...]
    gpu: tuple[str | None, ...]

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.op)

    def on(self, cluster: Cluster) -> "CollectiveMeasurements":
        """Return the same rows with every number of nodes known: where none was said, full nodes of `cluster`."""
        filled = -(-self.ranks // cluster.gpus_per_node)
        return replace(self, nodes=np.where(self.nodes > 0, self.nodes, filled))

    def select(self, rows: npt.NDArray[np.bool_] | IntArray | Sequence[int]) -> "CollectiveMeasurements":
        """Return some of the rows, chosen by a mask or by their positions, in this order."""
        chosen = np.asarray(rows)
        chosen = np.flatnonzero(chosen) if chosen.dtype == np.bool_ else chosen.astype(np.int64)
        return CollectiveMeasurements(
            op=tuple(self.op[row] for row in chosen),
            ranks=self.ranks[chosen],
            nodes=self.nodes[chosen],
            size_bytes=self.size_bytes[chosen],
            time_s=self.time_s[chosen],
            source=tuple(self.source[row] for row in chosen),
            gpu=tuple(self.gpu[row] for row in chosen),
        )

    @classmethod
    def join(cls, parts: "Iterable[CollectiveMeasurements]") -> "CollectiveMeasurements":
        """Return the rows of several tables one after the other."""
        every = list(parts)

        def ints(name: str) -> IntArray:
            return np.concatenate([np.empty(0, np.int64), *(getattr(part, name) for part in every)])

        return cls(
            op=tuple(chain.from_iterable(part.op for part in every)),
            ranks=ints("ranks"),
            nodes=ints("nodes"),
            size_bytes=ints("size_bytes"),
            time_s=np.concatenate([np.empty(0), *(part.time_s for part in every)]),
            source=tuple(chain.from_iterable(part.source for part in every)),
            gpu=tuple(chain.from_iterable(part.gpu for part in every)),
        )
