"""Print how fast flows on a fabric are solved, and what coalescing completions costs in accuracy.

    python benchmarks/flows.py

Wall seconds of this machine, the best of three after one warm-up where a run is short.
"""

import time
from collections.abc import Callable
from typing import TypeVar

import numpy as np
from msgspec.structs import replace

from traincast.fabric.contention import network_factor
from traincast.fabric.flows import finish_times, rates
from traincast.fabric.graph import FabricGraph, build_fabric
from traincast.fabric.patterns import flows_of
from traincast.hardware.clusters import load_cluster
from traincast.hardware.fabric import FabricSpec

T = TypeVar("T")
GIB = 2**30


def timed(run: Callable[[], T], times: int = 3) -> tuple[float, T]:
    """Return the least wall time of some runs, and the result."""
    best, result = np.inf, run() if times > 1 else None
    for _ in range(times):
        start = time.perf_counter()
        result = run()
        best = min(best, time.perf_counter() - start)
    if result is None:
        raise RuntimeError("nothing ran")
    return best, result


def fabric(gpus: int) -> FabricGraph:
    """Return a rail-optimised fabric with hashed routes."""
    spec = FabricSpec(kind="rail-optimised", nodes_per_leaf=32, routing="ecmp")
    return build_fabric(replace(load_cluster("h100"), fabric=spec), gpus)


def ring_all_reduce_s(graph: FabricGraph, ranks: int, size_bytes: float) -> float:
    """Return the time of a ring all-reduce: its steps are alike, so that one is solved."""
    flows = flows_of("ring", np.arange(ranks), graph.gpus_per_node)
    channels = len(flows.source_F) // (ranks // graph.gpus_per_node)
    routes = graph.routes(flows.source_F, flows.target_F)
    step = finish_times(routes, np.full(len(routes), size_bytes / ranks / channels), graph.capacity_L)
    return float(2 * (ranks - 1) * step.max())


def random_flows(gpus: int, flows: int) -> None:
    """Print one solve, and all completions at several tolerances."""
    rng = np.random.default_rng(0)
    graph = fabric(gpus)
    source = np.arange(flows) % gpus
    target = (source + rng.integers(1, gpus, flows)) % gpus
    routing_s, routes = timed(lambda: graph.routes(source, target), 1)
    solve_s, _ = timed(lambda: rates(routes, graph.capacity_L, engine="kernel"), 2)
    print(f"{flows} random flows, {gpus} GPUs, {len(graph.capacity_L)} links:")
    print(f"  routes {routing_s:.3f} s, one solve {solve_s:.3f} s")
    sizes = rng.uniform(0.2, 1.8, flows) * GIB
    exact = finish_times(routes, sizes, graph.capacity_L) if flows <= 10_000 else None
    for tolerance in (0.2, 0.05, 0.02):
        wall_s, ends = timed(lambda each=tolerance: finish_times(routes, sizes, graph.capacity_L, each), 1)
        text = f"  unequal sizes, tolerance {tolerance:4.0%}: {wall_s:.2f} s"
        if exact is not None:
            error, mean = ends.max() / exact.max() - 1, np.mean(np.abs(ends / exact - 1))
            text += f", error of the last end {error:+.2%}, mean of all {mean:.2%}"
        print(text)


def main() -> None:
    """Print all of it."""
    graph = fabric(1024)
    wall_s, end_s = timed(lambda: ring_all_reduce_s(graph, 1024, GIB))
    print(f"1024-rank 1 GiB ring all-reduce: {wall_s * 1e3:.2f} ms to solve, {end_s * 1e3:.2f} ms simulated")
    build_s, _ = timed(lambda: fabric(16384))
    print(f"fabric of 16384 GPUs: {build_s * 1e3:.0f} ms to build")
    groups = [np.arange(local, 1024, 8) for local in range(8)]
    wall_s, _ = timed(lambda: network_factor("ring", groups, graph))
    print(f"slowdown of 8 rings over 128 nodes at once: {wall_s * 1e3:.2f} ms")
    wall_s, _ = timed(lambda: network_factor("all-to-all", list(np.arange(1024).reshape(16, 64)), graph))
    print(f"slowdown of 16 all-to-alls of 64 GPUs at once: {wall_s * 1e3:.0f} ms")
    for gpus, flows in ((1024, 8192), (16384, 131_072), (16384, 1_000_000)):
        random_flows(gpus, flows)


if __name__ == "__main__":
    main()
