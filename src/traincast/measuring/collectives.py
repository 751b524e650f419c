"""The collectives of a job as ``torch.distributed`` runs them, started by torchrun; rank 0 writes.

A group of a job is known by how many of its members sit on each node; the first GPUs of the first nodes play it, alone.
As in nccl-tests a repetition is a few launches in a row over their number, and the slowest member counts.
"""

import os
import socket
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from traincast.measuring.kernels import about
from traincast.measuring.timing import CannotTimeError

_IN_A_ROW, _IN_A_ROW_LARGE, _LARGE_BYTES = 20, 5, 16 << 20
"""Launches of a repetition; fewer of a large message, whose time hides what a wait of the host adds."""
_PATIENCE = timedelta(minutes=30)
_ELEMENT_BYTES = 2


def per_node_of(text: str) -> list[int]:
    """Return the members on each node that ``4x8+2`` says: 8 on each of 4 nodes, 2 on a further one."""
    found: list[int] = []
    for part in text.split("+"):
        nodes, _, members = part.rpartition("x")
        found += [int(members)] * int(nodes or 1)
    return found


class TorchCollectives:
    """A `Backend` for the collectives of all ranks of a torchrun."""

    def __init__(self, torch: Any, backend: str = "nccl", device: str = "cuda") -> None:  # noqa: ANN401
        self.torch, self.dist, self.device = torch, torch.distributed, device
        if device == "cuda":
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        self.dist.init_process_group(backend, timeout=_PATIENCE)
        self.rank, self.world = self.dist.get_rank(), self.dist.get_world_size()
        self.nodes = self._nodes()
        self._groups: dict[tuple[int, ...], Any] = {}

    @property
    def writes(self) -> bool:
        """Whether this is rank 0."""
        return bool(self.rank == 0)

    def about(self) -> Mapping[str, str]:
        """Return GPU, versions, driver and clocks of this rank."""
        return about(self.torch)

    def prepare(self, cells: Mapping[str, str]) -> tuple[Callable[[], object], int]:
        """Make the buffers of a collective on its members, and say how often it is launched in a row.

        Other ranks have nothing to launch.
        """
        members = self.members(per_node_of(cells["per_node"]))
        group, size = self._group(members), int(cells["size_bytes"])
        launch: Callable[[], object] = lambda: None  # noqa: E731
        reason = ""
        if self.rank in members:
            try:
                launch = self._launch(cells["op"], size, members, group)
                launch()
                self._synchronize()
            except CannotTimeError as why:
                reason = str(why)
            except self.torch.OutOfMemoryError:
                reason = "out of memory"
        reasons: list[Any] = [None] * self.world
        self.dist.all_gather_object(reasons, reason)
        found = next((each for each in reasons if each), "")
        if found:
            raise CannotTimeError(found)
        return launch, _IN_A_ROW if size < _LARGE_BYTES else _IN_A_ROW_LARGE

    def times_s(self, launch: tuple[Callable[[], object], int], repeats: int) -> list[float]:
        """Return the time of each repetition on the slowest member."""
        times, (once, in_a_row) = [], launch
        for _ in range(repeats):
            self.dist.barrier()
            self._synchronize()
            begin = time.perf_counter()
            for _ in range(in_a_row):
                once()
            self._synchronize()
            times.append((time.perf_counter() - begin) / in_a_row)
        slowest = self.torch.tensor(times, dtype=self.torch.float64, device=self.device)
        self.dist.all_reduce(slowest, self.dist.ReduceOp.MAX)
        return [float(each) for each in slowest.tolist()]

    def host_s(self, launch: object) -> float | None:  # noqa: ARG002
        """Return None: ranks that wait for each other say nothing about the host."""
        return None

    def release(self) -> None:
        """Give the buffers of the last task back to the GPU."""
        if self.device == "cuda":
            self.torch.cuda.empty_cache()

    def agreed(self, value: Any) -> Any:  # noqa: ANN401
        """Return the value of rank 0."""
        values = [value]
        self.dist.broadcast_object_list(values, 0)
        return values[0]

    def close(self) -> None:
        """End the process groups."""
        self.dist.destroy_process_group()

    def members(self, per_node: list[int]) -> tuple[int, ...]:
        """Return the ranks that play a group: the first of the first nodes that are large enough."""
        free = sorted(self.nodes, key=len, reverse=True)
        if len(free) < len(per_node) or any(len(ranks) < count for ranks, count in zip(free, per_node, strict=False)):
            here = "+".join(str(len(ranks)) for ranks in free)
            raise CannotTimeError(
                f"needs {sum(per_node)} GPUs, {per_node[0]} on each of {len(per_node)} node(s); torchrun started {here}"
            )
        return tuple(sorted(rank for ranks, count in zip(free, per_node, strict=False) for rank in ranks[:count]))

    def _nodes(self) -> list[list[int]]:
        """Return the ranks of each node."""
        names: list[Any] = [None] * self.world
        self.dist.all_gather_object(names, socket.gethostname())
        return [[rank for rank, name in enumerate(names) if name == each] for each in dict.fromkeys(names)]

    def _group(self, members: tuple[int, ...]) -> Any:  # noqa: ANN401
        """Return the process group of some ranks; every rank takes part in making it."""
        if members not in self._groups:
            self._groups[members] = self.dist.new_group(list(members), timeout=_PATIENCE)
        return self._groups[members]

    def _launch(self, op: str, size_bytes: int, members: tuple[int, ...], group: Any) -> Callable[[], object]:  # noqa: ANN401
        """Return one collective; `size_bytes` is that of the whole tensor where the members have pieces of it."""
        dist, count = self.dist, len(members)
        piece = max(1, size_bytes // count // _ELEMENT_BYTES)
        elements = max(1, size_bytes // _ELEMENT_BYTES)

        def buffer(length: int) -> Any:  # noqa: ANN401
            return self.torch.ones(length, dtype=self.torch.bfloat16, device=self.device)

        if op in ("all_reduce", "broadcast", "reduce"):
            whole = buffer(elements)
            return {
                "all_reduce": lambda: dist.all_reduce(whole, group=group),
                "broadcast": lambda: dist.broadcast(whole, members[0], group=group),
                "reduce": lambda: dist.reduce(whole, members[0], group=group),
            }[op]
        if op in ("all_gather", "reduce_scatter", "all_to_all"):
            whole, part = buffer(piece * count), buffer(piece)
            if op == "all_gather":
                return lambda: dist.all_gather_into_tensor(whole, part, group=group)
            if op == "reduce_scatter":
                return lambda: dist.reduce_scatter_tensor(part, whole, group=group)
            received = buffer(piece * count)
            return lambda: dist.all_to_all_single(received, whole, group=group)
        if op == "send_recv":
            message, ends = buffer(elements), members[:2]
            return lambda: (dist.send if self.rank == ends[0] else dist.recv)(message, ends[self.rank == ends[0]])
        raise CannotTimeError(f"{op} is not timed with torch.distributed")

    def _synchronize(self) -> None:
        if self.device == "cuda":
            self.torch.cuda.synchronize()
