"""What a job leaves open of its layout, and what a plan may try of it.

By default that is what one would run: no tensor parallelism over nodes, no experts over NVLink domains without a
dispatcher for it, no context parallelism of short sequences, no schedules that the framework does not have. ``full``
has all that can be run at all.
"""

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

from msgspec import Struct, field

from traincast.hardware.cluster import Cluster
from traincast.job.frameworks import Framework
from traincast.job.levels import BEST
from traincast.job.request import JobRequest
from traincast.planning.layout import Settings
from traincast.planning.software import Software, software_of


class Axes(Struct, frozen=True, kw_only=True, dict=True):
    """The axes of a plan as far as the user leaves them open, on one number of GPUs of one cluster."""

    request: JobRequest
    """What is trained on how many GPUs; of its layout only what the user fixed."""
    framework: Framework
    cluster: Cluster
    full: bool = False
    allow_offload: bool = False
    fixed: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Values that single fields are held to."""
    most: Mapping[str, int] = field(default_factory=dict)
    """Upper limits of single fields."""
    tuned: str | None = None
    """How far the framework's software is tuned, one of `traincast.job.levels.LEVELS`; None: as its file says."""
    held: Settings | None = None
    """Settings of software that all layouts have; None: what `tuned` says is tried."""

    def among(self, name: str, usual: Iterable[Any]) -> tuple[Any, ...]:
        """Return the values of an axis: those that are fixed, else the usual ones within the limits."""
        said = getattr(self.request, name, None)
        if name in self.fixed:
            return tuple(self.fixed[name])
        if said is not None:
            return (said,)
        limit = self.most.get(name)
        return tuple(value for value in usual if limit is None or value <= limit)

    def offloads(self, what: str) -> bool:
        """Say whether something may be offloaded to the memory of the host."""
        return self.allow_offload and (self.full or what in self.framework.offloads)

    @cached_property
    def software(self) -> Software:
        """What of the framework's software is tried."""
        offloads = {} if self.allow_offload else {"offload_activations": 0, "offload_optimizer": 0.0}
        tried = self.tuned == BEST and self.held is None
        return software_of(self.request, self.framework, self.cluster, tried=tried, fixed=self.fixed, **offloads)


def divisors(number: int) -> list[int]:
    """Return what divides a number, in order."""
    low = [each for each in range(1, int(number**0.5) + 1) if number % each == 0]
    return sorted({*low, *(number // each for each in low)})
