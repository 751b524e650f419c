"""What a mechanism of training says of itself.

Its values are decided by a group of the job (`traincast.job`); here it says what it adds, on numbers or on arrays, and
whoever sums memory or makes an update asks all of them (`traincast.mechanisms.all`) and knows none by name.
"""

# ruff: noqa: ARG002 - what a mechanism is asked it need not have an answer to

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from msgspec import Struct

from traincast.job.job import Job
from traincast.mechanisms.layers import Spared, StageLayers
from traincast.mechanisms.rank import RankState, Where
from traincast.model.blocks.part import Elements, Exchange, Gemm, Kernel, Part
from traincast.model.numbers import Number

PARAMETERS, GRADIENTS, OPTIMIZER = "parameters", "gradients", "optimizer"
"""Terms that every result has; what a rank keeps under any other name is of no kind of its own."""


class Lasting(NamedTuple):
    """Bytes that a rank keeps whichever microbatch it works on."""

    term: str
    """What they are, as people read it."""
    size_bytes: Number
    """Below 0 where a mechanism spares what another keeps."""
    where: Where = Where.GPU


class Run(NamedTuple):
    """A GEMM or a kernel, and how often it runs."""

    what: Gemm | Kernel
    count: Number = 1


class Update(Struct, frozen=True, kw_only=True):
    """The update of parameters on one rank."""

    weights: Elements
    """What its virtual stages hold, whole."""
    parameters: Number
    """Parameters of its share of them that are still to update."""
    runs: tuple[Run, ...] = ()
    """What its GPU runs for those that are."""
    exchanges: tuple[Exchange, ...] = ()
    """What it exchanges for that, before and after: over ``dp``, ``shard`` or ``edp`` too."""


class Outside(NamedTuple):
    """What a rank exchanges with ranks outside its job, by way of its host."""

    name: str
    """What it is, as people read it."""
    duration_s: Number
    """Seconds in an average step."""
    hidden: bool
    """Whether it is overlapped with the step that follows the update; else that waits for it."""


class Mechanism:
    """A mechanism of training: what it adds where the job has it; nothing unless it says so."""

    def lasting(self, rank: RankState) -> Iterable[Lasting]:
        """Return what a rank keeps for the whole step, or in the update."""
        return ()

    def spared(self, job: Job, parts: Sequence[Part]) -> Iterable[Spared]:
        """Return what of the tensors that the parts of a block save does not stay on the GPU."""
        return ()

    def kept(self, job: Job, stage: StageLayers) -> StageLayers:
        """Return what the layers of a virtual stage keep of a microbatch, from what they keep without it."""
        return stage

    def update(self, job: Job, update: Update) -> Update:
        """Return the update with what the mechanism does of it."""
        return update

    def outside(self, job: Job, parameters: Number) -> Iterable[Outside]:
        """Return what a rank that updates so many parameters exchanges with ranks outside the job."""
        return ()

    def remedies(self, job: Job) -> Iterable[tuple[str, Job]]:
        """Return changes to itself that may free memory, by what people call them."""
        return ()

    def host_remedies(self, job: Job) -> Iterable[tuple[str, Job]]:
        """Return such that need the memory of the host: they cost time in every step and are the last resort."""
        return ()
