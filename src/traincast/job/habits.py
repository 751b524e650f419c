"""Levels of effort: a program as it comes, and as its published recipes set it.

A framework file may say both. ``[out_of_the_box]`` has the fields of a job as the program has them where no flag is
given; ``[[habits]]`` have what its recipes set, each with the conditions under which they do::

    [[habits]]
    when = ["experts", "precision=mxfp8", "gpu=gb200|gb300"]
    settings = { cuda_graph_impl = "full_iteration", moe_paged_stash = true }
    source = "repository, file, commit"

Habits apply in their order, and later ones win; a condition is about what the job says, what habits before it set, and
facts of model and GPU. A job that says a level (``tuned``) gets its fields where it leaves them open.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from traincast.errors import ConfigError
from traincast.hardware.dtypes import EIGHT_BIT, FOUR_BIT, PEAK_OF_DTYPE
from traincast.job.conditions import broken, read_conditions
from traincast.job.fields import FIELDS
from traincast.names import known_names
from traincast.tables import decoded
from traincast.units import quoted

if TYPE_CHECKING:
    from traincast.hardware.cluster import Cluster
    from traincast.job.decisions import Decisions
    from traincast.job.frameworks import Framework
    from traincast.job.request import JobRequest

OUT_OF_THE_BOX, USUAL, BEST = "out-of-the-box", "usual", "best"
LEVELS = (OUT_OF_THE_BOX, USUAL, BEST)
"""As the program comes, as its published recipes set it, and with all that it can do, which a plan searches."""

FACTS = ("experts", "shared_experts", "latent", "mamba", "eight_bit", "four_bit", "gpu", "vendor", "domain")
"""What conditions may be about in addition to fields of a job: whether the model has experts, shared ones, latent
attention, layers of Mamba; whether GEMMs read 8 bits or less, or 4; the GPU's chip, whose it is,
and how many share an NVLink domain."""

TOGETHER = (
    ("cuda_graphs", "cuda_graph_impl", "cuda_graph_scope"),
    ("recompute", "recompute_layers", "recompute_method", "recompute_modules", "recompute_keeps"),
    ("moe_dispatcher", "deduplicated_dispatch"),
    ("zero", "shard", "reshard_after_forward"),
    ("grad_reduce_bytes", "main_grads_dtype"),
    ("precision_aware_optimizer", "main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype"),
    ("vpp", "stage_layers", "pipeline_layout", "first_stage_layers", "last_stage_layers"),
    ("packed_length", "packed_lengths"),
)
"""Fields that say one thing in several words: who says one of them leaves none of the others open."""

_DEGREES = ("tp", "pp", "vpp", "cp", "ep")


class Habit(Struct, frozen=True, kw_only=True):
    """What is set under some conditions, and where that stands."""

    settings: tuple[tuple[str, Any], ...]
    """Fields of a job with their values."""
    when: tuple[str, ...] = ()
    """Conditions, all of which must hold (`traincast.job.conditions`)."""
    source: str = ""

    def applies(self, facts: Mapping[str, Any]) -> bool:
        """Say whether all its conditions hold."""
        return broken(read_conditions(";".join(self.when), "habits.when"), facts) is None


def read_plain(table: object, shown: str) -> Habit:
    """Return the table ``[out_of_the_box]`` of a framework file, or what `Habit` became in a result.

    Raises
    ------
    ConfigError
        If a key is no field of a job, a value none of that field's, or the source is missing.
    """
    place = "out_of_the_box"
    if not isinstance(table, Mapping):
        raise ConfigError(f"is {quoted(table)}; it must be a table (in {shown})", place)
    if "settings" not in table:
        table = {"source": table.get("source"), "settings": {k: v for k, v in table.items() if k != "source"}}
    return _habit(table, shown, place)


def read_habits(tables: object, shown: str) -> tuple[Habit, ...]:
    """Return the tables ``[[habits]]`` of a framework file; errors as `read_plain`."""
    if not isinstance(tables, list | tuple):
        raise ConfigError(f"is {quoted(tables)}; it must be tables, each [[habits]] (in {shown})", "habits")
    return tuple(_habit(each, shown, "habits") for each in tables)


def _habit(table: object, shown: str, place: str) -> Habit:
    known = ("when", "settings", "source")
    if not isinstance(table, Mapping) or not table.get("source"):
        raise ConfigError(f"needs settings and their source (in {shown})", place)
    unknown = next((key for key in table if key not in known), None)
    if unknown is not None:
        raise ConfigError(f"is unknown; {known_names(unknown, known)} (in {shown})", f"{place}.{unknown}")
    when = tuple(table.get("when", ()))
    for each in read_conditions(";".join(when), f"{place}.when"):
        if each.name not in FIELDS and each.name not in FACTS:
            text = f"{each.name} is no fact; {known_names(each.name, [*FACTS, *FIELDS])} (in {shown})"
            raise ConfigError(text, f"{place}.when")
    settings = tuple(_setting(name, raw, shown, place) for name, raw in dict(table.get("settings", {})).items())
    return Habit(settings=settings, when=when, source=str(table["source"]))


def _setting(name: str, raw: object, shown: str, place: str) -> tuple[str, Any]:
    """Return a field of a job with its value, checked as a job file's is."""
    from traincast.job.choices import choices_of  # both ask frameworks, which have habits
    from traincast.job.request import JOB_FIELDS

    settable = [each for each in JOB_FIELDS if each not in ("model", "framework", "year", "tuned")]
    if name not in settable:
        raise ConfigError(f"is no field of a job; {known_names(name, settable)} (in {shown})", f"{place}.{name}")
    plain = list(raw) if isinstance(raw, tuple) else raw
    try:
        return name, decoded(name, JOB_FIELDS[name].type, plain, choices_of(FIELDS[name]))
    except ConfigError as error:
        raise ConfigError(f"{error} (in {shown})", f"{place}.{name}") from None


def plain_settings(framework: "Framework", request: "JobRequest") -> Mapping[str, Any]:
    """Return the fields that a program sets where no flag is given, of those that a job leaves open."""
    return {name: value for name, (value, _) in _plain(framework, request).items()}


def usual_settings(framework: "Framework", request: "JobRequest", cluster: "Cluster | None") -> Mapping[str, Any]:
    """Return the fields that recipes of a framework set for such a job, of those that it leaves open."""
    return {name: value for name, (value, _) in _usual(framework, request, cluster).items()}


def as_tuned(request: "JobRequest", decided: "Decisions") -> "JobRequest":
    """Return a job with the fields of its level of effort where it leaves them open, each group with a note.

    What only a plan can find (``best``) is as usual here, and what has no effect with the job's degrees stays open.
    """
    level, framework = request.tuned, decided.framework
    if level is None:
        return request
    request = replace(request, tuned=None)
    plain = level == OUT_OF_THE_BOX
    found = _plain(framework, request) if plain else _usual(framework, request, decided.cluster)
    degrees = {name: getattr(request, name) or 1 for name in _DEGREES}
    found = {name: each for name, each in found.items() if _matters(name, degrees)}
    if not found:
        decided.note("tuned-unused", f"tuned {level} has no effect: {framework.name} says nothing of it")
    shown = f"{framework.name} comes" if plain else f"recipes of {_usual_of(framework).name} set it"
    for group, names in _by_group(found).items():
        brief = f"tuned {level}: {', '.join(f'{name} {_shown(found[name][0])}' for name in names)}, as {shown}"
        sources = dict.fromkeys(found[name][1] for name in names)
        decided.note(f"tuned-{group}", f"{brief} ({'; '.join(sources)})", brief=brief)
    return replace(request, **{name: value for name, (value, _) in found.items()})


_Sourced = dict[str, tuple[Any, str]]
"""Field to its value, and where that stands."""


def _plain(framework: "Framework", request: "JobRequest") -> _Sourced:
    plain = framework.out_of_the_box
    return {} if plain is None else _open_ones(plain, request)


def _usual(framework: "Framework", request: "JobRequest", cluster: "Cluster | None") -> _Sourced:
    """Return what habits set one after another, each by what the job says and those before it set."""
    found: _Sourced = {}
    facts = facts_of_request(request, cluster)
    for habit in _usual_of(framework).habits:
        if habit.applies(facts):
            found |= _open_ones(habit, request)
            facts |= {name: value for name, (value, _) in found.items()}
    return found


def _open_ones(habit: Habit, request: "JobRequest") -> _Sourced:
    """Return the settings that a job leaves open, those of experts only where its model has some."""
    has_experts = request.model.experts is not None
    return {
        name: (value, habit.source)
        for name, value in habit.settings
        if _is_open(request, name) and (has_experts or FIELDS[name].group != "experts")
    }


def _matters(name: str, degrees: Mapping[str, int]) -> bool:
    """Say whether a field can have an effect with some degrees."""
    return broken(read_conditions(";".join(FIELDS[name].needs)), degrees) is None


def _usual_of(framework: "Framework") -> "Framework":
    """Return the framework whose recipes say what is usual: itself, or the one that it names."""
    from traincast.job.frameworks import load_framework  # frameworks have habits

    return framework if framework.habits or not framework.usual_as else load_framework(framework.usual_as)


def facts_of_request(request: "JobRequest", cluster: "Cluster | None") -> dict[str, Any]:
    """Return what conditions are about: fields of a job, an open degree as 1, and facts of its model and GPU."""
    model, gpu = request.model, None if cluster is None else cluster.gpu
    said = {name: getattr(request, name) for name in FIELDS if hasattr(request, name)}
    precision = request.precision or "bf16"
    narrow = FOUR_BIT in (precision, PEAK_OF_DTYPE.get(precision))
    return {
        **said,
        **{name: said[name] or 1 for name in _DEGREES},
        "precision": precision,
        "experts": model.experts is not None,
        "shared_experts": model.experts is not None and bool(model.experts.shared_ffn_hidden),
        "latent": model.attention.latent is not None,
        "mamba": any("mamba" in block for blocks in model.blocks for block in blocks),
        "eight_bit": narrow or precision in EIGHT_BIT,
        "four_bit": narrow,
        "gpu": "" if gpu is None else gpu.name.partition("-")[0].lower(),
        "vendor": "" if gpu is None else gpu.vendor,
        "domain": 1 if cluster is None else cluster.gpus_per_node,
    }


def _is_open(request: "JobRequest", name: str) -> bool:
    """Say whether a job says nothing of a field, nor the same in other words."""
    family = next((names for names in TOGETHER if name in names), (name,))
    return all(getattr(request, each) is None for each in family)


def _by_group(found: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the names of fields by the part of a job that they are of."""
    groups: dict[str, list[str]] = {}
    for name in found:
        groups.setdefault(FIELDS[name].group, []).append(name)
    return groups


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return " ".join(map(str, value)) or "none" if isinstance(value, tuple) else str(value)
