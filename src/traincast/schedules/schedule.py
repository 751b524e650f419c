"""What a pipeline schedule is: the plan that it makes, and its facts, which are said here and nowhere else.

Letters: P stages, V virtual stages per stage, M microbatches.
"""

from collections.abc import Callable
from enum import Enum
from functools import lru_cache

from msgspec import Struct

from traincast.registry import Registry
from traincast.schedules.in_flight import Fewer, as_many
from traincast.schedules.length import Length
from traincast.schedules.plan import SchedulePlan

PlanFunction = Callable[[int, int, int], SchedulePlan]
"""(P, V, M) -> plan. Raises InfeasibleError where it cannot run."""


class Pairing(Enum):
    """Whether a forward pass may run as one with a backward pass of another microbatch, which hides its exchanges."""

    NEVER = "never"
    POSSIBLE = "possible"
    """Where the job asks for it: forward and backward passes take turns."""
    ALWAYS = "always"
    """The order is made for it (DeepSeek-AI 2024, arXiv:2412.19437, section 3.2.1)."""


class Schedule(Struct, frozen=True, kw_only=True):
    """A pipeline schedule.

    What its plans show is read from them: their copies of the model, whether sends and receives block, and whether
    gradients of the weights run by themselves. A schedule without a closed form of its length is run wherever its
    length is asked for.
    """

    name: str
    plan: PlanFunction
    virtual_stages: int | None = None
    """Virtual stages per stage; None for any number."""
    orders_one_stage: bool = False
    """Whether it means something without a pipeline, as an order of the passes of a single stage."""
    pairing: Pairing = Pairing.NEVER
    groups_of_stages: bool = False
    """Whether as many microbatches as stages pass one virtual stage before the next one's turn. Megatron-LM refuses
    numbers of microbatches that do not divide into such groups; they run here, but are not proposed."""
    ends_on_first_stage: bool = False
    """Whether the first stage has the last backward pass and every other one ends before it; else all end together."""
    holds_all: bool = False
    """Whether all microbatches are in flight at once: as many times what a single one keeps, which must have a plan."""
    fewer: Fewer = as_many
    """How few microbatches have as many in flight, where not all of them are."""
    length: Length | None = None
    """The closed form of its length."""


SCHEDULES: Registry[Schedule] = Registry("schedule", "traincast.schedules")

USUAL = ("1f1b", "interleaved")
"""What Megatron-LM runs, and every framework that says no more: without virtual stages, and with them."""


def register(schedule: Schedule) -> Schedule:
    """Enter a schedule under its name."""
    return SCHEDULES.register(schedule.name)(schedule)


def usual_schedule(virtual_per_stage: int = 1) -> str:
    """Return the schedule of a pipeline that nobody chose one for."""
    return USUAL[virtual_per_stage > 1]


def fixed_virtual_stages(schedule: str | None) -> int | None:
    """Return the virtual stages per stage that a schedule has; None if it has any number, or there is none.

    Raises
    ------
    UnknownNameError
        If there is no schedule of that name.
    """
    return None if schedule is None else SCHEDULES.get(schedule).virtual_stages


@lru_cache(maxsize=64)
def planned(schedule: str, stages: int, virtual_per_stage: int, microbatches: int) -> SchedulePlan:
    """Return the plan that a schedule makes, unchecked and made once: a table of four numbers, and of no job.

    Raises
    ------
    TraincastError
        If the schedule is not known, or cannot run so many stages, virtual stages and microbatches.
    """
    return SCHEDULES.get(schedule).plan(stages, virtual_per_stage, microbatches)


def schedules_that_pair(*how: Pairing) -> list[str]:
    """Return the names of the schedules of which two passes may run as one."""
    return [each.name for kind in how for each in SCHEDULES.entries() if each.pairing is kind]
