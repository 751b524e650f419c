"""What a row of the common schema says of its job and its network.

What no column says stays open, and `traincast.job.resolve` decides it by framework.
"""

import re
from dataclasses import dataclass, field, replace
from typing import Any

from traincast.calibrate.runs.frameworks import by_annotations, framework_of
from traincast.calibrate.tables import Row
from traincast.diagnostics import Note
from traincast.errors import ConfigError, FormatError
from traincast.job.job import JobRequest
from traincast.job.parallel import MAX_WORLD_SIZE
from traincast.model.model import Model

ASSUMED_FRAMEWORK = "unknown-framework"
"""Code of the note that a row's column names no framework that is known."""

_DEGREES = ("tp", "pp", "vpp", "cp", "ep", "etp")
_COUNTS = ("micro_batch", "grad_reduce_bytes")
_TEXTS = ("precision", "recompute")
_SWITCHES = (
    *("sequence_parallel", "cuda_graphs"),
    *("overlap_grad_reduce", "overlap_param_gather", "overlap_tp", "overlap_p2p"),
)
_ON, _OFF = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


@dataclass(slots=True)
class _Filling:
    """Fields of the request so far, and what was assumed."""

    row: Row
    values: dict[str, Any] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)

    def note(self, code: str, text: str) -> None:
        self.notes.append(Note(code, text, self.row.place))


def request_of(row: Row, model: Model) -> tuple[JobRequest, tuple[Note, ...]]:
    """Return the job of a row, and what was assumed of it.

    Parameters
    ----------
    row : Row
        A row of the common schema (`traincast.calibrate.runs.schema.common_row`).
    model : Model
        Its model.

    Returns
    -------
    tuple of (JobRequest, tuple of Note)

    Raises
    ------
    ConfigError
        If the layout is open.
    FormatError
        If a cell has no value that its column can have.
    """
    filling = _Filling(row)
    found = framework_of(row)
    if found.assumed:
        filling.note(ASSUMED_FRAMEWORK, found.assumed)
    filling.values |= {"framework": found.framework, "task": row.cells.get("x_task", "pretrain")}
    filling.values |= {name: row.count(name) for name in (*_DEGREES, *_COUNTS) if name in row.cells}
    filling.values |= {name: row.cells[name] for name in _TEXTS if name in row.cells}
    filling.values |= {name: _switch(row, name) for name in _SWITCHES if name in row.cells}
    filling.values["global_batch"] = row.count("global_batch")
    _layout(filling, model)
    if by_annotations(found.framework):
        _one_microbatch(filling)
    _sharding(filling)
    request = JobRequest(
        model=_with_capacity(row, model), gpus=row.count("num_gpus"), seq_length=row.count("seq_len"), **filling.values
    )
    return request, tuple(filling.notes)


def _switch(row: Row, name: str) -> bool:
    text = row.cells[name].lower()
    if text not in (*_ON, *_OFF):
        raise FormatError(f"column {name} is {row.cells[name]!r}; it must be true or false", row.path, row.line)
    return text in _ON


def _with_capacity(row: Row, model: Model) -> Model:
    """Return the model with its experts' capacity where the row says it."""
    if model.experts is None or "capacity_factor" not in row.cells:
        return model
    return replace(model, experts=replace(model.experts, capacity_factor=row.number("capacity_factor")))


def _layout(filling: _Filling, model: Model) -> None:
    """Fill in degrees of parallelism that are printed otherwise, or not at all."""
    values = filling.values
    if not {"tp", "pp"} & set(values):
        if not by_annotations(values["framework"]):
            raise ConfigError("the columns tp and pp are empty")
        values |= {"tp": 1, "pp": 1}
        filling.note("annotation-axes", "TP and PP are not printed: 1, all ranks share the parameters (FSDP)")
    if values.get("pp") == 1 and values.get("vpp", 1) > 1:
        filling.note("vpp-without-pipeline", f"VPP {values['vpp']} with PP 1 is printed: taken as 1")
        values["vpp"] = 1
    if model.experts is None:
        values.pop("etp", None)
    elif "ep" not in values:
        filling.note("ep-missing", "EP is empty on a run with experts: taken as 1")


def _one_microbatch(filling: _Filling) -> None:
    """Fill in the micro batch of frameworks whose steps have one where they do not say it."""
    replicas = filling.row.count("num_gpus") // _product(filling.values, "tp", "pp", "cp")
    if "micro_batch" not in filling.values and replicas and filling.values["global_batch"] % replicas == 0:
        filling.values["micro_batch"] = filling.values["global_batch"] // replicas
        filling.note("one-microbatch", f"micro batch is empty: {filling.values['micro_batch']}, one microbatch a step")


def _ranks(filling: _Filling, digits: str) -> int:
    if len(digits) > len(str(MAX_WORLD_SIZE)):
        message = f"column zero_or_fsdp names a group of {len(digits)} digits; a job has at most {MAX_WORLD_SIZE} ranks"
        raise FormatError(message, filling.row.path, filling.row.line)
    return int(digits)


def _sharding(filling: _Filling) -> None:
    """Read ``zero1(8)``, ``fsdp-128``, ``fsdp2-4(x cp)``, ``hsdp`` as stage and group."""
    row = filling.row
    text = row.cells.get("zero_or_fsdp", "")
    replicas = row.count("num_gpus") // _product(filling.values, "tp", "pp")
    if text.startswith("zero"):
        found = re.match(r"zero([0-3])(?!\d)(?:\((\d+)\))?", text)
        if found is None:
            message = f"column zero_or_fsdp is {text!r}; ZeRO has the stages 0 to 3, as in zero1 or zero1(8)"
            raise FormatError(message, row.path, row.line)
        filling.values["zero"] = int(found[1])
        shard = _ranks(filling, found[2]) if found[2] else None
    elif text.startswith("fsdp-shard_grad_op"):
        filling.values["zero"], shard = 2, None
    elif text.startswith("fsdp"):
        filling.values["zero"] = 3
        group = re.match(r"fsdp2?-(?:shard)?(\d+)", text)
        shard = _ranks(filling, group[1]) if group else None
        if shard and "(x cp)" in text:
            shard *= filling.values.get("cp", 1)
    elif text == "hsdp":
        filling.values["zero"] = 3
        shard = row.count("gpus_per_node") if "gpus_per_node" in row.cells else 8
        filling.note("hsdp-node", f"HSDP without its group: {shard}, the GPUs of a node")
    else:
        return
    if shard is not None and filling.values["zero"] and replicas % shard == 0:
        filling.values["shard"] = shard


def _product(values: dict[str, Any], *names: str) -> int:
    product = 1
    for name in names:
        product *= values.get(name) or 1
    return product


_GIGABIT = 1e9 / 8

_PER_GPU = re.compile(r"(?<!\d)(\d{1,6}) ?gb/s(?: rdma)? per gpu", re.IGNORECASE)
_PER_NODE = re.compile(r"(?<!\d)(\d{1,6}) ?gb(?:/s|ps) (?:per node|node-node)", re.IGNORECASE)
_CARDS = re.compile(r"(?<!\d)(\d{1,6}) ?x[^;,+]*?(?<!\d)(\d{1,6}) ?gb(?:/s|/sec|ps)", re.IGNORECASE)
_CARDS_BYTES = re.compile(r"(?<!\d)(\d{1,6})x(?<!\d)(\d{1,6}) gb/s ib")
_NO_CARDS = re.compile(r"storage|management|nvlink|ethernet nic|25gb/s|10g", re.IGNORECASE)
_LEAST_CARD_GBIT = 100
"""Slower cards are for management and storage, not for training."""


def nic_bytes_per_s(row: Row) -> float | None:
    """Return the line rate of the network cards per GPU; None where the row does not say it.

    Parameters
    ----------
    row : Row
        With the column ``nic_gbit_per_gpu``, or ``interconnect`` (in words) and ``gpus_per_node``.

    Returns
    -------
    float or None
        Bytes per second and direction.
    """
    if "nic_gbit_per_gpu" in row.cells:
        return row.number("nic_gbit_per_gpu") * _GIGABIT
    text = row.cells.get("interconnect", "")
    per_node = row.count("gpus_per_node") if "gpus_per_node" in row.cells else 8
    if found := _PER_GPU.search(text):
        return float(found[1]) * _GIGABIT
    if found := _CARDS_BYTES.search(text.lower()) if "GB/s IB" in text else None:
        return int(found[1]) * int(found[2]) * 1e9 / per_node
    if found := _PER_NODE.search(text):
        return float(found[1]) * _GIGABIT / per_node
    return _from_cards(text, per_node)


def _from_cards(text: str, per_node: int) -> float | None:
    """Add up the cards of a list such as ``Compute: 8x ConnectX-7 IB NDR 400Gb/s``."""
    for part in re.split(r"[;,+]", text):
        if _NO_CARDS.search(part) and "compute" not in part.lower():
            continue
        found = _CARDS.search(part)
        if found and int(found[2]) >= _LEAST_CARD_GBIT and int(found[1]) <= 2 * per_node:
            return int(found[1]) * int(found[2]) * _GIGABIT / per_node
    return None
