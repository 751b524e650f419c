"""What a level of effort sets of a framework's software: as it comes, or as recipes have it."""

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from msgspec.structs import asdict, replace

from traincast.job.condition_facts import layout_facts
from traincast.job.habits import facts_asked, settings_of
from traincast.job.levels import USUAL
from traincast.job.request import JOB_FIELDS
from traincast.planning.axes import Axes
from traincast.planning.degrees import Degrees


class UsualSettings:
    """What is set of software where nobody says it; what is found for some degrees stands for those that are alike."""

    def __init__(self, axes: Axes) -> None:
        self.axes = axes
        self._known: dict[tuple[tuple[int, ...] | None, str | None], Mapping[str, Any]] = {}
        self._recipes: dict[str, Mapping[str, Any]] = {}

    def settings(self, degrees: Degrees | None = None, precision: str | None = None) -> Mapping[str, Any]:
        """Return what the level of effort sets, for some degrees, unless it is tried."""
        key = None if degrees is None else self.decisive(degrees), precision
        if key not in self._known:
            said = {} if degrees is None else asdict(degrees)
            self._known[key] = self._settings({**said, "precision": precision})
        return self._known[key]

    def _settings(self, said: Mapping[str, Any]) -> Mapping[str, Any]:
        axes = self.axes
        known = {name: value for name, value in said.items() if name in JOB_FIELDS and value is not None}
        found = settings_of(axes.tuned, axes.framework, replace(axes.request, **known), axes.cluster)
        held = {*axes.fixed, *axes.software.tried}
        return {name: value for name, value in found.items() if name not in held}

    def decisive(self, degrees: Degrees) -> tuple[int, ...]:
        """Return what of some degrees makes a difference to what a level of effort sets."""
        return tuple(getattr(degrees, name) for name in self._deciding)

    @cached_property
    def _deciding(self) -> tuple[str, ...]:
        asked, every = facts_asked(self.axes.framework), Degrees.__struct_fields__
        derived = layout_facts(cp=1, dp=1, ep=1, stride=1, domain=1)
        return every if asked & derived.keys() else tuple(name for name in every if name in asked)

    def of_recipes(self, precision: str) -> Mapping[str, Any]:
        """Return what recipes set, with experts on several ranks where there are some."""
        if precision not in self._recipes:
            axes = self.axes
            of_experts = {"ep": 2, "pp": 2, "vpp": 2} if axes.request.model.experts else {}
            request = replace(axes.request, **of_experts, precision=precision)
            self._recipes[precision] = settings_of(USUAL, axes.framework, request, axes.cluster)
        return self._recipes[precision]
