r"""Run MoE layers of Megatron Core on a GPU of one's own, and say what each of their kernels takes.

    python studies/megatron_layer.py OUT.csv --megatron DIR [--minutes 4] [--layers 4] [--no-compile]

Has run on a CPU alone so far. DIR holds the folder ``megatron`` of a wheel of megatron-core (0.16.1 was read). Needs
PyTorch and Triton, neither Transformer Engine nor the package grouped_gemm (`machine/megatron_core.py`).
A row is a kernel of a part of the layer (``range``), forward or backward: a backward kernel belongs to the part whose
autograd node launches it (`machine/kernel_profile.py`). Rows of the range ``whole`` say what an iteration takes from
its start to the next (``step_s``), what the host takes to issue one while the GPU is idle (``host_s``), for how long
kernels run (``busy_s``), and what a layer takes where some follow each other for seconds (``sustained_s``), with clock
and power. Rows of the direction ``host`` are calls of the host that launch, wait or copy.
"""

import argparse
import gc
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed
from torch.profiler import profile

from expert_gemms import asked, write
from machine.kernel_profile import attributed, operators_as_kernels
from machine.megatron_cases import CASES, Case, stepped
from machine.megatron_core import started

WARM_STEPS, TIMED_STEPS, HOST_STEPS, PROFILED_STEPS = 6, 10, 5, 3
SUSTAINED_WARM_S, SUSTAINED_S, ASKED_EVERY_S = 1.0, 2.0, 0.5
WRITTEN_EVERY_S = 20
Step = Callable[[], None]


class Table:
    """The rows so far, written every now and then."""

    def __init__(self, path: Path, fixed: dict[str, str]) -> None:
        self.path, self.fixed = path, fixed
        self.rows: list[dict[str, str]] = []
        self.case: dict[str, str] = {}
        self.written = time.monotonic()

    @contextmanager
    def of(self, case: Case) -> Iterator[None]:
        """Take rows of a case; what it fails at becomes a row."""
        self.case = case.cells()
        try:
            yield
        except Exception as error:
            traceback.print_exc()
            self.add("whole", "", "", skipped=" ".join(f"{type(error).__name__}: {error}".split())[:200])

    def add(self, part: str, direction: str, kernel: str, time_s: float | None = None, **others: str) -> None:
        """Add a row."""
        blank = dict.fromkeys(("time_s", "count", "spread", "layers", "sm_clock_mhz", "power_w", "skipped"), "")
        names = {"range": part, "direction": direction, "kernel": kernel}
        taken = {} if time_s is None else {"time_s": f"{time_s:.5g}", "count": "1", "layers": "1"}
        self.rows.append(self.case | names | blank | taken | others | self.fixed)

    def write(self, now: bool = False) -> None:
        """Write all, if it is time."""
        if self.rows and (now or time.monotonic() - self.written > WRITTEN_EVERY_S):
            write(self.path, self.rows)
            self.written = time.monotonic()


def timed(megatron: SimpleNamespace, case: Case, layers: int, table: Table) -> float:
    """Add what a layer takes, alone or as one of some; return its seconds."""
    step = stepped(megatron, case, layers)
    return timed_layer(step, table, megatron.device) if layers == 1 else timed_chain(step, layers, table)


def timed_layer(step: Step, table: Table, device: str) -> float:
    """Add what a layer takes, as a whole and by kernel; return the seconds of a step."""
    for _ in range(WARM_STEPS):
        step()
    torch.cuda.synchronize()
    times_s = sorted(intervals(step, TIMED_STEPS))
    low, step_s, high = (times_s[len(times_s) * quarter // 4] for quarter in (1, 2, 3))
    table.add("whole", "", "step_s", step_s, spread=f"{(high - low) / step_s:.3g}")
    table.add("whole", "host", "host_s", statistics.median(issued(step) for _ in range(HOST_STEPS)))
    events = traced(step, PROFILED_STEPS)
    found = attributed(events if device == "cuda" else events + operators_as_kernels(events))
    table.add("whole", "", "busy_s", found.busy_s / PROFILED_STEPS)
    for sums in (found.kernels, found.calls):
        for (part, direction, name), (time_s, number) in sorted(sums.items()):
            table.add(part, direction, name, time_s / PROFILED_STEPS, count=f"{number / PROFILED_STEPS:.4g}")
    return step_s


def timed_chain(step: Step, layers: int, table: Table) -> float:
    """Add what each of some layers takes for seconds; return it."""
    for _ in range(2):
        step()
    taken_s, clock, power = sustained(step)
    table.add("whole", "", "sustained_s", taken_s / layers, layers=str(layers), sm_clock_mhz=clock, power_w=power)
    return taken_s / layers


def intervals(step: Step, count: int) -> list[float]:
    """Return the seconds between the starts of steps that follow each other."""
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
    marks[0].record()
    for mark in marks[1:]:
        step()
        mark.record()
    torch.cuda.synchronize()
    return [first.elapsed_time(last) / 1e3 for first, last in itertools.pairwise(marks)]


def issued(step: Step) -> float:
    """Return the seconds that the host takes to issue a step to an idle GPU."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    step()
    taken_s = time.perf_counter() - begin
    torch.cuda.synchronize()
    return taken_s


def sustained(step: Step) -> tuple[float, str, str]:
    """Return the seconds of a step that is repeated for seconds, and clock and power meanwhile."""
    over = threading.Event()
    said: list[list[float]] = []

    def ask() -> None:
        with suppress(OSError, subprocess.SubprocessError, ValueError):
            while not over.wait(ASKED_EVERY_S):
                said.append([float(cell) for cell in asked("clocks.sm,power.draw")])

    begin = time.monotonic()
    while time.monotonic() - begin < SUSTAINED_WARM_S:
        step()
        torch.cuda.synchronize()
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    times_s: list[float] = []
    while sum(times_s) < SUSTAINED_S:
        times_s += intervals(step, 4)
    over.set()
    thread.join()
    clock, power = (f"{statistics.median(cells):.5g}" for cells in zip(*said, strict=True)) if said else ("", "")
    return statistics.median(times_s), clock, power


def traced(step: Step, count: int) -> list[dict[str, Any]]:
    """Return the events of a profile of some steps."""
    torch.cuda.synchronize()
    with profile() as profiled:
        for _ in range(count):
            step()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiled.export_chrome_trace(str(path))
        text = path.read_text(encoding="utf-8", errors="replace")
    return [event for event in json.loads(text)["traceEvents"] if event.get("ph") == "X"]


def freed() -> None:
    """Forget what was compiled for the last case, and free its memory."""
    torch.compiler.reset()
    gc.collect()
    torch.cuda.empty_cache()


def compiles(device: str) -> bool:
    """Return whether functions can be compiled here."""
    import torch._inductor.config

    torch._inductor.config.compile_threads = 1
    try:
        torch.compile(lambda x: torch.nn.functional.silu(x) * 2)(torch.ones(1024, device=device))
    except Exception:
        traceback.print_exc()
        return False
    return True


def about_gpu() -> dict[str, str]:
    """Return the name of the GPU, and its driver and power limit where they are told."""
    driver = limit = ""
    with suppress(OSError, subprocess.SubprocessError, ValueError):
        driver, limit = asked("driver_version,power.limit")
    return {"gpu": torch.cuda.get_device_name(), "driver": driver, "power_limit_w": limit}


def main() -> int:
    """Time what the minutes allow; return the exit code."""
    parser = argparse.ArgumentParser(description="time MoE layers of Megatron Core on this machine's GPU, by kernel")
    parser.add_argument("out", type=Path, metavar="OUT.csv")
    parser.add_argument("--megatron", type=Path, required=True, metavar="DIR", help="holds the folder megatron")
    parser.add_argument("--minutes", type=float, default=4.0)
    parser.add_argument("--layers", type=int, default=4, help="of a chain that runs for seconds; 1 for none")
    parser.add_argument("--cases", type=int, default=len(CASES), help="only the first")
    parser.add_argument("--no-compile", action="store_true", help="run as they stand what Megatron compiles")
    parser.add_argument("--cpu", action="store_true", help="run small layers on the CPU, to test this script")
    given = parser.parse_args()
    end = time.monotonic() + 60 * given.minutes
    device = "cpu" if given.cpu else "cuda"
    compiled = not given.no_compile and compiles(device)
    gpu = {"gpu": "none", "driver": "", "power_limit_w": ""} if given.cpu else about_gpu()
    megatron = started(given.megatron.resolve(), device, compiled)
    table = Table(given.out, {"compiled": str(compiled), "torch": torch.__version__} | gpu)
    print(f"compiled: {compiled}; {end - time.monotonic():.0f} s are left", flush=True)
    cases = [case.made_small() if given.cpu else case for case in CASES[: given.cases]]
    for case in cases:
        for layers in (1, given.layers) if case.chained and given.layers > 1 else (1,):
            if time.monotonic() < end:
                with table.of(case):
                    each_s = timed(megatron, case, layers, table)
                    print(f"{case}, {layers} layers: {1e3 * each_s:.3f} ms each, {len(table.rows)} rows", flush=True)
                freed()
                table.write()
    table.write(now=True)
    torch.distributed.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
