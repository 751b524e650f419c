"""Deterministic choices: the hash by which switches spread flows over equal paths."""

import numpy as np
import numpy.typing as npt

UintArray = npt.NDArray[np.uint64]
IntArray = npt.NDArray[np.int64]


def mixed(*parts: npt.NDArray[np.integer]) -> UintArray:
    """Return a hash of arrays, element by element; the order of the parts matters.

    Notes
    -----
    Source: the output function of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014), applied
    after each part.
    """
    state = np.zeros(np.broadcast_shapes(*(part.shape for part in parts)), dtype=np.uint64)
    for part in parts:
        state = (state ^ part.astype(np.uint64)) + np.uint64(0x9E3779B97F4A7C15)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        state ^= state >> np.uint64(31)
    return state


def choose(entropy: UintArray, switch_tier: int, ways: npt.ArrayLike) -> IntArray:
    """Return one of so many ways for each flow; every tier of switches hashes on its own.

    Parameters
    ----------
    entropy : uint64 array
        What tells flows apart.
    switch_tier : int
        Which choice on the way it is.
    ways : int, or int array
        Equal paths to choose from.
    """
    tier = np.full(entropy.shape, switch_tier, dtype=np.uint64)
    return (mixed(entropy, tier) % np.asarray(ways, dtype=np.uint64)).astype(np.int64)
