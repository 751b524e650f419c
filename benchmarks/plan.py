"""Rate of the screen of ``traincast plan``: layouts with step and memory per second of one core.

    python benchmarks/plan.py [--seconds 60] [--limit 1e7]

The space is all that can be run of GPT-3 175B on 512 H100, global batch 1,536 (``--space full``). Timed is everything
that a screen does: the tables, the step and the memory of every layout, and choosing the best ones. Counting how many
of them differ is not part of a plan and is not timed: a layout counts only if its step or its memory differs from every
other's of the whole space by more than a share of 1e-9. Parts of blocks in which nothing fits get no steps, and do not
count. Those that differ are told by a number that is drawn from both, and of these numbers one in 64 is kept, of all
layouts alike. Ends with 1 where the rate is below the limit.

Calculon evaluates 163 to 277 layouts per second of a core (its own tool, on one core).
"""

import argparse
import sys
import time

import numpy as np

from traincast.estimate.memory import usable_bytes
from traincast.hardware.clusters import load_cluster
from traincast.job.frameworks import load_framework
from traincast.job.request import JobRequest
from traincast.model.load import load_model
from traincast.planning.screen.block import BlockPart, LayoutBlock
from traincast.planning.screen.frontier import Frontier
from traincast.planning.screen.screen import Screen
from traincast.planning.space import Space
from traincast.simulation.step import Setting
from traincast.workload.ops import IntArray

KEPT = 64
"""One in so many different layouts is counted."""


def drawn(part: BlockPart) -> IntArray:
    """Return numbers for the pairs of step and memory of a part, of which those are kept that 64 divides."""
    if not part.step_s.size:
        return np.zeros(0, np.uint64)
    steps, peaks = np.broadcast_arrays(part.step_s, part.peak_bytes)
    # 30 bits of the mantissa: what differs by less than 1e-9 is mostly the same number.
    low = np.uint64(2**22)
    key = (steps.astype(np.float64).view(np.uint64) + low // np.uint64(2)) // low
    other = (np.ascontiguousarray(peaks).view(np.uint64) + low // np.uint64(2)) // low
    mixed = key * np.uint64(0x9E3779B97F4A7C15) ^ other * np.uint64(0xC2B2AE3D27D4EB4F)
    mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(32)
    return np.unique(mixed[mixed % np.uint64(KEPT) == 0])


class Timed(Frontier):
    """Keeps the best layouts, and outside the time also how many differ."""

    def __init__(self, limit_bytes: float) -> None:
        super().__init__(limit_bytes, 400)
        self.untimed_s, self.found = 0.0, []

    def take(self, block: LayoutBlock, part: BlockPart) -> None:
        """Keep what is better, then count."""
        super().take(block, part)
        begin = time.process_time()
        self.found.append(drawn(part))
        if len(self.found) > 1000:
            self.found = [np.unique(np.concatenate(self.found))]
        self.untimed_s += time.process_time() - begin

    @property
    def distinct(self) -> int:
        """Layouts that differ in step or memory."""
        return KEPT * len(np.unique(np.concatenate(self.found)))


def main() -> None:
    """Print the rate."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=600, help="CPU seconds after which it stops")
    parser.add_argument("--limit", type=float, default=1e7, help="least layouts per second")
    given = parser.parse_args()
    cluster = load_cluster("h100")
    request = JobRequest(model=load_model("gpt3-175b"), gpus=512, global_batch=1536, seq_length=2048)
    space = Space(request=request, framework=load_framework("megatron-core-2025"), cluster=cluster, full=True)
    screen = Screen(space, Setting(cluster=cluster), usable_bytes(cluster.gpu.memory_bytes))
    frontier, begin, part = Timed(screen.limit_bytes), time.process_time(), "whole"
    for block in screen.blocks():
        frontier.add(block)
        if time.process_time() - begin - frontier.untimed_s > given.seconds:
            part = "first part of the"
            break
    spent, counted = time.process_time() - begin - frontier.untimed_s, frontier.distinct
    rate = counted / spent
    print(
        f"GPT-3 175B on 512 H100, {part} full space: {frontier.evaluated:,} layouts, {counted:,} of them distinct, "
        f"{frontier.feasible:,} fit; {spent:.1f} s of CPU, {rate:,.0f} distinct layouts/s"
    )
    print("Calculon: 163 to 277 layouts/s")
    sys.exit(rate < given.limit)


if __name__ == "__main__":
    main()
