"""What a row of published runs says of its job, and by which rules the rest is filled in.

What no column and no rule says stays open, and `traincast.spec.resolve` decides it by stack.
"""

import re
from dataclasses import dataclass, field, replace
from typing import Any

from traincast.calibrate.runs.frameworks import stack_of, year_of
from traincast.calibrate.tables import Row
from traincast.diagnostics import Note
from traincast.errors import ConfigError
from traincast.hardware.gpus import load_gpu
from traincast.model.model import Model
from traincast.spec.job import JobRequest

ASSUMED_STACK = "unknown-framework"
"""Code of the note that the row's framework does not tell its stack."""

_GSPMD = ("maxtext-2024",)
"""Stacks that lay out by sharding annotations: what they print as TP, PP, DP is 1 or empty, and their
data parallelism is the group named in ``zero_or_fsdp``."""

_SINGLE_PIPELINE = ("bigscience", "megatron-sc21-table2", "oneflow", "paper-mt-nlg")
"""Sources whose empty VPP really is 1: DeepSpeed's and OneFlow's pipelines have no virtual stages, and
table 2 of arXiv 2104.04473 compares without them."""


@dataclass(slots=True)
class _Filling:
    """Fields of the request so far, and the rules used."""

    row: Row
    values: dict[str, Any] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)

    def note(self, code: str, text: str) -> None:
        self.notes.append(Note(code, text, self.row.place))

    @property
    def remarks(self) -> str:
        """The row's own notes, in lower case."""
        return self.row.cells.get("notes", "").lower()


def request_of(row: Row, model: Model) -> tuple[JobRequest, tuple[Note, ...]]:
    """Return the job of a row and the rules that filled it in.

    Parameters
    ----------
    row : Row
        One row of ``measured_training_runs.csv``.
    model : Model
        Its model.

    Returns
    -------
    tuple of (JobRequest, tuple of Note)

    Raises
    ------
    ConfigError
        If the layout is open and no rule tells it.
    FormatError
        If a cell is no number.
    """
    filling = _Filling(row)
    found = stack_of(row)
    if found.assumed:
        filling.note(ASSUMED_STACK, found.assumed)
    stack = found.stack
    filling.values |= {"stack": _flavour(stack, filling), "task": row.cells.get("x_task", "pretrain")}
    _layout(filling, stack, model)
    _batch(filling, stack)
    _sharding(filling)
    _computing(filling)
    _overlap(filling)
    request = JobRequest(
        model=_with_capacity(filling, model),
        gpus=row.count("num_gpus"),
        seq_length=row.count("seq_len"),
        **filling.values,
    )
    return request, tuple(filling.notes)


def _with_capacity(filling: _Filling, model: Model) -> Model:
    """Return the model with its experts' capacity where the row's label says that tokens are dropped."""
    if model.experts is None or not re.search(r"\(tokendrop\)", filling.remarks):
        return model
    filling.note("tokens-dropped", "the label says that tokens are dropped: each expert takes the mean, capacity 1")
    return replace(model, experts=replace(model.experts, capacity_factor=1.0))


def _flavour(stack: str, filling: _Filling) -> str:
    """Return the stack, or its eager flavour where the notes say that nothing was compiled."""
    if stack == "torchtitan-2025" and re.search(r"\beager\b", filling.remarks):
        return "torchtitan-eager-2024"
    return stack


def _layout(filling: _Filling, stack: str, model: Model) -> None:
    """Fill in the degrees of parallelism."""
    row = filling.row
    for name in ("tp", "pp", "vpp", "cp", "ep"):
        if name in row.cells:
            filling.values[name] = row.count(name)
    if not {"tp", "pp"} & set(row.cells):
        if stack not in _GSPMD:
            raise ConfigError("the columns tp and pp are empty")
        filling.values |= {"tp": 1, "pp": 1}
        filling.note("gspmd-axes", "TP and PP are not printed: 1, all ranks share the parameters (FSDP)")
    if filling.values.get("pp") == 1 and filling.values.get("vpp", 1) > 1:
        filling.note("vpp-without-pipeline", f"VPP {filling.values['vpp']} with PP 1 is printed: taken as 1")
        filling.values["vpp"] = 1
    source = row.cells.get("source", "")
    if filling.values.get("pp", 1) > 1 and "vpp" not in row.cells and source.startswith(_SINGLE_PIPELINE):
        filling.values["vpp"] = 1
        filling.note("vpp-of-source", f"VPP is empty: 1, as {source} has no virtual stages")
    if model.experts is not None:
        _experts(filling, model)


def _experts(filling: _Filling, model: Model) -> None:
    """Fill in what runs with experts leave out."""
    row = filling.row
    tp = filling.values.get("tp", 1)
    if "ep" not in row.cells and row.cells.get("framework", "") != "MaxText":
        filling.note("ep-missing", "EP is empty on a run with experts: taken as 1")
    # NeMo's recipes of Grok split each expert over the tensor parallel ranks: with etp 1 its 314 billion
    # parameters would not fit on 8 x 80 GB, nor 8 x 186 GB with gradients.
    if "grok" in model.name.lower() and tp > 1:
        filling.values["etp"] = tp
        filling.note("etp-of-grok", f"ETP is not printed: {tp} as TP, as NeMo's recipes of Grok")


def _batch(filling: _Filling, stack: str) -> None:
    """Fill in the batch."""
    row = filling.row
    filling.values["global_batch"] = row.count("global_batch")
    if "micro_batch" in row.cells:
        filling.values["micro_batch"] = row.count("micro_batch")
        return
    replicas = row.count("num_gpus") // _product(filling.values, "tp", "pp", "cp")
    if stack in _GSPMD and replicas and filling.values["global_batch"] % replicas == 0:
        filling.values["micro_batch"] = filling.values["global_batch"] // replicas
        filling.note("one-microbatch", f"micro batch is empty: {filling.values['micro_batch']}, one microbatch a step")


def _sharding(filling: _Filling) -> None:
    """Read ``zero1(8)``, ``fsdp-128``, ``fsdp2-4(x cp)``, ``hsdp`` as stage and group."""
    text = filling.row.cells.get("zero_or_fsdp", "")
    replicas = filling.row.count("num_gpus") // _product(filling.values, "tp", "pp")
    found = re.match(r"zero(\d)(?:\((\d+)\))?", text)
    if found:
        filling.values["zero"] = int(found[1])
        shard = int(found[2]) if found[2] else None
    elif text.startswith("fsdp-shard_grad_op"):
        filling.values["zero"], shard = 2, None
    elif text.startswith("fsdp"):
        filling.values["zero"] = 3
        group = re.match(r"fsdp2?-(?:shard)?(\d+)", text)
        shard = int(group[1]) if group else None
        if shard and "(x cp)" in text:
            shard *= filling.values.get("cp", 1)
    elif text == "hsdp":
        filling.values["zero"] = 3
        shard = filling.row.count("gpus_per_node") if "gpus_per_node" in filling.row.cells else 8
        filling.note("hsdp-node", f"HSDP without its group: {shard}, the GPUs of a node")
    else:
        return
    if shard is not None and filling.values["zero"] and replicas % shard == 0:
        filling.values["shard"] = shard


def _computing(filling: _Filling) -> None:
    """Fill in precision, recomputation, sequence parallelism, CUDA graphs."""
    cells, remarks = filling.row.cells, filling.remarks
    filling.values["precision"] = _precision(filling)
    if "recompute" in cells:
        filling.values["recompute"] = cells["recompute"]
    if "sequence_parallel" in cells:
        filling.values["sequence_parallel"] = cells["sequence_parallel"] == "true"
    if "no cuda graph" in remarks:
        filling.values["cuda_graphs"] = False
    elif "cuda graph" in remarks or re.search(r"config_\S*_cg\b|config_\S*_cg_", remarks):
        filling.values["cuda_graphs"] = True


def _precision(filling: _Filling) -> str | None:
    """Return the type of the products; its flavour stands only in the notes."""
    printed = filling.row.cells.get("precision")
    if printed is None:
        return _open_precision(filling)
    remarks = filling.remarks
    if printed == "fp4":
        return "nvfp4"
    if printed != "fp8":
        return printed
    scaled = load_gpu(filling.row.cells["gpu"]).architecture in ("blackwell", "cdna4")
    if re.search(r"mxfp8|fp8-mx\b", remarks) and "fp8-cs (fp8-mx)" not in remarks and scaled:
        return "mxfp8"
    if re.search(r"subchannel|blockwise|fp8-sc\b", remarks):
        return "fp8_block"
    return "fp8"


def _open_precision(filling: _Filling) -> str | None:
    """Return the precision of a run that does not print it: MLPerf's submissions run in fp8 or below."""
    row = filling.row
    if not row.cells.get("source", "").startswith("mlperf"):
        return None
    gpu = load_gpu(row.cells["gpu"])
    nvfp4 = gpu.architecture == "blackwell" and "25.09" in row.cells.get("framework", "")
    precision = "nvfp4" if nvfp4 else "fp8" if gpu.has_peak("fp8") else None
    if precision:
        filling.note(
            "mlperf-precision",
            f"precision is empty: {precision}, as NVIDIA's and AMD's reference submissions of {year_of(row)} "
            "(NVFP4 on Blackwell from release 25.09 on)",
        )
    return precision


def _overlap(filling: _Filling) -> None:
    """Fill in what the notes say of overlap."""
    remarks = filling.remarks
    if "non-overlap" in remarks:
        for name in ("overlap_grad_reduce", "overlap_param_gather", "overlap_tp", "overlap_p2p"):
            filling.values[name] = False
        filling.note("overlap-off", "the notes say that nothing is overlapped")
    if "async tp" in remarks:
        filling.values["overlap_tp"] = True
    elif "vanilla tp" in remarks or '"tp overlap" only where named' in remarks:
        filling.values["overlap_tp"] = False


def _product(values: dict[str, Any], *names: str) -> int:
    product = 1
    for name in names:
        product *= values.get(name) or 1
    return product
