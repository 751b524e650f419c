"""Forecast the points of a chunk; whatever is wrong with one of them is said in its row."""

from collections.abc import Sequence
from dataclasses import dataclass

from traincast.errors import InfeasibleError, TraincastError
from traincast.job.job_file import draft_of_table
from traincast.job.options import StepOptions
from traincast.simulation.recorded import choose, recorded_forecast
from traincast.sweep.rows import Row, row_of, row_without
from traincast.sweep.spec import Point


@dataclass(frozen=True, slots=True)
class Forecasts:
    """Forecasts points, with what all of them share; it goes to the workers as it is."""

    path: str
    """File of the specification: paths of a point are looked up beside it."""
    prices: tuple[tuple[str, float], ...]

    def __call__(self, points: Sequence[Point]) -> list[Row]:
        """Return a row for each point."""
        return [self._row(point) for point in points]

    def _row(self, point: Point) -> Row:
        try:
            draft = draft_of_table(point.document, self.path)
            result = recorded_forecast(draft, choose(StepOptions(), draft.cluster, "auto"))
        except InfeasibleError as error:
            return row_without("infeasible", str(error))
        except TraincastError as error:
            return row_without("refused", str(error))
        return row_of(result, draft, dict(self.prices))
