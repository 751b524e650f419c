"""How well a program is set: as it comes, or as its published recipes set it (`traincast.job.levels`).

Habits of a framework apply in their order, and later ones win; a condition is about what the job says, what habits
before it set, and facts of model and machine. A job that says a level (``tuned``) gets its fields where it leaves them
open.
"""

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from traincast.hardware.cluster import Cluster
from traincast.job.condition_facts import layout_facts, machine_facts, model_facts, precision_facts
from traincast.job.conditions import broken, read_conditions
from traincast.job.decisions import Decisions
from traincast.job.degrees import DEGREES
from traincast.job.fields import FIELDS, said_together
from traincast.job.frameworks import Framework, load_framework
from traincast.job.levels import OUT_OF_THE_BOX, Habit
from traincast.job.request import JOB_FIELDS, JobRequest

_NO_MACHINE: Mapping[str, Any] = {"capability": 0.0, "domain": 1, "gpu": "", "vendor": "", "network": ""}


def plain_settings(framework: Framework, request: JobRequest) -> Mapping[str, Any]:
    """Return the fields that a program sets where no flag is given, of those that a job leaves open."""
    return {name: value for name, (value, _) in _plain(framework, request).items()}


def usual_settings(framework: Framework, request: JobRequest, cluster: Cluster | None) -> Mapping[str, Any]:
    """Return the fields that recipes of a framework set for such a job, of those that it leaves open."""
    return {name: value for name, (value, _) in _usual(framework, request, cluster).items()}


def settings_of(
    level: str | None, framework: Framework, request: JobRequest, cluster: Cluster | None
) -> Mapping[str, Any]:
    """Return the fields that a level of effort sets, of those that a job leaves open; what is best is searched."""
    if level is None:
        return {}
    return (
        plain_settings(framework, request) if level == OUT_OF_THE_BOX else usual_settings(framework, request, cluster)
    )


def facts_asked(framework: Framework) -> frozenset[str]:
    """Return the facts that decide which fields recipes of a framework set: nothing else makes a difference to them."""
    return frozenset(name for habit in _usual_of(framework).habits for name in habit.asks)


def as_tuned(request: JobRequest, decided: Decisions) -> JobRequest:
    """Return a job with the fields of its level of effort where it leaves them open, each group with a note.

    What only a plan can find (``best``) is as usual here, and what has no effect with the job's degrees stays open.
    """
    level, framework = request.tuned, decided.framework
    if level is None:
        return request
    request = replace(request, tuned=None)
    plain = level == OUT_OF_THE_BOX
    found = _plain(framework, request) if plain else _usual(framework, request, decided.cluster)
    degrees = {name: getattr(request, name) or 1 for name in DEGREES}
    found = {name: each for name, each in found.items() if _matters(name, degrees)}
    if not found:
        decided.note("tuned-unused", f"tuned {level} has no effect: {framework.name} says nothing of it")
    shown = f"{framework.name} comes" if plain else f"recipes of {_usual_of(framework).name} set it"
    for group, names in _by_group(found).items():
        said = (f"{name} {_shown(value)}" for name in names if (value := found[name][0]) != ())
        brief = f"tuned {level}: {', '.join(said)}, as {shown}"
        sources = dict.fromkeys(found[name][1] for name in names)
        decided.note(f"tuned-{group}", f"{brief} ({'; '.join(sources)})", brief=brief)
    return replace(request, **{name: value for name, (value, _) in found.items()})


_Sourced = dict[str, tuple[Any, str]]
"""Field to its value, and where that stands."""


def _plain(framework: Framework, request: JobRequest) -> _Sourced:
    plain = framework.out_of_the_box
    return {} if plain is None else _open_ones(plain, request)


def _usual(framework: Framework, request: JobRequest, cluster: Cluster | None) -> _Sourced:
    """Return what habits set one after another, each by what the job says and those before it set."""
    found: _Sourced = {}
    facts = facts_of_request(request, cluster)
    for habit in _usual_of(framework).habits:
        if habit.applies(facts):
            found |= _open_ones(habit, request)
            facts |= {name: value for name, (value, _) in found.items()}
    return found


def _open_ones(habit: Habit, request: JobRequest) -> _Sourced:
    """Return the settings that a job leaves open, those of experts only where its model has some."""
    has_experts = request.model.experts is not None
    return {
        name: (value, habit.source)
        for name, value in habit.settings
        if _is_open(request, name) and (has_experts or not _of_experts(name, value))
    }


def _of_experts(name: str, value: object) -> bool:
    """Say whether a setting is one of experts alone."""
    return FIELDS[name].group == "experts" or value == ("experts",)


def _matters(name: str, degrees: Mapping[str, int]) -> bool:
    """Say whether a field can have an effect with some degrees."""
    return broken(read_conditions(";".join(FIELDS[name].needs)), degrees) is None


def _usual_of(framework: Framework) -> Framework:
    """Return the framework whose recipes say what is usual: itself, or the one that it names."""
    return framework if framework.habits or not framework.usual_as else load_framework(framework.usual_as)


def facts_of_request(request: JobRequest, cluster: Cluster | None) -> dict[str, Any]:
    """Return what conditions are about: fields of a job, an open degree as 1, and facts of its model and GPU."""
    said = {name: getattr(request, name) for name in JOB_FIELDS if name != "model"}
    degrees = {name: said[name] or 1 for name in DEGREES}
    machine = _NO_MACHINE if cluster is None else machine_facts(cluster)
    dp = max(1, request.gpus // (degrees["tp"] * degrees["pp"] * degrees["cp"]))
    # No framework is decided yet: as most of them fold groups of experts.
    stride = request.etp or 1
    return {
        **said,
        **degrees,
        **model_facts(request.model),
        **machine,
        **precision_facts(request.precision or "bf16"),
        **layout_facts(cp=degrees["cp"], dp=dp, ep=degrees["ep"], stride=stride, domain=machine["domain"]),
    }


def _is_open(request: JobRequest, name: str) -> bool:
    """Say whether a job says nothing of a field, nor the same in other words."""
    return all(getattr(request, each) is None for each in said_together(name))


def _by_group(found: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the names of fields by the part of a job that they are of."""
    groups: dict[str, list[str]] = {}
    for name in found:
        groups.setdefault(FIELDS[name].group, []).append(name)
    return groups


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
