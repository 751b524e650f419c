"""Forecast or plan the points of a chunk; whatever is wrong with one of them is said in its row."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

from msgspec import Struct, field
from msgspec.structs import replace

from traincast.errors import InfeasibleError, TraincastError
from traincast.job.draft import Draft
from traincast.job.job_file import draft_of_table
from traincast.job.options import StepOptions
from traincast.planning.options import PlanKeywords, plan_options
from traincast.planning.plan import plan
from traincast.planning.request import requested
from traincast.simulation.reproducible import choose, reproducible_forecast
from traincast.sweeps.rows import COLUMNS, PLAN_COLUMNS, Row, row_of, row_of_plan, row_without
from traincast.sweeps.spec import Point, Spec


class PointWork(Struct, frozen=True):
    """What is done with points, with what all of them share; it goes to the workers as it is."""

    columns: ClassVar[tuple[str, ...]]
    """Of its rows."""
    chunk: ClassVar[int]
    """Points of a chunk: about a second of work, and what is lost when a sweep is killed."""
    path: str
    """File of the specification: paths of a point are relative to it."""
    prices: Mapping[str, float]
    options: PlanKeywords = field(default_factory=PlanKeywords)
    """How plans are made."""

    def __call__(self, points: Sequence[Point]) -> list[Row]:
        """Return a row for each point."""
        return list(map(self._said, points))

    def _said(self, point: Point) -> Row:
        try:
            return self.row(draft_of_table(point.document, self.path))
        except InfeasibleError as error:
            return row_without("infeasible", str(error))
        except TraincastError as error:
            return row_without("refused", str(error))

    @abstractmethod
    def row(self, draft: Draft) -> Row:
        """Return the row of a job."""


class Forecasts(PointWork, frozen=True):
    """Forecasts every point."""

    columns = COLUMNS
    chunk = 8

    def row(self, draft: Draft) -> Row:
        """Return the forecast of a job."""
        # A worker forecasts many points: it pays to run them compiled.
        chosen = choose(StepOptions(), draft.cluster, "several")
        return row_of(reproducible_forecast(draft, chosen), draft, self.prices)


class Layouts(PointWork, frozen=True):
    """Plans every point."""

    columns = PLAN_COLUMNS
    chunk = 1

    def row(self, draft: Draft) -> Row:
        """Return the layout to run for a job that leaves its layout open."""
        request, _, named = requested(draft)
        setting = choose(StepOptions(), named, "auto").setting
        options, _ = plan_options(setting.cluster.name, {**self.options, "top": 1})
        # Points that cannot be run are many, and each is a line.
        return row_of_plan(plan(request, setting, replace(options, remedies=False)), draft, self.prices)


_WORKS: Mapping[str, type[PointWork]] = {"predict": Forecasts, "plan": Layouts}


def work_of(spec: Spec) -> PointWork:
    """Return what a sweep does with its points.

    Raises
    ------
    ConfigError
        If it says wrongly how plans are made.
    """
    if spec.work == "plan":
        plan_options("", spec.plan)
    return _WORKS[spec.work](spec.path, spec.prices, spec.plan)
