"""Scenarios next to each other, and how a step scales."""

from collections.abc import Mapping, Sequence
from itertools import combinations

from traincast.errors import ConfigError, TraincastError
from traincast.report.suggestions import placed_meaning
from traincast.report.terminal.comparison import interval_of_ratio, which_is_shorter
from traincast.report.terminal.training_run import number
from traincast.serve.answers.bench import Workbench
from traincast.serve.answers.explanations import simulated_again
from traincast.serve.answers.forecasts import forecast_shown
from traincast.serve.answers.shown import share_shown, size_shown, time_shown
from traincast.serve.answers.words import command_of, predicted
from traincast.serve.failures import problem_of
from traincast.serve.records.comparisons import (
    Compared,
    ComparisonAnswer,
    DifferenceShown,
    Scaling,
    ScalingPoint,
    ScalingRecord,
    Scenario,
    Scenarios,
    WhatIfAnswer,
    WhatIfRecord,
    WhatIfShown,
)
from traincast.serve.records.values import Shown, Value
from traincast.simulation.differences import difference_interval
from traincast.simulation.result import Result

_MOST, _MOST_POINTS = 4, 24


def compare(asked: Scenarios, bench: Workbench) -> ComparisonAnswer:
    """Forecast up to four scenarios, with the interval of the difference of every two."""
    if not 1 <= len(asked.scenarios) <= _MOST:
        raise ConfigError(f"are {len(asked.scenarios)}; give 1 to {_MOST}", "scenarios")
    results: list[Result | None] = []
    shown = []
    for each in asked.scenarios:
        try:
            result = predicted(each.job, bench)
        except TraincastError as error:
            results.append(None)
            failed = Compared(
                name=each.name, figures={}, parts={}, error=problem_of(error), command=command_of(each.job)
            )
            shown.append(failed)
            continue
        results.append(result)
        shown.append(_compared(each, result))
    pairs = [(a, b) for a, b in combinations(range(len(results)), 2)]
    differences = tuple(
        _difference(a, b, one, other)
        for a, b in pairs
        if (one := results[a]) is not None and (other := results[b]) is not None
    )
    return ComparisonAnswer(scenarios=tuple(shown), differences=differences)


def _compared(scenario: Scenario, result: Result) -> Compared:
    return Compared(
        name=scenario.name,
        shown=forecast_shown(result),
        figures=figures_of(result),
        parts=dict(result.breakdown_s),
        command=command_of(scenario.job),
    )


def figures_of(result: Result) -> dict[str, Shown]:
    """Return the numbers that steps are compared by."""
    shown, run = forecast_shown(result), result.training_run
    known: dict[str, Shown | None] = {"step": shown.step, "tokens_per_s": shown.tokens_per_s, "mfu": shown.mfu}
    if result.peak_bytes:
        known["memory"] = size_shown(result.peak_bytes)
    for name in ("days", "gpu_hours", "cost", "energy_mwh", "co2_t") if run is not None else ():
        value = getattr(run, name)
        known[name] = None if value is None else Shown(value, number(value))
    return {name: each for name, each in known.items() if each is not None}


def _difference(a: int, b: int, one: Result, other: Result) -> DifferenceShown:

    ratio = difference_interval(one, other)
    return DifferenceShown(
        a=a,
        b=b,
        ratio=ratio.ratio,
        low=ratio.low,
        high=ratio.high,
        chance_shorter=ratio.chance_shorter,
        told=ratio.is_told,
        text=which_is_shorter(one.iteration_time_s, other.iteration_time_s),
        between=interval_of_ratio(ratio) or "",
    )


def scaling(asked: ScalingRecord, bench: Workbench) -> Scaling:
    """Forecast a job with several values of one field, such as its GPUs or its sequence length."""
    if not 1 <= len(asked.values) <= _MOST_POINTS:
        raise ConfigError(f"are {len(asked.values)}; give 1 to {_MOST_POINTS}", "values")
    points: list[ScalingPoint] = []
    first: float | None = None
    for value in asked.values:
        point, rate = _point(_with(asked, value), value, first, bench)
        first = first or rate
        points.append(point)
    return Scaling(along=asked.along, points=tuple(points))


def _with(asked: ScalingRecord, value: str | int | float) -> Mapping[str, Value]:
    """Return the job with one value; with as much for each GPU, where that is to stay."""
    job: dict[str, Value] = {**asked.job, asked.along: value}
    if asked.along == "gpus" and asked.keep == "share":
        gpus, batch = _whole(asked.job.get("gpus")), _whole(asked.job.get("global_batch"))
        if gpus and batch:
            job["global_batch"] = max(1, round(batch * int(value) / gpus))
    return job


def _whole(value: Value) -> int:
    return int(str(value)) if str(value).isdigit() else 0


def _point(
    job: Mapping[str, Value], value: str | int | float, first: float | None, bench: Workbench
) -> tuple[ScalingPoint, float | None]:

    try:
        result = predicted(job, bench)
    except TraincastError as error:
        return ScalingPoint(value=value, error=str(error)), None
    rate, interval = result.tokens_per_s_per_gpu, result.interval
    share = rate / (first or rate) if rate else None
    point = ScalingPoint(
        value=value,
        figures=figures_of(result),
        low=None if interval is None else interval.low_s,
        high=None if interval is None else interval.high_s,
        efficiency=None if share is None else share_shown(share),
    )
    return point, rate


def whatif(asked: WhatIfRecord, bench: Workbench) -> WhatIfAnswer:
    """Try changes of a step: each alone, and several together."""
    changes: list[str | int] = [asked.expression] if isinstance(asked.expression, str) else [*asked.expression]
    result = _explained_with(changes, bench) if asked.task else predicted({**asked.job, "what_if": changes}, bench)
    return WhatIfAnswer(step=time_shown(result.iteration_time_s), what_if=what_ifs_of(result))


def what_ifs_of(result: Result) -> tuple[WhatIfShown, ...]:
    """Return the changes that were tried, as a page shows them."""
    return tuple(
        WhatIfShown(
            change=each.change,
            text=placed_meaning(each.change),
            step=time_shown(each.iteration_time_s),
            saving=time_shown(each.saving_s),
            low=each.saving_low_s,
            high=each.saving_high_s,
        )
        for each in result.what_if
    )


def _explained_with(changes: Sequence[str | int], bench: Workbench) -> Result:

    return simulated_again(bench, what_if=tuple(map(str, changes)))
