"""A published run: a job, the cluster it ran on, and what was measured."""

from collections.abc import Mapping
from dataclasses import dataclass

from traincast.diagnostics import Note
from traincast.hardware.cluster import Cluster
from traincast.spec.job import JobRequest

GROUPINGS = ("source", "family", "model", "gpu", "precision", "moe", "task", "stack", "layout")
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
    return {"fp8_block": "fp8", "mxfp8": "fp8", "nvfp4": "fp4"}.get(precision, precision)
