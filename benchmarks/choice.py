"""How good the layout is that ``traincast plan`` chooses, where all layouts of its space are simulated.

    python benchmarks/choice.py [--model mixtral-8x7b] [--gpus 32] [--global-batch 64] [--limit 0.01]

Every layout of the default space that fits is simulated in full, which takes minutes of CPU for some thousand of them.
Printed are the true best, what the plan chose and by how much that is slower, and the error of the screen. Ends with 1
where the chosen layout is slower than the best by more than the limit.
"""

import argparse
import sys
import time

import numpy as np
from msgspec.structs import replace

from traincast.estimate.memory import usable_bytes
from traincast.hardware.clusters import load_cluster
from traincast.job.levels import BEST
from traincast.job.request import JobRequest
from traincast.job.resolve import resolve_job
from traincast.model.load import load_model
from traincast.planning.layout import Layout
from traincast.planning.options import PlanOptions
from traincast.planning.plan import plan
from traincast.planning.screen.screen import Screen
from traincast.planning.space import Space
from traincast.planning.task import framework_of, safe_bytes
from traincast.simulation.forecast import forecast
from traincast.simulation.step import Setting


def fitting(screen: Screen) -> list[tuple[Layout, float]]:
    """Return every layout of a space that fits, with its screened step."""
    found = []
    for block in screen.blocks():
        for part in block.parts():
            steps = part.step_s.reshape(-1)
            fits = np.broadcast_to(part.peak_bytes < screen.limit_bytes, part.step_s.shape).reshape(-1)
            found += [(block.layout(part, place), float(steps[place])) for place in np.flatnonzero(fits).tolist()]
    return found


def main() -> None:
    """Simulate the space and print what the choice lost."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="mixtral-8x7b")
    parser.add_argument("--gpus", type=int, default=32)
    parser.add_argument("--global-batch", type=int, default=64)
    parser.add_argument("--limit", type=float, default=0.01, help="largest loss of the chosen layout, as a share")
    given = parser.parse_args()
    setting = Setting(cluster=load_cluster("h100"))
    request = JobRequest(
        model=load_model(given.model), gpus=given.gpus, global_batch=given.global_batch, seq_length=4096
    )
    space = Space(request=request, framework=framework_of(request), cluster=setting.cluster, tuned=BEST)
    limit = safe_bytes(usable_bytes(setting.cluster.gpu.memory_bytes), space.framework.name)
    screen = Screen(space, setting, limit)
    begin = time.process_time()
    chosen = plan(request, setting, PlanOptions())
    planned_s = time.process_time() - begin
    begin, simulated = time.process_time(), {}
    layouts = fitting(screen)
    for layout, _ in layouts:
        job = resolve_job(replace(request, **layout.request()), setting.cluster)
        simulated[layout] = forecast(job, setting, allow_oom=True).iteration_time_s
    spent = time.process_time() - begin
    best = min(simulated, key=lambda each: simulated[each])
    off = np.abs([screened / simulated[layout] - 1 for layout, screened in layouts])
    mine = chosen.best[0].layout
    fastest = min(chosen.best, key=lambda each: each.step_s)
    mine_s = chosen.best[0].step_s  # its software is settled, so that it need not be one of the space
    lost = mine_s / simulated[best] - 1
    print(f"{given.model} on {given.gpus} H100: {len(layouts):,} layouts fit, all simulated in {spent:.0f} s of CPU")
    print(f"true best   {simulated[best]:.4f} s  {best.text}")
    print(f"chosen      {mine_s:.4f} s  {mine.text}: {lost:+.2%} ({planned_s:.1f} s of CPU)")
    print(f"fastest     {fastest.step_s:.4f} s  {fastest.layout.text}: {fastest.step_s / simulated[best] - 1:+.2%}")
    print(
        f"the screen is off by {np.median(off):.2%} in the median, {np.quantile(off, 0.9):.2%} at the 90th percentile, "
        f"{off.max():.2%} at most"
    )
    sys.exit(lost > given.limit)


if __name__ == "__main__":
    main()
