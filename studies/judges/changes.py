"""Published pairs of runs that differ in one setting: what the change makes of a step, and whether advice names it.

The slower side of each pair is a job that could be shorter. Advice for it should have the change that made the other
side among its first `FIRST`, as something that saves.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from judges.board import Board, board_of
from published.single_changes import Pair, pairs
from traincast.analysis.summary import Advice
from traincast.calibration.runs import job_of_run
from traincast.errors import TraincastError
from traincast.job.job import DECIDED, Job
from traincast.job.request import JOB_FIELDS
from traincast.simulation.advised import advice_for
from traincast.simulation.forecast import forecast_step
from traincast.simulation.step import Setting
from traincast.simulation.study import Study

FIRST = 5
"""Pieces of advice among which the change should be."""
EVEN = 0.02
"""Share of a step within which a measured change is none: repeats of a run differ by as much."""
_ASKED = {"rightly told": 85.0}
_SUBJECT = "pairs of runs with one change"


class Replayed(NamedTuple):
    """A pair as it is forecast."""

    pair: Pair
    ratio: float
    """Forecast step after the change over that before."""
    advice: tuple[Advice, ...]
    """For the slower side."""
    changed: dict[str, Any]
    """What was decided otherwise on the faster side, by field."""

    @property
    def right_sign(self) -> bool:
        """Whether the forecast says as the measurement does which side is faster."""
        return (self.ratio < 1) == (self.pair.ratio < 1)

    @property
    def place(self) -> int | None:
        """Where in the advice the change is, from 1; None where it is not."""
        return next((place for place, each in enumerate(self.advice, 1) if self._is_named(each)), None)

    def _is_named(self, advice: Advice) -> bool:
        same = (
            _said(self.changed[name]) == _said(value) for name, value in advice.fields.items() if name in self.changed
        )
        return any(same) and max(advice.saving_s, advice.alone_s) > 0

    @property
    def is_told(self) -> bool:
        """Whether the change is among the first pieces of advice."""
        return self.place is not None and self.place <= FIRST


def boards() -> list[Board]:
    """Return the boards of what changes save, of its sign, and of advice."""
    found = replayed(pairs())
    clear = [each for each in found if abs(each.pair.ratio - 1) > EVEN]
    ratios = board_of(
        _SUBJECT, "step after over before", *zip(*((each.ratio, each.pair.ratio) for each in found), strict=True)
    )
    return [
        ratios,
        _share("which side is faster", [each.right_sign for each in clear]),
        _share(f"advice, among the first {FIRST}", [each.is_told for each in found], **_ASKED),
    ]


def _share(name: str, told: Sequence[bool], **asked: float) -> Board:
    return Board(_SUBJECT, name, len(told), {"rightly told": round(100 * float(np.mean(told)), 2)}, asked)


def replayed(found: Iterable[Pair]) -> list[Replayed]:
    """Return the pairs whose both sides can be forecast."""
    kept = []
    for pair in found:
        try:
            kept.append(_replayed(pair))
        except TraincastError:
            continue
    return kept


def _replayed(pair: Pair) -> Replayed:
    study, setting = Study(), Setting(cluster=pair.slower.cluster, engine="kernel")
    slower, faster = map(job_of_run, (pair.slower, pair.faster))
    result, done = forecast_step(slower, setting, allow_oom=True, study=study)
    other_s = forecast_step(faster, setting, allow_oom=True, study=study)[1].step_s
    sides = (done.step_s, other_s) if pair.ratio < 1 else (other_s, done.step_s)
    return Replayed(
        pair=pair,
        ratio=sides[1] / sides[0],
        advice=advice_for(pair.slower.request, slower, result, done, study),
        changed=_changed(slower, faster),
    )


def _changed(before: Job, after: Job) -> dict[str, Any]:
    """Return the fields that two jobs decided otherwise, as the second has them."""
    names = [name for name in JOB_FIELDS if name in DECIDED]
    found = {name: after.decided(name) for name in names if before.decided(name) != after.decided(name)}
    return found | ({"framework": after.framework.name} if before.framework != after.framework else {})


def _said(value: Any) -> Any:  # noqa: ANN401
    return tuple(value) if isinstance(value, list) else value


def line(each: Replayed) -> str:
    """Return a pair in a line."""
    place = f"advice {each.place}" if each.place else "no advice"
    shown = [
        f"{advice.name} {-100 * advice.alone_s / advice.iteration_time_s:+.1f} %" for advice in each.advice[:FIRST]
    ]
    return (
        f"{each.pair.id} {each.pair.before.groups.model}: {each.pair.change}: measured {each.pair.ratio:.3f}, "
        f"forecast {each.ratio:.3f}; {place}: {'; '.join(shown)}"
    )


def main() -> None:
    """Print every pair."""
    for each in replayed(pairs()):
        print(line(each))


if __name__ == "__main__":
    main()
