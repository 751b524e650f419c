"""Record every kind of result, and say where two recordings differ.

Run: ``python tools/same_results.py record before.jsonl`` on one commit, ``record after.jsonl`` on another, and
``python tools/same_results.py compare before.jsonl after.jsonl``. ``golden --write`` records anew the sample that
``tests/test_same_results.py`` holds results to.

A recording has random jobs that together say everything that a job may say, all examples, replays, conversions, plans,
a sweep. It is made by the ``traincast`` that Python imports, through its command line alone, so that one script
records any two versions. The exit code of a comparison is 1 if anything differs.
"""

import argparse
import json
import sys
from collections import Counter
from pathlib import Path
from time import monotonic, process_time

from sameness.cases import all_cases
from sameness.differences import Allowed, compare, told
from sameness.golden import GOLDEN, kept, write_golden
from sameness.running import FEASIBLE, outcome, run, workshop


def main() -> int:
    """Run the command that is given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    record = commands.add_parser("record", help="write what this version gives")
    record.add_argument("out", type=Path, metavar="OUT.jsonl")
    record.add_argument("--jobs", type=int, default=500, metavar="N", help="random jobs (default 500)")
    record.add_argument("--seed", type=int, default=1, metavar="N", help="another one draws other jobs")
    record.add_argument("--only", default="", metavar="KIND", help="cases of this kind alone, such as plan")
    differ = commands.add_parser("compare", help="say where two recordings differ")
    differ.add_argument("a", type=Path, metavar="A.jsonl")
    differ.add_argument("b", type=Path, metavar="B.jsonl")
    differ.add_argument("--allow", type=Path, metavar="FILE", help="lines CASE-GLOB <tab> PATH-GLOB that may differ")
    differ.add_argument("--relative", type=float, default=1e-12, help="of floats (default 1e-12)")
    differ.add_argument("--absolute", type=float, default=0.0, help="of floats, in addition to that (default 0)")
    golden = commands.add_parser("golden", help="the sample that is kept as a test")
    golden.add_argument("--write", action="store_true", help="record it anew")
    asked = parser.parse_args()
    if asked.command == "record":
        return _record(asked.out, asked.jobs, asked.seed, asked.only)
    if asked.command == "compare":
        allowed = Allowed.read(asked.allow) if asked.allow else Allowed()
        found = compare(asked.a, asked.b, asked.relative, asked.absolute, allowed)
        print(told(found))
        return int(found.failed)
    if asked.write:
        write_golden()
    print(f"{GOLDEN} has {len(kept())} cases in {GOLDEN.stat().st_size:,} bytes")
    return 0


def _record(out: Path, count: int, seed: int, only: str) -> int:
    """Write a recording, and say how many cases of each kind ran, and how many were refused."""
    begin_s, counts = monotonic(), Counter[tuple[str, str]]()
    slowest: list[tuple[float, str]] = []
    with out.open("w", encoding="utf-8") as lines, workshop():
        for case in all_cases(count, seed):
            if only and case.kind != only:
                continue
            case_s = process_time()
            record = run(case)
            slowest.append((round(process_time() - case_s, 1), case.name))
            lines.write(json.dumps(record) + "\n")
            counts[case.kind, outcome(record)] += 1
            if counts.total() % 20 == 0:
                print(f"{counts.total()} cases, {monotonic() - begin_s:.0f} s", file=sys.stderr)
    for kind in dict.fromkeys(kind for kind, _ in counts):
        ran = counts[kind, FEASIBLE]
        total = sum(count for (each, _), count in counts.items() if each == kind)
        print(f"{kind:12} {total:5} cases: {ran} ran, {total - ran} refused")
    print(
        "the slowest, of the processor's time:",
        ", ".join(f"{name} {case_s} s" for case_s, name in sorted(slowest, reverse=True)[:5]),
    )
    print(f"{counts.total()} cases in {monotonic() - begin_s:.0f} s, {process_time():.0f} s of the processor: {out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
