"""The ways to shard the state of a block's layouts with one stage of ZeRO, as tables.

Letters: K shares, Z ways to shard, J pairs of a share and a way, U pairs of degrees and a way.
"""

import numpy as np
from msgspec import Struct

from traincast.workload.ops import FloatArray, IntArray


class Rows(Struct, frozen=True):
    """Neighbouring shares with the same ways to shard."""

    shares: slice
    """Of K."""
    pairs: slice
    """Of J."""
    ways_Z: tuple[int, ...]
    """Ranks that share one copy of the state."""

    def of_pairs(self, values_J: FloatArray) -> FloatArray:
        """Return their part of a table of pairs as [K, Z, 1]."""
        if values_J.shape[-1] == 1:
            return values_J[..., None, None]
        found: FloatArray = values_J[..., self.pairs]
        return found.reshape(*found.shape[:-1], -1, len(self.ways_Z), 1)


class Ways(Struct, frozen=True):
    """All pairs of a share and a way to shard with one stage of ZeRO."""

    zero: int
    rows: tuple[Rows, ...]
    share_J: IntArray
    way_J: IntArray
    """Number of the way, of those that the share has."""
    shard_J: IntArray
    """Ranks that share one copy of the state."""

    @classmethod
    def from_shares(cls, zero: int, ways_K: tuple[tuple[int, ...], ...], most: int) -> "Ways":
        """Return them from the ways of every share, in runs of at most so many pairs where these are long."""
        rows, begin, pairs = [], 0, 0
        while begin < len(ways_K):
            ways, end = ways_K[begin], begin + 1
            while end < len(ways_K) and ways_K[end] == ways and (end + 1 - begin) * len(ways) <= most:
                end += 1
            count = (end - begin) * len(ways)
            if ways:
                rows.append(Rows(slice(begin, end), slice(pairs, pairs + count), ways))
            begin, pairs = end, pairs + count
        runs = [np.zeros((3, 0), dtype=np.int64)]
        for each in rows:
            numbers, ways_Z = np.arange(each.shares.start, each.shares.stop), np.array(each.ways_Z)
            columns = np.broadcast_arrays(numbers[:, None], np.arange(len(ways_Z)), ways_Z)
            runs.append(np.stack([column.reshape(-1) for column in columns]))
        share_J, way_J, shard_J = np.concatenate(runs, axis=1)
        return cls(zero, tuple(rows), share_J, way_J, shard_J)
