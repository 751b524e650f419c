"""Published training runs, against full simulations of their jobs."""

from collections.abc import Callable, Sequence

import numpy as np

from traincast.calibrate.contract import KINDS, FloatArray, Grouping, Kind, Labels, Predictions, Ratios, Request
from traincast.calibrate.measurements import Skipped
from traincast.calibrate.runs.boards import BOARD, Pair, labels_of, precision_pairs, weak_scaling_pairs
from traincast.calibrate.runs.evaluate import Forecast, forecast_runs
from traincast.calibrate.runs.fit import factors_of, sample_of
from traincast.calibrate.runs.rows import Runs, assumed_framework, assumed_frameworks, has_steps, read_runs
from traincast.calibrate.runs.run import RunRow
from traincast.calibrate.tables import Table
from traincast.estimate.factors import FactorTable, shipped_factors
from traincast.simulation.confidence import Z

GROUPINGS = (BOARD, "moe", "precision", "gpu", "framework", "source", "task", "layout")
LEAVES_OUT = ("family", "source")


def predict(table: Table, request: Request) -> Predictions:
    """Return published runs with their forecasts.

    Parameters
    ----------
    table : Table
        With columns of the common schema, or of a public table that rules bring to it.
    request : Request
        Its cluster is that of every row; else each row's own, by its GPU. It can leave out
        ``family`` (source, model, GPU family and precision) and ``source``: the factors
        are fitted again without each of them in turn.

    Returns
    -------
    Predictions
        Seconds per step; every row that is not forecast is skipped with its reason.
    """
    runs = read_runs(table, request.cluster)
    rows = [row for row in runs.rows if row.measured_s is not None]
    shipped = shipped_factors()
    forecasts = _kept_forecasts(request, len(rows))
    if forecasts is None:
        forecasts = forecast_runs(rows, [shipped] * len(rows), _progress(request, len(rows)))
    if request.leave_out is not None:
        tables = _without_each(rows, forecasts, shipped, request.leave_out)
        forecasts = _again(rows, tables, shipped, forecasts, request)
    return _predictions(runs, rows, forecasts, table)


def _kept_forecasts(request: Request, rows: int) -> list[Forecast] | None:
    """Return the forecasts that were made of these rows before, None where there are none."""
    kept = request.kept
    if not isinstance(kept, list) or len(kept) != rows:
        return None
    return [each for each in kept if isinstance(each, Forecast)]


def _again(
    rows: Sequence[RunRow],
    tables: Sequence[FactorTable],
    shipped: FactorTable,
    forecasts: Sequence[Forecast],
    request: Request,
) -> list[Forecast]:
    """Forecast those runs again whose factors are not the shipped ones."""
    changed = [index for index, table in enumerate(tables) if table is not shipped]
    found = list(forecasts)
    new = forecast_runs(
        [rows[index] for index in changed], [tables[index] for index in changed], _progress(request, len(changed))
    )
    for index, each in zip(changed, new, strict=True):
        found[index] = each
    return found


def is_fitted(row: RunRow) -> bool:
    """Say whether the shipped factors were fitted to runs like this one: pretraining, with a full layout."""
    return row.full_layout and not row.sweep


def _progress(request: Request, rows: int) -> Callable[[int], None] | None:
    tell = request.progress
    return None if tell is None else lambda count: tell(count, rows)


def _without_each(
    rows: Sequence[RunRow], forecasts: Sequence[Forecast], shipped: FactorTable, leave_out: str
) -> list[FactorTable]:
    """Return for each run the factors of a fit that has not seen its group; others keep the shipped ones.

    Near the shipped factors the logarithm of a forecast is linear in theirs, so each fit is solved from the
    sensitivities of one simulation; the forecasts themselves are then simulated with what it gives.
    """
    sample = sample_of(rows, forecasts, shipped)
    seen_I = np.array([is_fitted(row) for row in rows])
    names = np.array([row.groups[leave_out] for row in rows])
    found = {name: factors_of(sample.without(~seen_I | (names == name))) for name in sorted(set(names[seen_I]))}
    return [found[row.groups[leave_out]] if is_fitted(row) else shipped for row in rows]


def _predictions(runs: Runs, rows: Sequence[RunRow], forecasts: Sequence[Forecast], table: Table) -> Predictions:
    predicted = np.array([np.nan if each.step_s is None else each.step_s for each in forecasts], np.float64)
    reasons = [Skipped(row.id, each.reason) for row, each in zip(rows, forecasts, strict=True) if each.step_s is None]
    labels = labels_of(rows)
    details: dict[str, Labels] = {
        **{name: labels[name] for name in ("board", "source", "framework")},
        "framework_assumed": tuple("framework not known" if assumed_framework(row) else None for row in rows),
        **_configuration(rows),
    }
    return Predictions(
        ids=tuple(row.id for row in rows),
        measured=np.array([row.measured_s for row in rows], np.float64),
        predicted=predicted,
        details=details,
        groupings=tuple(Grouping.of(name, [str(each) for each in labels[name]]) for name in (*GROUPINGS, "family")),
        skipped=(*runs.skipped, *reasons),
        rows=table.size,
        notes=assumed_frameworks(rows),
        spread=Z * np.array([each.deviation for each in forecasts], np.float64),
        ratios=_ratios(rows, predicted),
        kept=list(forecasts),
    )


def _configuration(rows: Sequence[RunRow]) -> dict[str, Labels]:
    requests = [row.request for row in rows]
    found: dict[str, Labels] = {
        "model": tuple(row.groups["model"] for row in rows),
        "gpu": tuple(row.groups["gpu"] for row in rows),
        "precision": tuple(row.groups["precision"] for row in rows),
    }
    for name in ("gpus", "tp", "pp", "vpp", "cp", "ep", "micro_batch", "global_batch", "seq_length", "recompute"):
        found[name] = tuple(getattr(each, name) for each in requests)
    return found


def _ratios(rows: Sequence[RunRow], predicted: FloatArray) -> tuple[Ratios, ...]:
    """Return how well ratios of like runs are forecast."""
    seen = [row for row in rows if is_fitted(row)]
    kinds = (("weak scaling", weak_scaling_pairs(seen)), ("fp8 over bf16", precision_pairs(seen)))
    step_s = {row.id: each for row, each in zip(rows, predicted.tolist(), strict=True)}
    return tuple(_ratio(name, pairs, step_s) for name, pairs in kinds if pairs)


def _ratio(name: str, pairs: Sequence[Pair], step_s: dict[str, float]) -> Ratios:
    return Ratios(
        name=name,
        measured=np.array([pair.measured_ratio for pair in pairs], np.float64),
        predicted=np.array([step_s[pair.second.id] / step_s[pair.first.id] for pair in pairs], np.float64),
    )


KINDS.register("training-runs")(
    Kind(
        name="training-runs",
        title="steps of published training runs",
        quantity="step_s",
        fits=has_steps,
        predict=predict,
        by=(*GROUPINGS, "family"),
        shown=GROUPINGS[:1],
        leaves_out=LEAVES_OUT,
    )
)
