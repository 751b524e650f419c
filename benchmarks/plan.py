"""Rate of the screen of ``traincast plan``: layouts with step and memory per second of one core.

    python benchmarks/plan.py [--seconds 60] [--limit 1e6]

The space is all that can be run of GPT-3 175B on 512 H100, global batch 1,536 (``--space full``). A layout counts only
if its step or its memory differs from every other's of its block (one pipeline, one way of execution). Counting them is
not timed, all else is: tables, operators, communications, choosing the best. Ends with 1 where the rate is below the
limit.

Calculon evaluates 163 to 277 layouts per second of a core, SimuMax 3 to 7 (their own tools, on one core).
"""

import argparse
import sys
import time

import numpy as np

from traincast.estimate.memory import usable_bytes
from traincast.hardware.clusters import load_cluster
from traincast.job.frameworks import load_framework
from traincast.job.job import JobRequest
from traincast.model.load import load_model
from traincast.plan.block import Block, Frontier
from traincast.plan.screen import Screen
from traincast.plan.space import Space
from traincast.simulation.step import Setting


def distinct(block: Block) -> int:
    """Return how many layouts of a block differ in step or memory."""
    pairs = []
    for part in block.parts():
        steps = part.step_s.reshape(-1)
        peaks = np.broadcast_to(part.peak_bytes, part.step_s.shape).reshape(-1)
        own = np.isfinite(steps)
        # Sums of a share of both are as different as the pairs: they differ in their last digits.
        pairs.append(steps[own] * np.e + peaks[own] * (np.pi * 1e-12))
    return len(np.unique(np.concatenate(pairs)))


def main() -> None:
    """Print the rate."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60, help="CPU seconds after which it stops")
    parser.add_argument("--limit", type=float, default=1e6, help="least layouts per second")
    given = parser.parse_args()
    cluster = load_cluster("h100")
    request = JobRequest(model=load_model("gpt3-175b"), gpus=512, global_batch=1536, seq_length=2048)
    space = Space(request=request, framework=load_framework("megatron-core-2025"), cluster=cluster, full=True)
    screen = Screen(space, Setting(cluster=cluster), usable_bytes(cluster.gpu.memory_bytes))
    frontier, counted, spent = Frontier(screen.limit_bytes, 400), 0, 0.0
    blocks = screen.blocks()
    whole = True
    while True:
        begin = time.process_time()
        block = next(blocks, None)
        if block is None:
            break
        frontier.add(block)
        spent += time.process_time() - begin
        counted += distinct(block)
        if spent > given.seconds:
            whole = False
            break
    rate = counted / spent
    part = "whole" if whole else "first part of the"
    print(
        f"GPT-3 175B on 512 H100, {part} full space: {frontier.evaluated:,} layouts, {counted:,} of them distinct, "
        f"{frontier.feasible:,} fit; {spent:.1f} s of CPU, {rate:,.0f} distinct layouts/s"
    )
    print("Calculon: 163 to 277 layouts/s; SimuMax: 3 to 7")
    sys.exit(rate < given.limit)


if __name__ == "__main__":
    main()
