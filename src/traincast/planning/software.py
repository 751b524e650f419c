"""What of a framework's software a plan tries: its switches, as far as they are allowed on a layout.

Switches of one axis exclude each other (`traincast.job.switches`). Of an axis that has one which must be tried, every
option is tried, nothing among them. The others have switches that never make a step longer or larger, the later in
the table the better: the best one that is allowed is taken, and what comes before it stays for those layouts of which
the framework refuses it (`Software.allows`). So no two ways to run one layout are tried of which one is never better.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import product
from typing import Any

from msgspec import Struct, field

from traincast.hardware.cluster import Cluster
from traincast.job.condition_facts import machine_facts, model_facts
from traincast.job.conditions import Condition
from traincast.job.fields import FIELDS, left_open, said_together, ways
from traincast.job.frameworks import Framework
from traincast.job.request import JOB_FIELDS, JobRequest
from traincast.job.switches import SWITCHES, Need, Switch, allowed, offered
from traincast.planning.layout import Settings

_ROUTED = ("moe_dispatcher", *(each.name for each in ways()))
"""Axes of a layout that a way of execution decides: all others depend on more of the layout."""

_SPLITS = frozenset(left_open())
"""Fields that a plan decides layout by layout."""

Options = tuple[Switch | None, ...]
"""Of one axis; None is none of its switches."""

Held = tuple[tuple[bool, ...] | None, ...]
"""Which conditions hold, by the fact that they are about; None: of what is not known yet."""


class Software(Struct, frozen=True, kw_only=True, dict=True):
    """The settings of software that a plan may choose from, for one job on one cluster."""

    facts: Mapping[str, Any] = field(default_factory=dict)
    """What is known of the job and the cluster, whatever its layout."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """What the framework does by itself of all that a switch might set."""
    switches: tuple[Switch, ...] = ()
    """What the framework offers, but for what the job says itself."""
    forced: frozenset[str] = frozenset()
    """Axes of switches of which what the framework does by itself cannot run on this machine."""
    overlaps: Mapping[str, tuple[bool, ...]] = field(default_factory=dict)
    """Axes of a layout that depend on more of it than a way of execution, with the values that are tried."""

    @cached_property
    def axes(self) -> Mapping[str, Options]:
        """The options of each axis, after those that they need; nothing, unless what the framework does is one."""
        rows: dict[str, tuple[Switch, ...]] = {}
        for each in self.switches:
            rows[each.axis] = (*rows.get(each.axis, ()), each)
        rows = {axis: options for axis, options in rows.items() if _is_sure(options) or _is_screened(options)}
        order: list[str] = []
        while len(order) < len(rows):
            left = [axis for axis in rows if axis not in order]
            order.append(next((axis for axis in left if not _waits(rows[axis], left, rows)), left[0]))
        return {axis: rows[axis] if _chosen(rows[axis], self.defaults) else (None, *rows[axis]) for axis in order}

    def values(self, name: str) -> tuple[Any, ...]:
        """Return what switches set a field to."""
        said = (dict(each.settings) for each in self.switches)
        return tuple(dict.fromkeys(each[name] for each in said if name in each))

    @cached_property
    def tried(self) -> frozenset[str]:
        """The fields that switches set, usual or not."""
        switches = (each for options in self.axes.values() for each in options if each)
        return frozenset(self.overlaps) | {name for each in switches for name, _ in each.settings}

    def ideal(self, known: Mapping[str, Any]) -> Settings:
        """Return what no choice is faster than: of every axis the best, if others are as it needs them."""
        able = ([each for each in options if each and self._may(each, known)] for options in self.axes.values())
        best = (each[-1] for each, options in zip(able, self.axes.values(), strict=True) if each and _is_sure(options))
        return self._settings(best)

    def _may(self, switch: Switch, known: Mapping[str, Any]) -> bool:
        return allowed(switch, {**self.facts, **known, **dict(switch.settings)}) is None

    def choices(self, known: Mapping[str, Any]) -> tuple[Settings, ...]:
        """Return every combination of settings that is tried with some degrees; `known` are facts of these."""
        held = self.held(known)
        if held not in self._choices:
            tried = (each for taken in self._tried(known) for each in self._with_best(taken, known))
            self._choices[held] = tuple(dict.fromkeys(map(self._settings, tried)))
        return self._choices[held]

    @cached_property
    def _choices(self) -> dict[Held, tuple[Settings, ...]]:
        return {}

    @cached_property
    def _allowed(self) -> dict[tuple[Settings, Held], bool]:
        return {}

    def held(self, known: Mapping[str, Any]) -> Held:
        """Return which conditions hold of what is known of a layout: nothing else of it matters here."""
        return tuple(self._answers(name, known[name]) if name in known else None for name in self._conditions)

    def _answers(self, name: str, value: Any) -> tuple[bool, ...]:  # noqa: ANN401
        """Return which conditions hold of a fact with some value."""
        key = name, type(value), value
        if key not in self._answered:
            self._answered[key] = tuple(each.holds({name: value}) for each in self._conditions[name])
        return self._answered[key]

    @cached_property
    def _answered(self) -> dict[tuple[str, type, Any], tuple[bool, ...]]:
        return {}

    @cached_property
    def _conditions(self) -> Mapping[str, tuple[Condition, ...]]:
        """All conditions of switches, by the fact that they are about."""
        switches = (each for options in self.axes.values() for each in options if each)
        found: dict[str, tuple[Condition, ...]] = {}
        for each in dict.fromkeys(each for switch in switches for need in switch.needs for each in need):
            found[each.name] = (*found.get(each.name, ()), each)
        return found

    def _tried(self, known: Mapping[str, Any]) -> Iterator[list[Switch]]:
        """Yield every choice of the axes that must be tried."""
        axes = [self._able(axis, options, known) for axis, options in self.axes.items() if _is_screened(options)]
        for options in product(*axes):
            taken = [each for each in options if each is not None]
            if all(self._refused(each, self._settings(taken), known) is None for each in taken):
                yield taken

    def _able(self, axis: str, options: Options, known: Mapping[str, Any]) -> Options:
        """Return the options of an axis, nothing only where the framework can do without on this machine, or must."""
        able = tuple(each for each in options if each and allowed(each, {**self.facts, **known}) is None)
        return able if able and (axis in self.forced or None not in options) else (None, *able)

    def _with_best(self, taken: Sequence[Switch], known: Mapping[str, Any]) -> Iterator[Sequence[Switch]]:
        """Yield a choice with the best of all other axes, and with what may have to stand for it."""
        found: list[Sequence[Switch]] = [taken]
        for options in filter(_is_sure, self.axes.values()):
            found = [longer for had in found for longer in self._with_one(had, options, known)]
        yield from found

    def _with_one(
        self, had: Sequence[Switch], options: Options, known: Mapping[str, Any]
    ) -> Iterator[Sequence[Switch]]:
        """Yield a choice with the best option of an axis, then with those that can run where it is refused."""
        doubts, found = list[Need](), False
        for option in reversed(options):
            if option is None:
                yield had
                return
            now = (*had, option)
            if self._refused(option, self._settings(now), known) is not None:
                continue
            if doubts and all(need in option.needs for need in doubts):
                continue  # it is refused where the better one is
            yield now
            doubts, found = self._doubts(option, self._settings(now), known), True
            if not doubts:
                return
        if not found:
            yield had  # what the framework does by itself has no effect here, as all gradients at once without overlap

    def allows(self, settings: Settings, known: Mapping[str, Any]) -> bool:
        """Say whether settings may stand with what is known of a layout, and nothing that is never worse may, too.

        What the framework does by itself stands where it is refused if there is nothing else, for it has no effect.
        """
        key = settings, self.held(known)
        if key not in self._allowed:
            self._allowed[key] = self._allows(settings, known)
        return self._allowed[key]

    def _allows(self, settings: Settings, known: Mapping[str, Any]) -> bool:
        said = {**self.defaults, **dict(settings)}
        for options in self.axes.values():
            chosen = _chosen(options, said)
            own = {} if chosen is None else dict(chosen.settings)
            rest = tuple((name, value) for name, value in said.items() if name not in own)
            able = [each for each in options if each and self._refused(each, (*rest, *each.settings), known) is None]
            if chosen and chosen not in able and (able or not _is_idle(chosen, self.defaults)):
                return False
            if _is_sure(options) and any(options.index(each) > options.index(chosen) for each in able):
                return False
        return True

    def _settings(self, taken: Iterable[Switch]) -> Settings:
        found: dict[str, Any] = {}
        for each in taken:
            found.update(each.settings)
        return tuple(sorted((name, value) for name, value in found.items() if self.defaults.get(name) != value))

    def _refused(self, switch: Switch, settings: Settings, known: Mapping[str, Any]) -> str | None:
        return allowed(switch, {**self.facts, **self.defaults, **known, **dict(settings)})

    def _doubts(self, switch: Switch, settings: Settings, known: Mapping[str, Any]) -> list[Need]:
        """Return what a switch needs that is not known yet, so that some layouts may have it refused."""
        said = {**self.facts, **self.defaults, **known, **dict(settings)}
        return [
            need
            for need in switch.needs
            if not all(each.name in said for each in need)
            and not any(each.name in said and each.holds(said) for each in need)
        ]


def _waits(options: Sequence[Switch], left: Iterable[str], rows: Mapping[str, Sequence[Switch]]) -> bool:
    """Say whether some switches need what other axes that are left may set."""
    needed = {each.name for switch in options for need in switch.needs for each in need}
    own = {name for switch in options for name, _ in switch.settings}
    others = {name for axis in left if rows[axis] != options for each in rows[axis] for name, _ in each.settings}
    return bool(needed & others - own)


def _is_sure(options: Options) -> bool:
    """Say whether the later options of an axis are never worse than those before them."""
    return all(each is None or each.always for each in options)


def _is_screened(options: Options) -> bool:
    """Say whether which option of an axis is best differs among layouts, as what is exchanged does."""
    return any(name in _ROUTED for each in options if each for name, _ in each.settings)


def _chosen(options: Options, said: Mapping[str, Any]) -> Switch | None:
    """Return the switch of an axis that settings have, of several that with most of them; None where they have none."""
    found = [each for each in options if each and all(said.get(name) == value for name, value in each.settings)]
    return max(found, key=lambda each: len(each.settings), default=None)


def routed(settings: Settings) -> tuple[dict[str, Any], Settings]:
    """Return of some settings those that are axes of a layout, and the others."""
    axes = {name: value for name, value in settings if name in _ROUTED}
    return axes, tuple((name, value) for name, value in settings if name not in _ROUTED)


def _is_idle(switch: Switch, defaults: Mapping[str, Any]) -> bool:
    """Say whether a switch sets nothing but what the framework does by itself."""
    return all(defaults.get(name) == value for name, value in switch.settings)


def by_framework(framework: Framework, names: Iterable[str], request: JobRequest) -> dict[str, Any]:
    """Return what a framework sets some fields to where nobody says them."""
    found = {name: getattr(framework, name, False) for name in names}
    found |= {"cuda_graph_impl": "transformer_engine" if framework.cuda_graphs else "none"}
    scope = framework.moe_cuda_graph_scope if request.model.experts else framework.cuda_graph_scope
    found |= {"cuda_graph_scope": scope}
    return found


def is_of_way(name: str) -> bool:
    """Say whether a field of a job is a matter of a way of execution, and not of how a layout splits the work."""
    return name in _ROUTED or name not in _SPLITS


def software_of(
    request: JobRequest,
    framework: Framework,
    cluster: Cluster,
    *,
    tried: bool,
    fixed: Iterable[str],
    **known: object,
) -> Software:
    """Return what of a framework's software is tried for a job; what it says itself, and what is `fixed`, stays.

    `known` are facts that all layouts of a plan share.
    """
    said = {name: value for name in JOB_FIELDS if (value := getattr(request, name)) is not None}
    open_ones: dict[str, Any] = {"task": "pretrain", "optimizer": "adam", "offload_modules": ()}
    if request.packed_lengths is None and request.task in (None, "pretrain"):
        open_ones["packed_length"] = None  # else the framework, or the lengths, decide it
    facts = {**open_ones, "dropout": framework.memory.dropout, **known, **said}
    facts |= model_facts(request.model) | machine_facts(cluster)
    if not tried:
        return Software(facts=facts)
    named, open_ = {*said, *fixed}, _SPLITS - set(_ROUTED)
    held = named | {name for each in named if each in FIELDS for name in said_together(each)}
    found, overlaps = list[Switch](), dict[str, tuple[bool, ...]]()
    for each in offered(framework, facts):
        fields = dict(each.settings)
        if held & set(fields):
            continue
        if not open_ & set(fields):
            found.append(each)
        elif len(fields) == 1 and isinstance(value := next(iter(fields.values())), bool):
            overlaps |= dict.fromkeys(fields, (value,) if each.always else (value, not value))
    # Of all that it has: a switch may need another one that is refused here, as one of experts' kernels in bf16.
    every = {name for each in SWITCHES if each.is_in(framework) for name, _ in each.settings}
    defaults = by_framework(framework, every - held - open_, request)
    # What only turns something off that is not on does not count as a switch.
    found = [each for each in found if not _is_idle(each, defaults) or allowed(each, {**facts, **defaults}) is None]
    idle = {
        each.axis: allowed(each, facts) is None
        for each in SWITCHES
        if each.is_in(framework) and _is_idle(each, defaults)
    }
    forced = frozenset(axis for axis, can in idle.items() if not can)
    return Software(facts=facts, defaults=defaults, switches=tuple(found), forced=forced, overlaps=overlaps)
