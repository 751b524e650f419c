"""Plans of several models, clusters and numbers of GPUs, side by side."""

from collections.abc import Sequence

from msgspec import Struct

from traincast.diagnostics import Note
from traincast.planning.answer import Choice, Plan
from traincast.planning.pareto import pareto
from traincast.units import counted


class Refusal(Struct, frozen=True):
    """A case that no layout can run."""

    model: str
    cluster: str
    gpus: int | None
    reason: str


class Plans(Struct, frozen=True, kw_only=True):
    """Plans of several cases, in the order in which they were asked for."""

    plans: tuple[Plan, ...]
    refused: tuple[Refusal, ...]
    """Cases that have none, and why."""

    def __repr__(self) -> str:
        """Say how many cases there are, in a line."""
        return f"<Plans: {counted(len(self.plans), 'case')}, {len(self.refused)} refused>"

    @property
    def best(self) -> tuple[Choice, ...]:
        """The layout to run of every case: by model, then the most tokens per second first."""
        models = list(dict.fromkeys(plan.model for plan in self.plans))
        chosen = [plan.best[0] for plan in self.plans]
        return tuple(sorted(chosen, key=lambda each: (models.index(each.model), -each.tokens_per_s)))

    @property
    def pareto(self) -> tuple[Choice, ...]:
        """What was simulated and no other of its model beats (`traincast.planning.pareto`)."""
        return pareto([choice for plan in self.plans for choice in plan.pareto])

    @property
    def shown(self) -> tuple[Choice, ...]:
        """The best layouts of every case, then those of the Pareto set that are not among them."""
        listed = (*(choice for plan in self.plans for choice in plan.best), *self.pareto)
        return tuple({each.identity: each for each in listed}.values())

    @property
    def assumptions(self) -> tuple[Note, ...]:
        """What was assumed of any of them, once each."""
        return tuple(dict.fromkeys(note for plan in self.plans for note in plan.assumptions))

    @property
    def warnings(self) -> tuple[Note, ...]:
        """What looks wrong with any of them, once each."""
        return tuple(dict.fromkeys(note for plan in self.plans for note in plan.warnings))


def nothing_runs(refused: Sequence[Refusal]) -> str:
    """Return why no case has a layout: the reason of the first, and how many more there are."""
    first, *others = refused
    more = f"; {counted(len(others), 'further case')} cannot be run either" if others else ""
    return f"{first.model} on {first.gpus} GPUs of {first.cluster}: {first.reason}{more}"
