"""Whether the job of a result fits into memory: the stage that is most likely to run out of it, in a line."""

from msgspec import Struct

from traincast.errors import ConfigError, InfeasibleError
from traincast.estimate.memory.fits import CERTAIN, REFUSED_ABOVE, WARNED_ABOVE, shown_chance
from traincast.simulation.result import Result
from traincast.units import format_share

_GIB = 2**30


class MemoryRisk(Struct, frozen=True, kw_only=True):
    """The pipeline stage that needs most of what its GPUs have."""

    stage: int
    peak_bytes: float
    """What it needs."""
    usable_bytes: float
    """What programs can use of a GPU."""
    chance_of_oom: float
    """Chance that it runs out of memory, given how far the memory model is off."""

    @property
    def text(self) -> str:
        """The verdict in a line: ``90.0 of 79.1 GiB usable; may not fit: 82 % chance of running out``."""
        chance = f"{shown_chance(self.chance_of_oom)} chance of running out"
        judged = f"fits: {chance}"
        if self.chance_of_oom > CERTAIN:
            judged = f"does not fit, over by {self._over}"
        elif self.chance_of_oom > REFUSED_ABOVE:
            judged = f"does not fit: {chance}"
        elif self.chance_of_oom > WARNED_ABOVE:
            judged = f"may not fit: {chance}"
        return f"{self.peak_bytes / _GIB:,.1f} of {self.usable_bytes / _GIB:,.1f} GiB usable; {judged}"

    @property
    def _over(self) -> str:
        return f"{(self.peak_bytes - self.usable_bytes) / _GIB:,.1f} GiB"


def memory_risk(result: Result) -> MemoryRisk | None:
    """Return the stage that is most likely to run out of memory; None where the memory is not known."""
    known = [
        MemoryRisk(
            stage=stage,
            peak_bytes=float(each.peak),
            usable_bytes=float(each.usable),
            chance_of_oom=float(each.chance_of_oom),
        )
        for stage, each in enumerate(result.memory_bytes or ())
        if each.usable is not None and each.chance_of_oom is not None
    ]
    return max(known, key=lambda each: each.peak_bytes, default=None)


def checked_oom_risk(result: Result, most: float | None) -> Result:
    """Return a forecast; refuse it where its chance of running out of memory is above `most`, a share.

    Raises
    ------
    ConfigError
        If `most` is not a share.
    InfeasibleError
        With what the stage needs and can use.
    """
    if most is None:
        return result
    if not 0 <= most <= 1:
        raise ConfigError(f"is {most:g}; it must be a chance from 0 to 1", "fail_on_oom_risk")
    risk = memory_risk(result)
    if risk is None or risk.chance_of_oom <= most:
        return result
    left = f"{abs(risk.usable_bytes - risk.peak_bytes) / _GIB:,.1f} GiB"
    side = f"over by {left}" if risk.peak_bytes > risk.usable_bytes else f"{left} to spare"
    text = (
        f"chance of running out of memory {shown_chance(risk.chance_of_oom)}, above the {format_share(most, None)} "
        f"that is allowed: stage {risk.stage} needs {risk.peak_bytes / _GIB:,.1f} GiB, "
        f"{risk.usable_bytes / _GIB:,.1f} GiB usable, {side}"
    )
    raise InfeasibleError(text, needed_bytes=risk.peak_bytes, limit_bytes=risk.usable_bytes, stage=risk.stage)
