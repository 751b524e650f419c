"""Fabrics that are products of dimensions: tori, and what ASTRA-sim's network files describe.

A route corrects one coordinate after the other, the first dimension first, and takes the
shorter way round a ring; half-way round, even coordinates go up and odd ones down.

Letters: F flows, W GPUs.
"""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from traincast.errors import ConfigError
from traincast.fabric.graph import FabricGraph, IntArray, UintArray, check_links, padded, topology
from traincast.hardware.cluster import Cluster
from traincast.hardware.fabric import FabricSpec
from traincast.hardware.network import Dimension, Network

_Columns = list[tuple[npt.NDArray[np.bool_], npt.ArrayLike]]


class _Line(Struct, frozen=True, kw_only=True):
    """One dimension in its place: the links of GPU g are `ways` in number and start at ``first + g * ways``."""

    dimension: Dimension
    stride: int
    """GPUs between neighbours."""
    first: int

    @property
    def ways(self) -> int:
        """Links kept for each GPU: up and down, or one to each other GPU of the line (itself left out)."""
        if self.dimension.size == 1:
            return 0
        return self.dimension.size - 1 if self.dimension.shape == "FullyConnected" else 2

    def at(self, gpu: IntArray) -> IntArray:
        """Return the coordinate."""
        return gpu // self.stride % self.dimension.size

    def moved(self, gpu: IntArray, coordinate: IntArray) -> IntArray:
        """Return the GPU with another coordinate in this dimension."""
        return gpu + (coordinate - self.at(gpu)) * self.stride

    @property
    def longest(self) -> int:
        """Links between the two GPUs that are farthest from each other."""
        return {"Ring": self.dimension.size // 2, "FullyConnected": 1, "Switch": 2}[self.dimension.shape]

    def hops(self, gpu: IntArray, target: IntArray) -> _Columns:
        """Return the hops from GPUs to where they have the coordinate of the target."""
        start, end, size = self.at(gpu), self.at(target), self.dimension.size
        if self.dimension.shape == "Switch":
            there = self.moved(gpu, end)
            return [(start != end, self.first + gpu * 2), (start != end, self.first + there * 2 + 1)]
        ahead = (end - start) % size
        if self.dimension.shape == "FullyConnected":
            return [(start != end, self.first + gpu * self.ways + ahead - 1)]
        down = (2 * ahead > size) | ((2 * ahead == size) & (start % 2 == 1))
        steps, sign = np.where(down, size - ahead, ahead), np.where(down, -1, 1)
        return [
            (step < steps, self.first + self.moved(gpu, (start + sign * step) % size) * 2 + down)
            for step in range(int(steps.max(initial=0)))
        ]


@topology("torus", reads=("link_bytes_per_s",), needs=("dims",), fixed=True)
def torus(cluster: Cluster, spec: FabricSpec, world_size: int) -> FabricGraph:
    """Build rings of GPUs along two or three dimensions, without switches; every GPU is a node of its own.

    Raises
    ------
    ConfigError
        If the world is larger than the torus.
    """
    if math.prod(spec.dims) < world_size:
        raise ConfigError(f"hold {math.prod(spec.dims)} GPUs, fewer than the {world_size} of the world", "fabric.dims")
    rate = spec.link_bytes_per_s or cluster.inter.bandwidth_bytes_per_s
    dimensions = tuple(Dimension("Ring", size, rate) for size in spec.dims)
    return dimensions_fabric(dimensions, gpus_per_node=1, description="torus " + "x".join(map(str, spec.dims)))


def dimensions_fabric(dimensions: Sequence[Dimension], *, gpus_per_node: int, description: str) -> FabricGraph:
    """Return the fabric of GPUs joined along several dimensions, the first one along consecutive ranks.

    A GPU alone gets between nodes what the slowest link of its outer dimensions gives.
    """
    lines, stride, first = [], 1, 0
    gpus = math.prod(each.size for each in dimensions)
    for each in dimensions:
        lines.append(_Line(dimension=each, stride=stride, first=first))
        stride, first = stride * each.size, first + gpus * lines[-1].ways

    check_links(first, f"the fabric ({description}) of {gpus:,} GPUs")

    def route(source: IntArray, target: IntArray, entropy: UintArray) -> IntArray:  # noqa: ARG001 one path for all
        columns: _Columns = [(np.zeros(len(source), dtype=bool), source)]
        at = source
        for line in lines:
            columns += line.hops(at, target)
            at = line.moved(at, line.at(target))
        return padded(columns)

    outer = [line.dimension for line in lines if line.stride >= gpus_per_node and line.dimension.size > 1]
    return FabricGraph(
        description=description,
        network=_network(lines, gpus, gpus_per_node),
        router=route,
        nic_bytes_per_s=min(each.link_bytes_per_s for each in outer or dimensions),
        longest=max(1, sum(line.longest for line in lines)),
        dimensions=tuple(dimensions),
    )


def _network(lines: Sequence[_Line], gpus: int, gpus_per_node: int) -> Network:
    everyone, switches = np.arange(gpus), 0
    source, target, capacity = [], [], []
    for line in lines:
        tails = np.repeat(everyone, line.ways)
        way = np.tile(np.arange(line.ways), gpus)
        if line.dimension.shape == "Switch" and line.ways:
            groups, group = np.unique(line.moved(everyone, np.zeros_like(everyone)), return_inverse=True)
            switch = gpus + switches + np.repeat(group, 2)
            heads, tails = np.where(way == 0, switch, tails), np.where(way == 0, tails, switch)
            switches += len(groups)
        else:
            step = way + 1 if line.dimension.shape == "FullyConnected" else np.where(way == 0, 1, -1)
            heads = line.moved(tails, (line.at(tails) + step) % line.dimension.size)
        source.append(tails)
        target.append(heads)
        capacity.append(np.full(len(tails), line.dimension.link_bytes_per_s))
    return Network(
        tier_names=("GPU", "switch") if switches else ("GPU",),
        tier_V=np.repeat([0, 1], [gpus, switches]),
        source_L=np.concatenate(source),
        target_L=np.concatenate(target),
        capacity_L=np.concatenate(capacity),
        gpus_per_node=gpus_per_node,
    )
