"""What is read of a GPU while it trains: memory, energy, clock, and the kernels of a profiled step."""

import json
import re
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

GIB = 2**30
_EVERY_S = 0.2
KERNELS = ("kernel", "gpu_memcpy", "gpu_memset")
_ATTENTION = {"cudnn": "cudnn.*(sdpa|attention|flash)", "fa3": "flash.*(sm90|hopper)", "fa2": "flash_(fwd|bwd)"}


class Watch:
    """Memory by PyTorch's allocator and the driver, energy and clock by NVML where it answers."""

    def __init__(self, torch: Any, device: str) -> None:  # noqa: ANN401
        self.torch, self.has_gpu = torch, device == "cuda"
        self.name = torch.cuda.get_device_name() if self.has_gpu else device
        self._nvml: Any = None
        self._handle: Any = None
        if self.has_gpu:
            self._nvml, self._handle = _nvml()
        self._clocks: list[int] = []
        self._stop = threading.Event()
        self._begin = 0.0, 0

    def synchronise(self) -> None:
        """Wait for the GPU."""
        if self.has_gpu:
            self.torch.cuda.synchronize()

    def begin(self) -> None:
        """Begin to watch what `end` tells."""
        if self.has_gpu:
            self.torch.cuda.reset_peak_memory_stats()
        self._begin = time.perf_counter(), self._energy_mj()
        if self._handle is not None:
            threading.Thread(target=self._sample, daemon=True).start()

    def end(self) -> dict[str, str]:
        """Return mean power and clock since `begin`."""
        self._stop.set()
        taken_s, energy_mj = time.perf_counter() - self._begin[0], self._energy_mj() - self._begin[1]
        if self._handle is None or not self._clocks:
            return {}
        clock = sorted(self._clocks)[len(self._clocks) // 2]
        return {"power_w": f"{energy_mj / taken_s / 1e3:.1f}", "sm_clock_mhz": str(clock)}

    def memory(self) -> dict[str, str]:
        """Return the peaks of memory."""
        if not self.has_gpu:
            return {}
        cuda = self.torch.cuda
        free, total = cuda.mem_get_info()
        return {
            "peak_memory_gib": f"{cuda.max_memory_allocated() / GIB:.4f}",
            "memory_kind": "allocated",
            "reserved_gib": f"{cuda.max_memory_reserved() / GIB:.4f}",
            "device_gib": f"{(total - free) / GIB:.4f}",
            "usable_gib": f"{total / GIB:.4f}",
        }

    def _energy_mj(self) -> int:
        return 0 if self._handle is None else int(self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle))

    def _sample(self) -> None:
        while not self._stop.wait(_EVERY_S):
            self._clocks.append(int(self._nvml.nvmlDeviceGetClockInfo(self._handle, self._nvml.NVML_CLOCK_SM)))


def _nvml() -> tuple[Any, Any]:
    """Return NVML and the GPU in it; nothing where it is missing or does not tell energy."""
    try:
        nvml = import_module("pynvml")
        nvml.nvmlInit()
        handle = nvml.nvmlDeviceGetHandleByIndex(0)
        nvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    except Exception:
        # Its own errors have a class that is not there without it.
        return None, None
    return nvml, handle


class Kernels(NamedTuple):
    """The kernels of a step."""

    busy_s: float
    """Time in which at least one ran."""
    launches: int
    names: dict[str, float]
    """Seconds by the name of the kernel."""

    def longest(self, most: int) -> list[tuple[str, float]]:
        """Return the kernels that took most of the time, by the word that tells them."""
        found = sorted(self.names.items(), key=lambda each: -each[1])[:most]
        return [(_word(name), time_s) for name, time_s in found]


def _word(name: str) -> str:
    """Return a name of a kernel without its types and blanks."""
    return re.sub(r"\W+", "_", re.sub(r"<.*", "", name.removeprefix("void ")))[:60]


def profiled(torch: Any, step: Callable[[], None], trace: Path | None) -> Kernels:  # noqa: ANN401
    """Profile one step after another that warms up; with `trace` shapes are recorded and the file is kept."""
    profiler = torch.profiler
    activities = [profiler.ProfilerActivity.CUDA] + ([profiler.ProfilerActivity.CPU] if trace else [])
    with tempfile.TemporaryDirectory() as folder:
        path = trace or Path(folder) / "trace.json"
        plain = path.with_suffix(".tmp.json") if trace else path
        with profiler.profile(
            activities=activities,
            schedule=profiler.schedule(wait=0, warmup=1, active=1),
            record_shapes=trace is not None,
            on_trace_ready=lambda done: done.export_chrome_trace(str(plain)),
        ) as profile:
            for _ in range(2):
                step()
                torch.cuda.synchronize()
                profile.step()
        text = plain.read_text(encoding="utf-8")
        if trace is not None:
            _pack(plain, trace)
    return kernels_of(json.loads(text)["traceEvents"])


def _pack(plain: Path, packed: Path) -> None:
    """Replace a file by its packed form."""
    gzip = import_module("gzip")
    packed.write_bytes(gzip.compress(plain.read_bytes(), mtime=0))
    plain.unlink()


def kernels_of(events: list[dict[str, Any]]) -> Kernels:
    """Return the kernels among the events of a trace."""
    own = sorted((each["ts"], each["dur"], each["name"]) for each in events if each.get("cat") in KERNELS)
    names: dict[str, float] = defaultdict(float)
    busy_us, until = 0.0, float("-inf")
    for start, taken, name in own:
        names[name] += taken * 1e-6
        busy_us += max(0.0, start + taken - max(start, until))
        until = max(until, start + taken)
    return Kernels(busy_us * 1e-6, len(own), dict(names))


def attention_kernel(names: dict[str, float]) -> str:
    """Return what traincast calls the attention kernel of a step; empty where none is known."""
    text = " ".join(names).lower()
    return next((name for name, pattern in _ATTENTION.items() if re.search(pattern, text)), "")
