"""How a plan is made, as a user says it."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict

from msgspec import field

from traincast.diagnostics import Note
from traincast.errors import ConfigError
from traincast.job.choices import choices_of
from traincast.job.failures import Failures
from traincast.job.fields import FIELDS, axes, limited
from traincast.job.request import JOB_FIELDS
from traincast.job.training_run import RunTerms, run_terms
from traincast.model.recompute import spelled_modules
from traincast.names import known_names
from traincast.planning.layout import in_order
from traincast.registry import known_name
from traincast.schedules.schedule import SCHEDULES
from traincast.tables import decoded
from traincast.units import quoted

SPACES = ("default", "full")

AXES = in_order(axes())
"""Fields of a job that a plan decides."""

LIMITED = in_order(limited())
"""Those that may have an upper limit."""

TERA = 1e12
_ASSUMED = "the tokens of the whole run are not given: what it takes is told of 1 T tokens"

MOST_FINALISTS = 32
"""Most layouts that are simulated."""


class PlanOptions(RunTerms, frozen=True, kw_only=True):
    """How a plan is made, and of which run its costs are told."""

    full: bool = False
    """Whether the space has all that can be run, not only what one would."""
    allow_offload: bool = False
    """Whether states and activations may be offloaded to the memory of the host."""
    fixed: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Values that single fields of layouts are held to."""
    most: Mapping[str, int] = field(default_factory=dict)
    """Upper limits of single fields."""
    headroom: float | None = None
    """Share of the memory that is left free; None: so much that running out of it is very unlikely."""
    tuned: str = "best"
    """How far the framework's software is tuned where the job does not say: of `traincast.job.levels.LEVELS`."""
    top: int = 10
    """Layouts that are returned."""
    finalists: int = MOST_FINALISTS
    """Most layouts that are simulated."""
    remedies: bool = True
    """Whether to look for what would do where nothing fits, which takes as long again."""
    explain: tuple[Mapping[str, Any], ...] = ()
    """Fields of layouts of which is asked why they are not the best."""
    advise: bool = False
    """Whether the plan has its advice, which is worked out when it is asked for otherwise."""


def price_on(gpu_hour_price: float | Mapping[str, float] | None, cluster: str) -> float | None:
    """Return what an hour of a GPU of a cluster costs; None where that is not specified."""
    return gpu_hour_price.get(cluster) if isinstance(gpu_hour_price, Mapping) else gpu_hour_price


class PlanKeywords(TypedDict, total=False):
    """How a plan is made, as a user says it."""

    space: str
    """``default``, or ``full``: with what nobody would run, too."""
    allow_offload: bool
    """Whether states and activations may be offloaded to the memory of the host."""
    fix: Mapping[str, Any]
    """Values of fields of the layout, each one or several: ``{"tp": 8, "micro_batch": (1, 2)}``."""
    most: Mapping[str, int]
    """Largest values of degrees and sizes: ``{"tp": 8}``."""
    headroom: float | None
    """Share of the memory that stays free; by default so much that running out of it is very unlikely."""
    top: int
    """Layouts that are returned; 10 by default."""
    explain: Sequence[Mapping[str, Any]]
    """Layouts of which is asked why they are not the best: ``({"tp": 4, "pp": 8},)``."""
    advise: bool
    """Whether what else to change is worked out with the plan, by all workers; else when it is asked for."""
    tokens: float | str | None
    """Tokens of the whole run, such as ``15T``: days, GPU-hours, cost, energy and emissions of it are told."""
    tokens_per_parameter: float | None
    """Tokens of the whole run for each parameter that one of them passes through, in place of `tokens`."""
    gpu_hour_price: float | Mapping[str, float] | None
    """What an hour of a GPU costs, or what it costs on each cluster: ``{"h100": 2.5}``."""
    currency: str | None
    gpu_power_w: float | None
    pue: float | None
    grid_intensity: float | None
    failures: Failures | str | bool | None
    """These five as of `RunTerms`."""


def plan_options(cluster: str, said: PlanKeywords) -> tuple[PlanOptions, tuple[Note, ...]]:
    """Return how a plan on a cluster is made, checked, and what was assumed of the run.

    Raises
    ------
    ConfigError
        If an option, the space or a field is not known, or a value is out of range.
    """
    given: dict[str, Any] = {name: value for name, value in said.items() if value is not None}
    fix, most, explain = given.pop("fix", {}), given.pop("most", {}), tuple(given.pop("explain", ()))
    space, headroom, top = given.pop("space", "default"), given.pop("headroom", None), given.pop("top", 10)
    allow_offload, advise = (bool(given.pop(name, False)) for name in ("allow_offload", "advise"))
    if space not in SPACES:
        raise ConfigError(f"is {space!r}; {known_names(space, SPACES)}", "space")
    asked = [(each, AXES, "explain") for one in explain for each in one]
    said_fields = [*((each, AXES, "fix") for each in fix), *((each, LIMITED, "most") for each in most), *asked]
    for name, among, where in said_fields:
        if name not in among:
            raise ConfigError(f"{name!r} is not a field that a plan decides; {known_names(name, among)}", where)
    if headroom is not None and not 0 <= headroom < 1:
        raise ConfigError(f"is {headroom:g}; it must be from 0 to below 1", "headroom")
    if top < 1:
        raise ConfigError(f"is {top}; it must be at least 1", "top")
    if "gpu_hour_price" in given:
        given["gpu_hour_price"] = price_on(given["gpu_hour_price"], cluster)
    notes = (Note("assumed-tokens", _ASSUMED),) if given and "tokens" not in given else ()
    run_terms({"tokens": TERA, **given} if given else {})
    options = PlanOptions(
        full=space == "full",
        allow_offload=allow_offload,
        fixed={
            name: tuple(_checked(name, each, "fix") for each in _several(name, value)) for name, value in fix.items()
        },
        most={name: _checked(name, value, "most") for name, value in most.items()},
        headroom=headroom,
        top=top,
        advise=advise,
        explain=tuple({name: _one(name, value) for name, value in one.items()} for one in explain),
        **({"tokens": TERA, **given} if given else {}),
    )
    return options, notes


def _several(name: str, value: Any) -> tuple[Any, ...]:  # noqa: ANN401
    """Return one value or several as several; modules that are recomputed together are one value, joined by ``+``."""
    if name != "recompute_modules":
        return tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else (value,)
    many = (value,) if isinstance(value, str) else tuple(value)
    if all(isinstance(each, str) and "+" not in each for each in many):
        return (many,)
    return tuple(tuple(each.split("+")) if isinstance(each, str) else tuple(each) for each in many)


def _one(name: str, value: Any) -> Any:  # noqa: ANN401
    """Return the one value of a layout that is asked for, checked."""
    many = _several(name, value)
    if len(many) != 1:
        raise ConfigError(f"is {quoted(value)}; ask for one value at a time", f"explain.{name}")
    return _checked(name, many[0], "explain")


_TYPES = {name: each.type for name, each in JOB_FIELDS.items()}


def _checked(name: str, value: Any, where: str) -> Any:  # noqa: ANN401
    """Return a value of a field of a layout, as a job would have it.

    Raises
    ------
    ConfigError
        If it is of another type, out of range, or no choice of the field.
    """
    try:
        raw, known = list(value) if isinstance(value, tuple) else value, FIELDS[name]
        found = decoded(name, _TYPES[name], raw, least=known.least)
        if known.takes == "choice":
            return known_name(known.what, str(found), choices_of(known))
        if name == "schedule":
            return SCHEDULES.get(found).name
        return spelled_modules(found) if name == "recompute_modules" else found
    except ConfigError as error:
        raise ConfigError(str(error), f"{where}.{name}") from None
