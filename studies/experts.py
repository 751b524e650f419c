"""Hold plans against tuned recipes, and say which differences make the difference.

    python studies/experts.py [--group WORDS] [--all] [--level LEVELS] [--brief]

A paragraph for each group (`judges/experts.py`): the fastest measured step, the forecast of its recipe, and what plans
of each level of effort reach that are told neither layout nor switches. Below it what differs between recipe and plan.
Each difference is forecast twice: the recipe with this one change (alone), and the plan's choice with the recipe's
setting (taken back); next to it stands how many published runs of the same code have the setting. Where forecasts of
the recipe's older variants are off alike, a plan that is faster is not so by an error of the forecast.
"""

import argparse
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from msgspec.structs import replace

from judges import experts
from judges.experts import Forecast, Group, Reached
from traincast.errors import TraincastError
from traincast.estimate.memory import usable_bytes
from traincast.job.fields import FIELDS
from traincast.job.job import DECIDED, Job
from traincast.job.request import JOB_FIELDS, JobRequest
from traincast.job.resolve import resolve_job
from traincast.planning.layout import said
from traincast.planning.published import kind_of, published_counts, texts_of
from traincast.planning.task import safe_bytes
from traincast.simulation.forecast import forecast_step

LEAST = 0.002
"""Change of a step from which on a difference is shown: less is not one."""
_SPLIT = ("stage_layers", "pipeline_layout")
"""Fields that write out which layers a stage has."""
_GRAPHS = ("cuda_graphs", "cuda_graph_impl", "cuda_graph_scope")
_GIB = 2**30


class Difference(NamedTuple):
    """What of a layout or its software differs."""

    part: str
    text: str
    """Both values."""
    alone: float | None
    """By what share the recipe's step changes with it alone; None where it cannot be alone."""
    back: float | None
    """By what share the choice's step changes where it is taken back."""
    published: int | None
    """Published runs of the same code and kind of model that have the plan's setting; None of what turns something off,
    or is not counted."""


def parts() -> Mapping[str, tuple[str, ...]]:
    """Return the fields of jobs that a plan is not told, by what changes together, and the release's framework."""
    found: dict[str, tuple[str, ...]] = {"framework": ("framework",)}
    for name in JOB_FIELDS:
        if name not in experts.SAID and name in FIELDS:
            part = _part(name)
            found[part] = (*found.get(part, ()), name)
    return found


def _part(name: str) -> str:
    if name in _GRAPHS:
        return "CUDA graphs"
    field = FIELDS[name]
    return field.change or ("pipeline" if {name, field.fact} & {*_SPLIT} else field.fact or name)


def differences(recipe: Forecast, chosen: Forecast, group: Group) -> list[Difference]:
    """Return what differs between a recipe and a choice, what matters most first."""
    found = []
    for part, names in parts().items():
        text = _text(names, recipe.done.job, chosen.done.job)
        if not text:
            continue
        alone = _ratio(_with(recipe, chosen, names), recipe.step_s, group)
        back = _ratio(_with(chosen, recipe, names), chosen.step_s, group)
        if max((abs(each) for each in (alone, back) if each is not None), default=1.0) >= LEAST:
            found.append(Difference(part, text, alone, back, _published(names, chosen.done.job)))
    return sorted(found, key=lambda each: -max(abs(each.alone or 0.0), abs(each.back or 0.0)))


def _with(one: Forecast, other: Forecast, names: Iterable[str]) -> JobRequest:
    """Return a job with some fields of another; what that leaves to its framework is said where it matters."""
    values = {name: getattr(other.request, name) for name in names}
    for name in names:
        mine, theirs = _decided(one.done.job, name), _decided(other.done.job, name)
        if values[name] is None and name not in _SPLIT and isinstance(theirs, bool) and mine != theirs:
            values[name] = theirs
    return replace(one.request, **values)


def _ratio(request: JobRequest, step_s: float, group: Group) -> float | None:
    try:
        result, _ = forecast_step(resolve_job(request, group.setting.cluster), group.setting, allow_oom=True)
    except TraincastError:
        return None
    return result.iteration_time_s / step_s - 1


def _text(names: Iterable[str], one: Job, other: Job) -> str:
    """Return the fields of which two jobs decided otherwise, with both values."""
    found = []
    for name in names:
        before, after = _decided(one, name), _decided(other, name)
        if before != after:
            found.append(f"{name} {said(before)} -> {said(after)}")
    return ", ".join(found)


def _decided(job: Job, name: str) -> Any:  # noqa: ANN401
    if name == "framework":
        return job.framework.name
    if name in _SPLIT:
        return str(job.layout) if name == "pipeline_layout" and job.parallel.pp > 1 else None
    return job.decided(name) if name in DECIDED or name == "shard" else None


def _published(names: Iterable[str], job: Job) -> int | None:
    """Return how many published runs have a job's setting of some fields; None where nothing counts it."""
    counts, kind = published_counts(), kind_of(job.model)
    found = [
        counts.get((job.framework.kin, kind, name), {}).get(text, 0)
        for name in names
        if any(name == counted for *_, counted in counts)
        for text in texts_of(_decided(job, name))
    ]
    return min(found, default=None)


def chosen_of(group: Group, found: Reached) -> Forecast | None:
    """Return the forecast of what a plan chose, as a job of its own."""
    if found.choice is None:
        return None
    request = replace(experts.asked(group.best), **found.choice.layout.request())
    result, done = forecast_step(resolve_job(request, group.setting.cluster), group.setting, allow_oom=True)
    return Forecast(request, result, done)


def told(group: Group, recipe: Forecast, found: Iterable[Reached], *, brief: bool = False) -> Iterator[str]:
    """Yield the lines of a group, with what plans reached."""
    limit = safe_bytes(usable_bytes(group.setting.cluster.gpu.memory_bytes), recipe.done.job.framework.name)
    over = recipe.peak_bytes - limit
    room = f"over what a plan allows by {over / _GIB:.1f} GiB" if over > 0 else "fits"
    yield f"{group.name} ({group.best.id})"
    off = _of(recipe.step_s, group.measured_s)
    yield f"  measured {group.measured_s:.3f} s, recipe {recipe.step_s:.3f} s ({off}), {room}"
    others = [run for run in group.runs[1:] if run.request != group.best.request]
    if others and not brief:
        pairs = [(experts.recipe_of(group, run).step_s, run.measured_s or 0.0) for run in others]
        yield f"  its other variants: {', '.join(f'{step:.2f} s ({_of(step, known)})' for step, known in pairs)}"
    for each in found:
        if each.choice is None:
            yield f"  {each.level}: none; {each.reason}"
            continue
        yield (
            f"  {each.level}: {each.step_s:.3f} s, {_of(each.step_s, recipe.step_s)} of the recipe, "
            f"{_of(each.step_s, group.measured_s)} of the measured; {each.choice.layout.text}"
        )
        if each.choice.risks:
            yield f"    {'; '.join(each.choice.risks)}"
        if not brief and (chosen := chosen_of(group, each)) is not None:
            yield from map(_line, differences(recipe, chosen, group))


def _of(one: float, other: float) -> str:
    return f"{100 * (one / other - 1):+.1f} %"


def _line(each: Difference) -> str:
    alone, back = ("  no" if share is None else f"{100 * share:+.1f} %" for share in (each.alone, each.back))
    known = "" if each.published is None else f", {each.published} published"
    return f"    alone {alone:>8}, taken back {back:>8}{known}: {each.text}"


def main() -> int:
    """Print the groups; return the exit code."""
    parser = argparse.ArgumentParser(description="hold plans against tuned recipes")
    parser.add_argument("--group", default="", metavar="WORDS", help="only groups whose names hold all of these words")
    parser.add_argument("--level", default=",".join(experts.EFFORTS), help="levels of effort, joined by commas")
    parser.add_argument("--all", action="store_true", help="the groups of all tables, not only of the newest")
    parser.add_argument("--brief", action="store_true", help="without what differs")
    given = parser.parse_args()
    words, levels = given.group.lower().split(), given.level.split(",")
    groups = experts.groups_of(experts.tuned_runs(), () if given.all else experts.NEWEST)
    groups = [group for group in groups if all(word in group.name.lower() for word in words)]
    recipes, found = [], []
    for group in groups:
        recipes.append(experts.recipe_of(group))
        found.append([experts.reached(group, level) for level in levels])
        print(*told(group, recipes[-1], found[-1], brief=given.brief), sep="\n", flush=True)
    for place, level in enumerate(levels if groups else ()):
        steps = [each[place].step_s for each in found]
        ahead = len(list(experts.claims(steps, recipes)))
        print(f"{level}: faster by over {experts.AHEAD:.0%} than the recipe in {ahead} of {len(steps)} groups")
        print(*experts.boards_of(level, steps, recipes, groups), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
