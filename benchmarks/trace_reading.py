"""Print how fast rank traces are read, compared with merely splitting the same text at lines and commas.

    python benchmarks/trace_reading.py [--mb 100]

The text is made of the lines of the examples, each with its own times. Times are CPU seconds, the
least of three passes; the ratio is what to compare between machines.
"""

import argparse
import resource
import tempfile
import time
from pathlib import Path

from traincast.formats.echo.grammar import load

EXAMPLES = Path(__file__).parent.parent / "examples"
MEGA = 1e6


def write_trace(path: Path, size_bytes: int) -> None:
    """Write a trace of that size; the clock goes on, so that no two lines are alike."""
    files = [EXAMPLES / "megatron_rank0_pp2.txt", *sorted((EXAMPLES / "megatron_pp4_tp2").glob("*.txt"))]
    lines = [line.split(":", 2)[2] for each in files for line in each.read_text().splitlines(keepends=True)]
    written, turn = 0, 0
    with path.open("w") as stream:
        while written < size_bytes:
            text = "".join(f"rank:0:{line}" for line in lines).replace("timestamp=", f"timestamp={turn % 1000 + 1}")
            written += stream.write(text)
            turn += 1


def split_only(path: Path) -> int:
    """Baseline: the least that any reader of this text does in Python."""
    return sum(len(line.split(",")) for line in path.read_text().splitlines())


def main() -> None:
    """Make the text, read it both ways, print the rates."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=float, default=100.0, help="megabytes of trace")
    size_mb = parser.parse_args().mb
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.txt"
        write_trace(path, int(size_mb * MEGA))
        size_mb = path.stat().st_size / MEGA
        split_s, read_s = float("inf"), float("inf")
        for _ in range(3):
            start = time.process_time()
            split_only(path)
            middle = time.process_time()
            ops = load(path)
            split_s, read_s = min(split_s, middle - start), min(read_s, time.process_time() - middle)
    subs = sum(len(op.sub_ops) for op in ops)
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(f"{size_mb:.0f} MB, {len(ops):,} operations, {subs:,} sub-operations; peak memory {peak_mib:,} MiB")
    print(f"read   {read_s:6.2f} s  {size_mb / read_s:6.1f} MB/s")
    print(
        f"split  {split_s:6.2f} s  {size_mb / split_s:6.1f} MB/s  (reading takes {read_s / split_s:.1f} times as long)"
    )


if __name__ == "__main__":
    main()
