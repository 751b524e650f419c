"""Print how long all 1,024 ranks of a workload take to be exported as Chakra traces, compared with simulating them all.

    python benchmarks/chakra_export.py [--folder DIR]

Both are whole commands, as a user runs them, one after the other: ``simulate --unfold`` and ``convert --to chakra``,
which simulates all ranks too. Times are CPU seconds of the process (its own and the system's); the ratio is what to
compare between machines. The files go into a temporary folder, and how many bytes they are is printed.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

EXAMPLE = Path(__file__).parent.parent / "examples" / "aicb_gpt_405b_1024gpu.txt"
MEGA = 1e6


def cpu_s(*command: str) -> float:
    """Run a command of traincast and return its CPU seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "traincast.cli", *command, "--quiet"], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Run both, print the seconds and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="where to write; a temporary folder by default")
    chosen = parser.parse_args().folder
    with tempfile.TemporaryDirectory() as folder:
        out = (chosen or Path(folder)) / "chakra"
        simulate_s = min(cpu_s("simulate", str(EXAMPLE), "--cluster", "h100", "--unfold") for _ in range(2))
        export_s = cpu_s("convert", str(EXAMPLE), str(out), "--to", "chakra", "--cluster", "h100")
        files = list(out.iterdir())
        written_mb = sum(each.stat().st_size for each in files) / MEGA
    print(f"simulate --unfold    {simulate_s:6.2f} s")
    print(f"convert --to chakra  {export_s:6.2f} s  {len(files):,} files, {written_mb:.0f} MB")
    print(f"the export takes {export_s / simulate_s:.2f} times as long (at most 4 is promised)")


if __name__ == "__main__":
    main()
