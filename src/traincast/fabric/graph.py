"""A fabric: a network with the routes that flows take through it.

Letters: F flows, Q queue pairs, H hops, W GPUs.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from traincast.errors import ProgramError
from traincast.fabric.hashing import UintArray, mixed
from traincast.hardware.network import Network

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

Router = Callable[[IntArray, IntArray, UintArray], npt.NDArray[np.integer]]
"""Sources, destinations and what tells flows apart -> links [F, H], -1 where there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricGraph:
    """A network, its routes, and what a GPU could send if nothing were shared."""

    description: str
    """One line for people."""
    network: Network
    router: Router
    nic_bytes_per_s: float
    """What a GPU gets between nodes when it is alone."""
    longest: int
    """Links of the longest route, at most."""
    port_bytes_per_s: float | None = None
    """What the fabric has for a GPU, where the GPU cannot use all of it; None: it can."""
    node_bytes_per_s: float | None = None
    """What all GPUs of a node get between nodes; None: no limit."""
    queue_pairs: int = 1
    seed: int = 0

    @property
    def gpus_per_node(self) -> int:
        """GPUs of a node; GPU g is on node ``g // gpus_per_node``."""
        return self.network.gpus_per_node

    @property
    def capacity_L(self) -> FloatArray:
        """Bytes per second of each link."""
        return self.network.capacity_L

    def routes(
        self,
        source_F: npt.ArrayLike,
        target_F: npt.ArrayLike,
        flow_ids_F: npt.ArrayLike | None = None,
        seed: int | None = None,
    ) -> npt.NDArray[np.int32]:
        """Return the links of each flow, deterministically.

        Parameters
        ----------
        source_F, target_F : int array [F]
            GPUs.
        flow_ids_F : int array [F], optional
            What tells flows between the same GPUs apart; 0, 1, ... by default.
        seed : int, optional
            Of the hash, instead of the fabric's own.

        Returns
        -------
        int array [F * Q, H]
            The Q parts of a flow follow each other; -1 is no link. A flow from a GPU to
            itself crosses none.

        Raises
        ------
        ProgramError
            If a GPU is not part of the fabric, or cannot be reached.
        """
        source, target = np.asarray(source_F, dtype=np.int64), np.asarray(target_F, dtype=np.int64)
        ids = np.arange(len(source)) if flow_ids_F is None else np.asarray(flow_ids_F, dtype=np.int64)
        ends = np.concatenate([source, target])
        if len(ends) and not 0 <= ends.min() <= ends.max() < self.network.gpus:
            raise ProgramError(f"a flow ends at a GPU that is none of the {self.network.gpus} of the fabric")
        source, target, ids = (np.repeat(each, self.queue_pairs) for each in (source, target, ids))
        part = np.arange(len(ids)) % self.queue_pairs
        number = np.full(len(ids), self.seed if seed is None else seed)
        links_FH = self.router(source, target, mixed(number, source, target, ids, part))
        return np.ascontiguousarray(links_FH, dtype=np.int32)


def padded(columns: list[tuple[npt.NDArray[np.bool_], npt.ArrayLike]]) -> npt.NDArray[np.int64]:
    """Return routes from columns of (whether the flow takes the hop, the link); unused columns are left out."""
    used = [np.where(taken, link, -1) for taken, link in columns if taken.any()]
    if not used:
        return np.full((len(columns[0][0]), 1), -1, dtype=np.int64)
    return np.stack(used, axis=1).astype(np.int64)
