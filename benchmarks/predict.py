"""Time one prediction, from a decided job to its result, with warm caches and a compiled engine.

    python benchmarks/predict.py [--profile] [--limit 0.3]

The first case has 16 stages of 64 microbatches (GPT-3 175B, TP 8, 2,048 GPUs), with and without
virtual stages; simulation, memory and interval included. Ends with 1 where it is above the limit.
"""

import argparse
import cProfile
import pstats
import statistics
import sys
import time

from traincast.hardware.cluster import Cluster
from traincast.hardware.clusters import load_cluster
from traincast.job.job import Job, JobRequest
from traincast.job.resolve import resolve_job
from traincast.model.load import load_model
from traincast.simulation.forecast import forecast
from traincast.simulation.step import Setting

MOE = {"model": "deepseek-v3", "tp": 1, "ep": 64, "seq_length": 4096}
CASES = {
    "PP16 x 64 microbatches": {},
    "PP16 x 64 microbatches, VPP 3": {"vpp": 3},
    "PP16 x 64 microbatches, DeepSeek-V3, EP 64": MOE,
}


def job_of(cluster: Cluster, **changes: object) -> Job:
    """Return the job of a case."""
    given = {"model": "gpt3-175b", "tp": 8, "pp": 16, "vpp": 1, "seq_length": 2048} | changes
    model, tp, gpus = load_model(str(given.pop("model"))), int(str(given.pop("tp"))), 2048
    batch = 64 * gpus // (16 * tp)
    return resolve_job(JobRequest(model=model, gpus=gpus, tp=tp, global_batch=batch, **given), cluster)  # type: ignore[arg-type]


def main() -> None:
    """Print the time of each case."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--profile", action="store_true", help="say where the time of the first case goes")
    parser.add_argument("--limit", type=float, default=0.3, metavar="S", help="most seconds of the first case")
    given = parser.parse_args()
    cluster = load_cluster("h100")
    medians = []
    for name, changes in CASES.items():
        job = job_of(cluster, **changes)
        seconds = []
        for _ in range(8):
            begin = time.perf_counter()
            result = forecast(job, Setting(cluster=cluster), allow_oom=True)
            seconds.append(time.perf_counter() - begin)
        medians.append(statistics.median(seconds[1:]))
        operations = 0 if result.program is None else len(result.program)
        print(
            f"{name}: {medians[-1]:.3f} s warm ({min(seconds[1:]):.3f} to {max(seconds[1:]):.3f}), {seconds[0]:.2f} s "
            f"first; step {result.iteration_time_s:.3f} s of {operations} operations on {len(result.ranks)} ranks"
        )
    if given.profile:
        profile = cProfile.Profile()
        profile.runcall(forecast, job_of(cluster), Setting(cluster=cluster), allow_oom=True)
        pstats.Stats(profile).sort_stats("cumulative").print_stats(45)
    sys.exit(medians[0] > given.limit)


if __name__ == "__main__":
    main()
