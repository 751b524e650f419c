"""Plans: the best layouts for a job that leaves its layout open."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import PathLike
from typing import TYPE_CHECKING, Any

from traincast.diagnostics import Note
from traincast.hardware.cluster import Cluster
from traincast.job.draft import Draft
from traincast.job.job import JobRequest
from traincast.job.job_file import read_job_file
from traincast.job.options import StepOptions
from traincast.job.resolve import resolve_job
from traincast.model.load import load_model
from traincast.simulation.recorded import DEFAULT_CLUSTER, choose

if TYPE_CHECKING:
    from traincast.plan.answer import Plan

StrPath = str | PathLike[str]

LONGEST_SEQUENCE = 8192
"""Longest sequence that is assumed: that of the pre-training of Llama 3 (arXiv 2407.21783, section 3.4)."""

USUAL_SEQUENCE = 4096
"""What is assumed of a model that does not say how long its sequences are."""


def plan(
    job: JobRequest | Draft | StrPath,
    cluster: StrPath | Cluster | None = None,
    *,
    space: str = "default",
    fix: Mapping[str, Any] | None = None,
    most: Mapping[str, int] | None = None,
    headroom: float | None = None,
    top: int = 10,
    explain: Sequence[Mapping[str, Any]] = (),
    start: bool = False,
    engine: str = "auto",
    **terms: Any,  # noqa: ANN401
) -> "Plan":
    """Return the best layouts for what a job leaves open; what it says is fixed.

    Parameters
    ----------
    job : JobRequest, Draft or path
        The model, the GPUs and the global batch; the sequence length follows from the model where it is not said.
    cluster : str, path or Cluster, optional
        Cluster; else that of the job, or the default one, as an assumption.
    space : str
        ``default``, or ``full``: with what nobody would run, too.
    fix : mapping, optional
        Values of fields of the layout, each one or several: ``{"tp": 8, "micro_batch": (1, 2)}``.
    most : mapping, optional
        Largest values of degrees and sizes: ``{"tp": 8}``.
    headroom : float, optional
        Share of the memory that stays free; by default so much that running out of it is very unlikely.
    top : int
        Layouts that are returned.
    explain : sequence of mappings
        Layouts of which is asked why they are not the best: ``({"tp": 4, "pp": 8},)``.
    start : bool
        Whether the job's layout is what one has, not what is fixed: the plan says what single changes of it save.
    terms
        Fields of `RunTerms`: ``tokens=15e12`` of the whole run, ``gpu_hour_price=2.5`` and others; then the days,
        GPU-hours, cost, energy and emissions of a run with each layout are told.

    Examples
    --------
    >>> from traincast import api
    >>> from traincast.job.draft import Draft
    >>> job = Draft(model="llama3-8b", fields={"gpus": 8, "global_batch": 8, "tp": 8, "cp": 1})
    >>> api.plan(job, "h100", top=1).best[0].layout.text
    'TP8 DP1, micro batch 1'
    """
    from traincast.plan.changes import open_request
    from traincast.plan.options import plan_options
    from traincast.plan.plan import plan as best_layouts

    draft = job if isinstance(job, (JobRequest, Draft)) else read_job_file(str(job))
    request, notes, named = requested(draft)
    chosen = choose(StepOptions(), cluster or named, engine)
    if chosen.cluster_assumed:
        notes = (Note("cluster-default", f"no cluster was given; taken as {DEFAULT_CLUSTER}"), *notes)
    options = plan_options(
        space=space,
        fix=fix or {},
        most=most or {},
        headroom=headroom,
        top=top,
        explain=explain,
        **terms,
    )
    had = resolve_job(request, chosen.setting.cluster) if start else None
    found = best_layouts(request if had is None else open_request(had, request), chosen.setting, options, had)
    warnings = draft.warnings if isinstance(draft, Draft) else ()
    return replace(found, assumptions=(*notes, *found.assumptions), warnings=(*warnings, *found.warnings))


def requested(job: JobRequest | Draft) -> tuple[JobRequest, tuple[Note, ...], StrPath | Cluster | None]:
    """Return what is asked for, with what was assumed, and the cluster that it names."""
    if isinstance(job, JobRequest):
        return job, (), None
    notes = job.notes
    if job.model is not None and job.missing() == "seq_length":
        model = load_model(job.model) if isinstance(job.model, str) else job.model
        length = min(model.max_positions or model.learned_positions or USUAL_SEQUENCE, LONGEST_SEQUENCE)
        job = replace(job, fields={**job.fields, "seq_length": length})
        text = f"seq_length is not given: {length}, as far as {model.name} is made for and no longer than is usual"
        notes = (*notes, Note("assumed-seq-length", text))
    return job.request(), notes, job.cluster
