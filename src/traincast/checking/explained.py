"""What may explain that a running job became slower: single causes, each by its own forecast of the job.

They are those of `traincast.checking.causes`, of which only some may begin while a job runs: its settings stay as they
are, unless it is started again. What a step is expected to take is the run's own level before.
"""

import math
from collections.abc import Callable

from msgspec.structs import replace

from traincast.checking.alarm import Alarm
from traincast.checking.base import BaseForecast
from traincast.checking.causes import Excess, ForecastCause, PossibleCause, possible_causes, tried
from traincast.checking.detector import CAUSES
from traincast.checking.level_shift import BLOCK, LONG, TIMES_LONG
from traincast.errors import TraincastError
from traincast.units import format_share

EXPLAINED = ("level shift", "drift")
"""Kinds of alarms that say how much longer a step takes."""
MOST = 3
"""Causes that are told."""
ERROR = 1 / TIMES_LONG / math.sqrt(LONG[0] / BLOCK)
"""Standard error of a shift, as a share of it, at most: it is several times the scatter of levels of ten points."""


class Explainer:
    """Explains alarms by forecasts of the job, none of which is made before the first alarm.

    Parameters
    ----------
    forecast : callable
        Returns the forecast of the job as it should run.
    """

    def __init__(self, forecast: Callable[[], BaseForecast]) -> None:
        self._forecast = forecast
        self._base: BaseForecast | None = None
        self._found: dict[bool, tuple[ForecastCause, ...]] = {}

    def explained(self, alarm: Alarm, *, restarted: bool) -> Alarm:
        """Return an alarm with what would explain it by a forecast, behind what the log has there.

        Parameters
        ----------
        alarm : Alarm
        restarted : bool
            Whether the job was started again where it began, so that its settings may be others.
        """
        if alarm.kind not in EXPLAINED:
            return alarm
        try:
            base, found = self._tried(running=not restarted)
        except TraincastError as error:
            # The run is watched on: its alarms are worth more than what would explain them.
            return replace(alarm, explained_by=(*alarm.explained_by, f"the job was not forecast: {error}"))
        excess = Excess(base.step_s, 1 + alarm.size, ERROR * math.log1p(alarm.size))
        told = possible_causes(found, excess, MOST)
        seen = [each for each in alarm.explained_by if each not in CAUSES[alarm.kind]]
        return replace(alarm, explained_by=(*seen, *map(_words, told)))

    def _tried(self, *, running: bool) -> tuple[BaseForecast, tuple[ForecastCause, ...]]:
        if self._base is None:
            self._base = self._forecast()
        if running not in self._found:
            self._found[running] = tried(self._base, running=running)
        return self._base, self._found[running]


def _words(cause: PossibleCause) -> str:
    """Return a cause in a line."""
    if not cause.change:
        return f"{cause.name}; look at {cause.look}"
    longer = format_share(cause.ratio - 1)
    return f"{cause.name}: its forecast is {longer} longer; look at {cause.look}"
