"""Strong scaling: runs of MLPerf v6.0 by model, and how much faster curves of one system get with more GPUs."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

from forecasts import MLPERF, PUBLISHED, shipped_forecasts, timed_rows
from judges.board import Board, board_of
from traincast.calibration.runs import MeasuredRun

WITHIN = 0.08
"""Share of a measured speed-up by which a forecast one may be off."""
Forecast = Callable[[MeasuredRun], float | None]
"""What gives the step of a run; None where it has none."""


class Curve(NamedTuple):
    """One system at its smallest and at its largest size, the fastest run of each."""

    smallest: MeasuredRun
    largest: MeasuredRun

    def speed_up(self, step_s: Forecast) -> float | None:
        """Return how many times the tokens of a second the largest size has."""
        small_s, large_s = step_s(self.smallest), step_s(self.largest)
        if small_s is None or large_s is None:
            return None
        return tokens_of(self.largest) / tokens_of(self.smallest) * small_s / large_s


def boards() -> list[Board]:
    """Return the boards of MLPerf's rows, all and by model, and of all curves."""
    latest = timed_rows(MLPERF)
    curves = curves_of([*latest, *timed_rows(PUBLISHED)])
    asked = {run.id: run for run in (*latest, *chain(*curves))}
    steps = {name: each.step_s for name, each in zip(asked, shipped_forecasts(list(asked.values())), strict=True)}

    def step_s(run: MeasuredRun) -> float | None:
        return steps[run.id]

    return [*mlperf_boards(latest, step_s), curve_board(curves, step_s)]


def mlperf_boards(runs: Sequence[MeasuredRun], step_s: Forecast) -> Iterator[Board]:
    """Yield errors over all runs of MLPerf v6.0, and over those of each model."""
    found = [(run, forecast) for run in runs if (forecast := step_s(run)) is not None]
    yield _of("MLPerf v6.0", "all", found, median=6.0, worst=18.0)
    for model in sorted({run.groups.model for run, _ in found}):
        yield _of("MLPerf v6.0", model, [each for each in found if each[0].groups.model == model])


def _of(subject: str, name: str, found: Sequence[tuple[MeasuredRun, float]], **asked: float) -> Board:
    measured = [run.measured_s or 0.0 for run, _ in found]
    board = board_of(subject, name, [step_s for _, step_s in found], measured, (), **asked)
    off = max((abs(step_s / known - 1) for (_, step_s), known in zip(found, measured, strict=True)), default=0.0)
    return board._replace(figures={**board.figures, "worst": round(100 * off, 2)})


def curves_of(runs: Iterable[MeasuredRun]) -> list[Curve]:
    """Return the curves of all systems that ran at several sizes: one source, model, GPU, software and kind of run."""
    systems: dict[tuple[str, ...], list[MeasuredRun]] = {}
    for run in runs:
        groups = run.groups
        software = (groups.precision, run.cells.get("framework", ""), groups.task, run.cells.get("seq_len", ""))
        systems.setdefault((groups.source, groups.model, groups.gpu, *software), []).append(run)
    return [curve for each in systems.values() if (curve := _curve(each)) is not None]


def _curve(runs: Sequence[MeasuredRun]) -> Curve | None:
    sizes = sorted({run.request.gpus or 0 for run in runs})
    if len(sizes) < 2:
        return None
    ends = ([run for run in runs if run.request.gpus == size] for size in (sizes[0], sizes[-1]))
    return Curve(*(max(each, key=lambda run: tokens_of(run) / (run.measured_s or 1.0)) for each in ends))


def tokens_of(run: MeasuredRun) -> float:
    """Return the tokens of a step."""
    return float((run.request.global_batch or 0) * run.request.seq_length)


def curve_board(curves: Iterable[Curve], step_s: Forecast) -> Board:
    """Return by how much forecast speed-ups differ from measured ones, and how many are within `WITHIN`."""
    pairs = [
        (forecast, measured)
        for curve in curves
        if (forecast := curve.speed_up(step_s)) and (measured := curve.speed_up(lambda run: run.measured_s))
    ]
    forecasts, measurements = zip(*pairs, strict=True)
    board = board_of("scaling curves", "speed-up", forecasts, measurements, (), within=80.0)
    close = sum(abs(forecast / measured - 1) <= WITHIN for forecast, measured in pairs) / len(pairs)
    return board._replace(figures={**board.figures, "within": round(100 * close, 2)})
