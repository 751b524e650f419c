"""What made measured steps slower: each suspect is mended by the change that it says, and the steps run again.

What the step that is shown is shorter by is the figure of a cause, the same that ``--what-if`` gives of its change,
that the table of stragglers gives of a rank and that the first suggestion says. Of a trace of several steps the mean
over all of them decides what is a cause.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from traincast.analysis.diagnosis import Suspect
from traincast.analysis.slowdown import Replays
from traincast.analysis.summary import Cause
from traincast.engine import run
from traincast.errors import ConfigError
from traincast.job.changes import WorkEdit, parse_change
from traincast.simulation.edits import edited
from traincast.simulation.step import Step
from traincast.workload.ops import FloatArray

MATTERS = 0.02
"""Share of a step that a cause must cost to be named."""
LEADING = 0.25
"""Share of what is lost that it must be."""


def causes(suspects: Sequence[Suspect], replays: Replays, step: Step) -> tuple[Cause, ...]:
    """Return what made steps slower, the most expensive first; nothing where nothing costs `MATTERS` of a step.

    Parameters
    ----------
    suspects : sequence of Suspect
        What may have.
    replays : Replays
        All steps of the trace.
    step : Step
        The one that is shown.
    """
    tried = [each for each in (_tried(suspect, replays, step) for suspect in suspects) if each is not None]
    as_is_s, unpaused_s, usual_s, *mended_s = replays.mean_steps(
        [replays.duration_s_N, replays.unpaused_s_N, replays.usual_s_N, *(each.mended_s_N for each in tried)]
    ).tolist()
    saving_s = {each.suspect.change: as_is_s - step_s for each, step_s in zip(tried, mended_s, strict=True)}
    lost_s = max(as_is_s - usual_s, as_is_s - unpaused_s, *saving_s.values())
    found = []
    for each in tried:
        mean_saving_s = saving_s[each.suspect.change]
        alone_s = mean_saving_s - max(saving_s.get(each.suspect.includes, 0.0), 0.0)
        if alone_s >= max(MATTERS * as_is_s, LEADING * lost_s):
            found.append((alone_s, _cause(each, mean_saving_s, step)))
    return tuple(cause for _, cause in sorted(found, key=lambda each: -each[0]))


class _Tried(NamedTuple):
    """A suspect with what all steps take without it, and what that saves of the step that is shown."""

    suspect: Suspect
    mended_s_N: FloatArray
    saving_s: float


def _tried(suspect: Suspect, replays: Replays, step: Step) -> _Tried | None:
    """Mend a suspect; None where there is no such work."""
    edit = parse_change(suspect.change)
    if not isinstance(edit, WorkEdit):
        return None
    try:
        shown_s_N = edited(step.program, step.timeline.duration_s_N, [edit])
        mended_s_N = suspect.mended_s_N
        if mended_s_N is None:
            mended_s_N = np.concatenate([edited(each.program, each.duration_s_N, [edit]) for each in replays.steps])
    except ConfigError:
        return None
    shown_s = float(run(step.layout.graph, shown_s_N, step.setting.engine)[2].max(initial=0.0))
    return _Tried(suspect, mended_s_N, step.timeline.step_s - shown_s)


def _cause(tried: _Tried, mean_saving_s: float, step: Step) -> Cause:
    suspect, several = tried.suspect, step.workload.steps is not None
    return Cause(
        name=suspect.name,
        saving_s=tried.saving_s,
        share=tried.saving_s / step.timeline.step_s,
        evidence=suspect.evidence,
        change=suspect.change,
        mean_saving_s=mean_saving_s if several else None,
        ranks=suspect.ranks,
        stages=suspect.stages,
    )
