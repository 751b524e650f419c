"""Whole fp32 models that PyTorch runs eagerly (NeuSight's labels), against their kernels.

On one GPU their sum; on several a simulated step with collectives.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np

from eager.graphs import MODELS, accumulation_calls, backward_calls, forward_calls
from eager.host import host_floor_s
from eager.layouts import layout_named, layout_time_s, misfit
from eager.switch import SWITCH_MODELS, switch_backward, switch_forward
from traincast.calibration.kind import Grouping, Labels, MeasurementKind, Predictions, Request
from traincast.calibration.operator_recipe import without_gpu
from traincast.calibration.tables import MeasurementTable, Row, Skipped
from traincast.errors import ConfigError
from traincast.estimate.operators import OperatorCall, OperatorConstants, estimate_calls, shipped_constants
from traincast.hardware.gpu import Gpu, find_gpu
from traincast.units import parse_time

_COLUMNS = {"model", "mode", "seq", "batch", "gpu", "measured_ms"}
_OPTIONS = ("", "fusion")
_BY = ("gpu", "model", "mode", "option")
_NOT_IN_PAPER = ("T4", "P4")


def holds_eager_runs(columns: Sequence[str]) -> bool:
    """Say whether columns are those of NeuSight's labels of whole models."""
    return set(columns) >= _COLUMNS and "framework" not in columns


def predict(table: MeasurementTable, request: Request) -> Predictions:
    """Return measured models with the sums of their kernels' estimates.

    Parameters
    ----------
    table : MeasurementTable
        With the columns ``model mode seq batch gpu measured_ms``, and perhaps ``gpus option dtype``.
    request : Request
        It can leave out ``gpu``, as for measured operators.

    Returns
    -------
    Predictions
        Rows of unknown models, GPUs or options are skipped.
    """
    if request.cluster is not None:
        raise ConfigError("measured models say their GPU row by row; leave the cluster out", "cluster")
    read, skipped = table.read(partial(_times_s, leave_out=request.leave_out is not None))
    kept = [row for row, _ in read]
    columns = {name: tuple(row.cells.get(name, "") for row in kept) for name in ("gpu", "model", "mode", "option")}
    sizes = {name: tuple(row.count(name) for row in kept) for name in ("seq", "batch")}
    details: dict[str, Labels] = {**columns, **sizes}
    return Predictions(
        ids=tuple(row.id for row in kept),
        measured=np.array([measured_s for _, (measured_s, _) in read], np.float64),
        predicted=np.array([predicted_s for _, (_, predicted_s) in read], np.float64),
        details=details,
        groupings=(
            *(Grouping.from_labels(name, [each or "eager" for each in columns[name]]) for name in _BY),
            Grouping.from_labels("set", [_set(row) for row in kept]),
        ),
        skipped=skipped,
        rows=table.size,
    )


def _set(row: Row) -> str:
    """Return the table of NeuSight's paper that a row stands in.

    Its tables of one GPU have NVIDIA's but T4 and P4 (arXiv 2407.13853, section 6).
    """
    if layout_named(row.cells.get("option", "")) is not None:
        return "several GPUs"
    gpu = find_gpu(row.cells["gpu"])
    in_paper = gpu is not None and gpu.vendor == "NVIDIA" and gpu.name not in _NOT_IN_PAPER
    predicted_there = "neusight_ms" in row.cells and not row.cells.get("option")
    return "one GPU, in NeuSight's paper" if in_paper and predicted_there else "one GPU, others"


def _times_s(row: Row, *, leave_out: bool) -> tuple[float, float] | Skipped:
    """Return what was measured and what is predicted, or why nothing is."""
    reason = _reason(row)
    if reason is not None:
        return Skipped(row.id, reason)
    return row.number("measured_ms") * parse_time("1ms"), _time_s(row, leave_out=leave_out)


def _reason(row: Row) -> str | None:
    """Return why a row cannot be predicted; None where it can."""
    cells = row.cells
    missing = sorted(_COLUMNS - set(cells))
    if missing:
        return f"the row has no {missing[0]}"
    rules = (
        (cells["model"] in (*MODELS, *SWITCH_MODELS), f"the shape of {cells['model']} is not known"),
        (find_gpu(cells["gpu"]) is not None, f"nothing is known of the GPU {cells['gpu']!r}"),
        (cells["mode"] in ("inf", "train"), f"the mode {cells['mode']!r} is neither inf nor train"),
        (cells.get("dtype", "fp32") == "fp32", "only fp32 runs are made of these kernels"),
    )
    return next((why for holds, why in rules if not holds), None) or _misfit(row)


def _misfit(row: Row) -> str | None:
    """Return why the option of a row, or its number of GPUs, cannot be predicted."""
    option, model = row.cells.get("option", ""), row.cells["model"]
    parallel = layout_named(option)
    world = 1 if parallel is None else parallel.world_size
    if row.cells.get("gpus", "1") != str(world):
        return f"the option {option!r} is not a layout of {row.cells.get('gpus', '1')} GPUs, such as dp4, tp4 or pp4_1"
    if parallel is None:
        known = ("",) if model in SWITCH_MODELS else _OPTIONS
        return None if option in known else f"the option {option!r} is not known for {model}"
    if row.cells["mode"] != "train" or model not in MODELS:
        return "only training of GPT models is laid out over several GPUs"
    return misfit(MODELS[model], row.count("batch"), parallel)


def _time_s(row: Row, *, leave_out: bool) -> float:
    gpu = find_gpu(row.cells["gpu"])
    if gpu is None:
        return float("nan")
    known = without_gpu(shipped_constants(), gpu) if leave_out else shipped_constants()
    model, batch, seq, option = row.cells["model"], row.count("batch"), row.count("seq"), row.cells.get("option", "")
    parallel, training = layout_named(option), row.cells["mode"] == "train"
    if parallel is not None:
        return layout_time_s(MODELS[model], batch, seq, gpu, parallel, known)
    if model in SWITCH_MODELS:
        return switch_time_s(model, batch, seq, gpu, known, training=training)
    return model_time_s(model, batch, seq, gpu, known, training=training, fused=option == "fusion")


def model_time_s(
    model: str,
    batch: int,
    seq: int,
    gpu: Gpu,
    constants: OperatorConstants,
    *,
    training: bool,
    fused: bool = False,
) -> float:
    """Return the seconds of a forward pass, or of forward and backward, without an optimizer."""
    shape = MODELS[model]
    total = _launched_s(forward_calls(shape, batch, seq, fused=fused, training=training), gpu, constants)
    if training:
        backward = [*backward_calls(shape, batch, seq), *accumulation_calls(shape)]
        total += _launched_s(backward, gpu, constants, backward=True)
    return total


def switch_time_s(model: str, batch: int, seq: int, gpu: Gpu, constants: OperatorConstants, *, training: bool) -> float:
    """Return the seconds of a Switch Transformer's forward pass, or of forward and backward."""
    shape = SWITCH_MODELS[model]
    segments = switch_forward(shape, batch, seq, training=training)
    total = sum(_launched_s(segment, gpu, constants) for segment in segments)
    if training:
        total += _launched_s(switch_backward(shape, batch, seq), gpu, constants, backward=True)
    return total


def _launched_s(
    calls: Sequence[OperatorCall], gpu: Gpu, constants: OperatorConstants, *, backward: bool = False
) -> float:
    """Return the seconds of kernels, no less than the host needs to launch them."""
    return max(float(estimate_calls(calls, gpu, constants).sum()), host_floor_s(len(calls), backward=backward))


KIND = MeasurementKind(
    name="eager_runs",
    title="whole models run eagerly in fp32",
    quantity="time_s",
    fits=holds_eager_runs,
    predict=predict,
    by=(*_BY, "set"),
    leaves_out=("gpu",),
)
"""What `traincast.calibration.validate` needs to know of these files."""
