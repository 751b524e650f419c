"""Whether `check` calls slow what is slow: pairs of healthy runs, runs made 5 % longer, and known slow cases.

    python -m judges.checks

Pairs are two runs of one functional test of Megatron-LM on one kind of GPU, of another branch, machine or phase; each
is checked with the other as its baseline. Their code and days differ, so that many pairs really differ, by up to half:
what is called slower is wrong where the run's own steps, in the median of the later half, are not longer than the
baseline's by more than repeats of a run differ (`EVEN`). Known slow cases are checked with what they took after the
fix as their baseline; what their reporters found is a kind of cause (``published/slow_causes.csv``, mapped before any
was forecast), which is to be among the first three. How much of published runs is called slower without a baseline is
told with the boards of runs (`judges.runs`).
"""

import csv
import gzip
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import permutations
from pathlib import Path
from typing import NamedTuple

import numpy as np

from datafiles import table_path
from judges.board import Board
from traincast.checking.base import BaseForecast, base_of
from traincast.checking.causes import Excess, ForecastCause, PossibleCause, possible_causes, tried
from traincast.checking.difference import of_same_job
from traincast.checking.expected import by_baseline
from traincast.checking.mean import Mean, mean_of
from traincast.checking.series import Series, judged_series
from traincast.checking.verdict import SpeedVerdict, Word, judge, log_deviation
from traincast.hardware.clusters import load_cluster
from traincast.job.options import StepOptions
from traincast.job.words import said_of_job
from traincast.simulation.step import Setting

KINDS = Path(__file__).parents[1] / "published" / "slow_causes.csv"
EVEN = 0.02
"""Share within which the medians of two runs are equal: repeats of a run differ by as much (`judges.changes`)."""
LONGER = 1.05
"""What a run is made longer by."""
QUIET = 0.05
"""Spread of medians of ten steps below which that much can be told."""
FIRST = 3
_GPUS = ("gb200", "h100", "a100")
_SUBJECT, _SLOW = "check with a baseline", "known slow cases"


class Checked(NamedTuple):
    """A run that was checked with another as its baseline."""

    good: str
    run: str
    verdict: SpeedVerdict
    ratio: float
    """Of medians of the later halves of both."""


@cache
def series() -> Mapping[str, Series]:
    """Return the steps of every run, judged."""
    steps = defaultdict[str, list[tuple[int, float]]](list)
    with gzip.open(table_path("step_series.csv"), "rt", encoding="utf-8", newline="") as stream:
        for row in csv.DictReader(stream):
            steps[row["run"]].append((int(row["step"]), float(row["step_s"])))
    return {run: judged_series(*map(np.array, zip(*sorted(found), strict=True))) for run, found in steps.items()}


def pairs() -> Iterator[Checked]:
    """Yield every run checked with every other of its case and GPU."""
    groups = defaultdict[tuple[str, str], list[str]](list)
    for run in series():
        case, _, place = run.rpartition("/")
        # Runs on the first machines do not say their GPU: it was an A100.
        groups[case, next((gpu for gpu in _GPUS if gpu in place), "a100")].append(run)
    for runs in groups.values():
        for good, run in permutations(runs, 2):
            yield Checked(good, run, _verdict(good, run), _late(run) / _late(good))


def _verdict(good: str, run: str, longer: float = 1.0) -> SpeedVerdict:
    """Return the verdict on a run, made longer, with another as its baseline."""
    mean = mean_of(series()[run])
    return judge(Mean(longer * mean.step_s, mean.spread), by_baseline(1.0, mean_of(series()[good]), of_same_job()))


def _late(run: str) -> float:
    step_s = series()[run].step_s
    return float(np.nanmedian(step_s[len(step_s) // 2 :]))


class Slow(NamedTuple):
    """A known slow case."""

    case: str
    ratio: float
    kinds: tuple[str, ...]
    """What made it slow; none where nobody found it."""
    is_told: bool
    """Whether the ratio is beyond what a check with a baseline can tell."""
    causes: tuple[PossibleCause, ...]

    @property
    def is_named(self) -> bool:
        """Whether one of its kinds is among the first causes."""
        return any(each.kind in self.kinds for each in self.causes[:FIRST])


def slow_cases() -> Iterator[Slow]:
    """Yield the known slow cases that say model, GPU, count and both values, and whose job can be described."""
    with gzip.open(table_path("known_slow.csv"), "rt", encoding="utf-8", newline="") as stream:
        known = {row["case"]: row for row in csv.DictReader(stream)}
    for row in csv.DictReader(KINDS.read_text(encoding="utf-8").splitlines()):
        if not row["job"]:
            continue
        ratio = _ratio(known[row["case"]])
        verdict = judge(Mean(ratio), by_baseline(1.0, Mean(1.0), of_same_job()))
        told = verdict.word is Word.SLOWER
        excess = Excess(1.0, ratio, log_deviation(verdict))
        causes = possible_causes(_tried(row["cluster"], row["job"]), excess, None) if told else ()
        yield Slow(row["case"], ratio, tuple(filter(None, row["kinds"].split("|"))), told, causes)


def _ratio(row: Mapping[str, str]) -> float:
    """Return how much longer a step was: of rates the other way round."""
    measured, after = float(row["measured"]), float(row["expected_or_after_fix"])
    is_rate = "_per_" in row["metric"]
    return after / measured if is_rate else measured / after


@cache
def _tried(cluster: str, job: str) -> tuple[ForecastCause, ...]:
    return tried(_base(cluster, job))


def _base(cluster: str, job: str) -> BaseForecast:
    said = {name: _value(text) for name, _, text in (each.partition("=") for each in job.split(";"))}
    return base_of(said_of_job(said), Setting.from_options(StepOptions(), load_cluster(cluster)))


def _value(text: str) -> object:
    """Return a value of a job as keywords have it."""
    if text in ("true", "false"):
        return text == "true"
    return int(text) if text.isdecimal() else text.replace("+", ",")


def boards() -> list[Board]:
    """Return the boards of pairs, of runs made longer, and of known slow cases."""
    checked = list(pairs())
    even = [each.verdict.word is Word.SLOWER for each in checked if each.ratio <= 1 + EVEN]
    quiet = [run for run, each in series().items() if each.spread < QUIET]
    longer = [_verdict(run, run, LONGER).word is Word.SLOWER for run in quiet]
    slow = list(slow_cases())
    beyond = [each for each in slow if each.is_told]
    return [
        _share(_SUBJECT, "runs that are not slower", "called", even, 3.0),
        _share(_SUBJECT, "quiet runs made 5 % longer", "rightly told", longer, 95.0),
        _share(_SLOW, "told", "rightly told", [each.is_told for each in slow]),
        _share(_SLOW, f"cause among the first {FIRST}", "rightly told", [e.is_named for e in beyond if e.kinds], 50.0),
    ]


def _share(subject: str, name: str, figure: str, told: Sequence[bool], asked: float | None = None) -> Board:
    share = round(100 * float(np.mean(told)), 2)
    return Board(subject, name, len(told), {figure: share}, {} if asked is None else {figure: asked})


def main() -> None:
    """Print the boards, and every known slow case with its likeliest causes."""
    for board in boards():
        print(f"{board.subject}: {board.name}, {board.rows} rows: {board.figures} {board.asked}")
    for each in slow_cases():
        causes = "; ".join(f"{cause.kind} {cause.ratio:.3f} {cause.chance:.0%}" for cause in each.causes[:FIRST])
        mark = "-" if not (each.is_told and each.kinds) else "yes" if each.is_named else "NO"
        print(f"{mark:4}{each.case} {each.ratio:.3f} ({'|'.join(each.kinds) or 'not found'}): {causes or 'not told'}")


if __name__ == "__main__":
    main()
