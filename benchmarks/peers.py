"""Compared with Calculon: the eight runs that it validates itself against, and how many layouts a core searches.

    python benchmarks/peers.py CALCULON [--search]

CALCULON is a clone of github.com/calculon-ai/calculon, whose own commands are run with this Python (it needs pandas and
psutil): ``llm-validation``, and with --search ``llm-optimal-execution`` as its README has it (a minute or two). The
runs are those of Korthikanti et al. 2022 (arXiv 2205.05198, table 5), in benchmarks/peers/selene_2022.csv. Calculon's
file of the A100 was made with them in view; no fit of ours has seen them (they are not in studies/data).
"""

import argparse
import os
import re
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from traincast import validate

RUNS = Path(__file__).parent / "peers" / "selene_2022.csv"
_SEARCH = ("llm-optimal-execution", "models/turing-530B.json", "5128", "2520", "float16", "systems/a100_80g.json")


def calculon(clone: Path, *words: str) -> str:
    """Run a command of Calculon and return all that it prints."""
    done = subprocess.run(
        [sys.executable, "bin/calculon", *words],
        cwd=clone,
        env={**os.environ, "PYTHONPATH": str(clone)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        check=True,
    )
    return done.stdout


def main() -> None:
    """Print both."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("clone", type=Path, help="clone of Calculon")
    parser.add_argument("--search", action="store_true", help="measure the rate of its search, too")
    given = parser.parse_args()
    said = calculon(given.clone, "llm-validation").partition("End-to-end")[2]
    theirs = re.search(r"Ave,,([\d.]+)%\s+Max,,([\d.]+)%", said)
    if theirs is None:
        sys.exit("Calculon's llm-validation prints no end-to-end error")
    ours = validate(RUNS)
    largest = max(abs(each.error) for each in ours.worst)
    print(f"{ours.total.evaluated} runs: Calculon mean {theirs[1]} %, largest {theirs[2]} %")
    print(f"{ours.total.evaluated} runs: traincast mean {ours.total.mean_abs_error:.2%}, largest {largest:.2%}")
    if given.search:
        with tempfile.TemporaryDirectory() as made:
            out = calculon(given.clone, *_SEARCH, f"{made}/best.json", "-m", "-c", "1")
        # By the processor's time: a busy machine does not make a tool slow.
        count, used = re.search(r"Total executions: (\d+)", out), resource.getrusage(resource.RUSAGE_CHILDREN)
        spent_s = used.ru_utime + used.ru_stime
        print(f"Calculon: {int(count[1]) / spent_s:.0f} layouts a second of one core" if count else out)


if __name__ == "__main__":
    main()
