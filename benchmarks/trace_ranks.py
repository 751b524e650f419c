"""Print how long the replay of many traced ranks takes, and its peak memory.

    python benchmarks/trace_ranks.py [--ranks 10000] [--of FOLDER] [--keep FOLDER]

The traces are those of a real run, by default the example of 8 ranks, with more data parallel replicas: each does what
the replica of the example did, and eight ranks at a time have a clock of their own, as hosts do.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from traincast.formats.echo.files import parse_name

EXAMPLE = Path(__file__).parent.parent / "examples" / "megatron_pp4_tp2"
RANKS_PER_HOST = 8
HOURS_MS = 3.6e6
"""Between the boots of two hosts."""


def write_ranks(source: Path, folder: Path, ranks: int) -> None:
    """Write the traces of so many ranks, a multiple of those of the run in a folder."""
    names = {parse_name(path).rank: path for path in source.glob("*.txt")}
    named = parse_name(names[0])
    tp, pp = named.tp or 1, named.pp or 1
    traced, wanted = len(names) // (tp * pp), ranks // (tp * pp)
    texts = {rank: path.read_text() for rank, path in names.items()}
    for rank in range(ranks):
        stage, place = divmod(rank, wanted * tp)
        replica, shard = divmod(place, tp)
        was = stage * traced * tp + replica % traced * tp + shard
        prefix = names[was].name.replace(f"wd{len(names)}_", f"wd{ranks}_").replace(f"_rank{was}_", f"_rank{rank}_")
        text = texts[was].replace(f"rank:{was}:", f"rank:{rank}:")
        ahead = str(int(rank // RANKS_PER_HOST * HOURS_MS))
        (folder / prefix).write_text(_ahead(text, int(ahead)))


def _ahead(text: str, clock_ms: int) -> str:
    """Return a trace with another clock."""
    first, *rest = text.split("timestamp=")
    moved = [first]
    for part in rest:
        size = next(at for at, char in enumerate(part) if char not in "0123456789.")
        stamp = float(part[:size])
        moved.append(f"{round(stamp + clock_ms, 2) if stamp else part[:size]}{part[size:]}")
    return "timestamp=".join(moved)


def main() -> None:
    """Write the ranks, replay them in a process of its own, and print what that took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=10_000)
    parser.add_argument("--of", type=Path, default=EXAMPLE, help="folder of the traces of a run")
    parser.add_argument("--keep", type=Path, help="folder for the traces; by default they are removed again")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = asked.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        write_ranks(asked.of, folder, asked.ranks)
        size_mb = sum(path.stat().st_size for path in folder.iterdir()) / 1e6
        print(f"{asked.ranks:,} ranks of the shape of {asked.of.name}, {size_mb:.0f} MB", flush=True)
        start = time.perf_counter()
        command = [sys.executable, "-m", "traincast.cli", "simulate", str(folder), "--cluster", "h100"]
        done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
        spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    print("\n".join(done.stdout.splitlines()[:12]))
    elapsed_s = time.perf_counter() - start
    cpu_s, peak_gib = spent.ru_utime + spent.ru_stime, spent.ru_maxrss / 2**20
    print(f"exit {done.returncode}; {elapsed_s:.0f} s, {cpu_s:.0f} s of CPU; peak memory {peak_gib:.2f} GiB")


if __name__ == "__main__":
    main()
