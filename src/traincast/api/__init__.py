"""The facade: what a Python user calls, and all that the command line calls.

Whatever cannot be read, is not known or cannot run raises a `traincast.errors.TraincastError` with one message that
says what, where and what to do; a function names the errors that it raises beyond that. A cluster is a preset, a GPU,
the path of a TOML file, or a `Cluster`. Engines are ``auto``, ``reference`` and ``kernel``, which agree bit for bit.
"""

from collections.abc import Mapping
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec.structs import replace

from traincast.analysis.explanation import Explanation
from traincast.analysis.training_run import with_training_runs
from traincast.api.conversion import convert as convert
from traincast.api.estimates import collective as collective
from traincast.api.estimates import operator as operator
from traincast.api.estimates import operator_sizes as operator_sizes
from traincast.api.files import Files as Files
from traincast.api.files import JobLike as JobLike
from traincast.api.files import StrPath as StrPath
from traincast.api.files import bus_bandwidths as bus_bandwidths
from traincast.api.files import expand as expand
from traincast.api.files import inspect as inspect
from traincast.api.files import inspect_all as inspect_all
from traincast.api.files import open_run as _open_run
from traincast.api.files import read as read
from traincast.api.measurements import calibrate as calibrate
from traincast.api.measurements import calibrate_operators as calibrate_operators
from traincast.api.measurements import calibrate_runs as calibrate_runs
from traincast.api.measurements import compare_collectives as compare_collectives
from traincast.api.measurements import kind_of_measurements as kind_of_measurements
from traincast.api.measurements import measure as measure
from traincast.api.measurements import measuring_script as measuring_script
from traincast.api.measurements import validate as validate
from traincast.api.named import clusters as clusters
from traincast.api.named import described as described
from traincast.api.named import job_under as _job_under
from traincast.api.named import models as models
from traincast.api.planning import plan as plan
from traincast.api.planning import plans as plans
from traincast.api.results import is_result as is_result
from traincast.api.results import load_record as load_record
from traincast.api.results import load_result as load_result
from traincast.api.results import save_result as save_result
from traincast.diagnostics import Note
from traincast.errors import ConfigError, TraincastError
from traincast.formats.open import identify
from traincast.hardware.cluster import Cluster
from traincast.job.draft import Draft
from traincast.job.job_file import read_job_file as read_job_file
from traincast.job.options import (
    LayoutOptions,
    SimaiOverlap,
    SimulateOptions,
    StepOptions,
    changed_options,
    make_options,
)
from traincast.job.record import RunRecord
from traincast.job.training_run import run_terms
from traincast.job.words import JOB_WORDS, RUN_WORDS, SIMULATE_WORDS, STEP_WORDS, said_of_job, sorted_out, takes
from traincast.simulation.memory_risk import checked_oom_risk
from traincast.simulation.reproducible import (
    DEFAULT_CLUSTER,
    choose,
    record_of,
    reproducible_forecast,
    reproducible_simulation,
    unchanged_files,
)
from traincast.simulation.result import Result
from traincast.simulation.study import Study
from traincast.workload.workload import Workload

if TYPE_CHECKING:
    from traincast.analysis.comparison import Comparison
    from traincast.estimate.simai.total import SimaiReport

T = TypeVar("T")


@takes(SIMULATE_WORDS)
def simulate(
    files: Files | Workload | Result,
    options: SimulateOptions | None = None,
    *,
    engine: str = "fast",
    study: Study | None = None,
    **words: Any,  # noqa: ANN401
) -> Result:
    """Simulate one step of a workload or of the files that describe it.

    A result of files, its ``result.json`` or folder is simulated again with what it was made from; options, or
    keywords, win over that.

    Parameters
    ----------
    files : path, sequence of paths, Workload, or Result
        Files of one run, folders and patterns of them; what `traincast.read` made of them; or a result.
    options : SimulateOptions, optional
        All options at once; or as keywords:
    study : Study, optional
        What earlier steps prepared; this one leaves there what it prepares.
    **words
        The words of the command line's flags, such as ``cluster="h100"``, ``tp=8`` or ``slow={7: 1.3}``: the fields
        of `SimulateOptions` and `LayoutOptions`, under any name of their flags.

    Examples
    --------
    >>> import traincast
    >>> result = traincast.simulate("examples/megatron_pp4_tp2", cluster="h100", what_if="rank7.compute=peers")
    >>> round(result.iteration_time_s, 2), [f"{each.saving_s:.1f} s" for each in result.what_if]
    (3.85, ['1.0 s'])
    """
    (said,) = sorted_out(words, SIMULATE_WORDS)
    _one_of(options, said)
    source = _loaded(files)
    if isinstance(source, Result):
        record, base = _record(source, files)
        return simulate_record(record, options or changed_options(base, **said), engine=engine)
    chosen = options or make_options(**said)
    if isinstance(source, Workload) and chosen.layout != LayoutOptions():
        raise ConfigError("the layout of a workload is decided when it is read; give layout options to traincast.read")
    setting = choose(chosen, chosen.cluster, engine)
    if isinstance(source, Workload):
        return reproducible_simulation(source, setting, study=study)
    run = _open_run(source)
    return reproducible_simulation(run.read(chosen.layout), setting, run.read, study)


@takes(STEP_WORDS, JOB_WORDS)
def predict(
    job: JobLike | Result | None = None,
    cluster: StrPath | Cluster | None = None,
    *,
    options: StepOptions | None = None,
    like: str | None = None,
    strict: bool = False,
    allow_oom: bool = False,
    fail_on_oom_risk: float | None = None,
    engine: str = "fast",
    study: Study | None = None,
    **words: Any,  # noqa: ANN401
) -> Result:
    """Forecast one step of a training job.

    Parameters
    ----------
    job : path, Draft, JobRequest, Job, or Result, optional
        What is trained and how it is laid out; its framework decides what is left open, as assumptions of the result.
        A path is a job file's, a training log's, or a result's, which is run again as it was. Keywords win over them.
    cluster : str, path or Cluster, optional
        Cluster; by default what the job says, else ``h100``, an assumption.
    options : StepOptions, optional
        Bus bandwidths, stragglers, what shares links, all at once; or as keywords. A layout of files is refused.
    like : str, optional
        The framework whose flags or settings `job` is, as they are pasted after ``--like``.
    strict : bool
        Refuse pasted flags that are unknown, and another world size than the launcher's.
    allow_oom : bool
        Simulate even a job that is very unlikely to fit into memory; a warning says so.
    fail_on_oom_risk : float, optional
        Refuse a job whose chance of running out of memory is above this, from 0 to 1.
    study : Study, optional
        What earlier forecasts prepared, as on other clusters; this one leaves there what it prepares.
    **words
        The words of the flags, such as ``tp=8`` or ``slow={7: 1.3}``: the fields of `JobRequest` and `StepOptions`.

    Raises
    ------
    InfeasibleError
        If the job is very unlikely to fit into memory, or its layout does not fit onto the GPUs.

    Examples
    --------
    >>> import traincast
    >>> job = traincast.predict(model="llama3-8b", cluster="h100", gpus=8, tp=2, global_batch=64, seq_length="8k")
    >>> more = traincast.predict(job, gpus=16)
    >>> more.iteration_time_s < job.iteration_time_s
    True
    """
    of_step, of_job = sorted_out(words, STEP_WORDS, JOB_WORDS)
    _one_of(options, of_step)
    source, base = _loaded(job), StepOptions()
    if isinstance(source, Result):
        record, base = _record(source, job)
        source, allow_oom = record.draft(), allow_oom or record.allow_oom
    chosen, by_options = options or replace(base, **of_step), None
    if isinstance(chosen, SimulateOptions):
        by_options = chosen.cluster
        if chosen.layout != LayoutOptions():
            raise ConfigError("is of files; a job says its degrees and its schedule itself", "layout")
    found = _job_under(source, said_of_job(of_job), like, strict=strict)
    said = found.cluster if isinstance(found, Draft) else None
    named = next((each for each in (cluster, said, by_options) if each is not None), None)
    assumed = isinstance(found, Draft) and found.cluster_assumed and named is said
    setting = choose(chosen, named, engine, cluster_assumed=assumed)
    result = reproducible_forecast(found, setting, allow_oom=allow_oom, study=study)
    return checked_oom_risk(result, fail_on_oom_risk)


def _one_of(options: StepOptions | None, said: Mapping[str, Any]) -> None:
    if options is not None and said:
        raise ConfigError(f"give options or keywords, not both ({', '.join(sorted(said))})")


def _loaded(given: T) -> T | Result:
    """Return the result that a path is of; everything else as it is."""
    return load_result(given) if isinstance(given, (str, PathLike)) and is_result(given) else given


def _record(result: Result, given: object) -> tuple[RunRecord, SimulateOptions]:
    """Return what a result was made from, and the options of that run; `given` is its path, or itself."""
    record = record_of(result, "result.json" if isinstance(given, Result) else str(given))
    return record, replace(record.options, suggest=bool(result.suggestions))


def simai(files: Files, options: SimulateOptions | None = None, overlap: SimaiOverlap | None = None) -> "SimaiReport":
    """Add up an AICB/SimAI workload as SimAI-Analytical does, for those who compare with it.

    Its numbers are its own; nothing in them is scheduled or overlapped. Of the options it takes the cluster preset
    (default ``h100``), world size, degrees and microbatches; `overlap` says what SimAI is told to leave out.

    Raises
    ------
    ConfigError
        If the file is no AICB/SimAI workload, an option means nothing to SimAI, or SimAI would
        crash on the file.

    Examples
    --------
    >>> from traincast import api
    >>> report = api.simai("examples/aicb_gpt_405b_1024gpu.txt")
    >>> 0 < report.compute_s
    True
    """
    from traincast.estimate.simai.machine import simai_machine
    from traincast.estimate.simai.total import refuse_with_simai, simai_sum
    from traincast.formats.aicb.grammar import load

    chosen = options or SimulateOptions()
    refuse_with_simai(chosen)
    path, *others = expand(files)
    form = identify(path)
    if others or form.name != "aicb":
        what = f"{1 + len(others)} files" if others else form.title
        raise ConfigError(f"SimAI's sum is that of one AICB/SimAI workload, but this is {what}", str(path))
    report = simai_sum(load(path), simai_machine(_name_of(chosen.cluster or DEFAULT_CLUSTER)), chosen.layout, overlap)
    if chosen.cluster:
        return report
    warning = Note(
        "cluster-default", f"SimAI's constants of {DEFAULT_CLUSTER} were taken, because no cluster was given"
    )
    return replace(report, warnings=(*report.warnings, warning))


@takes(RUN_WORDS)
def compare(
    a: StrPath | Result | Workload | Draft,
    b: StrPath | Result | Workload | Draft,
    cluster: StrPath | Cluster | None = None,
    **terms: Any,  # noqa: ANN401
) -> "Comparison":
    """Put two steps side by side; differences are those of `b` to `a`.

    With `terms`, the fields of `RunTerms` (``tokens="15T"``, ``gpu_hour_price=2.5``), each side says what a whole run
    takes, where it says the tokens of its steps.

    A side is a result, its ``result.json`` or the folder that holds one, or a job or its file, which is forecast, on
    `cluster` if one is given: the simulated step. Or it is a measured trace, the folder of a run's rank traces, a
    workload read from them, or a training log: the measured step, which is not simulated.

    Examples
    --------
    >>> import traincast
    >>> replay = traincast.simulate("examples/megatron_pp4_tp2")
    >>> f"{traincast.compare('examples/megatron_pp4_tp2', replay).step.relative:.1%}"
    '-0.1%'
    """
    from traincast.analysis.comparison import compare as compare_sides
    from traincast.report.sides import sides_of

    (said,) = sorted_out(terms, RUN_WORDS)
    sides = sides_of((a, b), read, lambda job: predict(job, cluster, engine="auto"))
    return compare_sides(*with_training_runs(sides[0], sides[1], run_terms(said)))


def run_again(result: StrPath | Result, *, engine: str = "fast") -> Result:
    """Run a result again from what it holds; with the same version the bytes of its ``result.json`` are the same.

    It is given itself, as its ``result.json``, or as the folder that it was written to.

    Examples
    --------
    >>> import traincast
    >>> result = traincast.simulate("examples/megatron_pp4_tp2")
    >>> traincast.run_again(result).iteration_time_s == result.iteration_time_s
    True
    """
    known = result if isinstance(result, Result) else load_result(result)
    record, options = _record(known, result)
    if record.command == "predict":
        chosen = choose(options, record.cluster, engine, cluster_assumed=record.cluster_assumed)
        return reproducible_forecast(record.draft(), chosen, allow_oom=record.allow_oom)
    return simulate_record(record, options, engine=engine)


def explain(result: StrPath | Result, *, engine: str = "fast") -> Explanation:
    """Explain a step: critical path, slack, who waits for whom, communication with skew, roofline, memory over time.

    A result that holds no single operations, as one read from a file, is run again for them; the memory of a forecast
    is told in bytes.

    Examples
    --------
    >>> import traincast
    >>> told = traincast.explain(traincast.simulate("examples/megatron_pp4_tp2"))
    >>> int(told.waiting.root.other_K[0])
    7
    """
    from traincast.simulation.reproducible import explained_in_full

    known = result if isinstance(result, Result) else load_result(result)
    if known.program is None:
        known = run_again(known, engine=engine)
    return explained_in_full(known, engine)


def with_operations(result: Result, *, engine: str = "fast") -> tuple[Result, str | None]:
    """Return a result with its single operations, for which it is run again, and why they are left out where they are.

    They are left out where it cannot be run again, or gives another step, as another version may.

    Examples
    --------
    >>> import traincast
    >>> result, why_not = traincast.api.with_operations(traincast.simulate("examples/megatron_pp4_tp2"))
    >>> len(result.columns()["start_s"]), why_not
    (1157, None)
    """
    try:
        again = run_again(result, engine=engine)
    except TraincastError as error:
        return result, str(error)
    if again.iteration_time_s != result.iteration_time_s:
        return result, f"run again it takes {again.iteration_time_s:.6g} s, not {result.iteration_time_s:.6g} s"
    return replace(result, timed=again.timed), None


def simulate_record(record: RunRecord, options: SimulateOptions | None = None, *, engine: str = "fast") -> Result:
    """Simulate the files of a record again, perhaps with other options, whose cluster goes before the record's.

    Examples
    --------
    >>> import traincast
    >>> _ = traincast.save_result(traincast.simulate("examples/megatron_pp4_tp2"), "run")
    >>> traincast.api.simulate_record(traincast.api.load_record("run"))
    <Result: step 3.851 s, 8 ranks (tp 2, pp 4)>
    """
    if record.command != "simulate":
        raise ConfigError("is the result of a forecast; run traincast predict on it", "run.command")
    asked = options or record.options
    files = unchanged_files(record.inputs)
    run = _open_run(files)
    workload = run.read(asked.layout)
    if asked.cluster is not None:
        return reproducible_simulation(workload, choose(asked, asked.cluster, engine), run.read)
    assumed, described = record.cluster_assumed, record.inputs
    chosen = choose(asked, record.cluster, engine, cluster_assumed=assumed, described_by=described)
    return reproducible_simulation(workload, chosen, run.read)


def _name_of(cluster: StrPath | Cluster) -> str:
    return cluster.name if isinstance(cluster, Cluster) else fspath(cluster)
