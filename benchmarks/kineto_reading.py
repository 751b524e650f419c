"""Print how fast a trace of PyTorch's profiler is read into columns, compared with the standard library's JSON reader.

    python benchmarks/kineto_reading.py [--mb 500]

The trace is made here, laid out as Kineto lays it out: of each layer the Python functions, host operators with their
shapes, launches with their flows, kernels, copies, and collectives with their groups. Times are CPU seconds of one
process each; peak memory is that of the process that reads, interpreter and libraries included.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

MEGA = 1e6
HEAD = """{
  "schemaVersion": 1,
  "deviceProperties": [
    {
      "id": 0, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85029158912,
      "computeMajor": 9, "computeMinor": 0,
      "maxThreadsPerBlock": 1024, "maxThreadsPerMultiprocessor": 2048,
      "regsPerBlock": 65536, "warpSize": 32,
      "sharedMemPerBlock": 49152, "numSms": 132
    }
  ],
  "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 8, "pg_count": 1, "pg_config": [
{"pg_name": "3", "pg_desc": "TENSOR_MODEL_PARALLEL_GROUP", "backend_config": "cuda:nccl", "pg_size": 8, \
"ranks": [0, 1, 2, 3, 4, 5, 6, 7]}], "nccl_version": "2.21.5"},
  "record_shapes": 1,
  "with_stack": 1,
  "traceEvents": ["""
TAIL = """
  {
    "name": "Record Window End", "ph": "i", "s": "g",
    "pid": "", "tid": "", "ts": 4458676800000.000
  }
  ],
  "traceName": "/tmp/trace.json",
  "displayTimeUnit": "ms",
  "baseTimeNanoseconds": 1711964646000000000
}
"""
GEMM = (
    "void cutlass::device_kernel<at::cuda::detail::enable_3x_kernel_for_sm9x<cutlass::gemm::kernel::GemmUniversal<"
    "cute::tuple<int, int, int, int>, cutlass::gemm::collective::CollectiveMma<{tile}>>>>(Params)"
)
COLLECTIVE = """, "Collective name": "allreduce", "In msg nelems": 16777216, "Out msg nelems": 16777216, \
"Group size": 8, "dtype": "BFloat16", "In split size": "[]", "Out split size": "[]", "Process Group Name": "3", \
"Process Group Description": "TENSOR_MODEL_PARALLEL_GROUP", "Process Group Ranks": "[0, 1, 2, 3, 4, 5, 6, 7]", \
"Seq": {seq}"""
HOST, STREAM, COMM_STREAM = 2910249, 7, 40


class Layers:
    """Writes the events of one layer after the other, with a clock and ids that go on."""

    def __init__(self) -> None:
        self.now_us, self.gpu_us, self.number, self.seq = 4458676416788.0, 4458676416900.0, 1, 1

    def event(self, cat: str, name: str, pid: int, tid: int, start_us: float, run_us: float, args: str) -> str:
        """Return a complete event as Kineto writes it."""
        return (
            f'\n  {{\n    "ph": "X", "cat": "{cat}", "name": "{name}", "pid": {pid}, "tid": {tid},\n    '
            f'"ts": {start_us:.3f}, "dur": {run_us:.3f},\n    "args": {{\n      {args}\n    }}\n  }},'
        )

    def flow(self, ph: str, pid: int, tid: int, at_us: float) -> str:
        """Return an end of the arrow between a launch and its kernel."""
        bound = ', "bp": "e"' if ph == "f" else ""
        return (
            f'\n  {{\n    "ph": "{ph}", "id": {self.number}, "pid": {pid}, "tid": {tid}, "ts": {at_us:.3f},\n    '
            f'"cat": "ac2g", "name": "ac2g"{bound}\n  }},'
        )

    def operator(self, name: str, dims: str, kernel: str, run_us: float, cat: str = "kernel", more: str = "") -> str:
        """Return a host operator under its Python functions, its launch, and what runs on the GPU."""
        number, begin = self.number, self.now_us
        stream = COMM_STREAM if more else STREAM
        self.gpu_us = max(self.gpu_us, begin + 12.0)
        work = (
            f'"External id": {number}, "queued": 0, "device": 0, "context": 1,\n      "stream": {stream}, '
            f'"correlation": {number},\n      "registers per thread": 168, "shared memory": 213248,\n      '
            '"blocks per SM": 1.0,\n      '
            f'"warps per SM": 12.0,\n      "grid": [132, 1, 1],\n      "block": [384, 1, 1],\n      '
            f'"est. achieved occupancy %": 19{more}'
            if cat == "kernel"
            else f'"External id": {number}, "device": 0, "context": 1,\n      "stream": {stream}, '
            f'"correlation": {number},\n'
            '      "bytes": 33554432, "memory bandwidth (GB/s)": 1198.37'
        )
        shown = (
            f'"External id": {number},"Record function id": {number}, "Concrete Inputs": ["", "", ""], "Input type": '
            f'["c10::BFloat16", "c10::BFloat16", "Scalar"], "Input Strides": [[8192, 1], [1, 8192], []], '
            f'"Input Dims": {dims}, "Ev Idx": {number}{more}'
        )
        text = (
            self.event(
                "python_function",
                f"megatron/core/transformer/transformer_layer.py({number % 900}): forward",
                HOST,
                HOST,
                begin,
                9.0,
                f'"Python parent id": {number}, "Python id": {number + 1}, "Ev Idx": {number}',
            )
            + self.event("cpu_op", name, HOST, HOST, begin + 1, 8.0, shown)
            + self.event(
                "cuda_runtime",
                "cudaLaunchKernel",
                HOST,
                HOST,
                begin + 3,
                4.5,
                f'"External id": {number}, "cbid": 211, "correlation": {number}',
            )
            + self.flow("s", HOST, HOST, begin + 3)
            + self.event(cat, kernel, 0, stream, self.gpu_us, run_us, work)
            + self.flow("f", 0, stream, self.gpu_us)
        )
        self.number += 1
        self.now_us += 10.0
        self.gpu_us += run_us + 1.2
        return text

    def layer(self) -> str:
        """Return the events of a layer: GEMMs, pointwise kernels, a copy, a memset, a collective."""
        shape = "[[4096, 8192], [8192, 8192], []]"
        parts = [
            self.operator(
                "aten::native_layer_norm", "[[4096, 1, 8192], [], [8192]]", "vectorized_layer_norm_kernel", 41.5
            )
        ]
        for tile in ("MainloopSm90TmaGmma<64, 128>", "MainloopSm90TmaGmma<128, 256>"):
            parts.append(self.operator("aten::mm", shape, GEMM.format(tile=tile), 385.25))
            parts.append(
                self.operator("aten::add_", "[[4096, 8192]]", "at::native::vectorized_elementwise_kernel<4>", 25.5)
            )
        parts.append(
            self.operator("aten::copy_", "[[4096, 8192]]", "Memcpy DtoD (Device -> Device)", 28.0, "gpu_memcpy")
        )
        parts.append(self.operator("aten::zero_", "[[4096]]", "Memset (Device)", 1.5, "gpu_memset"))
        self.seq += 1
        kernel = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
        more = COLLECTIVE.format(seq=self.seq)
        parts.append(self.operator("record_param_comms", "[[33554432]]", kernel, 310.0, more=more))
        return "".join(parts)


def pieces(size_bytes: int) -> Iterator[str]:
    """Yield the text of a trace of about that size: steps of 64 layers."""
    yield HEAD
    layers, written, step = Layers(), 0, 0
    while written < size_bytes:
        begin, text = layers.now_us, ""
        for _ in range(64):
            text += layers.layer()
        layers.now_us = max(layers.now_us, layers.gpu_us)
        name = f"ProfilerStep#{step}"
        marks = f'"External id": {layers.number}, "Ev Idx": {layers.number}'
        text += layers.event("user_annotation", name, HOST, HOST, begin - 1, layers.now_us - begin, marks)
        step, written = step + 1, written + len(text)
        yield text
    yield TAIL


def measure(call: str, path: Path) -> tuple[float, int, str]:
    """Return the CPU seconds of a call in a process of its own, its peak memory in bytes, and what the call found."""
    code = f"""
import json, resource, sys, time
from pathlib import Path
from traincast.formats.kineto.grammar import read_trace

path, start = Path(sys.argv[1]), time.process_time()
found = {call}
print(time.process_time() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, found)
"""
    done = subprocess.run([sys.executable, "-c", code, str(path)], check=True, capture_output=True, text=True)
    seconds, peak_kib, said = done.stdout.split(maxsplit=2)
    return float(seconds), int(peak_kib) * 1024, said.strip()


def main() -> None:
    """Make the trace, read it both ways, print the rates."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=float, default=100.0, help="megabytes of trace")
    size_mb = parser.parse_args().mb
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        with path.open("w") as stream:
            stream.writelines(pieces(int(size_mb * MEGA)))
        size = path.stat().st_size
        json_s, json_peak, events = measure("len(json.load(path.open())['traceEvents'])", path)
        read_s, peak, found = measure("f'{(trace := read_trace(path)).events} {len(trace.gpu):,}'", path)
    read_events, work = found.split()
    if read_events != events:
        sys.exit(f"json finds {events} events, we find {read_events}")
    print(f"{size / MEGA:.0f} MB, {int(events):,} events, {work} pieces of GPU work")
    rates = (("json.load", json_s, json_peak), ("into columns", read_s, peak))
    for name, seconds, bytes_used in rates:
        rate = f"{seconds:6.2f} s  {size / MEGA / seconds:6.1f} MB/s"
        print(f"{name:12}  {rate}  peak memory {bytes_used / MEGA:6.0f} MB, {bytes_used / size:.0%} of the file")
    print(f"reading into columns is {json_s / read_s:.1f} times as fast as json.load")


if __name__ == "__main__":
    main()
