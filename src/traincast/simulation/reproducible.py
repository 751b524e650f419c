"""Run what a user describes, and keep in the result all that is needed to run it again."""

from collections.abc import Callable, Sequence
from os import PathLike, fspath
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from traincast.analysis.explanation import Explanation, explain, short_form
from traincast.analysis.goodput import goodput
from traincast.analysis.memory_curve import Saved, StageCurve, memory_curves
from traincast.analysis.training_run import training_run
from traincast.diagnostics import Note
from traincast.errors import ConfigError, FormatError
from traincast.files import CONSTANTS, DESCRIPTIONS, LOADS, InputFile, input_of, model_file, named_file
from traincast.hardware.cluster import Cluster
from traincast.hardware.clusters import cluster_names, load_cluster
from traincast.job.draft import Draft
from traincast.job.frameworks import framework_names, load_framework
from traincast.job.job import Job
from traincast.job.options import LayoutOptions, SimulateOptions, StepOptions
from traincast.job.record import RunRecord, record_from_table, record_to_table
from traincast.job.request import JOB_FIELDS, JobRequest
from traincast.job.resolve import resolve_job
from traincast.job.training_run import RunTerms
from traincast.later import later
from traincast.lowering.plans import plan_of_job
from traincast.model.load import load_model, model_names
from traincast.names import known_names
from traincast.progress import part
from traincast.simulation.limits import what_limits
from traincast.simulation.other_layouts import other_layouts
from traincast.simulation.result import MEASURED, MOST_EXPLAINED, Result
from traincast.simulation.simulate import simulate, timed
from traincast.simulation.step import Setting, Step
from traincast.simulation.study import Study
from traincast.simulation.suggestions import (
    MOST_OPS,
    Option,
    Spread,
    options_of_files,
    spread_of_files,
    suggestions,
)
from traincast.simulation.what_if import TOGETHER, Again, Changed, Rerun, changed, check_what_ifs, what_ifs
from traincast.workload.workload import Workload

DEFAULT_CLUSTER = "h100"
"""What a run without a cluster is taken to run on."""


class Chosen(Struct, frozen=True):
    """A setting, and who chose its cluster."""

    setting: Setting
    cluster_assumed: bool
    """Whether nobody named it."""
    inputs: tuple[InputFile, ...]
    """The files that describe it."""

    def options(self, layout: LayoutOptions | None = None) -> SimulateOptions:
        """Return what is recorded of them: all but the cluster, which is recorded in full, and the engine.

        Whether suggestions were asked for shows by their being there.
        """
        said = {each: getattr(self.setting, each) for each in StepOptions.__struct_fields__ if each != "suggest"}
        return SimulateOptions(layout=layout or LayoutOptions(), **said)


def choose(
    options: StepOptions,
    cluster: str | PathLike[str] | Cluster | None,
    engine: str,
    *,
    cluster_assumed: bool = False,
    described_by: Sequence[InputFile] = (),
) -> Chosen:
    """Load the cluster that is named, by default `DEFAULT_CLUSTER`, and put the options on it.

    A cluster may be given though nobody named it (`cluster_assumed`), with the files of an earlier run that said it
    among others (`described_by`).

    Raises
    ------
    TraincastError
        If the cluster is not known or cannot be read.
    """
    files = [each for each in described_by if each.format in DESCRIPTIONS]
    if options.constants is not None and not any(each.format == CONSTANTS for each in files):
        files += named_file(options.constants.name, (), CONSTANTS)
    if isinstance(cluster, Cluster):
        return Chosen(Setting.from_options(options, cluster, engine), cluster_assumed, tuple(files))
    found = load_cluster(DEFAULT_CLUSTER if cluster is None else cluster)
    if cluster is not None:
        files += named_file(fspath(cluster), cluster_names(), "cluster")
    if found.fabric is not None and found.fabric.file is not None:
        files += named_file(found.fabric.file, (), "topology")
    return Chosen(Setting.from_options(options, found, engine), cluster_assumed or cluster is None, tuple(files))


_SHARE_OF_STEP = 0.6
"""Of the time of a step with its suggestions, as it is told: they take about as long again as the step."""

ReadAgain = Callable[[LayoutOptions], Workload]
"""Reads the files of a workload again in another layout."""


def reproducible_simulation(
    workload: Workload, chosen: Chosen, read_again: ReadAgain | None = None, study: Study | None = None
) -> Result:
    """Simulate a workload; the result holds its inputs and its run.

    What-ifs of its layout need `read_again`, which a workload that was made in Python has not.

    Raises
    ------
    TraincastError
        If the workload cannot run.
    """
    check_what_ifs(chosen.setting)
    if chosen.setting.tokens is not None and chosen.setting.tokens_per_step is None:
        raise ConfigError(f"{workload.name} does not say how many tokens a step trains on; give it", "tokens_per_step")
    study = study or Study()
    with part(0.0, _SHARE_OF_STEP if chosen.setting.suggest else 1.0):
        result = explained(simulate(workload, chosen.setting, study))

    def rerun(change: Changed) -> Again:
        if not change.fields:
            return Again(timed(workload, change.setting, study).timeline.step_s)
        if read_again is None:
            raise ConfigError(f"cannot change {next(iter(change.fields))} of a workload that was built in Python")
        of_layout = [*LayoutOptions.__struct_fields__]
        unknown = next((name for name in change.fields if name not in of_layout), None)
        if unknown is not None:
            raise ConfigError(f"{unknown} applies to a job, and this is a file; {known_names(unknown, of_layout)}")
        layout = replace(workload.layout, **change.fields)
        return Again(timed(read_again(layout), change.setting, study).timeline.step_s)

    result = _suggested(result, chosen.setting, options_of_files(result, workload.layout), rerun)
    result = _with_what_ifs(result, chosen.setting, rerun)
    if chosen.setting.suggest and result.program is not None and len(result.program) <= MOST_OPS:
        result = replace(
            result, other_layouts=other_layouts(workload, chosen.setting, lambda change: rerun(change).step_s)
        )
    result = _in_the_long_run(result, chosen.setting, lambda setting: timed(workload, setting, study))
    result = with_training_run(result, chosen.setting, chosen.setting.tokens_per_step)
    record = RunRecord(
        command="simulate",
        cluster=chosen.setting.cluster,
        cluster_assumed=chosen.cluster_assumed,
        options=chosen.options(workload.layout),
        inputs=(*workload.inputs, *chosen.inputs),
    )
    return _recorded(result, record)


def reproducible_forecast(
    job: Draft | JobRequest | Job, chosen: Chosen, *, allow_oom: bool = False, study: Study | None = None
) -> Result:
    """Forecast a job as it was described; the result holds its job, its inputs and its run.

    Raises
    ------
    TraincastError
        If the job cannot be described or cannot run.
    """
    # What forecasts need is not loaded to simulate a file.
    from traincast.estimate.factors import factors_on
    from traincast.simulation.advised import advice_for
    from traincast.simulation.confidence import spread_of_job
    from traincast.simulation.forecast import forecast, forecast_step
    from traincast.simulation.job_step import run_job

    check_what_ifs(chosen.setting)
    if chosen.setting.tokens_per_step is not None:
        raise ConfigError("applies to a file; a job says it by its batch and sequence length", "tokens_per_step")
    cluster = chosen.setting.cluster
    draft, request, decided, files = decide(job, cluster)
    study = study or Study()
    with part(0.0, _SHARE_OF_STEP if chosen.setting.suggest else 1.0):
        result, done = forecast_step(decided, chosen.setting, allow_oom=allow_oom, study=study)
    record = RunRecord(
        command="predict",
        cluster=cluster,
        cluster_assumed=chosen.cluster_assumed,
        options=chosen.options(),
        job=request,
        notes=draft.notes,
        warnings=draft.warnings,
        settings=draft.settings,
        allow_oom=allow_oom,
        inputs=(*draft.inputs, *files, *chosen.inputs),
    )
    result = explained(result)

    def rerun(change: Changed) -> Again:
        other, again = change.setting.cluster, _changed_job(job, change)
        found = forecast(decide(again, other)[2], change.setting, allow_oom=allow_oom, study=study)
        return Again(found.iteration_time_s, found.doubts)

    if isinstance(request, JobRequest):
        result = replace(result, advice=later(lambda: advice_for(request, decided, result, done, study)))
    result = _suggested(result, chosen.setting, (), rerun, spread_of_job(done, factors_on(cluster)))
    result = _with_what_ifs(result, chosen.setting, rerun)
    result = _in_the_long_run(result, chosen.setting, lambda setting: run_job(decided, setting, study=study).step)
    result = with_training_run(result, chosen.setting, decided.batch.tokens_per_step)
    return _recorded(result, record, draft.warnings)


def with_run(result: Result, request: JobRequest, setting: Setting, *, allow_oom: bool) -> Result:
    """Return the forecast of a request with all that is needed to run it again."""
    request, files = _with_own_framework(request)
    options = Chosen(setting, cluster_assumed=False, inputs=()).options()
    record = RunRecord(
        command="predict",
        cluster=setting.cluster,
        options=options,
        job=request,
        allow_oom=allow_oom,
        inputs=files,
    )
    return replace(result, run=record_to_table(record), inputs=files)


def _suggested(
    result: Result, setting: Setting, options: Sequence[Option], rerun: Rerun, spread: Spread | None = None
) -> Result:
    """Return a result with the changes that would help most, where its options ask for them."""
    if not setting.suggest:
        return result
    plain = replace(setting, what_if=(), jitter=0.0, failures=None)
    with part(_SHARE_OF_STEP, 1.0):
        found = suggestions(
            result,
            spread or spread_of_files(result, setting.cluster),
            options,
            lambda text: rerun(changed(plain, [text])).step_s,
            setting.engine,
        )
    return replace(result, suggestions=found)


def _in_the_long_run(result: Result, setting: Setting, time: Callable[[Setting], Step]) -> Result:
    """Return a result with the spread of its step and the goodput of a long run, where its options ask for them."""
    if setting.jitter > 0:
        from traincast.simulation.variability import variability

        step = time(replace(setting, unfold=True, what_if=(), jitter=0.0))
        result = replace(result, variability=variability(step, setting.jitter, setting.seeds))
    if setting.failures is not None:
        gpus = result.parallel.world_size
        result = replace(result, goodput=goodput(setting.failures, gpus, result.iteration_time_s))
    return result


def with_training_run(result: Result, terms: RunTerms, tokens_per_step: float | None) -> Result:
    """Return a result with what a whole run takes; itself where no tokens are given, or not those of a step."""
    if terms.tokens is None or tokens_per_step is None:
        return result
    found = training_run(
        terms,
        step_s=result.iteration_time_s,
        tokens_per_step=tokens_per_step,
        gpus=result.parallel.world_size,
        interval=result.interval,
        tdp_w=result.cluster.gpu_tdp_w,
    )
    return replace(result, training_run=found)


def _with_what_ifs(result: Result, setting: Setting, rerun: Rerun) -> Result:
    """Return a result with the steps of what its options ask to try; itself where they ask nothing."""
    if not setting.what_if:
        return result
    found = what_ifs(setting.what_if, setting, Again(result.iteration_time_s, result.doubts), rerun)
    idle = [each.change for each in found if each.saving_s == 0 and each.change != TOGETHER]
    why = ""
    if any(each.algorithm == MEASURED for each in result.collectives):
        why = "; recorded times of communication stay whatever the cluster (--comm model estimates them)"
    else:
        limits = dict.fromkeys(what_limits(each, result.collectives, setting.cluster) for each in idle)
        why = "".join(f"; {each}" for each in limits if each)
    text = f"{', '.join(idle)}: this changes nothing of the step{why}"
    warnings = (*result.warnings, Note("what-if-unused", text)) if idle else result.warnings
    return replace(result, what_if=found, warnings=warnings)


def _changed_job(job: Draft | JobRequest | Job, change: Changed) -> Draft | JobRequest | Job:
    """Return a job with other values of some fields."""
    if not change.fields:
        return job
    unknown = next((name for name in change.fields if name not in JOB_FIELDS), None)
    if unknown is not None:
        known = known_names(unknown, [*JOB_FIELDS])
        raise ConfigError(f"{unknown} applies to files, and this is a job; {known}")
    if isinstance(job, Draft):
        said = dict(change.fields)
        return job.under(Draft(model=said.pop("model", None), fields=said))
    if isinstance(job, JobRequest):
        said = dict(change.fields)
        return replace(job, **said | ({"model": load_model(said["model"])} if "model" in said else {}))
    raise ConfigError(f"cannot change {next(iter(change.fields))} of a Job with everything decided; give a JobRequest")


def explained(result: Result) -> Result:
    """Return a result that says why its step took so long, where it has no more than `MOST_EXPLAINED` operations."""
    if result.timed is None or len(result.timed.program) > MOST_EXPLAINED:
        return result
    timed = result.timed
    return replace(result, analysis=later(lambda: short_form(timed)))


def explained_in_full(result: Result, engine: str = "auto") -> Explanation:
    """Explain a result that holds its operations; of a forecast with the bytes that its stages hold.

    Raises
    ------
    ConfigError
        If it holds none.
    """
    if result.timed is None:
        raise ConfigError("this result does not hold single operations; run it again to get them")
    saved_Q, peak_bytes_P = _held(result)
    return explain(result.timed, saved_Q=saved_Q, peak_bytes_P=peak_bytes_P, engine=engine)


def memory_of(result: Result) -> tuple[StageCurve, ...]:
    """Return what each stage of a result that holds its operations holds over the step; of a forecast in bytes.

    Raises
    ------
    ConfigError
        As `explained_in_full`.
    """
    if result.timed is None:
        raise ConfigError("this result does not hold single operations; run it again to get them")
    return memory_curves(result.timed.program, result.timed.timeline, *_held(result))


def _held(result: Result) -> tuple[dict[int, Saved] | None, dict[int, float] | None]:
    """Return what a microbatch leaves on each virtual stage of a forecast, and the peak of each stage, in bytes."""
    if result.job is None or result.memory_bytes is None or result.run is None:
        return None, None
    from traincast.estimate.memory import saved_activations

    record = record_of(result)
    _, _, job, _ = decide(record.draft(), record.cluster)
    kept = saved_activations(job, plan_of_job(job))
    saved_Q = {at: Saved(all_bytes=each.saved, for_weights_bytes=each.for_weights) for at, each in kept.items()}
    return saved_Q, {stage: float(each.peak) for stage, each in enumerate(result.memory_bytes)}


def decide(
    job: Draft | JobRequest | Job, cluster: Cluster
) -> tuple[Draft, JobRequest | Job, Job, tuple[InputFile, ...]]:
    """Decide what a job leaves open; return it as it was said, as it is asked for and as decided, and its files.

    Raises
    ------
    TraincastError
        If the job cannot be described.
    """
    draft = job if isinstance(job, Draft) else Draft()
    request = draft.request() if isinstance(job, Draft) else job
    files = () if not isinstance(draft.model, str) else model_file(draft.model, model_names())
    if isinstance(request, JobRequest):
        request, framework_inputs = _with_own_framework(request)
        files += framework_inputs
    decided = resolve_job(request, cluster) if isinstance(request, JobRequest) else request
    return draft, request, replace(decided, assumptions=(*draft.notes, *decided.assumptions)), files


def record_of(result: Result, shown: str = "result.json") -> RunRecord:
    """Return what a result of this version or an older one was made from; `shown` is its file, for messages.

    Raises
    ------
    FormatError
        If it does not hold that.
    TraincastError
        If what it holds is damaged.
    """
    if result.run is None:
        raise FormatError(
            "does not hold what it was made from (key run): the version that wrote it did not store that", shown
        )
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


def _with_own_framework(request: JobRequest) -> tuple[JobRequest, tuple[InputFile, ...]]:
    """Return a request that holds its framework itself where a file says it, and that file."""
    if not isinstance(request.framework, str):
        return request, ()
    files = named_file(request.framework, framework_names(), "framework")
    return (replace(request, framework=load_framework(request.framework)) if files else request), files


def _recorded(result: Result, record: RunRecord, read: Sequence[Note] = ()) -> Result:
    """Return a result with what it was made from, and what is said where nobody named a cluster.

    `read` is what reading the job brought up.
    """
    notes = tuple(Note("cluster-assumed", text) for text in record.cluster.assumed)
    name, default, unnamed = record.cluster.name, list[Note](), list[Note]()
    if record.cluster_assumed:
        default.append(Note("cluster-default", f"no cluster was given; taken as {name}"))
        if any(each.algorithm != MEASURED for each in result.collectives):
            text = f"communication was estimated for {name}, because no cluster was given (use --cluster)"
            unnamed.append(Note("cluster-default", text))
    return replace(
        result,
        run=later(lambda: record_to_table(record)),
        inputs=record.inputs,
        assumptions=later(lambda: (*notes, *result.assumptions, *default)),
        warnings=later(lambda: (*read, *result.warnings, *unnamed)),
    )
