"""Whole fp32 models that PyTorch runs eagerly on one GPU (NeuSight's labels), against the sum of their kernels."""

from collections.abc import Sequence

import numpy as np

from traincast.calibrate.contract import KINDS, Grouping, Kind, Labels, Predictions, Request
from traincast.calibrate.eager_graphs import MODELS, backward_calls, forward_calls
from traincast.calibrate.measurements import Skipped
from traincast.calibrate.operator_defaults import without_gpu
from traincast.calibrate.tables import Row, Table
from traincast.errors import ConfigError
from traincast.estimate.operators import OperatorConstants, price_calls, shipped_constants
from traincast.estimate.operators.host import host_floor_s
from traincast.spec.gpus import GpuSpec, find_gpu
from traincast.units import parse_time

_COLUMNS = {"model", "mode", "seq", "batch", "gpu", "measured_ms"}
_OPTIONS = ("", "fusion")


def holds_eager_runs(columns: Sequence[str]) -> bool:
    """Say whether columns are those of NeuSight's labels of whole models."""
    return set(columns) >= _COLUMNS and "framework" not in columns


def predict(table: Table, request: Request) -> Predictions:
    """Return measured models with the sums of their kernels' prices.

    Parameters
    ----------
    table : Table
        With the columns ``model mode seq batch gpu measured_ms``, and perhaps ``gpus option dtype``.
    request : Request
        It can leave out ``gpu``, as for measured operators.

    Returns
    -------
    Predictions
        Rows on several GPUs, of unknown models, GPUs or options are skipped.
    """
    if request.cluster is not None:
        raise ConfigError("measured models say their GPU row by row; leave the cluster out", "cluster")
    skipped, kept, predicted = [], [], []
    for row in table.rows:
        reason = _reason(row)
        if reason is not None:
            skipped.append(Skipped(row.id, reason))
            continue
        kept.append(row)
        predicted.append(_time_s(row, leave_out=request.leave_out is not None))
    columns = {name: tuple(row.cells.get(name, "") for row in kept) for name in ("gpu", "model", "mode", "option")}
    sizes = {name: tuple(row.count(name) for row in kept) for name in ("seq", "batch")}
    details: dict[str, Labels] = {**columns, **sizes}
    return Predictions(
        ids=tuple(row.id for row in kept),
        measured=np.array([row.number("measured_ms") * parse_time("1ms") for row in kept], np.float64),
        predicted=np.array(predicted, np.float64),
        details=details,
        groupings=tuple(
            Grouping.of(name, [each or "eager" for each in columns[name]])
            for name in ("gpu", "model", "mode", "option")
        ),
        skipped=tuple(skipped),
        rows=len(table.rows),
    )


def _reason(row: Row) -> str | None:
    """Return why a row cannot be predicted; None where it can."""
    cells = row.cells
    missing = sorted(_COLUMNS - set(cells))
    if missing:
        return f"the row has no {missing[0]}"
    rules = (
        (cells["model"] in MODELS, f"the shape of {cells['model']} is not known"),
        (find_gpu(cells["gpu"]) is not None, f"nothing is known of the GPU {cells['gpu']!r}"),
        (
            cells.get("option", "") in _OPTIONS and cells.get("gpus", "1") == "1",
            "several GPUs: predict it with a layout and a cluster",
        ),
        (cells["mode"] in ("inf", "train"), f"the mode {cells['mode']!r} is neither inf nor train"),
        (cells.get("dtype", "fp32") == "fp32", "only fp32 runs are made of these kernels"),
    )
    return next((why for holds, why in rules if not holds), None)


def _time_s(row: Row, *, leave_out: bool) -> float:
    gpu = find_gpu(row.cells["gpu"])
    if gpu is None:
        return float("nan")
    known = without_gpu(shipped_constants(), gpu) if leave_out else shipped_constants()
    return model_time_s(
        row.cells["model"],
        row.count("batch"),
        row.count("seq"),
        gpu,
        known,
        training=row.cells["mode"] == "train",
        fused=row.cells.get("option") == "fusion",
    )


def model_time_s(
    model: str,
    batch: int,
    seq: int,
    gpu: GpuSpec,
    constants: OperatorConstants,
    *,
    training: bool,
    fused: bool = False,
) -> float:
    """Return the seconds of a forward pass, or of forward and backward, without an optimizer."""
    shape = MODELS[model]
    forward = forward_calls(shape, batch, seq, fused=fused, training=training)
    total = max(float(price_calls(forward, gpu, constants).sum()), host_floor_s(len(forward)))
    if training:
        backward = backward_calls(shape, batch, seq)
        total += max(float(price_calls(backward, gpu, constants).sum()), host_floor_s(len(backward), backward=True))
    return total


KINDS.register("eager_runs")(
    Kind(
        name="eager_runs",
        title="whole models run eagerly in fp32",
        quantity="time_s",
        fits=holds_eager_runs,
        predict=predict,
        by=("gpu", "model", "mode", "option"),
        leaves_out=("gpu",),
    )
)
