"""Plans: the best layouts for a job that leaves its layout open."""

import fnmatch
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from os import PathLike, fspath
from pathlib import Path
from typing import Any, NamedTuple, cast

from msgspec.structs import replace

from traincast.api.named import job_under
from traincast.diagnostics import Note
from traincast.errors import ConfigError, InfeasibleError, UnknownNameError
from traincast.hardware.cluster import Cluster
from traincast.hardware.gpu import Gpu
from traincast.job.draft import Draft
from traincast.job.job import Job
from traincast.job.options import StepOptions
from traincast.job.request import JobRequest
from traincast.job.resolve import resolve_job
from traincast.job.words import JOB_WORDS, RUN_WORDS, said_of_job, sorted_out, takes
from traincast.model.load import model_names
from traincast.model.model import Model
from traincast.names import known_names
from traincast.planning.answer import Asked, LayoutToRun, Plan, WhyNot
from traincast.planning.changes import open_request
from traincast.planning.goals import CHINCHILLA, Limits, goal_of, least_gpus, search
from traincast.planning.layout import Estimated
from traincast.planning.options import LIMITED, TERA, PlanKeywords, plan_options, price_on
from traincast.planning.order import USUAL, checked_order
from traincast.planning.plan import plan as best_layouts
from traincast.planning.plan import why_not
from traincast.planning.request import as_trained, requested, with_tokens
from traincast.planning.several import Plans, Refusal, nothing_runs
from traincast.simulation.reproducible import DEFAULT_CLUSTER, choose
from traincast.units import parse_amount, parse_token_count

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
    estimated: Estimated | None = None,
    workers: int = 1,
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
    estimated : callable, optional
        Is handed layouts that fit with their estimated steps and memory, a tuple of
        `traincast.planning.layout.Estimate` at a time, as they are found: the first come long before the plan is
        made. What it raises ends the plan.
    workers : int
        Processes that share the work, copies of this one; the plan is the same with any number.
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
    options, counted_by = with_tokens(options, request.model)
    request, routed = as_trained(request, options.get("tokens"))
    made, assumed = plan_options(chosen.setting.cluster.name, options)
    had = resolve_job(request, chosen.setting.cluster) if start else None
    of = request if had is None else open_request(had, request)
    found = best_layouts(of, chosen.setting, made, had, estimated, workers)
    return replace(
        found,
        asked=_as_given(found.asked, draft, given),
        assumptions=(*notes, *counted_by, *routed, *assumed, *found.assumptions),
        warnings=(*(draft.warnings if isinstance(draft, Draft) else ()), *found.warnings),
    )


def why(
    found: Plan | LayoutToRun,
    layout: Mapping[str, Any],
    job: JobRequest | Draft | StrPath | None = None,
    cluster: AnyCluster = None,
    *,
    recipe: str | None = None,
    engine: str = "fast",
    **words: Any,  # noqa: ANN401
) -> WhyNot:
    """Say why a layout is not the best of a plan that was made of the same job and words, or of which one is to run.

    Examples
    --------
    >>> import traincast
    >>> job = {"model": "llama3-8b", "cluster": "h100", "gpus": 8, "global_batch": 8, "cp": 1, "max_tp": 2}
    >>> told = traincast.api.planning.why(traincast.plan(**job), {"tp": 1}, **job)
    >>> told.verdict
    'slower'
    """
    draft, options = _asked(job, None, words, recipe=recipe)
    request, _, named = requested(draft)
    setting = choose(StepOptions(), named if cluster is None else cluster, engine).setting
    options, _ = with_tokens(options, request.model)
    request, _ = as_trained(request, options.get("tokens"))
    made, _ = plan_options(setting.cluster.name, {**options, "explain": (layout,)})
    return why_not(request, setting, made, found.best[0].to_run if isinstance(found, Plan) else found)


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
    gpus: int | Sequence[int] | Mapping[str, Sequence[int]] = (),
    rank_by: str = USUAL,
    days: float | None = None,
    budget: float | str | None = None,
    tell: Callable[[int, int], None] | None = None,
    recipe: str | None = None,
    start: bool = False,
    engine: str = "fast",
    workers: int = 1,
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
        What differs; what is left empty is as the job says. A model may be a pattern, such as ``llama3*``; GPUs may
        be those of each cluster by its name, under an empty name those of the others.
    rank_by : str
        ``tokens-per-s``, ``days``, ``cost`` or ``energy``: what comes first, and what is told to be too close to it.
    days, budget : float, optional
        What the whole run may take: which cases are within it, and how large a model it buys. Without `gpus`, or with
        one number of one model, multiples of it are planned until the answer is known. Its tokens are `tokens`, or
        `tokens_per_parameter` of the model (20 where neither is given). `budget` needs `gpu_hour_price`.
    tell, recipe, start, engine, workers, **words
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
    checked_order(rank_by)
    if rank_by == "cost" and options.get("gpu_hour_price") is None:
        raise ConfigError("is 'cost', which needs prices; give gpu_hour_price=... too", "rank_by").typed(**_PRICE)
    limits = _limits(days, budget, options)
    if limits is not None:
        options = {"tokens_per_parameter": CHINCHILLA, **options} if "tokens" not in options else options
    elif "tokens_per_parameter" not in options:
        options = {"tokens": TERA, **options}
    named = models_named(models or (draft.model,))
    cases = _Cases(draft, options, start=start, engine=engine, workers=workers)
    found = list(_grid(draft, named, clusters or (cluster or draft.cluster,), gpus, options.get("gpu_hour_price")))
    searches = limits is not None and not start and (not any(each.counts for each in found) or len(named) == 1)
    todo = sum(len(each.counts) for each in found)
    for where in found:
        if limits is not None and searches and len(where.counts) <= 1:
            cases.search(where, limits)
            continue
        for count in where.counts or (None,):
            cases.plan(where, count)
            if tell is not None:
                tell(cases.done, todo)
    if not cases.plans:
        raise nothing_runs(cases.refused)
    goal = None if limits is None else goal_of(cases.plans, limits, options.get("tokens_per_parameter"))
    return Plans(plans=tuple(cases.plans), refused=tuple(cases.refused), rank_by=rank_by, goal=goal)


_PRICE = {"gpu_hour_price": "--gpu-hour-price"}


class _Where(NamedTuple):
    """A model on a cluster, with the numbers of GPUs that are planned; none: as the job says."""

    model: str | Model | None
    cluster: AnyCluster
    name: str
    """Of the cluster."""
    gpu: Gpu
    counts: tuple[int, ...]
    price: float | None
    base: int
    """GPUs that a search begins with: those that are given, or a node."""


class _Cases:
    """The cases of a draft as they are planned."""

    def __init__(self, draft: Draft, options: PlanKeywords, **how: Any) -> None:  # noqa: ANN401
        self.draft, self.options, self.how = draft, options, how
        self.plans: list[Plan] = []
        self.refused: list[Refusal] = []

    @property
    def done(self) -> int:
        """How many cases have been planned."""
        return len(self.plans) + len(self.refused)

    def search(self, where: _Where, limits: Limits) -> None:
        """Plan numbers of GPUs until the answer is among them.

        What cannot run is kept where nothing can, and the first beyond what can where that is not within the limits.
        """
        plans, refused = len(self.plans), len(self.refused)
        search(partial(self.plan, where), where.base, limits, 0.0 if where.counts else self._least(where, limits))
        found, without = self.plans[plans:], self.refused[refused:]
        if found:
            most = math.inf if any(limits.within(each.best[0]) for each in found) else max(each.gpus for each in found)
            self.refused[refused:] = [each for each in without if (each.gpus or 0) > most][:1]

    def _least(self, where: _Where, limits: Limits) -> float:
        """Return the GPUs below which none need be tried."""
        model = self.draft.under(Draft(model=where.model)).loaded_model()
        if model is None or limits.days is None:
            return 0.0
        tokens = with_tokens(self.options, model)[0].get("tokens")
        count = parse_token_count(tokens) if isinstance(tokens, str) else tokens
        return least_gpus(model, count or 0.0, where.gpu, limits.days)

    def plan(self, where: _Where, count: int | None) -> Plan | InfeasibleError:
        """Plan a case, and keep what was found or why there is nothing."""
        fields = {} if count is None else {"gpus": count}
        case = self.draft.under(Draft(model=where.model, cluster=where.cluster, fields=fields))
        options: PlanKeywords = {**self.options, "gpu_hour_price": where.price}
        try:
            found = plan(case, **self.how, **options)
        except InfeasibleError as error:
            name = case.model.name if isinstance(case.model, Model) else str(case.model)
            self.refused.append(Refusal(name, where.name, case.fields.get("gpus"), str(error), error.remedies))
            return error
        self.plans.append(found)
        return found


def _limits(days: float | None, budget: float | str | None, options: PlanKeywords) -> Limits | None:
    """Return what the run may take, None where nothing is said of it."""
    if days is None and budget is None:
        return None
    if budget is not None and options.get("gpu_hour_price") is None:
        raise ConfigError("is money, and a price is needed; give gpu_hour_price=... too", "budget").typed(**_PRICE)
    return Limits(days=days, budget=parse_amount(budget) if isinstance(budget, str) else budget)


def models_named(models: Sequence[str | Model | None]) -> list[str | Model | None]:
    """Return models, each pattern such as ``llama3*`` as all built-in models that have such names.

    Raises
    ------
    UnknownNameError
        If no model has such a name.
    """
    found: dict[str | int, str | Model | None] = {}
    for each in models:
        if not isinstance(each, str) or not set("*?[") & set(each) or Path(each).exists():
            found[each if isinstance(each, str) else id(each)] = each
            continue
        names = fnmatch.filter(model_names(), each)
        if not names:
            raise UnknownNameError("model", each, model_names())
        found.update({name: name for name in names})
    return list(found.values())


def _grid(
    draft: Draft,
    models: Sequence[str | Model | None],
    clusters: Sequence[AnyCluster],
    gpus: int | Sequence[int] | Mapping[str, Sequence[int]],
    prices: float | Mapping[str, float] | None,
) -> Iterator[_Where]:
    """Yield every model on every cluster; the cluster varies fastest."""
    loaded = [(each, choose(StepOptions(), each, "auto").setting.cluster) for each in clusters]
    names = [cluster.name for _, cluster in loaded]
    _check_prices(prices, names)
    by_name = gpus if isinstance(gpus, Mapping) else {"": (gpus,) if isinstance(gpus, int) else gpus}
    for name in by_name:
        if name and name not in names:
            raise ConfigError(f"{name!r} is not a cluster of this plan; {known_names(name, names)}", "gpus")
    said = (draft.fields["gpus"],) if draft.fields.get("gpus") else ()
    for model, (cluster, known) in product(models, loaded):
        counts = tuple(by_name.get(known.name, by_name.get("", ()))) or said
        base = counts[0] if counts else known.gpus_per_node
        yield _Where(model, cluster, known.name, known.gpu, counts, price_on(prices, known.name), base)


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
