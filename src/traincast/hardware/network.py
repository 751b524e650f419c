"""A network as vertices in tiers and directed links, or as a product of dimensions; what can be told at a glance.

The dimensions are those of ASTRA-sim's analytical backends.

Letters: V vertices, L links, W GPUs (vertices 0 to W-1, tier 0).
"""

import math
from collections.abc import Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt
from msgspec import Struct

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

_PLURALS = {"leaf": "leaves", "switch": "switches", "NVSwitch": "NVSwitches"}


class Network(Struct, frozen=True, kw_only=True, dict=True):
    """Vertices and directed links.

    A link from a vertex to itself is a limit on the vertex: what all its ports carry together; on a
    GPU, what its NICs do.
    """

    tier_names: tuple[str, ...]
    """From the GPUs up; the second tier is the switch inside a node."""
    tier_V: IntArray
    source_L: IntArray
    target_L: IntArray
    capacity_L: FloatArray
    """Bytes per second."""
    gpus_per_node: int

    @cached_property
    def gpus(self) -> int:
        """GPUs of the network, W."""
        return int(np.count_nonzero(self.tier_V == 0))

    @cached_property
    def _number_in_tier_V(self) -> IntArray:
        """How many vertices of its tier come before each: names are asked of a hundred thousand links at once."""
        number_V = np.zeros(len(self.tier_V), dtype=np.int64)
        for tier in range(len(self.tier_names)):
            in_tier = np.flatnonzero(self.tier_V == tier)
            number_V[in_tier] = np.arange(len(in_tier))
        return number_V

    @property
    def counts(self) -> dict[str, int]:
        """Vertices of each tier by its name, and directed links."""
        vertices = np.bincount(self.tier_V, minlength=len(self.tier_names)).tolist()
        links = int(np.count_nonzero(self.source_L != self.target_L))
        return {
            **{_PLURALS.get(name, f"{name}s"): count for name, count in zip(self.tier_names, vertices, strict=True)},
            "links": links,
        }

    @property
    def oversubscription(self) -> dict[str, float]:
        """What comes from below over what goes up or across, for each tier of switches that has both."""
        low_L, high_L = self.tier_V[self.source_L], self.tier_V[self.target_L]
        found = {}
        for tier in range(2, len(self.tier_names)):
            down = self.capacity_L[(low_L < tier) & (high_L == tier)].sum()
            up = self.capacity_L[(low_L == tier) & (high_L >= tier) & (self.source_L != self.target_L)].sum()
            if down > 0 and up > 0:
                found[self.tier_names[tier]] = float(down / up)
        return found

    @property
    def bisection_bytes_per_s(self) -> float:
        """What the first half of the GPUs can send to the second half.

        Notes
        -----
        The least of the cuts by tier: around the first half and the switches, up to a tier, below
        which there is nothing but GPUs of that half. Exact where all switches of a tier are alike.
        """
        first = np.zeros(len(self.tier_V), dtype=bool)
        second = np.zeros(len(self.tier_V), dtype=bool)
        half = self.gpus // 2
        first[:half], second[half : self.gpus] = True, True
        for tier in range(1, len(self.tier_names)):
            up_L = (self.tier_V[self.target_L] == tier) & (self.tier_V[self.source_L] < tier)
            for side in (first, second):
                side[self.target_L[up_L][side[self.source_L[up_L]]]] = True
        pure = first & ~second
        cuts = []
        for tier in range(len(self.tier_names)):
            inside = pure & (self.tier_V <= tier)
            cuts.append(self.capacity_L[inside[self.source_L] & ~inside[self.target_L]].sum())
        return float(min(cuts))

    @property
    def cut_off_gpus(self) -> IntArray:
        """GPUs from which nothing leads out of their node; none where there is one node only."""
        gpus, source, target = self.gpus, self.source_L, self.target_L
        if gpus <= self.gpus_per_node:
            return np.zeros(0, dtype=np.int64)
        leads_out_V = self.tier_V > 1
        # A switch inside the node may have links of its own to others.
        leads_out_V[source[(source >= gpus) & (target >= gpus) & (source != target)]] = True
        if len(self.tier_names) == 1:
            leads_out_V[:] = True
        has_way = np.zeros(gpus, dtype=bool)
        has_way[source[(source < gpus) & leads_out_V[target]]] = True
        return np.flatnonzero(~has_way)

    def vertex_name(self, vertex: int) -> str:
        """Return what people call a vertex: ``leaf 3``."""
        return f"{self.tier_names[self.tier_V[vertex]]} {self._number_in_tier_V[vertex]}"

    def link_name(self, link: int) -> str:
        """Return what people call a link: ``leaf 3 -> spine 0``."""
        source, target = int(self.source_L[link]), int(self.target_L[link])
        if source == target:
            which = "the NIC" if self.tier_V[source] == 0 else "all NICs"
            return f"{which} of {self.vertex_name(source)}"
        return f"{self.vertex_name(source)} -> {self.vertex_name(target)}"


SHAPES = ("Ring", "FullyConnected", "Switch")


class Dimension(Struct, frozen=True):
    """GPUs that differ in one coordinate only, and how they are joined."""

    shape: str
    """One of `SHAPES`; a ring goes both ways."""
    size: int
    """GPUs along it."""
    link_bytes_per_s: float
    """Rate of each link and direction."""

    @property
    def links(self) -> int:
        """Directed links among the GPUs of one line, or to and from their switch."""
        if self.size == 1:
            return 0
        return {"Ring": 2 * self.size, "FullyConnected": self.size * (self.size - 1), "Switch": 2 * self.size}[
            self.shape
        ]

    @property
    def bisection_bytes_per_s(self) -> float:
        """What one half of a line can send to the other."""
        half = self.size // 2
        cut = {"Ring": 2, "FullyConnected": half * (self.size - half), "Switch": half}[self.shape]
        return cut * self.link_bytes_per_s


def bisection_bytes_per_s(dimensions: Sequence[Dimension]) -> float:
    """Return what one half of the GPUs can send to the other, cut across the weakest dimension."""
    gpus = math.prod(each.size for each in dimensions)
    return min((gpus // each.size * each.bisection_bytes_per_s for each in dimensions if each.size > 1), default=0.0)
