"""A measured run: a job, the cluster it ran on, and what was measured."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import accumulate

from traincast.diagnostics import Note
from traincast.errors import ConfigError, InfeasibleError
from traincast.hardware.cluster import Cluster
from traincast.job.job import Job, JobRequest
from traincast.job.resolve import resolve_job
from traincast.model.blocks.share import Share
from traincast.model.model import Model
from traincast.model.structure import layer_blocks, parts_of

GROUPINGS = ("source", "family", "model", "gpu", "precision", "moe", "task", "framework", "layout")
"""Every run has a group in each of them; ``family`` is (source, model, GPU family, precision)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """One published run that can be predicted.

    Parameters
    ----------
    id : str
        The row's own id.
    request : JobRequest
        What the row says of the job.
    cluster : Cluster
        Preset of its GPU or one built from the datasheet, with the node and the network cards of the row.
    measured_s : float or None
        Measured step; None where the run did not work (`outcome`).
    peak_bytes : float or None
        Peak memory of a GPU as printed.
    outcome : str
        ``ok``, or ``crashed`` for a layout that did not run (mostly for want of memory).
    full_layout : bool
        Whether shape, batch, layout and step were all published (`is_full_layout`).
    sweep : str
        The sweep over layouts that it is of; nothing is fitted to those.
    repeat_of : str
        Runs with the same text are repeats of one layout, of which the fastest counts.
    memory_kind : str
        What `peak_bytes` is: ``allocated`` or ``reserved`` by PyTorch's allocator, or all that the ``device`` holds.
    first_stage_memory : bool
        Whether `peak_bytes` is that of the first stage; else of the largest.
    stage_layers : str
        Layers of each stage, or ``by-cost``; empty where the framework decides.
    notes : tuple of Note
        Rules that filled in what the columns leave out.
    groups : mapping
        Name of its group by grouping, for each of `GROUPINGS`.
    cells : mapping
        The row's cells by column.
    """

    id: str
    request: JobRequest
    cluster: Cluster
    measured_s: float | None
    peak_bytes: float | None = None
    outcome: str = "ok"
    full_layout: bool = False
    sweep: str = ""
    repeat_of: str = ""
    memory_kind: str = "device"
    first_stage_memory: bool = False
    stage_layers: str = ""
    notes: tuple[Note, ...] = ()
    groups: Mapping[str, str]
    cells: Mapping[str, str]


def gpu_family(gpu: str) -> str:
    """Return the first word of a GPU's name: ``H100-SXM-80GB`` and ``H100-PCIe-80GB`` are both ``H100``."""
    return gpu.partition("-")[0] if not gpu.startswith("TPU") else gpu


def precision_class(precision: str | None) -> str:
    """Return ``fp8`` and ``fp4`` for every flavour of them, ``unknown`` for none."""
    if precision is None:
        return "unknown"
    return {"fp8_block": "fp8", "mxfp8": "fp8", "nvfp4": "fp4", "mxfp4": "fp4"}.get(precision, precision)


BY_COST = "by-cost"
"""What the column ``stage_layers`` says of `layers_by_cost`."""


def job_of_run(run: RunRow) -> Job:
    """Return the job of a run.

    Raises
    ------
    InfeasibleError
        If its layout cannot be run.
    TraincastError
        If it cannot be described.
    """
    request = run.request
    if not run.stage_layers:
        return resolve_job(request, run.cluster)
    if run.stage_layers != BY_COST:
        return resolve_job(replace(request, stage_layers=_listed(run.stage_layers)), run.cluster)
    layers = layers_by_cost(request.model, request.pp or 1)
    if layers is None:
        raise InfeasibleError(f"{request.pp} stages leave one without any block")
    return replace(resolve_job(request, run.cluster), layers_Q=layers)


def _listed(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(count) for count in text.split())
    except ValueError:
        message = f"is {text!r}; write the layers of each stage like 3 3 2, or {BY_COST}"
        raise ConfigError(message, "stage_layers") from None


def layers_by_cost(model: Model, pp: int) -> tuple[int, ...] | None:
    """Return the layers of each stage, None where a stage gets no block at all.

    Blocks go to a stage until their cost passes its share of the whole; the block that passes it stays. So the first
    stages get more than their share, and the last ones, with the head, fewer or none.

    Parameters
    ----------
    model : Model
        A dense model.
    pp : int
        Stages.

    Returns
    -------
    tuple of int or None
        Layers by stage; 0 on a stage with the head alone.

    Notes
    -----
    Source: nanotron, src/nanotron/models/base.py (build_model) and models/llama.py (get_block_compute_costs).
    """
    parts = parts_of(layer_blocks(model, 0), Share(model=model, seq_length=1))
    layer = sum(gemm.elements for part in parts for gemm in part.gemms)
    # Embedding, layers, final norm, head, cast to fp32 and loss; those without products cost nothing.
    costs = [0, *[layer] * model.layers, 0, model.vocab * model.hidden, 0, 0]
    total = sum(costs)
    of_stage = [0] * pp
    blocks = [0] * pp
    stage = 0
    for block, cost in enumerate(accumulate(costs)):
        of_stage[stage] += 1 <= block <= model.layers
        blocks[stage] += 1
        if cost * pp > total * (stage + 1) and stage + 1 < pp:
            stage += 1
    return tuple(of_stage) if all(blocks) else None
