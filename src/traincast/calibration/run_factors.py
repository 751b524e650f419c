"""Forecasts of measured runs, and what they say of the factors of end-to-end runs.

Each simulated run is asked how it answers to every factor; then those factors are solved for that bring forecasts
nearest to measurements. A factor that few runs speak for stays near 1. (`studies/fit_runs.py` simulates again with
what it finds, until nothing changes.)

Letters: I rows (runs), K factors.
"""

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from traincast.calibration.kind import FloatArray
from traincast.calibration.runs import MeasuredRun, is_fitted, job_of_run
from traincast.engine import has_numba
from traincast.errors import TraincastError
from traincast.estimate.factors import Factor, FactorTable, Key, is_found, keys_of, prior_deviation, prior_mean
from traincast.job.options import ConstantsFile
from traincast.simulation.confidence import basis_of_step
from traincast.simulation.job_step import factors_of as factors_of_job
from traincast.simulation.job_step import run_job
from traincast.simulation.step import Setting
from traincast.simulation.widths import Basis, bounds

NOISE = 0.05
"""Deviation of a measured step from a perfect model: repeats with equal columns differ by 1 % in the median and
7 to 10 % at the 90th percentile (docs/published-runs.md, noise)."""

SHARED = 0.03
"""Deviation of what all runs of one source share and their rows do not say: its machine's cooling and firmware, how it
reads its clock. Twice that of single chips; chosen with 5 % tried, too (docs/published-runs.md)."""

_CHUNK = 8
"""Runs that a worker takes at a time."""
_FEWEST_FOR_ALL = 3
"""Runs that must speak for a factor that all GPUs and frameworks share; of fewer it is 1."""
_ROUNDS = 50
_TURN = 1.5
"""Residuals beyond so many deviations count linearly (Huber 1964)."""
_LEAST_SLOPE = 0.02
"""A factor that moves no run by more than this share of its own change is left alone."""


class Forecast(Struct, frozen=True, kw_only=True):
    """What is forecast of a run; `step_s` None where it cannot be, for the reason given."""

    step_s: float | None
    bounds: tuple[float, float] = (1.0, 1.0)
    """By what factors the ends of the interval are below and above the step."""
    basis: Basis | None = None
    """What the interval rests on."""
    reason: str = ""

    def holds(self, measured_s: float | None) -> bool:
        """Say whether a measured step lies inside the interval."""
        if self.step_s is None or measured_s is None:
            return False
        return self.bounds[0] <= measured_s / self.step_s <= self.bounds[1]

    @property
    def framework(self) -> str:
        """Framework whose published runs its factors are fitted to."""
        return "" if self.basis is None else self.basis.fitted_as

    @property
    def slopes(self) -> Mapping[str, float]:
        """Sensitivities, by the class of the factor."""
        return {} if self.basis is None else self.basis.slopes


def forecast_run(
    run: MeasuredRun, factors: FactorTable, engine: str = "auto", constants: ConstantsFile | None = None
) -> Forecast:
    """Forecast one run, by constants of operators before the shipped ones where there are some."""
    try:
        job = job_of_run(run)
        setting = Setting(cluster=run.cluster, engine=engine, constants=constants)
        done = run_job(job, setting, factors_of_job(job, setting, factors))
    except TraincastError as error:
        return Forecast(step_s=None, reason=str(error))
    basis = basis_of_step(done, run.notes)
    return Forecast(step_s=done.step_s, bounds=bounds(basis, factors), basis=basis)


def forecast_runs(
    runs: Sequence[MeasuredRun],
    factors: Sequence[FactorTable],
    progress: Callable[[int], None] | None = None,
    constants: ConstantsFile | None = None,
) -> list[Forecast]:
    """Forecast runs, each with its own factors, on all cores; `progress` is told after every run how many are done."""
    found = []
    for forecast in _forecasts([(*each, constants) for each in zip(runs, factors, strict=True)]):
        found.append(forecast)
        if progress is not None:
            progress(len(found))
    return found


def _forecasts(work: list[tuple[MeasuredRun, FactorTable, ConstantsFile | None]]) -> Iterator[Forecast]:
    workers = min(os.cpu_count() or 1, len(work) // _CHUNK)
    if workers < 2:
        yield from map(_forecast, work)
        return
    # Forked workers share what is loaded already; every other way to start them would import it again.
    method = "fork" if hasattr(os, "fork") else None
    with ProcessPoolExecutor(workers, mp_context=get_context(method), initializer=_leave_stops_to_parent) as pool:
        try:
            yield from pool.map(_forecast, work, chunksize=_CHUNK)
        except BaseException:
            # Whoever stops the command does not wait for what was begun.
            for process in list((pool._processes or {}).values()):
                process.kill()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _leave_stops_to_parent() -> None:
    """Ignore Ctrl-C, which a terminal sends to every process of a command: the one that began this worker ends it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _forecast(work: tuple[MeasuredRun, FactorTable, ConstantsFile | None]) -> Forecast:
    # For many runs the compiled engine pays from the first on.
    run, factors, constants = work
    return forecast_run(run, factors, "kernel" if has_numba() else "auto", constants)


class Unknowns(NamedTuple):
    """What is solved for: how each forecast answers to it, and what is expected of it."""

    slope_IK: FloatArray
    prior_K: FloatArray
    """Deviations of the logarithms before any row is seen."""
    current_K: FloatArray
    """Logarithms that the forecasts were made with."""
    mean_K: FloatArray
    """Logarithms that are expected before any row is seen."""

    def and_(self, others: "Unknowns") -> "Unknowns":
        """Return these and others after them."""
        rest = (np.append(mine, theirs) for mine, theirs in zip(self[1:], others[1:], strict=True))
        return Unknowns(np.hstack([self.slope_IK, others.slope_IK]), *rest)


class Sample(NamedTuple):
    """What the fit needs of a set of runs: how each forecast answers, and how far off it is."""

    keys: tuple[Key, ...]
    slope_IK: FloatArray
    """Change of the logarithm of each forecast with the logarithm of each factor."""
    residual_I: FloatArray
    """Logarithm of measured over forecast at the current factors."""
    weight_I: FloatArray
    """How much each run counts; runs of one configuration share one weight."""
    current_K: FloatArray
    """Logarithms of the factors that the forecasts were made with."""
    source_I: npt.NDArray[np.str_]
    """Source of each run."""

    def without(self, left_out_I: npt.NDArray[np.bool_]) -> "Sample":
        """Return the sample without some of its runs."""
        keep = ~left_out_I
        return self._replace(
            slope_IK=self.slope_IK[keep],
            residual_I=self.residual_I[keep],
            weight_I=self.weight_I[keep],
            source_I=self.source_I[keep],
        )

    def solved(self, more: "Unknowns | None" = None) -> "Solution":
        """Return the factors it asks for, and more unknowns after them, whatever a source adds to all of its runs."""
        own = Unknowns(
            self.slope_IK,
            np.array(list(map(prior_deviation, self.keys))),
            self.current_K,
            np.log(list(map(prior_mean, self.keys))),
        )
        given = own if more is None else own.and_(more)
        all_of_them = given.and_(_shared(self.source_I))
        found = solve(
            all_of_them.slope_IK,
            self.residual_I,
            self.weight_I,
            all_of_them.prior_K,
            all_of_them.current_K,
            all_of_them.mean_K,
        )
        count = len(given.prior_K)
        return Solution(found.log_factor_K[:count], found.deviation_K[:count])


def sample_of(
    rows: Sequence[MeasuredRun],
    forecasts: Sequence[Forecast],
    table: FactorTable,
    weight_I: FloatArray | None = None,
) -> Sample:
    """Return what the fit needs of forecasts that were made with some factors; runs without a forecast count 0.

    `weight_I` are the weights of `representatives`; None: these are all runs.
    """
    slopes = list(map(_by_key, forecasts))
    keys = tuple(sorted({key for row in slopes for key, slope in row.items() if slope >= _LEAST_SLOPE}))
    slope_IK = np.array([[row.get(key, 0.0) for key in keys] for row in slopes]).reshape(len(rows), len(keys))
    pairs = [(row.measured_s, each.step_s) for row, each in zip(rows, forecasts, strict=True)]
    known_I = np.array([None not in pair for pair in pairs], np.bool_)
    residual_I = np.array(
        [np.log(measured_s / step_s) if measured_s and step_s else 0.0 for measured_s, step_s in pairs]
    )
    current_K = np.array(
        [np.log(table.factors[key].factor if key in table.factors else prior_mean(key)) for key in keys]
    )
    weight_I = (_weights(rows) if weight_I is None else weight_I) * known_I
    return Sample(keys, slope_IK, residual_I, weight_I, current_K, np.array([row.groups.source for row in rows]))


def _shared(source_I: npt.NDArray[np.str_]) -> Unknowns:
    """Return what each source adds to all of its runs; one alone cannot be told from the factors, and adds nothing."""
    names = np.unique(source_I)
    slope_IS = (source_I[:, None] == names).astype(np.float64) if len(names) > 1 else np.zeros((len(source_I), 0))
    none_S = np.zeros(slope_IS.shape[1])
    return Unknowns(slope_IS, none_S + SHARED, none_S, none_S)


def factors_of(sample: Sample) -> FactorTable:
    """Return the factors that a sample asks for."""
    found = sample.solved()
    rows_K = ((sample.slope_IK >= _LEAST_SLOPE) & (sample.weight_I[:, None] > 0)).sum(axis=0)
    return FactorTable.from_factors(
        Factor(
            level=key[0],
            name=key[1],
            cost_class=key[2],
            factor=float(np.exp(found.log_factor_K[index])),
            deviation=float(found.deviation_K[index]),
            rows=int(rows_K[index]),
        )
        for index, key in enumerate(sample.keys)
        if key[0] != "all" or rows_K[index] >= _FEWEST_FOR_ALL
    )


def without_each(
    rows: Sequence[MeasuredRun], forecasts: Sequence[Forecast], shipped: FactorTable, leave_out: str
) -> list[FactorTable]:
    """Return for each run the factors of a fit that has not seen its group.

    `leave_out` is a grouping of runs; of several with ``+`` between them a group is what shares all of them. Runs of a
    group that the shipped factors were not fitted to keep those, whatever kind of run they are.

    Near the shipped factors the logarithm of a forecast is linear in theirs, so each fit is solved from the
    sensitivities of one simulation; the forecasts themselves are then simulated with what it gives.
    """
    sample = sample_of(rows, forecasts, shipped)
    seen_I = np.array(list(map(is_fitted, rows)))
    names = np.array([", ".join(row.groups.named(name) for name in leave_out.split("+")) for row in rows])
    older = {key: each for key, each in shipped.factors.items() if not is_found(key)}
    found = {
        name: FactorTable(older | dict(factors_of(sample.without(~seen_I | (names == name))).factors))
        for name in sorted(set(names[seen_I]))
    }
    return [found.get(str(name), shipped) for name in names]


def _by_key(forecast: Forecast) -> dict[Key, float]:
    basis, found = forecast.basis, dict[Key, float]()
    if basis is None:
        return found
    for name, slope in basis.slopes.items():
        # What several classes share makes all of them longer at once.
        for key in keys_of(name, basis.gpu, basis.fitted_as):
            found[key] = found.get(key, 0.0) + slope
    return found


def _weights(rows: Iterable[MeasuredRun]) -> FloatArray:
    """Return the weight of each row: one configuration at many scales or releases is no more than its square root.

    Rows of a configuration share their errors, so that twice as many do not say twice as much
    (docs/published-runs.md, noise).
    """
    names = list(map(_configuration, rows))
    count = Counter(names)
    return np.array([count[name] ** -0.5 for name in names])


def _configuration(row: MeasuredRun) -> tuple[object, ...]:
    layout = ("tp", "pp", "cp", "ep", "seq_length", "micro_batch")
    software = ("cuda_graph_impl", "cuda_graph_scope", "moe_dispatcher", "moe_a2a_overlap")
    return row.groups.family, *(getattr(row.request, name) for name in (*layout, *software))


def representatives(rows: Sequence[MeasuredRun], most: int) -> tuple[list[MeasuredRun], FloatArray]:
    """Return at most so many runs of each configuration, and the weights of all of it on them, [I].

    They are spread over its scales, from the fewest to the most GPUs.
    """
    alike: dict[tuple[object, ...], list[MeasuredRun]] = {}
    for row in rows:
        alike.setdefault(_configuration(row), []).append(row)
    chosen: list[MeasuredRun] = []
    weights: list[float] = []
    for group in alike.values():
        ordered = sorted(group, key=lambda row: row.request.gpus)
        places = sorted(set(np.linspace(0, len(ordered) - 1, min(most, len(ordered))).round().astype(int).tolist()))
        chosen += [ordered[place] for place in places]
        weights += [len(ordered) ** 0.5 / len(places)] * len(places)
    return chosen, np.array(weights)


class Solution(NamedTuple):
    """Logarithms of factors, and how certain they are."""

    log_factor_K: FloatArray
    deviation_K: FloatArray


def solve(
    slope_IK: FloatArray,
    residual_I: FloatArray,
    weight_I: FloatArray,
    prior_K: FloatArray,
    current_K: FloatArray,
    mean_K: FloatArray,
    noise: float = NOISE,
) -> Solution:
    """Return the factors that bring predictions nearest to measurements.

    Parameters
    ----------
    slope_IK, residual_I, weight_I, current_K
        As of `Sample`.
    prior_K : float array [K] or [K, K]
        Deviations of the logarithms before any row is seen, or their covariance.
    mean_K : float array [K]
        Deviation and mean of each factor's logarithm before any row is seen.
    noise : float
        Deviation of a row that a perfect model would leave.
    """
    # What the rows ask for, seen from what is expected.
    target_I = residual_I + slope_IK @ (current_K - mean_K)
    solution_K = current_K - mean_K
    prior_KK: FloatArray = np.diag(prior_K**-2.0) if prior_K.ndim == 1 else np.asarray(np.linalg.inv(prior_K))
    normal_KK: FloatArray = prior_KK
    for _ in range(_ROUNDS):
        distance_I = np.abs(target_I - slope_IK @ solution_K) / noise
        robust_I = weight_I * np.minimum(1.0, _TURN / np.maximum(distance_I, 1e-12)) / noise**2
        # A matrix by its own transpose takes half of what two matrices do.
        half_IK = np.sqrt(robust_I)[:, None] * slope_IK
        normal_KK = np.asarray(prior_KK + half_IK.T @ half_IK, np.float64)
        new_K = np.asarray(np.linalg.solve(normal_KK, slope_IK.T @ (robust_I * target_I)), np.float64)
        if np.max(np.abs(new_K - solution_K), initial=0.0) < 1e-6:
            solution_K = new_K
            break
        solution_K = new_K
    return Solution(solution_K + mean_K, np.sqrt(np.diag(np.linalg.inv(normal_KK))))
