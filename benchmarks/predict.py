"""Time one prediction, from a decided job to its result, with warm caches and a compiled engine.

    python benchmarks/predict.py [--profile] [--limit 0.3] [--beside REVISION]

The first case has 16 stages of 64 microbatches (GPT-3 175B, TP 8, 2,048 GPUs), with and without
virtual stages; simulation, memory and interval included. Ends with 1 where it is above the limit.

With --beside the code of an earlier revision is timed in turn with this one, in processes of their own, and CPU
seconds are compared: of warm forecasts (of one job, whose work is kept, of jobs of other sequence lengths, and by
`traincast.predict` of other layouts, of which the step alone is read or all), and of whole commands.
"""

import argparse
import cProfile
import io
import json
import os
import pstats
import resource
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from itertools import product
from operator import attrgetter
from pathlib import Path
from typing import Any

from traincast import predict
from traincast.hardware.cluster import Cluster
from traincast.hardware.clusters import load_cluster
from traincast.job.job import Job
from traincast.job.resolve import resolve_job
from traincast.model.load import load_model
from traincast.report.json import result_to_dict
from traincast.simulation.forecast import forecast
from traincast.simulation.step import Setting

# Where revisions to compare with have it.
JobRequest = import_module(
    "traincast.job.request" if find_spec("traincast.job.request") else "traincast.job.job"
).JobRequest

MOE: dict[str, Any] = {"model": "deepseek-v3", "tp": 1, "ep": 64, "seq_length": 4096}
CASES: dict[str, dict[str, Any]] = {
    "PP16 x 64 microbatches": {},
    "PP16 x 64 microbatches, VPP 3": {"vpp": 3},
    "PP16 x 64 microbatches, DeepSeek-V3, EP 64": MOE,
}


def kept() -> dict[str, Any]:
    """Return what keeps the work of a job for its next forecast; nothing of code that kept it by itself."""
    if find_spec("traincast.simulation.study") is None:
        return {}
    from traincast.simulation.study import Study

    return {"study": Study()}


def job_of(cluster: Cluster, **changes: object) -> Job:
    """Return the job of a case."""
    given = {"model": "gpt3-175b", "tp": 8, "pp": 16, "vpp": 1, "seq_length": 2048} | changes
    model, tp, gpus = load_model(str(given.pop("model"))), int(str(given.pop("tp"))), 2048
    batch = 64 * gpus // (16 * tp)
    return resolve_job(JobRequest(model=model, gpus=gpus, tp=tp, global_batch=batch, **given), cluster)


ROOT = Path(__file__).resolve().parents[1]
EXAMPLE = ROOT / "examples" / "aicb_gpt_405b_1024gpu.txt"
COMMANDS = {
    "simulate, whole process": ["simulate", str(EXAMPLE), "--cluster", "h100", "--quiet"],
    "--help, whole process": ["--help"],
}


def warm_cpu_s() -> dict[str, float]:
    """Return the least CPU seconds of a warm forecast of each case: of one job again and again, and of other jobs."""
    cluster, found = load_cluster("h100"), {}
    for name, changes in CASES.items():
        lengths = [int(str(changes.get("seq_length", 2048))) - 64 * less for less in range(8)]
        others = [job_of(cluster, **{**changes, "seq_length": length}) for length in lengths]
        for which, jobs in ((name, others[:1] * 8), (f"{name}, another job each time", others)):
            seconds, study = [], kept()
            for job in jobs:
                begin = time.process_time()
                forecast(job, Setting(cluster=cluster, engine="kernel"), allow_oom=True, **study)
                seconds.append(time.process_time() - begin)
            found[which] = min(seconds[1:])
    return found


def by_users_cpu_s() -> dict[str, float]:
    """Return the mean CPU seconds of a warm `traincast.predict` of layouts of Llama 3 8B on 64 GPUs."""
    degrees = product((1, 2, 4, 8), (1, 2, 4), (1, 2), (1, 2))
    given: dict[str, Any] = {"model": "llama3-8b", "cluster": "h100", "gpus": 64, "global_batch": 128}
    given |= {"seq_length": 8192, "allow_oom": True}
    jobs = [given | {"tp": tp, "pp": pp, "cp": cp, "micro_batch": size} for tp, pp, cp, size in degrees]
    reads: tuple[tuple[str, Callable[[Any], object]], ...]
    reads = ("", attrgetter("iteration_time_s")), (", all of it read", result_to_dict)
    found = {}
    for name, read in reads:
        seconds = []
        for _ in range(4):
            begin = time.process_time()
            for job in jobs:
                read(predict(**job))
            seconds.append((time.process_time() - begin) / len(jobs))
        found[f"predict, Llama 3 8B on 64 GPUs, another layout each time{name}"] = min(seconds[1:])
    return found


def of_revision(source: Path) -> dict[str, float]:
    """Return the CPU seconds of each case and command by the code in a folder."""
    environment = {**os.environ, "PYTHONPATH": str(source)}
    script = [sys.executable, __file__, "--json"]
    found: dict[str, float] = json.loads(
        subprocess.run(script, check=True, env=environment, capture_output=True).stdout
    )
    for name, words in COMMANDS.items():
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [sys.executable, "-m", "traincast.cli", *words]
        subprocess.run(command, check=True, env=environment, capture_output=True, cwd=source)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        found[name] = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return found


def beside(revision: str, turns: int = 5) -> None:
    """Time the code of a revision and this one in turns, and print the least times and their ratios."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["git", "archive", revision, "src"]
        packed = subprocess.run(command, check=True, capture_output=True, cwd=ROOT).stdout
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            archive.extractall(folder, filter="data")
        sources = Path(folder) / "src", ROOT / "src"
        for source in sources:
            subprocess.run([sys.executable, "-m", "compileall", "-q", str(source)], check=True)
        times = [[of_revision(source) for source in sources] for _ in range(turns)]
    for name in times[0][0]:
        old, new = (min(each[which][name] for each in times) for which in (0, 1))
        print(f"{name}: {new:.3f} s of CPU, {old:.3f} s at {revision}: {new / old:.2f} x")


def main() -> None:
    """Print the time of each case."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--profile", action="store_true", help="say where the time of the first case goes")
    parser.add_argument("--limit", type=float, default=0.3, metavar="S", help="most seconds of the first case")
    parser.add_argument("--beside", metavar="REVISION", help="compare with the code of an earlier revision")
    parser.add_argument("--json", action="store_true", help="print CPU seconds of warm forecasts alone")
    given = parser.parse_args()
    if given.json:
        print(json.dumps(warm_cpu_s() | by_users_cpu_s()))
        return
    if given.beside:
        beside(given.beside)
        return
    cluster = load_cluster("h100")
    medians = []
    for name, changes in CASES.items():
        job = job_of(cluster, **changes)
        seconds, study = [], kept()
        for _ in range(8):
            begin = time.perf_counter()
            result = forecast(job, Setting(cluster=cluster, engine="fast"), allow_oom=True, **study)
            seconds.append(time.perf_counter() - begin)
        medians.append(statistics.median(seconds[1:]))
        operations = 0 if result.program is None else len(result.program)
        print(
            f"{name}: {medians[-1]:.3f} s warm ({min(seconds[1:]):.3f} to {max(seconds[1:]):.3f}), {seconds[0]:.2f} s "
            f"first; step {result.iteration_time_s:.3f} s of {operations} operations on {len(result.ranks)} ranks"
        )
    if given.profile:
        profile = cProfile.Profile()
        profile.runcall(forecast, job_of(cluster), Setting(cluster=cluster, engine="fast"), allow_oom=True)
        pstats.Stats(profile).sort_stats("cumulative").print_stats(45)
    sys.exit(medians[0] > given.limit)


if __name__ == "__main__":
    main()
