"""Plans: the best layouts for a job that leaves its layout open."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from os import PathLike, fspath
from typing import Any, cast

from msgspec.structs import replace

from traincast.api.named import job_under
from traincast.diagnostics import Note
from traincast.errors import ConfigError, InfeasibleError
from traincast.hardware.cluster import Cluster
from traincast.job.draft import Draft
from traincast.job.job import Job
from traincast.job.options import StepOptions
from traincast.job.request import JobRequest
from traincast.job.resolve import resolve_job
from traincast.job.words import JOB_WORDS, RUN_WORDS, said_of_job, sorted_out, takes
from traincast.model.model import Model
from traincast.names import known_names
from traincast.planning.answer import Asked, Plan
from traincast.planning.changes import open_request
from traincast.planning.options import LIMITED, TERA, PlanKeywords, plan_options, price_on
from traincast.planning.plan import plan as best_layouts
from traincast.planning.request import as_trained, requested
from traincast.planning.several import Plans, Refusal, nothing_runs
from traincast.simulation.reproducible import DEFAULT_CLUSTER, choose

StrPath = str | PathLike[str]
AnyCluster = StrPath | Cluster | None

_OF_PLANS = (*PlanKeywords.__annotations__, *(f"max_{name}" for name in LIMITED))
PLAN_WORDS = {**RUN_WORDS, **{name: name for name in _OF_PLANS}}
"""How a plan is made: keywords by their field."""


@takes(PLAN_WORDS, JOB_WORDS)
def plan(
    job: JobRequest | Draft | StrPath | None = None,
    cluster: AnyCluster = None,
    *,
    like: str | None = None,
    strict: bool = False,
    recipe: str | None = None,
    start: bool = False,
    engine: str = "fast",
    **words: Any,  # noqa: ANN401
) -> Plan:
    """Return the best layouts for what a job leaves open; what it says is fixed.

    Parameters
    ----------
    job : JobRequest, Draft or path, optional
        Model, GPUs and global batch; the sequence length follows from the model if not said. Keywords win over it.
    cluster : str, path or Cluster, optional
        Cluster; else that of the job, or the default one, as an assumption.
    like, strict, recipe
        As of `traincast.predict`.
    start : bool
        Whether the job's layout is what one has, not what is fixed: the plan says what changes of it save. That of a
        `recipe` is.
    **words
        What is fixed of the job, as of `traincast.predict`; how the plan is made and of which run costs are told:
        ``fix``, ``max_tp``, ``explain``, ``tokens`` and others (`traincast.planning.options.PlanKeywords`).

    Raises
    ------
    InfeasibleError
        If no layout divides the GPUs and the batch, or none fits into memory.
    TraincastError
        If the job or an option is wrong.

    Examples
    --------
    >>> import traincast
    >>> found = traincast.plan(model="llama3-8b", cluster="h100", gpus=8, global_batch=8, cp=1, max_tp=2, top=1)
    >>> best = found.best[0]
    >>> best.layout.tp, best.result.iteration_time_s < 2
    (2, True)
    """
    draft, options = _asked(job, like, words, strict=strict, recipe=recipe)
    start = start or recipe is not None
    request, notes, named = requested(draft)
    chosen = choose(StepOptions(), given := named if cluster is None else cluster, engine)
    if chosen.cluster_assumed:
        notes = (Note("cluster-default", f"no cluster was given; taken as {DEFAULT_CLUSTER}"), *notes)
    _check_prices(options.get("gpu_hour_price"), [chosen.setting.cluster.name])
    request, routed = as_trained(request, options.get("tokens"))
    made, assumed = plan_options(chosen.setting.cluster.name, options)
    had = resolve_job(request, chosen.setting.cluster) if start else None
    found = best_layouts(request if had is None else open_request(had, request), chosen.setting, made, had)
    return replace(
        found,
        asked=_as_given(found.asked, draft, given),
        assumptions=(*notes, *routed, *assumed, *found.assumptions),
        warnings=(*(draft.warnings if isinstance(draft, Draft) else ()), *found.warnings),
    )


def _asked(
    job: JobRequest | Draft | StrPath | None,
    like: str | None,
    words: Mapping[str, Any],
    *,
    strict: bool = False,
    recipe: str | None = None,
) -> tuple[JobRequest | Draft, PlanKeywords]:
    """Return the job that is planned, and how."""
    of_plan, of_job = sorted_out(words, PLAN_WORDS, JOB_WORDS)
    limits = {name: of_plan.pop(f"max_{name}", None) for name in LIMITED}
    said = {**of_plan.get("most", {}), **{name: limit for name, limit in limits.items() if limit is not None}}
    options = cast("PlanKeywords", {**of_plan, **({"most": said} if said else {})})
    found = job_under(job, said_of_job(of_job), like, strict=strict, recipe=recipe)
    if isinstance(found, Job):
        raise ConfigError("is decided, and nothing is left to plan; give the JobRequest that it was made of", "job")
    return found, options


def _as_given(asked: Asked, draft: JobRequest | Draft, cluster: AnyCluster) -> Asked:
    """Return what was asked for with its model and cluster as they were given."""
    model = draft.model if isinstance(draft, Draft) else None
    return replace(
        asked,
        model=model if isinstance(model, str) else asked.model,
        cluster=asked.cluster if isinstance(cluster, Cluster) or cluster is None else fspath(cluster),
    )


@takes(PLAN_WORDS, JOB_WORDS)
def plans(
    job: Draft | StrPath | None = None,
    cluster: AnyCluster = None,
    *,
    models: Sequence[str | Model] = (),
    clusters: Sequence[StrPath | Cluster] = (),
    gpus: int | Sequence[int] = (),
    tell: Callable[[int, int], None] | None = None,
    recipe: str | None = None,
    start: bool = False,
    engine: str = "fast",
    **words: Any,  # noqa: ANN401
) -> Plans:
    """Plan a job for every model on every cluster with every number of GPUs, and compare them.

    Parameters
    ----------
    job : Draft or path, optional
        What all cases share; keywords win over it.
    cluster : str, path or Cluster, optional
        The cluster of all cases, where `clusters` are not given.
    models, clusters, gpus : sequence
        What differs; what is left empty is as the job says.
    tell, recipe, start, engine, **words
        `tell` is told how many cases are done, and of how many; the others are those of `plan`, ``tokens`` 10^12.

    Raises
    ------
    InfeasibleError
        If no case has a layout that can be run; a case that has none is among ``refused`` where others have.
    TraincastError
        If the job or an option is wrong.

    Examples
    --------
    >>> import traincast
    >>> found = traincast.plans(model="llama3-8b", cluster="h100", gpus=(8, 16), global_batch=16, cp=1, max_tp=2)
    >>> [each.layout.gpus for each in found.best]
    [16, 8]
    """
    draft, options = _asked(job, None, words, recipe=recipe)
    start = start or recipe is not None
    if not isinstance(draft, Draft):
        raise ConfigError("is a JobRequest, whose model and GPUs are given; name them apart", "job")
    counts = (gpus,) if isinstance(gpus, int) else gpus
    cases = list(_cases(draft, models, clusters or (cluster or draft.cluster,), counts, options.get("gpu_hour_price")))
    found, refused = [], []
    for number, (case, where, price) in enumerate(cases, 1):
        of_case: PlanKeywords = {"tokens": TERA, **options, "gpu_hour_price": price}
        try:
            found.append(plan(case, start=start, engine=engine, **of_case))
        except InfeasibleError as error:
            of = case.model.name if isinstance(case.model, Model) else str(case.model)
            refused.append(Refusal(of, where, case.fields.get("gpus"), str(error)))
        if tell is not None:
            tell(number, len(cases))
    if not found:
        raise InfeasibleError(nothing_runs(refused))
    return Plans(plans=tuple(found), refused=tuple(refused))


def _cases(
    draft: Draft,
    models: Sequence[str | Model],
    clusters: Sequence[AnyCluster],
    gpus: Sequence[int],
    prices: float | Mapping[str, float] | None,
) -> Iterator[tuple[Draft, str, float | None]]:
    """Yield every case with the name of its cluster and its price; GPUs vary fastest, then the cluster."""
    loaded = [(each, choose(StepOptions(), each, "auto").setting.cluster.name) for each in clusters]
    _check_prices(prices, [name for _, name in loaded])
    for model, (cluster, name), count in product(models or (None,), loaded, gpus or (None,)):
        fields = {} if count is None else {"gpus": count}
        yield draft.under(Draft(model=model, cluster=cluster, fields=fields)), name, price_on(prices, name)


def _check_prices(prices: float | Mapping[str, float] | None, clusters: Sequence[str]) -> None:
    """Refuse prices of clusters that nothing is planned on, and clusters without one."""
    if not isinstance(prices, Mapping):
        return
    for name in prices:
        if name not in clusters:
            raise ConfigError(
                f"{name!r} is not a cluster of this plan; {known_names(name, clusters)}", "gpu_hour_price"
            )
    unpriced = next((name for name in clusters if name not in prices), None)
    if unpriced is not None:
        raise ConfigError(f"{unpriced} has no price; give one for every cluster, or for none", "gpu_hour_price")
