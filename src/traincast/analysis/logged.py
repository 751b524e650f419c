"""A training log as a side of a comparison."""

from collections.abc import Mapping

from traincast.analysis.comparison import Side
from traincast.analysis.summary import Interval
from traincast.diagnostics import Note
from traincast.errors import FormatError
from traincast.formats.training_log.meaning import LEVEL, facts_of, steady_step
from traincast.formats.training_log.record import TrainingLog
from traincast.units import counted


def logged_side(log: TrainingLog, name: str, known: Mapping[str, int]) -> Side:
    """Return the steady step of a training log, under a name for people.

    Parameters
    ----------
    log : TrainingLog
    name : str
    known : mapping
        What the other side says of the run. What the log does not say is taken from it, and what it says otherwise is a
        warning.

    Raises
    ------
    FormatError
        If neither log nor other side tells the time of a step.
    """
    steady = steady_step(log, known)
    if steady is None:
        raise FormatError(
            "gives tokens per second and GPU, but not how many tokens and GPUs a step has; compare it with a job or "
            "the result of a forecast",
            log.path,
            int(log.steps.line[0]),
        )
    facts = facts_of(log)
    warnings = [
        Note("log-contradicts", f"{key} is {facts[key]} in the log and {known[key]} on the other side", log.path)
        for key in known
        if key in facts and facts[key] != known[key]
    ]
    return Side(
        name=name,
        what="measured",
        how=f"median of {counted(steady.lines, 'line')} of {log.framework.title}",
        step_s=steady.step_s,
        end_s={},
        interval=Interval(level=LEVEL, low_s=steady.low_s, high_s=steady.high_s),
        tokens_per_s_per_gpu=steady.tokens_per_s,
        gpus=_whole(facts.get("gpus", known.get("gpus"))),
        notes=steady.notes,
        warnings=tuple(warnings),
    )


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) else None
