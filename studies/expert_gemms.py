r"""Time the GEMMs of experts on a GPU of one's own, as frameworks launch them, beside plain ones.

    python studies/expert_gemms.py OUT.csv [--minutes 5]
    python studies/expert_gemms.py --chain

Needs PyTorch alone. Each weight of an expert layer runs forward and for both gradients: as a loop of GEMMs over four
streams, which is what Transformer Engine does (common/gemm/cublaslt_gemm.cu, multi_stream_cublas_gemm), as one
grouped kernel of PyTorch, and as one plain GEMM of all rows through one weight. Launches are recorded into a graph, so
that the host takes no part. Tokens come balanced, and as routing at random leaves them. With ``--chain`` the GEMMs of
some layers follow each other for seconds, as in a step, and are held against the same ones alone: a GPU at its power
limit lowers its clock.
"""

import argparse
import csv
import io
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch

STREAMS = 4
FLUSHED_BYTES = 256 * 2**20
BLOCK = 128
LARGEST_BYTES = 40e9
MOST_ROWS = 131_072
FEWEST, MOST, LONG_ENOUGH_S = 12, 60, 0.06
LAYERS, WARM_S, SUSTAINED_S = 6, 1.0, 2.0
CHAINS = (
    ("qwen3-235b-a22b", 3072, 4096, 16, 512),
    ("qwen3-235b-a22b", 3072, 4096, 16, 2048),
    ("deepseek-v3", 4096, 7168, 4, 1024),
    ("deepseek-v3", 4096, 7168, 4, 4096),
    ("qwen3-30b-a3b", 1536, 2048, 16, 2048),
    ("llama3-8b", 28672, 4096, 1, 8192),
)
"""Model, the sizes of FC1, experts of a rank, and tokens of each; the last has no experts."""
CLOCK_EVERY, WRITTEN_EVERY_S = 16, 10


class Weights(NamedTuple):
    """The two weights of an expert, gate and up in one, and how many a rank holds."""

    model: str
    hidden: int
    ffn: int
    experts: tuple[int, ...]

    @property
    def sizes(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Outputs and inputs of both."""
        return (2 * self.ffn, self.hidden), (self.hidden, self.ffn)


MODELS = (
    Weights("qwen3-30b-a3b", 2048, 768, (16, 128)),
    Weights("qwen3-235b-a22b", 4096, 1536, (4, 16)),
    Weights("deepseek-v3", 7168, 2048, (4, 8, 32)),
    Weights("gpt-oss-20b", 2880, 2880, (4, 32)),
    Weights("mixtral-8x7b", 4096, 14336, (2, 8)),
    Weights("deepseek-v2-lite", 2048, 1408, (8, 64)),
)
UNEVEN = (256, 1024, 4096)
TOKENS = (64, 128, 256, 512, 1024, 2048, 4096, 8192)
DTYPES = ("bf16", "fp8", "fp8_block")
WAYS = ("forward", "dgrad", "wgrad")


class Case(NamedTuple):
    """One grouped GEMM: the shape is the forward layer's."""

    model: str
    rows: int
    n: int
    k: int
    groups: int
    dtype: str
    direction: str
    kernel: str
    routing: str

    def cells(self) -> dict[str, str]:
        """Return what a row of `traincast measure` says of it; a gradient that is added to nothing says so."""
        added = self.direction == "wgrad" and self.dtype == "bf16" and self.kernel != "grouped"
        options = [] if added or self.direction != "wgrad" else ["accumulate=none"]
        options += ["kernel=each"] if self.kernel == "streams" else []
        sizes = (self.rows, self.n, self.k) if self.kernel == "plain" else (self.rows, self.n, self.k, self.groups)
        return {
            "family": "gemm" if self.kernel == "plain" else "grouped_gemm",
            "shape": "x".join(map(str, sizes)),
            "dtype": self.dtype,
            "direction": self.direction,
            "options": " ".join(options),
            "routing": self.routing,
            "model": self.model,
        }


def cases() -> list[Case]:
    """Return what is timed: a shape's kernels together, shapes in a random order, so that any time covers all kinds."""
    shapes: dict[tuple[object, ...], list[Case]] = {}
    for case in _all_cases():
        shapes.setdefault((case.dtype, case.rows, case.n, case.k, case.groups), []).append(case)
    mixed = list(shapes.values())
    random.Random(0).shuffle(mixed)  # noqa: S311 - no secret
    return [case for one in mixed for case in one]


def _all_cases() -> Iterator[Case]:
    for dtype, weights, tokens in product(DTYPES, MODELS, TOKENS):
        for groups, (n, k) in product(weights.experts, weights.sizes):
            rows = tokens * groups
            moved = 12.0 * groups * n * k + 6.0 * rows * (n + k)
            if moved > LARGEST_BYTES or rows > MOST_ROWS or (dtype == "fp8_block" and (n % BLOCK or k % BLOCK)):
                continue
            kernels = [("streams", "balanced"), ("plain", "balanced")]
            kernels += [("grouped", "balanced")] if dtype == "bf16" else []
            kernels += [("streams", "random")] if tokens in UNEVEN and dtype != "fp8_block" else []
            for way, (kernel, routing) in product(WAYS, kernels):
                yield Case(weights.model, rows, n, k, groups, dtype, way, kernel, routing)


def counted(case: Case) -> list[int]:
    """Return the tokens of each expert; in 8 bits multiples of 16, as frameworks pad them."""
    even = case.rows // case.groups
    if case.routing == "balanced":
        return [even] * case.groups
    generator = torch.Generator().manual_seed(0)
    at = torch.randint(0, case.groups, (case.rows,), generator=generator)
    counts = torch.bincount(at, minlength=case.groups).tolist()
    step = 1 if case.dtype == "bf16" else 16
    return [max(step, -(-count // step) * step) for count in counts]


def launched(case: Case) -> Callable[[], Any]:
    """Return what runs the GEMMs of a case once."""
    n, k = (case.n, case.k) if case.direction != "dgrad" else (case.k, case.n)
    counts = [case.rows] if case.kernel == "plain" else counted(case)
    makes = {"bf16": _bf16, "fp8": _fp8, "fp8_block": _fp8_block}[case.dtype]
    if case.kernel == "grouped":
        return _grouped(case, counts, n, k)
    if case.direction == "wgrad":
        calls = [makes(case.n, case.k, count, True) for count in counts]
    else:
        calls = [makes(count, n, k, False) for count in counts]
    return _over_streams(calls) if len(calls) > 1 else calls[0]


def _over_streams(calls: list[Callable[[], Any]]) -> Callable[[], Any]:
    side = [torch.cuda.Stream() for _ in range(STREAMS)]

    def run() -> None:
        now = torch.cuda.current_stream()
        for stream in side:
            stream.wait_stream(now)
        for index, call in enumerate(calls):
            with torch.cuda.stream(side[index % STREAMS]):
                call()
        for stream in side:
            now.wait_stream(stream)

    return run


def _random(*shape: int) -> Any:  # noqa: ANN401
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def _bf16(m: int, n: int, k: int, summed: bool) -> Callable[[], Any]:
    if summed:
        a, b = _random(k, m), _random(k, n)
        total = torch.zeros(m, n, device="cuda", dtype=torch.float32)
        return lambda: torch.addmm(total, a.t(), b, out_dtype=torch.float32, out=total)
    a, b = _random(m, k), _random(n, k)
    out = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
    return lambda: torch.mm(a, b.t(), out=out)


def _eight(*shape: int) -> Any:  # noqa: ANN401
    return _random(*shape).to(torch.float8_e4m3fn)


def _fp8(m: int, n: int, k: int, summed: bool) -> Callable[[], Any]:
    a, b, one = _eight(m, k), _eight(n, k), torch.ones((), device="cuda")
    dtype = torch.float32 if summed else torch.bfloat16
    out = torch.empty(m, n, device="cuda", dtype=dtype)
    return lambda: torch._scaled_mm(a, b.t(), one, one, out_dtype=dtype, use_fast_accum=not summed, out=out)


def _fp8_block(m: int, n: int, k: int, summed: bool) -> Callable[[], Any]:
    k = -(-k // BLOCK) * BLOCK
    a, b = _eight(m, k), _eight(n, k)
    left = torch.ones(k // BLOCK, m, device="cuda").t()
    if summed:
        right = torch.ones(k // BLOCK, n, device="cuda")
    else:
        right = torch.ones(-(-n // BLOCK), k // BLOCK, device="cuda").t()
    out = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
    return lambda: torch._scaled_mm(a, b.t(), left, right, out_dtype=torch.bfloat16, out=out)


def _grouped(case: Case, counts: list[int], n: int, k: int) -> Callable[[], Any]:
    ends = torch.tensor(counts, device="cuda").cumsum(0).to(torch.int32)
    if case.direction == "wgrad":
        a, b = _random(case.rows, case.n), _random(case.rows, case.k)
        return lambda: torch._grouped_mm(a.t(), b, offs=ends)
    a, b = _random(case.rows, k), _random(case.groups, n, k)
    return lambda: torch._grouped_mm(a, b.transpose(-2, -1), offs=ends)


def timed(run: Callable[[], Any], flush: Any, fewest: int = FEWEST) -> dict[str, str]:  # noqa: ANN401
    """Return the median time of a recorded graph in s, the spread of its middle half, and how often it ran."""
    graph = recorded(run)
    times_s: list[float] = []
    begin = time.monotonic()
    while len(times_s) < fewest or (time.monotonic() - begin < LONG_ENOUGH_S and len(times_s) < MOST):
        marks = []
        for _ in range(min(6, fewest)):
            flush.zero_()
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            first.record()
            graph.replay()
            last.record()
            marks.append((first, last))
        torch.cuda.synchronize()
        times_s += [first.elapsed_time(last) / 1e3 for first, last in marks]
    low, median, high = (sorted(times_s)[len(times_s) * quarter // 4] for quarter in (1, 2, 3))
    return {"time_s": f"{median:.5g}", "spread": f"{(high - low) / median:.3g}", "repeats": str(len(times_s))}


def chain(flush: Any) -> None:  # noqa: ANN401
    """Print how much longer GEMMs take where those of some layers follow each other for seconds, than alone."""
    for (model, n, k, groups, tokens), kernel in product(CHAINS, ("streams", "grouped", "plain")):
        if groups == 1 and kernel != "plain":
            continue
        cases = [
            Case(model, tokens * groups, *sizes, groups, "bf16", way, kernel, "balanced")
            for sizes in ((n, k), (k, n // 2))
            for way in WAYS
        ]
        runs = [[launched(case) for case in cases] for _ in range(LAYERS)]
        alone_s = LAYERS * sum(float(timed(run, flush)["time_s"]) for run in runs[0])
        together_s, clock = sustained([run for layer in runs for run in layer])
        rate = LAYERS * sum(2.0 * case.rows * case.n * case.k for case in cases) / together_s / 1e12
        print(
            f"{model} {kernel}, {tokens} tokens: {1e3 * alone_s:.2f} ms alone, {together_s / alone_s:.2f} x that "
            f"together, {rate:.0f} TFLOP/s at {clock} MHz and W",
            flush=True,
        )
        del runs
        torch.cuda.empty_cache()


def sustained(runs: list[Callable[[], Any]]) -> tuple[float, str]:
    """Return the seconds of some launches that are repeated for seconds, and clock and power meanwhile."""
    graph = recorded(lambda: [run() for run in runs])
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin, count, seen = time.monotonic(), 0, ""
    while (now := time.monotonic() - begin) < WARM_S + SUSTAINED_S:
        if now > WARM_S and not count:
            first.record()
        if now > WARM_S + SUSTAINED_S / 2 and not seen:
            seen = " ".join(asked("clocks.sm,power.draw"))
        graph.replay()
        count += now > WARM_S
        if not count % 4:
            torch.cuda.synchronize()
    last.record()
    torch.cuda.synchronize()
    return first.elapsed_time(last) / 1e3 / count, seen


def recorded(run: Callable[[], Any]) -> Any:  # noqa: ANN401
    """Return a graph of what is run, replayed twice; recorded on the current stream, if that is not the default one.

    A backward pass runs on the stream of its forward pass.
    """
    side = torch.cuda.current_stream()
    if side == torch.cuda.default_stream():
        side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        run()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        run()
    for _ in range(2):
        graph.replay()
    return graph


def asked(query: str) -> list[str]:
    """Return what nvidia-smi says of the GPU."""
    command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits", "-i", "0"]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [cell.strip() for cell in said.split(",")]


def main() -> int:
    """Time what the minutes allow; return the exit code."""
    parser = argparse.ArgumentParser(description="time the GEMMs of experts on this machine's GPU")
    parser.add_argument("out", type=Path, metavar="OUT.csv", nargs="?")
    parser.add_argument(
        "--chain", action="store_true", help="run layers for seconds, and print how much longer they take"
    )
    parser.add_argument("--minutes", type=float, default=5.0)
    given = parser.parse_args()
    begin, flush = time.monotonic(), torch.empty(FLUSHED_BYTES // 4, device="cuda", dtype=torch.int32)
    if given.out is None and not given.chain:
        parser.error("say where to write OUT.csv, or --chain")
    if given.chain:
        chain(flush)
        return 0
    driver, limit = asked("driver_version,power.limit")
    fixed = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "driver": driver, "power_limit_w": limit}
    rows: list[dict[str, str]] = []
    written = begin
    for case in cases():
        if time.monotonic() - begin > 60 * given.minutes:
            break
        found = dict.fromkeys(("time_s", "spread", "repeats", "skipped"), "")
        try:
            found |= timed(launched(case), flush)
        except (RuntimeError, ValueError) as error:
            found["skipped"] = " ".join(str(error).split())[:120]
            torch.cuda.synchronize()
        clock = asked("clocks.sm")[0] if len(rows) % CLOCK_EVERY == 0 else ""
        rows.append(case.cells() | found | {"sm_clock_mhz": clock} | fixed)
        if time.monotonic() - written > WRITTEN_EVERY_S:
            write(given.out, rows)
            written = time.monotonic()
            print(f"{len(rows)} timed, {written - begin:.0f} s", flush=True)
    write(given.out, rows)
    return 0


def write(path: Path, rows: list[dict[str, str]]) -> None:
    """Write the table whole."""
    text = io.StringIO()
    table = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    part = path.with_suffix(".part")
    part.write_text(text.getvalue(), encoding="utf-8")
    part.replace(path)


if __name__ == "__main__":
    sys.exit(main())
