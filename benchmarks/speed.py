"""Print how fast a whole simulation and its engine are, each next to a baseline of the same run.

    python benchmarks/speed.py

Times are CPU seconds (best of the repeats), so that a busy machine disturbs them little; ratios
are what to compare between machines.
"""

import resource
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from traincast import api
from traincast.engine.graph import Graph, build_graph
from traincast.engine.reference import Times, run_reference
from traincast.estimate.collectives import estimate_collectives
from traincast.fabric.placement import Placement
from traincast.hardware.clusters import load_cluster
from traincast.workload.words import Operation

EXAMPLE = Path(__file__).parent.parent / "examples" / "aicb_gpt_405b_1024gpu.txt"
Engine = Callable[[Graph, np.ndarray], Times]


def child_cpu_s(arguments: list[str], repeats: int = 3) -> tuple[float, int]:
    """Return the least CPU time of a child process in seconds, and its peak memory in MiB."""
    best = float("inf")
    for _ in range(repeats):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        best = min(best, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return best, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024


def best_cpu_s(call: Callable[[], object], repeats: int = 3) -> float:
    """Return the least CPU time of a call in seconds."""
    best = float("inf")
    for _ in range(repeats):
        start = time.process_time()
        call()
        best = min(best, time.process_time() - start)
    return best


def visit_in_order(graph: Graph, duration_s_N: np.ndarray) -> float:
    """Baseline of the engine: one pass over the operations in file order, adding up durations."""
    total = 0.0
    for duration in duration_s_N.tolist():
        total = max(total, total + duration)
    return total if len(graph) else 0.0


def whole_process() -> None:
    """Time the command as a user runs it."""
    command = ["-m", "traincast.cli", "simulate", str(EXAMPLE), "--cluster", "h100", "--quiet"]
    bare, _ = child_cpu_s(["-c", "import numpy"])
    seconds, _ = child_cpu_s(command)
    print(f"sample 000, whole process       {seconds:6.2f} s    {seconds / bare:5.1f} x 'import numpy' ({bare:.2f} s)")
    unfolded, peak = child_cpu_s([*command, "--unfold"], repeats=1)
    print(f"sample 000, all 1,024 ranks     {unfolded:6.2f} s    {unfolded / seconds:5.1f} x folded; peak {peak} MiB")
    helped, _ = child_cpu_s(["-m", "traincast.cli", "--help"])
    bare, _ = child_cpu_s(["-c", "pass"])
    print(f"traincast --help                {helped:6.3f} s    {helped / bare:5.1f} x bare Python ({bare:.3f} s)")


def engines() -> None:
    """Time the engines on the operations of a longer step."""
    result = api.simulate(EXAMPLE, cluster="h100", microbatches=128)
    program, timeline = result.program, result.timeline
    if program is None or timeline is None:
        return
    graph = build_graph(program.stream_N, program.edge_src_E, program.edge_dst_E, program.rendezvous_N)
    duration_s_N, ops = timeline.duration_s_N, len(program)
    base = best_cpu_s(lambda: visit_in_order(graph, duration_s_N))
    choices: list[tuple[str, Engine]] = [("reference (Python)", run_reference)]
    if find_spec("numba"):
        from traincast.engine.kernel import run_kernel

        run_kernel(graph, duration_s_N)
        choices.append(("kernel (numba)", run_kernel))
    for name, engine in choices:
        seconds = best_cpu_s(lambda engine=engine: engine(graph, duration_s_N))  # type: ignore[misc]
        rate = ops / seconds / 1e6
        print(f"engine, {name:22}  {rate:6.2f} M ops/s  {seconds / base:5.2f} x a bare loop over {ops:,} durations")


def collectives() -> None:
    """Time a million estimates of all-reduces over 512 different groups."""
    cluster, rng = load_cluster("h100"), np.random.default_rng(0)
    groups = [Placement((members,) * nodes) for members in range(1, 9) for nodes in range(1, 65)]
    which, size_bytes = rng.integers(0, len(groups), 10**6), rng.integers(1, 2**33, 10**6)
    base = best_cpu_s(lambda: np.sort(size_bytes))
    seconds = best_cpu_s(lambda: estimate_collectives(Operation.ALL_REDUCE, size_bytes, groups, cluster, which))
    print(f"1e6 collectives                 {seconds:6.2f} s    {seconds / base:5.1f} x sorting as many sizes")


if __name__ == "__main__":
    whole_process()
    engines()
    collectives()
