"""Level 1: a tile/wave roofline with a few constants per (GPU, family, dtype).

::

    time      = kernels * floor + max(compute, memory) + unhidden * min(compute, memory)
    compute   = waves * flops of a tile / (peak / SMs * sustained * shape efficiency)
    flops of a tile = 2 * tile m * tile n * (k + k_fill) * (1 + edge * (1 / tile m + 1 / tile n))
                      / the last factor of the largest tile
    waves     = wave * ceil(blocks / SMs) + (1 - wave) * max(blocks / SMs, 1)
    memory    = bytes / (bandwidth * sustained bandwidth)

A block computes one tile of the result, SMs take blocks in waves, and the last wave is partly
idle: `wave` says how much of that idling is real (persistent kernels and two blocks per SM
soften it). A tile starts and drains its pipeline (`k_fill`, the reduction at which half the
rate is reached) and a small tile loads more per FLOP (`edge`). The kernel takes the tile, and
the number of parts that split the reduction, with the least time. Every term rises with every
size and none is faster than the peaks.

Sources: waves and tiles as in NVIDIA's matrix multiplication background guide (tile and wave
quantisation) and NeuSight (arXiv 2407.13853, section 4); the roofline itself is Williams,
Waterman and Patterson, 2009.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct

from traincast.estimate.operators.constants import FamilyConstants
from traincast.estimate.operators.families import FP32_BYTES, Tiling, Work
from traincast.shipped import constant
from traincast.workload.ops import FloatArray, IntArray

GEMM_TILES = ((256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64))
"""Tiles of result that libraries' matrix kernels compute per block (names of cuBLAS and CUTLASS kernels)."""
ATTENTION_ROWS = (128, 64)
"""Queries that a block of an attention kernel works on (FlashAttention-2 and -3, cuDNN)."""
_LEAST_EDGE = min(1.0 / tile_m + 1.0 / tile_n for tile_m, tile_n in GEMM_TILES)
SPLITS = (1, 2, 4, 8)
"""Into how many parts a kernel may split the reduction."""


class WorkColumns(NamedTuple):
    """The work of many calls of one family as columns."""

    flops_N: FloatArray
    bytes_N: FloatArray
    batch_N: FloatArray
    m_N: FloatArray
    n_N: FloatArray
    k_N: FloatArray
    rounds_N: FloatArray
    efficiency_N: FloatArray
    kernels_N: FloatArray
    aligned_N: FloatArray
    coordinates_ND: FloatArray
    depths_N22: FloatArray
    """Of attention sizes of heads, each with how often it counts in n."""
    ragged_N2: FloatArray
    """1 for the side, m or k, whose size differs from one of the batch to the next."""
    whole_n: bool
    """A block computes whole rows of the result (attention)."""
    tiled: bool

    def select(self, calls: IntArray) -> "WorkColumns":
        """Return the work of some of the calls."""
        chosen: dict[str, Any] = {
            name: each[calls] for name, each in self._asdict().items() if isinstance(each, np.ndarray)
        }
        return self._replace(**chosen)


class Machine(NamedTuple):
    """What the roofline needs of a GPU."""

    peak_flops_per_s: float
    """Peak that sustained rates are shares of; 0 where only memory can bind."""
    bandwidth_bytes_per_s: float
    sms: int | None
    matrix_width: int | None = None
    """Rows and columns of its matrix unit, to which both sides of a matrix that it holds are filled up."""
    group_rows: int | None = None
    """Rows of a tile of grouped GEMMs, which computes a tile again for every group that has rows in it."""
    units_flops_per_s: float | None = None
    """Peak of the units that do the work, where its rate is a multiple of what others do."""

    @property
    def bound_flops_per_s(self) -> float:
        """Peak that no kernel beats."""
        return self.units_flops_per_s or self.peak_flops_per_s


class Parts(Struct, frozen=True):
    """Times of calls in seconds and what they are made of, as columns."""

    time_N: FloatArray
    compute_N: FloatArray
    memory_N: FloatArray
    latency_N: FloatArray
    tile_N: IntArray
    """Position of the chosen tile; meaningless where the work has none."""
    split_N: IntArray
    """Parts of the reduction."""
    blocks_N: FloatArray
    waves_N: FloatArray
    """Waves of blocks that are paid."""


_NO_DEPTHS = ((0.0, 0), (0.0, 0))
_NO_TILES = Tiling(batch=1, m=1, n=1, k=1)


def columns_of(works: Sequence[Work]) -> WorkColumns:
    """Return the columns of works of one family, which all have a tiling or all have none."""
    tilings = [work.tiling or _NO_TILES for work in works]
    tiles = [(each.batch, each.m, each.n, each.k, each.rounds) for each in tilings]
    batch_N, m_N, n_N, k_N, rounds_N = np.array(tiles, np.float64).T.copy()
    others = [(each.flops, each.bytes_moved, each.efficiency, each.kernels, each.aligned) for each in works]
    flops_N, bytes_N, efficiency_N, kernels_N, aligned_N = np.array(others, np.float64).T.copy()
    return WorkColumns(
        flops_N=flops_N,
        bytes_N=bytes_N,
        batch_N=batch_N,
        m_N=m_N,
        n_N=n_N,
        k_N=k_N,
        rounds_N=rounds_N,
        efficiency_N=efficiency_N,
        kernels_N=kernels_N,
        aligned_N=aligned_N,
        coordinates_ND=np.array([work.coordinates for work in works], np.float64),
        depths_N22=np.array([each.depths or _NO_DEPTHS for each in tilings], np.float64),
        ragged_N2=np.array([[each.ragged == side for side in "mk"] for each in tilings], np.float64),
        whole_n=any(each.whole_n for each in tilings),
        tiled=works[0].tiling is not None,
    )


def roofline(columns: WorkColumns, machine: Machine, constants: FamilyConstants) -> Parts:
    """Return the times of calls of one family on one GPU, which sustains a share of its peaks."""
    memory_N = columns.bytes_N / (machine.bandwidth_bytes_per_s * constants.memory)
    latency_N = columns.kernels_N * constants.floor_s
    if columns.tiled:
        return _best(columns, machine, constants, memory_N, latency_N)
    compute_N, ones = np.zeros(len(memory_N)), np.ones(len(memory_N))
    if machine.peak_flops_per_s:
        compute_N = columns.flops_N / (machine.peak_flops_per_s * constants.compute * columns.efficiency_N)
    time_N, no_tile_N = _total(compute_N, memory_N, latency_N, constants), np.zeros(len(memory_N), np.int64)
    return Parts(time_N, compute_N, memory_N, latency_N, no_tile_N, no_tile_N + 1, ones, ones)


def least_s(columns: WorkColumns, machine: Machine) -> FloatArray:
    """Return the seconds that no kernel can beat: at the peaks, with nothing else."""
    memory_N = columns.bytes_N / machine.bandwidth_bytes_per_s
    if not machine.peak_flops_per_s:
        return memory_N
    return np.maximum(memory_N, columns.flops_N / machine.bound_flops_per_s)


def tile_of(columns: WorkColumns, position: int) -> tuple[int, int]:
    """Return the tile at a position; 0 for n where a block computes whole rows."""
    return (ATTENTION_ROWS[position], 0) if columns.whole_n else GEMM_TILES[position]


def _total(
    compute_N: FloatArray, memory_N: FloatArray, latency_N: FloatArray, constants: FamilyConstants
) -> FloatArray:
    return latency_N + np.maximum(compute_N, memory_N) + constants.unhidden * np.minimum(compute_N, memory_N)


def _best(
    columns: WorkColumns, machine: Machine, constants: FamilyConstants, memory_N: FloatArray, latency_N: FloatArray
) -> Parts:
    """Return the parts with the tile and split of least time for each call."""
    columns = _filled_up(_ragged(columns, machine.group_rows), machine.matrix_width)
    tile_m_C1, tile_n_C1, split_C1, position_C = constant(_choices, whole_n=columns.whole_n)
    sms, wave = machine.sms or 1, constants.wave if machine.sms else 0.0
    if columns.whole_n:
        # Attention: a block has whole rows, and the edge is the softmax, as so many columns more per score.
        width_CN, across_CN, edge_C1 = columns.n_N + constants.edge, np.ones(len(columns.n_N)), np.ones((1, 1))
    else:
        width_CN, across_CN = tile_n_C1, np.ceil(columns.n_N / tile_n_C1)
        # The sustained share is that of the largest tile.
        edge_C1 = (1.0 + constants.edge * (1.0 / tile_m_C1 + 1.0 / tile_n_C1)) / (1.0 + constants.edge * _LEAST_EDGE)
    blocks_CN = columns.batch_N * np.ceil(columns.m_N / tile_m_C1) * across_CN * split_C1
    filled_CN = blocks_CN / sms
    waves_CN = wave * np.ceil(filled_CN) + (1.0 - wave) * np.maximum(filled_CN, 1.0 if machine.sms else 0.0)
    blocks_CN, waves_CN = blocks_CN * columns.rounds_N, waves_CN * columns.rounds_N
    tile_flops_CN = 2.0 * tile_m_C1 * width_CN * (columns.k_N / split_C1 + constants.k_fill) * edge_C1
    rate_N = machine.peak_flops_per_s / sms * constants.compute * columns.efficiency_N
    rate_N = rate_N * np.where(columns.aligned_N > 0, 1.0, constants.unaligned)
    compute_CN = waves_CN * tile_flops_CN / rate_N
    results_N = FP32_BYTES * columns.rounds_N * columns.batch_N * columns.m_N * columns.n_N
    partial_CN = np.where(split_C1 > 1, 2.0 * split_C1, 0.0) * results_N
    traffic_CN = memory_N + partial_CN / (machine.bandwidth_bytes_per_s * constants.memory)
    time_CN = _total(compute_CN, traffic_CN, latency_N, constants)
    best_N = np.argmin(time_CN, axis=0)
    each = np.arange(len(memory_N))
    return Parts(
        time_N=time_CN[best_N, each],
        compute_N=compute_CN[best_N, each],
        memory_N=traffic_CN[best_N, each],
        latency_N=latency_N,
        tile_N=position_C[best_N],
        split_N=split_C1[best_N, 0].astype(np.int64),
        blocks_N=blocks_CN[best_N, each],
        waves_N=waves_CN[best_N, each],
    )


def _filled_up(columns: WorkColumns, width: int | None) -> WorkColumns:
    """Return the work with sides of matrices filled up to those of a matrix unit; of attention those of heads."""
    if width is None:
        return columns

    def filled(size: FloatArray) -> FloatArray:
        return np.ceil(size / width) * width

    if columns.whole_n:
        return columns._replace(n_N=(filled(columns.depths_N22[..., 0]) * columns.depths_N22[..., 1]).sum(axis=1))
    return columns._replace(n_N=filled(columns.n_N), k_N=filled(columns.k_N))


def _ragged(columns: WorkColumns, group_rows: int | None) -> WorkColumns:
    """Return the work of groups with the tiles that two of them have rows in, which are computed for both."""
    if group_rows is None:
        return columns
    again_N = group_rows * (1.0 - 1.0 / columns.batch_N)
    ragged_m_N, ragged_k_N = columns.ragged_N2.T
    return columns._replace(m_N=columns.m_N + again_N * ragged_m_N, k_N=columns.k_N + again_N * ragged_k_N)


def _choices(*, whole_n: bool) -> tuple[FloatArray, FloatArray, FloatArray, IntArray]:
    """Return rows, columns and split of every kernel to choose from, and the position of its tile."""
    tiles = [(rows, 1) for rows in ATTENTION_ROWS] if whole_n else GEMM_TILES
    splits = (1,) if whole_n else SPLITS
    every = [(tile_m, tile_n, split, place) for place, (tile_m, tile_n) in enumerate(tiles) for split in splits]
    columns = np.array(every, np.float64)
    return columns[:, :1], columns[:, 1:2], columns[:, 2:3], columns[:, 3].astype(np.int64)
