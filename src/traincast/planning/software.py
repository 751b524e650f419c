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
from traincast.job.fields import left_open, ways
from traincast.job.frameworks import Framework
from traincast.job.request import JOB_FIELDS, JobRequest
from traincast.job.switches import Switch, allowed, offered
from traincast.planning.layout import Settings

BEST = "best"
"""How far software is tuned of which all that the framework can do is tried."""

_ROUTED = ("moe_dispatcher", *(each.name for each in ways()))
"""Axes of a layout that a way of execution decides: all others depend on more of the layout."""

Options = tuple[Switch | None, ...]
"""Of one axis; None is none of its switches."""


class Software(Struct, frozen=True, kw_only=True, dict=True):
    """The settings of software that a plan may choose from, for one job on one cluster."""

    facts: Mapping[str, Any] = field(default_factory=dict)
    """What is known of the job and the cluster, whatever its layout."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """What the framework does by itself of all that a switch might set."""
    usual: Settings = ()
    """What is set where nothing is switched: habits of the framework's recipes."""
    switches: tuple[Switch, ...] = ()
    """What the framework offers, but for what the job says itself."""
    overlaps: Mapping[str, tuple[bool, ...]] = field(default_factory=dict)
    """Axes of a layout that depend on more of it than a way of execution, with the values that are tried."""

    @cached_property
    def axes(self) -> Mapping[str, Options]:
        """The options of each axis, in the order of the table; none of them where what the framework does is not one."""
        found: dict[str, Options] = {}
        for each in self.switches:
            found[each.axis] = (*found.get(each.axis, ()), each)
        return {
            axis: rows if _chosen(rows, self.defaults) else (None, *rows) for axis, rows in found.items()
        }

    def values(self, name: str) -> tuple[Any, ...]:
        """Return what switches set a field to."""
        said = (dict(each.settings) for each in self.switches)
        return tuple(dict.fromkeys(each[name] for each in said if name in each))

    def choices(self, known: Mapping[str, Any]) -> tuple[Settings, ...]:
        """Return every combination of settings that is tried with some degrees; `known` are facts of these."""
        found: dict[Settings, None] = {}
        for taken in self._tried(known):
            for each in self._with_best(taken, known):
                found[self._settings(each)] = None
        return tuple(found)

    def _tried(self, known: Mapping[str, Any]) -> Iterator[list[Switch]]:
        """Yield every choice of the axes that must be tried."""
        axes = [options for options in self.axes.values() if not _is_sure(options)]
        for options in product(*axes):
            taken = [each for each in options if each is not None]
            if all(self._refused(each, self._settings(taken), known) is None for each in taken):
                yield taken

    def _with_best(self, taken: Sequence[Switch], known: Mapping[str, Any]) -> Iterator[Sequence[Switch]]:
        """Yield a choice with the best of all other axes, and with what may have to stand for it."""
        found = [list(taken)]
        for options in filter(_is_sure, self.axes.values()):
            longer = []
            for had in found:
                for option in reversed(options):
                    now = had if option is None else [*had, option]
                    if option is not None and self._refused(option, self._settings(now), known) is not None:
                        continue
                    longer.append(now)
                    if option is not None and self._is_settled(option, self._settings(now), known):
                        break
            found = longer
        yield from found

    def allows(self, settings: Settings, known: Mapping[str, Any]) -> bool:
        """Say whether settings may stand with what is known of a layout, and nothing that is never worse may, too."""
        said = {**self.defaults, **dict(settings)}
        for options in self.axes.values():
            chosen = _chosen(options, said)
            if chosen is not None and self._refused(chosen, settings, known) is not None:
                return False
            own = {} if chosen is None else dict(chosen.settings)
            rest = {name: value for name, value in said.items() if name not in own}
            for better in options[options.index(chosen) + 1 :] if _is_sure(options) else ():
                if better and self._refused(better, tuple({**rest, **dict(better.settings)}.items()), known) is None:
                    return False
        return True

    def _settings(self, taken: Iterable[Switch]) -> Settings:
        found = dict(self.usual)
        for each in taken:
            found.update(each.settings)
        return tuple(sorted((name, value) for name, value in found.items() if self.defaults.get(name) != value))

    def _refused(self, switch: Switch, settings: Settings, known: Mapping[str, Any]) -> str | None:
        return allowed(switch, {**self.facts, **self.defaults, **known, **dict(settings)})

    def _is_settled(self, switch: Switch, settings: Settings, known: Mapping[str, Any]) -> bool:
        """Say whether all that a switch needs is known, so that no layout can have it refused."""
        said = {**self.facts, **self.defaults, **known, **dict(settings)}
        return all(
            all(each.name in said for each in need) or any(each.name in said and each.holds(said) for each in need)
            for need in switch.needs
        )


def _is_sure(options: Options) -> bool:
    """Say whether the later options of an axis are never worse than those before them."""
    return all(each is None or each.always for each in options)


def _chosen(options: Options, said: Mapping[str, Any]) -> Switch | None:
    """Return the switch of an axis that settings have, of several that with most of them; None where they have none."""
    found = [each for each in options if each and all(said.get(name) == value for name, value in each.settings)]
    return max(found, key=lambda each: len(each.settings), default=None)


def routed(settings: Settings) -> tuple[dict[str, Any], Settings]:
    """Return of some settings those that are axes of a layout, and the others."""
    axes = {name: value for name, value in settings if name in _ROUTED}
    return axes, tuple((name, value) for name, value in settings if name not in _ROUTED)


def by_framework(framework: Framework, names: Iterable[str], request: JobRequest) -> dict[str, Any]:
    """Return what a framework sets some fields to where nobody says them."""
    found = {name: getattr(framework, name, False) for name in names}
    found |= {"cuda_graph_impl": "transformer_engine" if framework.cuda_graphs else "none"}
    found |= {"cuda_graph_scope": framework.moe_cuda_graph_scope if request.model.experts else ()}
    return found


def software_of(
    request: JobRequest, framework: Framework, cluster: Cluster, tuned: str, fixed: Iterable[str], **known: object
) -> Software:
    """Return what of a framework's software is tried for a job; what it says itself, and what is `fixed`, stays.

    `known` are facts that all layouts of a plan share.
    """
    said = {name: value for name in JOB_FIELDS if (value := getattr(request, name)) is not None}
    facts = {"task": "pretrain", "optimizer": "adam", **said, **known}
    facts |= {"dropout": framework.memory.dropout, "packed_length": framework.finetuning_length or None} | said
    facts |= model_facts(request.model) | machine_facts(cluster)
    if tuned != BEST:
        return Software(facts=facts)
    held, open_ = {*said, *fixed}, set(left_open()) - set(_ROUTED)
    found, overlaps = list[Switch](), dict[str, tuple[bool, ...]]()
    for each in offered(framework, facts):
        fields = dict(each.settings)
        if held & set(fields):
            continue
        if not open_ & set(fields):
            found.append(each)
        elif len(fields) == 1 and isinstance(value := next(iter(fields.values())), bool):
            overlaps |= {name: (value,) if each.always else (value, not value) for name in fields}
    defaults = by_framework(framework, {name for each in found for name, _ in each.settings}, request)
    return Software(facts=facts, defaults=defaults, switches=tuple(found), overlaps=overlaps)
