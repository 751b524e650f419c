"""Plans of several models, clusters and numbers of GPUs, side by side."""

from collections.abc import Sequence

from msgspec import Struct

from traincast.diagnostics import Note
from traincast.errors import InfeasibleError
from traincast.planning.answer import Choice, Plan
from traincast.planning.goals import Goal
from traincast.planning.order import USUAL, RankedCase, in_order
from traincast.planning.pareto import pareto
from traincast.planning.remedies import flags_of
from traincast.planning.remedy import Remedy
from traincast.units import counted


class Refusal(Struct, frozen=True):
    """A case that no layout can run."""

    model: str
    cluster: str
    gpus: int | None
    reason: str
    remedies: tuple[Remedy, ...] = ()
    """What would do, each alone, where nothing fits."""

    @property
    def in_shell(self) -> str:
        """The reason as the command line prints it."""
        return InfeasibleError(self.reason).typed(**flags_of(self.remedies)).in_shell


class Plans(Struct, frozen=True, kw_only=True):
    """Plans of several cases, in the order in which they were asked for."""

    plans: tuple[Plan, ...]
    refused: tuple[Refusal, ...]
    """Cases that have none, and why."""
    rank_by: str = USUAL
    """What they are ranked by (`traincast.planning.order.ORDERS`)."""
    goal: Goal | None = None
    """What the days or the money that were given buy."""

    def __repr__(self) -> str:
        """Say how many cases there are, in a line."""
        return f"<Plans: {counted(len(self.plans), 'case')}, {len(self.refused)} refused>"

    @property
    def best(self) -> tuple[Choice, ...]:
        """The layout to run of every case: by model, then the best first."""
        return tuple(choice for choice, _ in self._ranked)

    @property
    def places(self) -> tuple[RankedCase, ...]:
        """Where each of them stands, in the same order."""
        return tuple(place for _, place in self._ranked)

    @property
    def _ranked(self) -> tuple[tuple[Choice, RankedCase], ...]:
        return in_order([plan.best[0] for plan in self.plans], self.rank_by)

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


def nothing_runs(refused: Sequence[Refusal]) -> InfeasibleError:
    """Return the error of cases that have no layout: the reason of the first, and how many more there are."""
    first, *others = refused
    more = f"; {counted(len(others), 'further case')} cannot be run either" if others else ""
    text = f"{first.model} on {first.gpus} GPUs of {first.cluster}: {first.reason}{more}"
    return InfeasibleError(text, remedies=first.remedies).typed(**flags_of(first.remedies))
