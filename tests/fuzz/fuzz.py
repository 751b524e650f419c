"""Damage inputs of every kind and try what the command makes of them.

Run: ``python tests/fuzz/fuzz.py --count 20000`` (``--kind aicb --kind job`` for some kinds alone). It mutates sound
inputs and command lines in ways that know their shape, runs each in a forked worker with a limit of time and memory,
and prints how many ended how. Equal numbers (``--seed``, ``--count``) try equal inputs. Of each distinct failure the
shortest reproducer is kept in the folder that ``--keep`` names: the files, the command, what it printed.

The exit code is 1 if anything failed. What counts as a failure stands in `fuzzing.judge`.
"""

import argparse
import os
import random
import shlex
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from fuzzing.arguments import changed, options_of, with_option
from fuzzing.case import Case
from fuzzing.judge import EXITS, SAID, Verdict, judge
from fuzzing.mutate import constant, mutated
from fuzzing.pool import Limits, run_cases
from fuzzing.seeds import CONSTANT, EQUAL_ROWS, SEEDS, equal_rows

_GIB = 1 << 30


class Maker:
    """Makes the cases of a run from their kind and number.

    Parameters
    ----------
    seed : int
        Another one gives other cases.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._seeds = {kind: make() for kind, make in SEEDS.items()}

    def __call__(self, kind: str, number: int) -> Case:
        """Return a case; of the same kind, number and seed always the same one."""
        rng = random.Random(f"{self._seed}:{kind}:{number}")
        chosen = rng.choice(self._seeds[kind])
        arguments, files = rng.choice(chosen.commands), dict(chosen.files)
        if chosen.targets:
            name = rng.choice(chosen.targets)
            files[name] = (
                self._constant(name, files[name], rng) if kind == CONSTANT else mutated(name, files[name], rng)
            )
        if not chosen.targets or rng.random() < 0.25:
            arguments = self._with_other_options(arguments, rng)
        return Case(kind, number, files, arguments)

    def sound(self) -> list[Case]:
        """Return every seed as it is, under each of its commands."""
        return [
            Case(kind, -1, each.files, command)
            for kind, seeds in self._seeds.items()
            if kind != CONSTANT
            for each in seeds
            # Where polars has run, it does not in a forked worker.
            if not any(name.endswith(".parquet") for name in each.files)
            for command in each.commands
        ]

    @staticmethod
    def _constant(name: str, content: bytes, rng: random.Random) -> bytes:
        if name.endswith(".parquet") and rng.random() < 0.7:
            return equal_rows(rng.choice(EQUAL_ROWS))
        return constant(content, rng)

    @staticmethod
    def _with_other_options(arguments: tuple[str, ...], rng: random.Random) -> tuple[str, ...]:
        for _ in range(rng.choice((1, 1, 2, 3))):
            known = arguments[0] and options_of(arguments[0])
            arguments = with_option(arguments, rng) if known and rng.random() < 0.7 else changed(arguments, rng)
        return arguments


class Tally:
    """Counts what cases did, and remembers of each distinct failure the shortest case.

    Parameters
    ----------
    make : Maker
        Makes a case again from its number.
    """

    def __init__(self, make: Maker) -> None:
        self._make = make
        self.outcomes: dict[str, Counter[str]] = {}
        self.failures: dict[tuple[str, str], tuple[Case, Verdict]] = {}
        self.times_seen: Counter[tuple[str, str]] = Counter()
        self.slowest_s = 0.0

    def add(self, kind: str, number: int, verdict: Verdict) -> None:
        """Count a case."""
        self.outcomes.setdefault(kind, Counter())[verdict.outcome] += 1
        self.slowest_s = max(self.slowest_s, verdict.time_s)
        if not verdict.failed:
            return
        key = kind, verdict.signature
        self.times_seen[key] += 1
        case = self._make(kind, number)
        if key not in self.failures or case.size < self.failures[key][0].size:
            self.failures[key] = case, verdict

    def table(self) -> str:
        """Return the counts by kind and outcome."""
        names = [
            *EXITS.values(),
            *sorted({name for each in self.outcomes.values() for name in each} - {*EXITS.values()}),
        ]
        total = sum(self.outcomes.values(), Counter())
        rows = [["kind", *names, "all"]]
        for kind, counts in [*self.outcomes.items(), ("all", total)]:
            rows.append([kind, *(f"{counts[name]:,}" for name in names), f"{counts.total():,}"])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join(
            "  ".join(
                [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
            )
            for row in rows
        )

    def keep(self, folder: Path) -> None:
        """Write the shortest case of each failure: its files, its command, what it printed."""
        for at, (key, (case, verdict)) in enumerate(self._sorted()):
            place = folder / f"{case.kind}-{at:03}"
            place.mkdir(parents=True, exist_ok=True)
            case.write(place)
            command = f"traincast {shlex.join(case.arguments)}\n"
            (place / "command.sh").write_bytes(command.encode("utf-8", "surrogateescape"))
            said = f"{key[1]} ({self.times_seen[key]} times)\n{verdict.message}\n"
            (place / "failure.txt").write_bytes(said.encode("utf-8", "surrogateescape"))

    def failures_text(self) -> str:
        """Return a paragraph for each distinct failure."""
        lines = []
        for key, (case, verdict) in self._sorted():
            lines.append(f"{case.kind} #{case.number} {key[1]} ({self.times_seen[key]} times)")
            lines.append(f"    traincast {_short(shlex.join(case.arguments))}")
            lines.append(f"    {_short(verdict.message)}")
        return "\n".join(lines)

    def _sorted(self) -> list[tuple[tuple[str, str], tuple[Case, Verdict]]]:
        return sorted(self.failures.items(), key=lambda item: (item[0][1], item[0][0]))


def _short(text: str) -> str:
    safe = text.encode("unicode_escape").decode()
    return safe if len(safe) < 400 else f"{safe[:390]} [...]"


def _unsound(make: Maker, limit_s: float) -> list[str]:
    """Return what is wrong with the seeds themselves: each must end well, perhaps with a verdict on a run.

    It also imports all there is.
    """
    wrong = []
    for case in make.sound():
        with tempfile.TemporaryDirectory() as folder:
            verdict = judge(case, Path(folder), limit_s)
            os.chdir("/")
        if verdict.outcome not in (EXITS[0], *SAID):
            wrong.append(f"{case.kind}: {shlex.join(case.arguments)}: {verdict.outcome}: {verdict.message}")
    return wrong


def main() -> int:
    """Run what the command line asks for; return the exit code."""
    options = _options()
    # The base install works without numba; compiling in every worker would be most of the time.
    sys.modules["numba"] = None  # type: ignore[assignment]
    make = Maker(options.seed)
    if wrong := _unsound(make, 6 * options.time_limit):
        print("sound inputs that fail:", *wrong, sep="\n  ")
        return 1
    if options.show is not None:
        kind, _, number = options.show.partition("#")
        _show(make(kind, int(number)), options.keep)
        return 0
    kinds = options.kind or list(SEEDS)
    numbers = [(kinds[at % len(kinds)], at // len(kinds)) for at in range(options.count)]
    tally, start = Tally(make), time.monotonic()
    limits = Limits(options.time_limit, int(options.memory_limit * _GIB))
    until = start + options.budget if options.budget else float("inf")
    for done, ((kind, number), verdict) in enumerate(run_cases(numbers, make, limits, options.jobs, until), 1):
        tally.add(kind, number, verdict)
        if sys.stderr.isatty() and done % 100 == 0:
            print(f"\r{done:,} of {options.count:,}", end="", file=sys.stderr)
    took_s = time.monotonic() - start
    tried = sum(each.total() for each in tally.outcomes.values())
    rate = tried / took_s / options.jobs
    print(f"{tried:,} inputs, seed {options.seed}, {took_s:.0f} s, {rate:.0f} a second and worker; ", end="")
    print(f"slowest {tally.slowest_s:.1f} s")
    print(tally.table())
    if not tally.failures:
        return 0
    print(f"\n{len(tally.failures)} distinct failures")
    print(tally.failures_text())
    if options.keep:
        tally.keep(options.keep)
        print(f"\nreproducers are in {options.keep}")
    return 1


def _show(case: Case, keep: Path | None) -> None:
    """Print a case, and write its files where that is asked for."""
    print("traincast", _short(shlex.join(case.arguments)))
    for name, content in case.files.items():
        print(f"--- {name}\n{_short(content.decode('utf-8', 'replace'))}")
    if keep:
        case.write(keep)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=1, help="another one tries other inputs")
    parser.add_argument("--count", type=int, default=5000, help="inputs to try, over all kinds")
    parser.add_argument("--kind", action="append", choices=list(SEEDS), help="kinds of input (default: all)")
    parser.add_argument("--jobs", type=int, default=1, help="workers at a time")
    parser.add_argument("--budget", type=float, metavar="S", help="begin nothing after so many seconds")
    parser.add_argument("--time-limit", type=float, default=10.0, metavar="S", help="of the processor, for one input")
    parser.add_argument("--memory-limit", type=float, default=4.0, metavar="GIB", help="of one input")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="write the shortest case of each failure there")
    parser.add_argument("--show", metavar="KIND#NUMBER", help="print one case instead (--keep writes its files)")
    options = parser.parse_args()
    if options.keep:
        options.keep = options.keep.absolute()
    return options


if __name__ == "__main__":
    sys.exit(main())
