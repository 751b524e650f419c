"""Plans: the best layouts of a job that leaves its layout open, and why not another one."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import msgspec
from msgspec.structs import replace

from traincast import api
from traincast.api.planning import PLAN_WORDS
from traincast.crew import cores
from traincast.errors import ConfigError, UnknownNameError
from traincast.job.fields import FIELDS
from traincast.planning.answer import LayoutToRun, Plan
from traincast.planning.several import Plans
from traincast.serve.answers.bench import Progress, Workbench
from traincast.serve.answers.plan_points import FoundLayouts
from traincast.serve.answers.planned import plan_answer, why_shown
from traincast.serve.answers.words import command_of, number_or_text, said, typed, words_of
from traincast.serve.records.plans import PlanAnswer, PlanRecord, WhyNotShown, WhyRecord
from traincast.serve.records.values import Value
from traincast.units import is_number, plain_number

_SEVERAL = ("models", "clusters", "gpus")
_MOST_WORKERS = 2
"""Processes that share a plan: more would take the cores and the memory that several pages share."""
_GOALS = ("days", "budget", "rank_by")


def plan(asked: PlanRecord, bench: Workbench) -> PlanAnswer:
    """Find the best layouts of a job that leaves its layout open, on one cluster or several."""
    words = plan_words(asked.plan)
    job = words_of(asked.job, bench.scratch)
    several = {name: words.pop(name) for name in (*_SEVERAL, *_GOALS) if name in words}
    with nullcontext() if several else bench.telling("planning"):
        found = _planned(job, words, several, bench)
    if isinstance(found, Plan):
        _keep(asked, found.best[0].to_run, bench)
    return plan_answer(asked.job, _command(asked), found)


def _planned(job: dict[str, Any], words: dict[str, Any], several: dict[str, Any], bench: Workbench) -> Plan | Plans:
    cluster, recipe = job.pop("cluster", None), job.pop("recipe", None)
    job.pop("allow_oom", None)
    how: dict[str, Any] = {"recipe": recipe, "engine": bench.engine, "workers": min(_MOST_WORKERS, cores())}
    if not several:
        points = FoundLayouts(bench)
        found = api.plan(cluster=cluster, estimated=points.take, **how, **job, **words)
        points.tell()
        return found
    own = {"models": "model", "gpus": "gpus"}
    given = {name: each for name, each in job.items() if name not in {own.get(one) for one in several}} | words
    where = {} if "clusters" in several else {"cluster": cluster}

    def tell(done: int, todo: int) -> None:
        bench.tell("progress", Progress(done / max(1, todo), f"{done} of {todo} planned"))

    tell(0, 1)
    return api.plans(tell=tell, **how, **where, **several, **given)


def plan_words(asked: Mapping[str, Value]) -> dict[str, Any]:
    """Return how a plan is made, as `traincast.plan` takes it.

    Raises
    ------
    ConfigError
        If a word is not known or cannot be read.
    """
    known = (*PLAN_WORDS, *_SEVERAL, *_GOALS)
    found: dict[str, Any] = {}
    for name, value in said(asked):
        if name not in known:
            raise UnknownNameError("word of a plan", name, known)
        found[name] = _WORDS[name](value) if name in _WORDS else typed(name, value)
    return found


def _counts(value: Value) -> list[int]:
    """Return ``256,512`` as numbers of GPUs."""
    found = _listed(value)
    wrong = next((each for each in found if not each.isdigit()), None)
    if wrong is not None:
        raise ConfigError(f"{wrong!r} is not a number of GPUs; write them like 256,512", "gpus")
    return [int(each) for each in found]


def _days(value: Value) -> Value:
    found: Value = typed("days", value)
    if isinstance(found, str):
        raise ConfigError(f"is {found!r}; it must be a number", "days")
    return found


def _prices(value: Value) -> Any:  # noqa: ANN401
    """Return ``h100=2.5,b200=4`` as the price of each cluster, and a number as that of all."""
    if "=" not in str(value):
        return typed("gpu_hour_price", value)
    pairs = [each.partition("=")[::2] for each in _listed(value)]
    wrong = next((price for _, price in pairs if not is_number(price.strip())), None)
    if wrong is not None:
        raise ConfigError(f"{wrong!r} is not a price; write them like h100=2.5,b200=4", "gpu_hour_price")
    return {name.strip(): plain_number(price.strip()) for name, price in pairs}


def _listed(value: Value) -> list[str]:
    return [str(each).strip() for each in (value.split(",") if isinstance(value, str) else _several(value)) if each]


def _several(value: Value) -> Sequence[object]:
    return value if isinstance(value, list) else (value,)


def _fixed(value: Value) -> dict[str, Any]:
    """Return ``tp=8 micro_batch=1,2`` as the values of each field."""
    found: dict[str, Any] = {}
    for each in str(value).replace(";", " ").split():
        name, equals, values = each.partition("=")
        if not equals or not values:
            raise ConfigError(f"{each!r} is not FIELD=VALUE, such as tp=8 or micro_batch=1,2", "fix")
        found[name.replace("-", "_")] = tuple(number_or_text(one) for one in values.split(","))
    return found


_WORDS: Mapping[str, Callable[[Value], Any]] = {
    **{"fix": _fixed, "models": _listed, "clusters": _listed},
    **{"gpus": _counts, "gpu_hour_price": _prices, "days": _days},
}
"""Words of a plan that have a form of their own."""


def _command(asked: PlanRecord) -> str:
    """Return the command line that prints the same plan."""
    words = dict(said(asked.plan))
    prices = words.pop("gpu_hour_price", None)
    priced = [f"--gpu-hour-price {each}" for each in _listed(prices)] if prices is not None else []
    job = {name: each for name, each in asked.job.items() if not (priced and name == "gpu_hour_price")}
    fixed = [f"--fix {name}={','.join(map(str, values))}" for name, values in _fixed(words.pop("fix", "")).items()]
    several = {flag: ",".join(_listed(words.pop(name))) for name, flag in _FLAGS.items() if name in words}
    return " ".join([command_of({**job, **several, **words}, "plan"), *priced, *fixed])


_FLAGS = {"models": "model", "clusters": "cluster", "gpus": "gpus"}
"""What is said of several cases to the flag that says it."""


def why(asked: WhyRecord, bench: Workbench) -> WhyNotShown:
    """Say why a layout of a plan is not the best."""
    words, job = plan_words(asked.plan), words_of(asked.job, bench.scratch)
    for name in (*_SEVERAL, *_GOALS, "explain"):
        words.pop(name, None)
    job.pop("allow_oom", None)
    layout = {name: _field(name, value) for name, value in said(asked.layout)}
    to_run = _kept(asked, bench)
    if to_run is None:
        found = api.plan(engine=bench.engine, **job, **words)
        to_run = found.best[0].to_run
        _keep(asked, to_run, bench)
    return why_shown(api.planning.why(to_run, layout, engine=bench.engine, **job, **words))


def _field(name: str, value: Value) -> Any:  # noqa: ANN401
    """Return a field of a layout, of which a page may have read a list as a text."""
    found = typed(name, value)
    if isinstance(found, str) and name in FIELDS and FIELDS[name].takes == "names":
        return tuple(found.replace(",", " ").split())
    return _plain(found)


def _plain(value: Any) -> Any:  # noqa: ANN401
    return tuple(value) if isinstance(value, list) else value


def _keep(asked: PlanRecord, to_run: LayoutToRun, bench: Workbench) -> None:
    """Keep the layout to run of a plan for questions about it, which may go to another worker."""
    bench.keep(_key(asked), msgspec.msgpack.encode(to_run))


def _kept(asked: PlanRecord, bench: Workbench) -> LayoutToRun | None:
    """Return the layout to run of a plan that was made; None where none was, or it is long ago."""
    content = bench.kept(_key(asked))
    if content is None:
        return None
    to_run = msgspec.msgpack.decode(content, type=LayoutToRun)
    software = tuple((name, _plain(value)) for name, value in to_run.layout.software)
    return replace(to_run, layout=replace(to_run.layout, software=software))


def _key(asked: PlanRecord) -> bytes:
    return msgspec.json.encode(
        [sorted(dict(said(asked.job)).items()), sorted(dict(said(asked.plan)).items())], order="sorted"
    )
