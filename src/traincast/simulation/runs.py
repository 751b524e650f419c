"""Run what a user describes, and keep in the result all that is needed to run it again."""

from collections.abc import Sequence
from dataclasses import replace
from os import PathLike, fspath
from pathlib import Path

from traincast.diagnostics import Note
from traincast.errors import FormatError
from traincast.hardware.cluster import Cluster
from traincast.hardware.clusters import cluster_names, load_cluster
from traincast.job.draft import Draft
from traincast.job.frameworks import framework_names, load_framework
from traincast.job.inputs import DESCRIPTIONS, LOADS, InputFile, input_of, model_file, named_file
from traincast.job.job import Job, JobRequest
from traincast.job.options import SimulateOptions
from traincast.job.record import RunRecord, record_from_table, record_to_table
from traincast.job.resolve import resolve_job
from traincast.model.load import model_names
from traincast.simulation.result import Result
from traincast.simulation.simulate import simulate_workload
from traincast.workload.workload import Workload

DEFAULT_CLUSTER = "h100"
"""What a run without a cluster is taken to run on."""


def run_job_of(
    job: Draft | JobRequest | Job,
    options: SimulateOptions,
    cluster: str | PathLike[str] | Cluster | None = None,
    *,
    cluster_assumed: bool = False,
    allow_oom: bool = False,
    engine: str = "auto",
) -> Result:
    """Forecast a job as it was described.

    Parameters
    ----------
    job : Draft, JobRequest or Job
        The job.
    options : SimulateOptions
        Of the simulation.
    cluster : str, path or Cluster, optional
        What it runs on; that of the draft, then that of the options by default.
    cluster_assumed : bool
        Whether nobody named that cluster.
    allow_oom : bool
        Simulate even where the job does not fit into memory.
    engine : {"auto", "reference", "kernel"}
        Implementation of the engine.

    Returns
    -------
    Result
        With its job, its inputs and its run.

    Raises
    ------
    TraincastError
        If the job cannot be described or cannot run.
    """
    # What forecasts need is not loaded to simulate a file.
    from traincast.simulation.forecast import forecast

    draft = job if isinstance(job, Draft) else Draft()
    named = cluster or draft.cluster or options.cluster
    found, cluster_inputs = _cluster(named)
    request = draft.request() if isinstance(job, Draft) else job
    files = () if not isinstance(draft.model, str) else model_file(draft.model, model_names())
    if isinstance(request, JobRequest):
        request, framework_inputs = _with_own_framework(request)
        files += framework_inputs
    decided = resolve_job(request, found) if isinstance(request, JobRequest) else request
    decided = replace(decided, assumptions=(*draft.notes, *decided.assumptions))
    result = forecast(decided, found, options, allow_oom=allow_oom, engine=engine)
    record = RunRecord(
        command="predict",
        cluster=found,
        cluster_assumed=named is None or cluster_assumed or (draft.cluster_assumed and named is draft.cluster),
        options=options,
        job=request,
        notes=draft.notes,
        warnings=draft.warnings,
        allow_oom=allow_oom,
        inputs=(*draft.inputs, *files, *cluster_inputs),
    )
    result = replace(result, warnings=(*draft.warnings, *result.warnings))
    return _recorded(result, record)


def run_workload_of(
    workload: Workload,
    options: SimulateOptions,
    engine: str = "auto",
    cluster: Cluster | None = None,
    *,
    cluster_assumed: bool = False,
    described_by: Sequence[InputFile] = (),
) -> Result:
    """Simulate a workload.

    Parameters
    ----------
    workload : Workload
        What every rank does.
    options : SimulateOptions
        Of the simulation.
    engine : {"auto", "reference", "kernel"}
        Implementation of the engine.
    cluster : Cluster, optional
        What it runs on; that of the options by default.
    cluster_assumed : bool
        Whether nobody named that cluster.
    described_by : sequence of InputFile
        Among them the files that said that cluster.

    Returns
    -------
    Result
        With its inputs and its run.

    Raises
    ------
    TraincastError
        If the workload cannot run.
    """
    found, files = _cluster(cluster or options.cluster)
    result = simulate_workload(workload, found, options, engine)
    record = RunRecord(
        command="simulate",
        cluster=found,
        cluster_assumed=cluster_assumed or (cluster is None and options.cluster is None),
        options=replace(options, layout=workload.layout),
        inputs=(*workload.inputs, *files, *(each for each in described_by if each.format in DESCRIPTIONS)),
    )
    return _recorded(result, record)


def record_of(result: Result, shown: str = "result.json") -> RunRecord:
    """Return what a result was made from.

    Parameters
    ----------
    result : Result
        Of this version or an older one.
    shown : str
        Its file, for messages.

    Raises
    ------
    FormatError
        If it does not hold that.
    TraincastError
        If what it holds is damaged.
    """
    if result.run is None:
        raise FormatError("does not hold what it was made from (key run); its version did not write it", shown)
    return record_from_table(result.run, result.inputs, shown)


def unchanged_files(inputs: Sequence[InputFile], shown: str = "result.json") -> list[Path]:
    """Return the paths of the files of a workload, which must be what they were.

    Raises
    ------
    FormatError
        If there are none, or one cannot be read or has other bytes now.
    """
    files = [each for each in inputs if each.format not in DESCRIPTIONS]
    if not files:
        raise FormatError("names no file that it was simulated from, so it cannot be run again", shown)
    for each in files:
        found = input_of(each.path, each.format)
        if found.sha256 != each.sha256:
            raise FormatError(f"is not the file that {shown} was made from: its SHA-256 was {each.sha256}", each.path)
    return [Path(each.path) for each in files if each.format != LOADS]


def _cluster(named: str | PathLike[str] | Cluster | None) -> tuple[Cluster, tuple[InputFile, ...]]:
    """Return a cluster, and the files that describe it."""
    if isinstance(named, Cluster):
        return named, ()
    found = load_cluster(named or DEFAULT_CLUSTER)
    files = () if named is None else named_file(fspath(named), cluster_names(), "cluster")
    topology = found.fabric.file if found.fabric is not None else None
    return found, (*files, *(() if topology is None else named_file(topology, (), "topology")))


def _with_own_framework(request: JobRequest) -> tuple[JobRequest, tuple[InputFile, ...]]:
    """Return a request that holds its framework itself where a file says it, and that file."""
    if not isinstance(request.framework, str):
        return request, ()
    files = named_file(request.framework, framework_names(), "framework")
    return (replace(request, framework=load_framework(request.framework)) if files else request), files


def _recorded(result: Result, record: RunRecord) -> Result:
    """Return a result with what it was made from, and what is said where nobody named a cluster."""
    assumed = tuple(Note("cluster-assumed", text) for text in record.cluster.assumed)
    result = replace(
        result, run=record_to_table(record), inputs=record.inputs, assumptions=(*assumed, *result.assumptions)
    )
    return _with_default_cluster(result, record.cluster.name) if record.cluster_assumed else result


def _with_default_cluster(result: Result, name: str) -> Result:
    text = f"no cluster was given; taken as {name}"
    assumptions = (*result.assumptions, Note("cluster-default", text))
    priced = any(each.algorithm != "measured" for each in result.collectives)
    if not priced:
        return replace(result, assumptions=assumptions)
    warning = Note(
        "cluster-default", f"communication was priced for {name}, because no cluster was given (use --cluster)"
    )
    return replace(result, assumptions=assumptions, warnings=(*result.warnings, warning))
