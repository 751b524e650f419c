"""Plans: the best layouts of a job that leaves its layout open, and why not another one."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from traincast import api
from traincast.errors import ConfigError, UnknownNameError
from traincast.serve.bench import Progress
from traincast.serve.plan_points import FoundLayouts
from traincast.serve.planned import PlanAnswer, WhyNotShown, plan_answer, why_shown
from traincast.serve.words import Value, command_of, number_or_text, said, typed, words_of
from traincast.units import is_number, plain_number

if TYPE_CHECKING:
    from traincast.planning.answer import Plan
    from traincast.planning.several import Plans
    from traincast.serve.bench import Workbench


class PlanRecord(Struct, frozen=True, kw_only=True):
    """What is planned: a job whose layout is open where it says nothing, and how."""

    job: dict[str, Value]
    plan: dict[str, Value] = {}
    """Words of ``traincast plan``: ``space``, ``max_tp``, ``fix`` (``"tp=8 micro_batch=1,2"``), ``headroom``,
    ``tokens``, ``gpu_hour_price``, ``days``, ``budget``, ``rank_by``; ``models``, ``clusters``, ``gpus``, by commas."""


class WhyRecord(PlanRecord, frozen=True, kw_only=True):
    """A plan, and a layout of which is asked why it is not the best."""

    layout: dict[str, Value]
    """Fields of it, such as ``{"tp": 8, "pp": 1}``."""


_SEVERAL = ("models", "clusters", "gpus")


_GOALS = ("days", "budget", "rank_by")


def plan(asked: PlanRecord, bench: "Workbench") -> PlanAnswer:
    """Find the best layouts of a job that leaves its layout open, on one cluster or several."""
    words = plan_words(asked.plan)
    job = words_of(asked.job, bench.scratch)
    several = {name: words.pop(name) for name in (*_SEVERAL, *_GOALS) if name in words}
    with bench.telling("planning") if not several else nullcontext():
        found = _planned(job, words, several, bench)
    bench.keep(_key(asked), found)
    return plan_answer(asked.job, _command(asked), found)


def _planned(job: dict[str, Any], words: dict[str, Any], several: dict[str, Any], bench: "Workbench") -> "Plan | Plans":
    cluster, recipe = job.pop("cluster", None), job.pop("recipe", None)
    job.pop("allow_oom", None)
    if not several:
        points = FoundLayouts(bench)
        found = api.plan(cluster=cluster, recipe=recipe, engine=bench.engine, estimated=points.take, **job, **words)
        points.tell()
        return found
    own = {"models": "model", "gpus": "gpus"}
    given = {name: each for name, each in job.items() if name not in {own.get(one) for one in several}} | words
    where = {} if "clusters" in several else {"cluster": cluster}

    def tell(done: int, todo: int) -> None:
        bench.tell("progress", Progress(done / max(1, todo), f"{done} of {todo} planned"))

    tell(0, 1)
    return api.plans(recipe=recipe, engine=bench.engine, tell=tell, **where, **several, **given)


def plan_words(asked: Mapping[str, Value]) -> dict[str, Any]:
    """Return how a plan is made, as `traincast.plan` takes it.

    Raises
    ------
    ConfigError
        If a word is not known or cannot be read.
    """
    from traincast.api.planning import PLAN_WORDS

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
    **{"gpus": _counts, "gpu_hour_price": _prices},
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


def why(asked: WhyRecord, bench: "Workbench") -> WhyNotShown:
    """Say why a layout of a plan is not the best."""
    from traincast.planning.answer import Plan

    words, job = plan_words(asked.plan), words_of(asked.job, bench.scratch)
    for name in (*_SEVERAL, *_GOALS, "explain"):
        words.pop(name, None)
    job.pop("allow_oom", None)
    layout = {name: _plain(typed(name, value)) for name, value in said(asked.layout)}
    found = bench.kept.get(_key(asked))
    if not isinstance(found, Plan):
        found = api.plan(engine=bench.engine, **job, **words)
        bench.keep(_key(asked), found)
    return why_shown(api.planning.why(found, layout, engine=bench.engine, **job, **words))


def _plain(value: Any) -> Any:  # noqa: ANN401
    return tuple(value) if isinstance(value, list) else value


def _key(asked: PlanRecord) -> bytes:
    return msgspec.json.encode(
        [sorted(dict(said(asked.job)).items()), sorted(dict(said(asked.plan)).items())], order="sorted"
    )
