"""How fast the planner answers: changes of a job one after another, eight pages at once, a plan; and its memory.

Run it on an idle machine: ``python benchmarks/serve.py``. What is asked for: a change in 150 ms at the median and in
400 ms at the 95th percentile, the first points of a plan in 0.5 s and 3,000 layouts in 2 s, eight pages within 1 GB,
and the first forecast 5 s after the start. What has a target is printed with its ratio to it, met at 1.00 or below.
"""

import itertools
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path

Job = dict[str, str]
LLAMA = {"model": "llama3-70b", "cluster": "h100", "gpus": "512", "global_batch": "512", "seq_length": "8k"}
LLAMA |= {"tp": "8", "pp": "4"}
DEEPSEEK = {"model": "deepseek-v3", "cluster": "h100", "gpus": "2048", "global_batch": "8192", "seq_length": "4k"}
DEEPSEEK |= {"pp": "16", "ep": "64", "precision": "fp8", "recompute": "full", "allow_oom": "true"}
CHANGES = {
    "Llama 3 70B on 512": (
        LLAMA,
        [("tp", "4"), ("pp", "8"), ("micro_batch", "2"), ("global_batch", "1024"), ("cluster", "h200"),
         ("gpus", "1024"), ("precision", "fp8"), ("overlap_tp", "false"), ("recompute", "full"), ("seq_length", "4k"),
         ("zero", "2"), ("cp", "2")],
    ),
    "DeepSeek-V3 on 2,048": (
        DEEPSEEK,
        [("pp", "8"), ("global_batch", "15360"), ("ep", "32"), ("cluster", "h200"), ("precision", "bf16"), ("vpp", "2"),
         ("gpus", "1024"), ("micro_batch", "2"), ("recompute", "selective"), ("overlap_p2p", "false")],
    ),
}  # fmt: skip
_PAGES, _CHANGES = 8, 12
MEDIAN_MS, HIGH_MS, START_S, FIRST_S, PLAN_S, RESIDENT_MB = 150, 400, 5, 0.5, 2, 1000
"""What is asked for."""


class Planner:
    """A server of its own."""

    def __init__(self) -> None:
        self.begin = time.perf_counter()
        command = [sys.executable, "-m", "traincast.cli", "serve", "--no-browser"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        line = self.process.stdout.readline() if self.process.stdout else ""
        self.port = int(re.findall(r":(\d+)/", line)[0])

    def ask(self, name: str, said: object, tab: str = "one") -> tuple[float, int, bytes]:
        """Return how long an endpoint takes, the status and the answer."""
        begin = time.perf_counter()
        connection = HTTPConnection("127.0.0.1", self.port, timeout=120)
        headers = {"Content-Type": "application/json", "X-Traincast-Tab": tab}
        connection.request("POST", f"/api/{name}", json.dumps(said), headers)
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        return time.perf_counter() - begin, answer.status, body

    def events(self, task: str) -> Iterator[str]:
        """Yield the kinds of events of a task."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=120)
        connection.request("GET", f"/api/tasks/{task}/events")
        for line in connection.getresponse():
            if line.startswith(b"event: "):
                yield line.decode().split()[1]

    @property
    def processes(self) -> list[int]:
        """The server and its workers."""
        pid = self.process.pid
        return [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]

    @property
    def resident_mb(self) -> float:
        """Memory of them all."""
        pages = sum(int(Path(f"/proc/{each}/statm").read_text().split()[1]) for each in self.processes)
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

    @property
    def cpu_s(self) -> float:
        """CPU time of them all, which others on the machine hardly change."""
        stats = (Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split() for each in self.processes)
        return sum(int(each[11]) + int(each[12]) for each in stats) / os.sysconf("SC_CLK_TCK")


def changes(planner: Planner, job: Job, each: list[tuple[str, str]], tab: str) -> list[float]:
    """Return how long every change of a job takes, one after another, each of the job as it was."""
    times = []
    for name, value in each:
        taken_s, status, _ = planner.ask("forecast", {"job": {**job, name: value}}, tab)
        if status == 200:
            times.append(taken_s)
    return times


def told(name: str, times: list[float]) -> None:
    """Print the median and the 95th percentile."""
    middle, high = 1e3 * statistics.median(times), 1e3 * statistics.quantiles(times, n=20)[-1]
    median, last = held(f"{middle:.0f} ms", middle / MEDIAN_MS), held(f"{high:.0f} ms", high / HIGH_MS)
    print(f"{name}: median {median}, 95th percentile {last} ({len(times)})")


def held(text: str, ratio: float) -> str:
    """Return a figure with its ratio to what is asked for."""
    return f"{text} ({ratio:.2f} of the target)"


def main() -> None:
    """Print what everything takes."""
    planner = Planner()
    planner.ask("forecast", {"job": LLAMA})
    start_s = time.perf_counter() - planner.begin
    print(f"first forecast: {held(f'{start_s:.1f} s', start_s / START_S)} after the start")
    for name, (job, each) in CHANGES.items():
        changes(planner, job, each, "one")  # what is compiled and loaded once
        begin_s = planner.cpu_s
        times = [taken for _ in range(3) for taken in changes(planner, job, each, "one")]
        told(f"{name}, a change", times)
        print(f"{name}, CPU of a change: mean {1e3 * (planner.cpu_s - begin_s) / len(times):.0f} ms")
    pages = list(itertools.islice(itertools.cycle(CHANGES.values()), _PAGES))
    with ThreadPoolExecutor(_PAGES) as pool:
        running = [
            pool.submit(changes, planner, job, each[:_CHANGES], f"page {at}") for at, (job, each) in enumerate(pages)
        ]
        found = [taken for each in running for taken in each.result()]
    told("eight pages at once, a change", found)
    begin = time.perf_counter()
    _, _, body = planner.ask("plan", {"job": {name: LLAMA[name] for name in LLAMA if name not in ("tp", "pp")}})
    first = 0.0
    for kind in planner.events(json.loads(body)["task"]):
        if kind == "points" and not first:
            first = time.perf_counter() - begin
    whole = time.perf_counter() - begin
    begun, ended = held(f"{first:.2f} s", first / FIRST_S), held(f"{whole:.1f} s", whole / PLAN_S)
    print(f"a plan of Llama 3 70B on 512: first points {begun}, all of it {ended}")
    print(f"memory of all processes: {held(f'{planner.resident_mb:.0f} MB', planner.resident_mb / RESIDENT_MB)}")
    planner.process.terminate()
    planner.process.wait()


if __name__ == "__main__":
    main()
