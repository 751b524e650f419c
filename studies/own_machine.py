r"""Measure training jobs, and the operators of one, on a GPU of one's own.

    traincast measure --model llama3.2-1b --framework transformers-2024 --cluster h100 --gpus 1 --seq-length 4096 \
        --micro-batch 2 --global-batch 2 --script measure.py            # where traincast is
    python studies/own_machine.py --out DIR [--operators measure.py] [--time-limit-s 450]

Needs PyTorch and Hugging Face Transformers, and nothing of traincast. DIR gets ``own_machine_jobs.csv``, written whole
after each job, ``own_machine_operators.csv`` of the script, and the profiles of some jobs. A job that fails says why in
its row; jobs that the time does not reach have none.
"""

import argparse
import csv
import io
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from importlib import import_module
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from machine.jobs import JOBS, LAYERS, OWN, SHAPES, Shape, TrainingJob

JOBS_FILE, OPERATORS_FILE = "own_machine_jobs.csv", "own_machine_operators.csv"
COLUMNS = (
    *JOBS[0].cells(),
    *("gpu", "step_time_s", "peak_memory_gib", "memory_kind", "outcome", "exclude", "attention_kernel"),
    *("deviation", "steps", "launched_s", "kernels_s", "kernels", "reserved_gib", "device_gib", "usable_gib"),
    *("power_w", "sm_clock_mhz", "warm_up_s", "torch", "transformers", "longest", "note"),
)
OPERATORS_MINUTES = 1.4
"""Of the time limit, for the job's own operators; what is left at the end goes into further sizes."""
GRACE_S = 20
"""By which a job may take longer than it says before it is ended."""
PRELOADED = [
    "machine.training",
    "transformers.models.llama.modeling_llama",
    "transformers.models.qwen2.modeling_qwen2",
]
SMALL = Shape(2, 64, 128, 4, 2, 512)
"""Of ``--dry-run``, whatever the job's model."""


def main() -> int:
    """Measure everything that the time allows; return the exit code."""
    begin = time.monotonic()
    parser = argparse.ArgumentParser(description="measure training jobs on this machine's GPU")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for tables and profiles")
    parser.add_argument("--operators", type=Path, metavar="FILE.py", help="script of traincast measure --script")
    parser.add_argument("--time-limit-s", type=float, default=450.0, help="begin nothing that may end after it")
    parser.add_argument("--only", default="", metavar="A,B", help="ids of the jobs to measure")
    parser.add_argument("--dry-run", action="store_true", help="tiny models on the CPU, to test the script itself")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)

    def left_s() -> float:
        return float(given.time_limit_s - (time.monotonic() - begin))

    if given.operators:
        time_operators(given.operators, given.out, min(OPERATORS_MINUTES, left_s() / 60))
    chosen = [job for job in JOBS if not given.only or job.id in given.only.split(",")]
    rows: list[dict[str, str]] = []
    with Workers(dry=given.dry_run) as workers:
        for job in chosen:
            if left_s() < job.seconds:
                print(f"{job.id}: not begun, {left_s():.0f} s are left", flush=True)
                continue
            at = time.monotonic()
            found = workers.run(job, given.out, min(job.seconds + (200 if given.dry_run else GRACE_S), left_s()))
            rows.append(dict.fromkeys(COLUMNS, "") | job.cells() | {"outcome": "ok"} | found)
            write(given.out / JOBS_FILE, rows)
            said = found.get("step_time_s") or found.get("note") or found.get("exclude")
            memory = f"{found.get('peak_memory_gib', '')} GiB"
            print(f"{job.id}: {said}, {memory}, {time.monotonic() - at:.0f} s; {left_s():.0f} s are left", flush=True)
    if given.operators and left_s() > 15:
        time_operators(given.operators, given.out, left_s() / 60)
    return 0


def time_operators(script: Path, out: Path, minutes: float) -> None:
    """Run the script of ``traincast measure``, which goes on where it ended."""
    command = [sys.executable, str(script), str(out / OPERATORS_FILE), f"{minutes:.2f}"]
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60 * minutes + 20)
        said = [*done.stderr.splitlines()[-3:], *done.stdout.splitlines()[:40]]
    except subprocess.TimeoutExpired:
        said = [f"{script} was stopped"]
    print(*said, sep="\n", flush=True)


def write(path: Path, rows: Sequence[Mapping[str, str]]) -> None:
    """Write the table whole, so that it is never half a row."""
    text = io.StringIO()
    table = csv.DictWriter(text, COLUMNS, lineterminator="\n", extrasaction="ignore")
    table.writeheader()
    table.writerows(rows)
    part = path.with_suffix(".part")
    part.write_text(text.getvalue(), encoding="utf-8")
    part.replace(path)


class Workers:
    """Processes that measure one job each: none sees another's memory, and one that fails ends alone.

    They come from a server that has imported PyTorch, which takes longer than most jobs. It must not have begun to use
    the GPU then; where a first process cannot, each is started anew.
    """

    def __init__(self, *, dry: bool) -> None:
        self.dry = dry
        # Asking whether there is a GPU must not begin to use it.
        os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
        # The server does not get this process's path in every Python, and passes over what it cannot import.
        path = (str(Path(__file__).parent), os.environ.get("PYTHONPATH", ""))
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, path))
        self.context: Any = get_context("forkserver")
        self.context.set_forkserver_preload(PRELOADED)

    def __enter__(self) -> "Workers":
        found = self._ask(probed, (self.dry,), 120)
        print(f"processes that PyTorch comes with: {found.get('imported', 'no')}", flush=True)
        if "exclude" in found:
            print(f"processes are started anew: {found['exclude']}", flush=True)
            self.context = get_context("spawn")
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def run(self, job: TrainingJob, out: Path, most_s: float) -> dict[str, str]:
        """Return the measured columns of a job, or why there are none."""
        return self._ask(measured, (job, str(out), self.dry), most_s)

    def _ask(self, what: Any, given: tuple[Any, ...], most_s: float) -> dict[str, str]:  # noqa: ANN401
        here, there = self.context.Pipe(duplex=False)
        process = self.context.Process(target=what, args=(there, *given), daemon=False)
        process.start()
        there.close()
        try:
            if not here.poll(most_s):
                return {"exclude": f"not done after {most_s:.0f} s"}
            found: dict[str, str] = here.recv()
            return found
        except EOFError:
            process.join(5)
            return {"exclude": f"the process ended with {process.exitcode}"}
        finally:
            process.join(5)
            if process.is_alive():
                process.kill()
                process.join()


def probed(answer: Connection, dry: bool) -> None:
    """Tell that a process can use the GPU."""
    try:
        imported = "torch" in sys.modules
        torch: Any = import_module("torch")
        torch.ones(1, device="cpu" if dry else "cuda").sum().item()
        answer.send({"imported": "yes" if imported else "no"})
    except Exception as error:
        answer.send({"exclude": str(error)[:200]})


def measured(answer: Connection, job: TrainingJob, out: str, dry: bool) -> None:
    """Measure a job in a process of its own."""
    try:
        from machine.training import measure_job

        trace = Path(out) / f"own_machine_{job.id}.json.gz" if job.traced and not dry else None
        if dry:
            import_module("torch").set_num_threads(1)
            job = job._replace(seq_length=32, compiled=job.compiled and LAYERS if job.layers_of == OWN else "")
        shapes = dict.fromkeys(SHAPES, SMALL) if dry else SHAPES
        answer.send(measure_job(job, "cpu" if dry else "cuda", trace, shapes))
    except Exception as error:
        # A job that fails, for whatever reason, is a row that says so.
        answer.send({"exclude": f"{type(error).__name__}: {error}".replace("\n", " ")[:300]})


if __name__ == "__main__":
    sys.exit(main())
