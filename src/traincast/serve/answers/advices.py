"""What to do about a forecast: changes with what they save, and what its assumptions may cost."""

from collections.abc import Iterator
from typing import Any

from traincast.analysis.summary import Advice, Suggestion
from traincast.diagnostics import Note
from traincast.errors import TraincastError
from traincast.job.choices import choices_of
from traincast.job.fields import FIELDS
from traincast.report.suggestions import placed_meaning
from traincast.report.terminal.advice import known, more
from traincast.report.terminal.layout import TimeUnit, change
from traincast.report.terminal.layout import share as share_text
from traincast.serve.answers.bench import Workbench
from traincast.serve.answers.shown import time_shown
from traincast.serve.answers.words import predicted
from traincast.serve.records.advices import (
    AdviceAnswer,
    AdviceShown,
    AssumptionsAnswer,
    AssumptionShown,
    OtherValue,
    Saving,
    SuggestionShown,
)
from traincast.serve.records.forecasts import JobRecord
from traincast.serve.records.values import Shown, Value
from traincast.simulation.advised import said_anew
from traincast.simulation.result import Result
from traincast.units import format_share, format_time


def advice(asked: JobRecord, bench: Workbench) -> AdviceAnswer:
    """Say what to change of a job, each change with what it saves."""
    result = predicted({**asked.job, "suggest": True}, bench)
    return AdviceAnswer(advice=tuple(_advice(each, result) for each in result.advice), what_if=suggestions_of(result))


def suggestions_of(result: Result) -> tuple[SuggestionShown, ...]:
    """Return what would help most of a result, as a page shows it."""
    return tuple(_suggestion(each, result.iteration_time_s) for each in result.suggestions)


def _advice(each: Advice, result: Result) -> AdviceShown:

    return AdviceShown(
        text=each.name,
        switch=each.spelled,
        words_of=each.words_of,
        taken=each.taken,
        saving=_saving(each.saving_s, each.saving_low_s, each.saving_high_s, result.iteration_time_s),
        alone=time_shown(each.alone_s),
        step=time_shown(each.iteration_time_s),
        memory=more(each.more_bytes),
        needs=each.needs,
        changes_numerics=each.numbers,
        confidence=Shown(each.chance_faster, format_share(each.chance_faster, 0)),
        notes=tuple(known(each)),
        apply={name: _plain(value) for name, value in said_anew(each.fields).items()},
    )


def _suggestion(each: Suggestion, step_s: float) -> SuggestionShown:

    saving = _saving(each.saving_s, each.low_s, each.high_s, step_s)
    return SuggestionShown(change=each.change, text=placed_meaning(each.change), saving=saving)


def _saving(saving_s: float, low_s: float, high_s: float, step_s: float) -> Saving:

    unit = TimeUnit.from_largest(step_s)
    between = "" if low_s == high_s else f"{unit.brief(low_s)} to {unit.brief(high_s)} {unit.name}"
    return Saving(value=saving_s, text=format_time(saving_s), low=low_s, high=high_s, between=between)


def _plain(value: Any) -> Value:  # noqa: ANN401
    return list(value) if isinstance(value, tuple) else value


_MOST_OTHERS = 5
_UNUSUAL = ("fp32", "tf32")
"""Precisions that nobody trains a large model in."""
_OF_ZERO = (0, 1, 2, 3)


def assumptions(asked: JobRecord, bench: Workbench) -> AssumptionsAnswer:
    """Say what each assumption of a forecast may cost: forecasts with the other values that it could have."""
    result = predicted(asked.job, bench)
    found = []
    for note in result.assumptions:
        name = note.code.removeprefix("assumed-").replace("-", "_")
        if not note.code.startswith("assumed-") or name not in FIELDS or result.job is None:
            continue
        value = _decided(result, name)
        others = tuple(_alternatives(asked, bench, result, name, value))
        if others:
            most = max((abs(each.difference.value) for each in others if each.difference), default=0.0)
            found.append(_assumption(note, name, value, others, most / result.iteration_time_s))
    return AssumptionsAnswer(assumptions=tuple(sorted(found, key=lambda each: -each.may_cost.value)))


def _assumption(note: Note, name: str, value: Value, others: tuple[OtherValue, ...], share: float) -> AssumptionShown:

    may_cost = Shown(share, share_text(share, 1.0))
    return AssumptionShown(code=note.code, text=note.text, field=name, value=value, may_cost=may_cost, others=others)


def _decided(result: Result, name: str) -> Value:
    """Return the value that a forecast took for a field."""
    for facts in (result.job, result.parallel):
        value = getattr(facts, FIELDS[name].fact or name, None)
        if value is not None:
            return _plain(value)
    return None


def _alternatives(asked: JobRecord, bench: Workbench, result: Result, name: str, value: Value) -> Iterator[OtherValue]:

    for other in _others(name, value):
        try:
            step_s = predicted({**asked.job, name: other}, bench).iteration_time_s
        except TraincastError as error:
            yield OtherValue(value=other, step=None, difference=None, why_not=str(error))
            continue
        difference = step_s - result.iteration_time_s
        shown = Shown(difference, change(difference / result.iteration_time_s))
        yield OtherValue(value=other, step=time_shown(step_s), difference=shown)


def _others(name: str, value: Value) -> list[Value]:
    """Return the values that a field could have instead."""
    field = FIELDS[name]
    if field.takes == "switch":
        return [not value]
    if name == "zero":
        return [each for each in _OF_ZERO if each != value]
    known: list[Value] = []
    if field.takes == "choice":
        known += [each for each in choices_of(field) if each not in _UNUSUAL]
    return [each for each in known if each != value][:_MOST_OTHERS]
