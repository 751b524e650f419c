"""The measured step of a published run in seconds, whatever quantity its source printed."""

from typing import NamedTuple

from traincast.calibrate.tables import Row
from traincast.errors import FormatError
from traincast.hardware.gpu import load_gpu
from traincast.model.counts import token_flops
from traincast.model.model import Model


class FlopCount(NamedTuple):
    """How a source counts the FLOP that it divides by the step."""

    full_attention: bool
    """Causal attention counted as the full square, not as its half."""
    recompute: float
    """Factor for layers computed again inside the count: 4/3, or 1."""


FLOP_COUNTS = {
    "causal": FlopCount(False, 1.0),
    "full": FlopCount(True, 1.0),
    "full+recompute": FlopCount(True, 4 / 3),
}
"""What the column ``flop_count`` may say."""


def measured_step_s(row: Row, model: Model | None) -> float | None:
    """Return the measured step, None where it cannot be told.

    Parameters
    ----------
    row : Row
        With ``measured_metric`` and ``measured_value``, or ``x_iter_time_s``; any column may be missing. FLOP/s
        tell a step only beside ``flop_count``.
    model : Model, optional
        Needed where only FLOP/s were printed.

    Returns
    -------
    float or None
        Seconds.

    Raises
    ------
    FormatError
        If a cell is no positive number.
    """
    # Without its value a metric says nothing; the step may still stand in a column of its own.
    metric = row.cells.get("measured_metric") if "measured_value" in row.cells else None
    if metric == "iter_time_s":
        return row.number("measured_value")
    per_step = _samples_and_tokens(row)
    if metric in ("samples_per_s_total", "sequences_per_s_total") and per_step:
        return per_step[0] / row.number("measured_value")
    if metric == "tokens_per_s_per_gpu" and per_step:
        return per_step[1] / (row.number("measured_value") * row.count("num_gpus"))
    if "x_iter_time_s" in row.cells:
        return row.number("x_iter_time_s")
    if metric in ("tflops_per_gpu", "mfu_pct") and per_step and model is not None:
        return _from_flops(row, model, per_step[1], metric)
    return None


def _samples_and_tokens(row: Row) -> tuple[float, float] | None:
    if not {"global_batch", "seq_len", "num_gpus"} <= set(row.cells):
        return None
    samples = row.number("global_batch")
    return samples, samples * row.number("seq_len")


def _from_flops(row: Row, model: Model, tokens: float, metric: str) -> float | None:
    """Divide the source's own count of FLOP by its FLOP per second."""
    said = row.cells.get("flop_count")
    if said is None:
        return None
    count = FLOP_COUNTS.get(said)
    if count is None:
        known = ", ".join(FLOP_COUNTS)
        raise FormatError(f"column flop_count is {said!r}; it must be one of {known}", row.path, row.line)
    flops = token_flops(model, row.count("seq_len"))
    attention = flops.attention_core * (2 if count.full_attention and model.attention.causal else 1)
    per_token = 3 * ((flops.matrices - flops.head + attention) * count.recompute + flops.head)
    value = row.number("measured_value")
    if metric == "tflops_per_gpu":
        per_gpu = value * 1e12
    else:
        # The sources that print MFU mean the bf16 peak, and ran in bf16 (PaLM, arXiv 2204.02311, appendix B).
        per_gpu = value / 100 * load_gpu(row.cells.get("gpu", "")).peak_flops_per_s("bf16")
    return tokens * per_token / (per_gpu * row.count("num_gpus"))
