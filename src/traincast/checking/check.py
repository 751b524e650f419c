"""A whole check: measured steps, what was expected, the verdict, and what explains the difference."""

from collections.abc import Sequence

from msgspec import Struct

from traincast.checking.base import BaseForecast
from traincast.checking.causes import Excess, PossibleCause, possible_causes, tried
from traincast.checking.difference import ratio_of
from traincast.checking.expected import Expected, between, by_baseline, by_forecast
from traincast.checking.figures import Figure, flops_figure, memory_figure
from traincast.checking.logged import LoggedRun, judged
from traincast.checking.mean import Mean, mean_of
from traincast.checking.parts import NeededPart, parts_of_step
from traincast.checking.series import Series
from traincast.checking.verdict import SpeedVerdict, Word, judge, log_deviation
from traincast.diagnostics import Note
from traincast.errors import FormatError
from traincast.files import InputFile
from traincast.job.facts import JobFacts

EXIT_CODES = {Word.AS_EXPECTED: 0, Word.FASTER: 0, Word.SLOWER: 4, Word.CANNOT_TELL: 5}


class StepsLeftOut(Struct, frozen=True, kw_only=True):
    """Steps that do not count."""

    reason: str
    count: int
    first_step: int
    last_step: int


class MeasuredSteps(Struct, frozen=True, kw_only=True):
    """The steps of a run, as they were judged."""

    step_s: float
    """Mean of the steps that count."""
    low_s: float | None
    high_s: float | None
    """Where it lies with a confidence of 90 %, autocorrelation counted; None where too few steps count."""
    points: int
    """Logged points that count."""
    spread: float
    """Of medians of ten points, from the tenth to the ninetieth percentile, over the mean."""
    autocorrelation: float
    """Of a point with the next."""
    left_out: tuple[StepsLeftOut, ...]
    logs: tuple[str, ...]
    """Paths of the logs."""
    framework: str
    """Whose lines they are."""


class Check(Struct, frozen=True, kw_only=True):
    """Whether a run is as fast as it should be."""

    verdict: SpeedVerdict
    expected: Expected
    measured: MeasuredSteps | None
    """None where two jobs are compared without a run."""
    baseline: MeasuredSteps | None = None
    """The good run, where there is one."""
    parts: tuple[NeededPart, ...] = ()
    """What each part of the step would have to take if it alone made the step as long as it is."""
    causes: tuple[PossibleCause, ...] = ()
    """What may make a longer step longer, the likeliest first."""
    figures: tuple[Figure, ...] = ()
    """What else the log prints."""
    job: JobFacts | None = None
    cluster: str = ""
    inputs: tuple[InputFile, ...] = ()
    assumptions: tuple[Note, ...] = ()
    warnings: tuple[Note, ...] = ()

    @property
    def exit_code(self) -> int:
        """What ``traincast check`` ends with: 0, 4 slower, 5 cannot tell."""
        return EXIT_CODES[self.verdict.word]


class GoodRun(Struct, frozen=True, kw_only=True):
    """A run that is known to be good: its logs, and its job."""

    logs: tuple[LoggedRun, ...]
    base: BaseForecast


def check_run(
    base: BaseForecast,
    logs: Sequence[LoggedRun],
    good: GoodRun | None = None,
    allowed: float | None = None,
    *,
    causes: bool = True,
) -> Check:
    """Hold the logs of a run against the forecast of its job, or against a good run and two forecasts.

    `allowed` is the share by which a step may be longer. Causes are looked for, unless told otherwise, where a step is
    slower or may be.
    """
    series, apart = judged(logs)
    measured, before, notes = _measured(series, logs), None, [*(note for each in logs for note in each.notes), *apart]
    if good is None:
        expected = by_forecast(base)
    else:
        good_series, good_apart = judged(good.logs)
        before = _measured(good_series, good.logs)
        expected = by_baseline(base.step_s, mean_of(good_series), ratio_of(good.base, base))
        notes += [*(note for each in good.logs for note in each.notes), *good_apart]
    verdict = judge(mean_of(series), expected, allowed)
    unsettled = verdict.word in (Word.SLOWER, Word.CANNOT_TELL)
    excess = Excess(expected.step_s, verdict.ratio, log_deviation(verdict))
    return Check(
        verdict=verdict,
        expected=expected,
        measured=measured,
        baseline=before,
        parts=parts_of_step(base.result.breakdown_s, expected, series.mean_s),
        causes=possible_causes(tried(base), excess) if causes and unsettled and excess.is_longer else (),
        figures=_figures(logs, base, expected, series.mean_s),
        job=base.result.job,
        cluster=base.setting.cluster.name,
        assumptions=base.result.assumptions,
        warnings=(*base.result.warnings, *notes),
    )


def _figures(logs: Sequence[LoggedRun], base: BaseForecast, expected: Expected, step_s: float) -> tuple[Figure, ...]:
    """Return what else the logs print of a GPU: of the first that does, the memory of the one that needs most."""
    flops = next((each.flops_per_s for each in logs if each.flops_per_s), None)
    found = [] if flops is None else [flops_figure(flops, base, expected, step_s)]
    memory = [(each.memory_bytes, each.memory) for each in logs if each.memory_bytes and each.memory]
    if memory:
        size_bytes, meaning = max(memory, key=lambda each: each[0])
        found.append(memory_figure(size_bytes, meaning, base))
    return tuple(found)


def check_between(before: BaseForecast, after: BaseForecast, allowed: float | None = None) -> Check:
    """Say what a change of a job makes of its step, by two forecasts."""
    expected = between(before, ratio_of(before, after))
    return Check(
        verdict=judge(Mean(after.step_s), expected, allowed),
        expected=expected,
        measured=None,
        parts=parts_of_step(before.result.breakdown_s, expected, after.step_s),
        job=after.result.job,
        cluster=after.setting.cluster.name,
        assumptions=after.result.assumptions,
        warnings=after.result.warnings,
    )


def _measured(series: Series, logs: Sequence[LoggedRun]) -> MeasuredSteps:
    if not series.points:
        lines = sum(len(each.step) for each in logs)
        raise FormatError(f"none of its {lines:,} timed steps counts: all are warm-up, or no numbers", logs[0].path)
    sure = mean_of(series).spread is not None
    return MeasuredSteps(
        step_s=series.mean_s,
        low_s=series.low_s if sure else None,
        high_s=series.high_s if sure else None,
        points=series.points,
        spread=series.spread,
        autocorrelation=series.autocorrelation,
        left_out=tuple(
            StepsLeftOut(reason=each.reason, count=len(each.steps), first_step=each.steps[0], last_step=each.steps[-1])
            for each in series.left_out
        ),
        logs=tuple(each.path for each in logs),
        framework=logs[0].framework,
    )
