"""Latency and memory of ``traincast serve``, through its interface, against what a person needs.

    python benchmarks/serve.py [--changes 40] [--clients 8]

A server of its own answers changes of a job as the page asks them, one after the other: Llama 3 70B on 512 H100, and
DeepSeek-V3 on 2,048. Then a plan: when its first layouts arrive, and when all is done. Then several clients change jobs
at once, each at the pace of a person who types; none may lose an answer, and the memory of the server with all its
processes is taken. Each line ends with the ratio to its target, which is met at 1.00 or below. Ends with 1 where one is
not met.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from statistics import median
from typing import Any

LLAMA = {
    **{"model": "llama3-70b", "cluster": "h100", "gpus": "512", "seq_length": "8k", "global_batch": "1024"},
    **{"tp": "8", "pp": "4"},
}
DEEPSEEK = {
    **{"model": "deepseek-v3", "cluster": "h100", "gpus": "2048", "seq_length": "4k", "global_batch": "8192"},
    **{"pp": "16", "ep": "64"},
}
CHANGES: tuple[dict[str, str], ...] = (
    *({"micro_batch": each} for each in ("1", "2")),
    *({"global_batch": each} for each in ("2048", "4096", "8192")),
    *({"recompute": each} for each in ("full", "selective")),
    {"seq_length": "2k"},
    {"precision": "fp8"},
    {"cluster": "h200"},
)
MEDIAN_S, P95_S, FIRST_S, PLAN_S, RESIDENT_BYTES = 0.15, 0.4, 0.5, 2.0, 1e9
_PAUSE_S = 0.5
"""Between two changes of somebody who types."""


class Client:
    """One page."""

    def __init__(self, port: int, name: str) -> None:
        self.port, self.name = port, name

    def ask(self, endpoint: str, **said: object) -> tuple[float, int, Any]:
        """Return how long an answer took, its status, and the answer."""
        begin = time.perf_counter()
        connection = HTTPConnection("127.0.0.1", self.port, timeout=300)
        headers = {"Content-Type": "application/json", "X-Traincast-Tab": self.name}
        connection.request("POST", f"/api/{endpoint}", json.dumps(said), headers)
        answer = connection.getresponse()
        body = answer.read()
        took = time.perf_counter() - begin
        connection.close()
        return took, answer.status, json.loads(body)

    def events(self, task: str) -> Iterator[tuple[str, Any]]:
        """Yield the events of a task with what they tell."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=300)
        connection.request("GET", f"/api/tasks/{task}/events")
        kind = ""
        for line in connection.getresponse():
            word, _, rest = line.decode().rstrip("\n").partition(": ")
            if word == "event":
                kind = rest
            elif word == "data":
                yield kind, json.loads(rest)
        connection.close()


@contextmanager
def server() -> Iterator[tuple[int, int]]:
    """Serve while the body runs; its value is the port and the process."""
    command = [sys.executable, "-m", "traincast.cli", "serve", "--no-browser", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        line = process.stdout.readline() if process.stdout else ""
        found = re.search(r":(\d+)/", line)
        if found is None:
            raise SystemExit(f"the server did not start: {line}")
        try:
            yield int(found[1]), process.pid
        finally:
            process.send_signal(signal.SIGTERM)


def resident_bytes(pid: int) -> int:
    """Return the memory of a process and of those that it started; what they share is counted once."""
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    return sum(_proportional(each) for each in (pid, *map(int, listed)))


def _proportional(pid: int) -> int:
    text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
    found = re.search(r"^Pss:\s+(\d+) kB", text, re.MULTILINE)
    return 1024 * int(found[1]) if found else 0


def changed(client: Client, job: dict[str, str], count: int, pause_s: float = 0.0) -> list[float]:
    """Return how long each of some changes took; what is refused because it does not fit is an answer, too."""
    times = []
    for number in range(count):
        change = CHANGES[number % len(CHANGES)]
        # Every second time another batch, so that few jobs are asked twice.
        further = {"global_batch": str(int(job["global_batch"]) * (1 + number // len(CHANGES)))}
        took, status, answer = client.ask("forecast", job={**job, **further, **change})
        if status not in (200, 409):
            raise SystemExit(f"{change}: {status} {answer}")
        times.append(took)
        time.sleep(pause_s)
    return times


def p95(times: Sequence[float]) -> float:
    """Return the 95th percentile."""
    return sorted(times)[int(0.95 * (len(times) - 1))]


class Report:
    """Lines with a ratio to a target."""

    def __init__(self) -> None:
        self.missed = 0

    def line(self, what: str, value: float, target: float, unit: str = "ms", factor: float = 1e3) -> None:
        """Print one."""
        ratio = value / target
        self.missed += ratio > 1
        print(f"{what:<58}{factor * value:>10,.0f} {unit:<3} of {factor * target:>7,.0f}{ratio:>8.2f}", flush=True)


def main() -> None:
    """Print what it takes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--changes", type=int, default=40, help="changes of each job")
    parser.add_argument("--clients", type=int, default=8, help="clients at once")
    given = parser.parse_args()
    report = Report()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    with server() as (port, pid):
        client = Client(port, "one")
        for name, job in (("Llama 3 70B on 512 H100", LLAMA), ("DeepSeek-V3 on 2,048 H100", DEEPSEEK)):
            changed(client, job, 3)
            times = changed(client, job, given.changes)
            report.line(f"a change, median, {name}", median(times), MEDIAN_S)
            report.line(f"a change, p95, {name}", p95(times), P95_S)
        plan(report, client)
        with ThreadPoolExecutor(given.clients) as pool:
            jobs = [(Client(port, f"tab{each}"), (LLAMA, DEEPSEEK)[each % 2]) for each in range(given.clients)]
            found = list(pool.map(lambda each: changed(*each, given.changes // 2, _PAUSE_S), jobs))
        every = [took for times in found for took in times]
        report.line(f"a change, median, {given.clients} clients at once", median(every), MEDIAN_S)
        report.line(f"a change, p95, {given.clients} clients at once", p95(every), P95_S)
        report.line("resident memory", resident_bytes(pid), RESIDENT_BYTES, "MB", 1e-6)
    sys.exit(report.missed > 0)


def plan(report: Report, client: Client) -> None:
    """Time a plan of Llama 3 70B: its first layouts, and all of it; the second of two, as where others have planned."""
    open_job = {name: each for name, each in LLAMA.items() if name not in ("tp", "pp")}
    for words in ({"max_tp": "4"}, {}):
        begin, first = time.perf_counter(), None
        _, _, started = client.ask("plan", job=open_job, plan=words)
        answer: Any = None
        for kind, told in client.events(started["task"]):
            if kind == "points" and first is None:
                first = time.perf_counter() - begin
            answer = told
        whole = time.perf_counter() - begin
    print(f"a plan of {answer['evaluated']:,} layouts, of which {answer['simulated']:,} are simulated")
    report.line("its first layouts", whole if first is None else first, FIRST_S)
    report.line("all of it", whole, PLAN_S)


if __name__ == "__main__":
    main()
