"""Whether a job fits into the memory of its GPUs, how sure that is, and what would free memory.

The logarithm of measured over predicted memory is taken as normal around 0 with the deviation that recorded peaks of
the framework show, or those of all others where nobody measured it (`data/memory/error.toml`). All stages of a job
share the model's error, so that the stage that needs most decides.
"""

import math

from msgspec import Struct

from traincast.estimate.memory.job_memory import JobMemory
from traincast.shipped import constant, shipped_toml
from traincast.units import format_share, format_size

VISIBLE = 0.989
"""Memory that programs can use over the size that is sold, in powers of two: an "80 GB" A100 or H100 shows 79.1 of
80 GiB (recalled; other GPUs show more, up to 99.7 % of an H200, so that for them it is on the safe side)."""

REFUSED_ABOVE = 0.9
"""Chance of not fitting beyond which a job is refused: fitting is then very unlikely (below 10 %) in the words that
the IPCC gives to chances (Mastrandrea et al. 2010, Guidance note on treatment of uncertainties, table 1)."""

WARNED_ABOVE = 0.1
"""Chance of not fitting beyond which a job runs with a warning: below it, not fitting is very unlikely."""

CERTAIN = 0.99
"""Chance beyond which something is as good as certain; no number tells such chances apart."""

_GIB = 2**30
_GIB_PER_GB = _GIB / 1e9
_SHOWN = 4


class Verdict(Struct, frozen=True, kw_only=True):
    """Whether a job fits."""

    fits: bool
    """Whether every stage does, taking the memory model at its word."""
    chance_of_oom: float
    """Chance that it does not, given how far the model is off."""
    stage: int
    """The stage that needs most."""
    peak_bytes: float
    """What it needs."""
    usable_bytes: float
    """What programs can use of a GPU."""
    shortfall_bytes: float
    """What is missing on that stage; 0 where the job fits."""
    largest: tuple[tuple[str, float], ...]
    """Its largest terms, the largest first."""
    deviation: float
    """How far two of three runs of its framework are from the memory model, as a share."""
    remedies: tuple[tuple[str, float], ...]
    """Changes, with the bytes that each saves on the worst stage, the best first; empty where the job fits surely."""

    @property
    def refused(self) -> bool:
        """Whether fitting is so unlikely that the job is not run unasked."""
        return self.chance_of_oom > REFUSED_ABOVE

    @property
    def doubtful(self) -> bool:
        """Whether the chance of not fitting is worth a warning."""
        return self.chance_of_oom > WARNED_ABOVE

    @property
    def text(self) -> str:
        """The verdict in a sentence, with what would free memory."""
        need = f"stage {self.stage} needs {_gib(self.peak_bytes)}, {_gib(self.usable_bytes)} usable"
        if not self.doubtful:
            return f"the job fits: {need}"
        if self.fits:
            need += f", {_gib(self.usable_bytes - self.peak_bytes)} to spare"
        else:
            need += f", over by {_gib(self.shortfall_bytes)}"
        parts = ", ".join(f"{name} {format_size(size)}" for name, size in self.largest)
        judged = "does not fit" if self.refused else "may not fit"
        return (
            f"the job {judged}: {need} (most of it: {parts}); chance of running out of memory "
            f"{shown_chance(self.chance_of_oom)}, as two of three measured runs are within "
            f"{format_share(self.deviation, 0)} of the memory model{self._freed}"
        )

    @property
    def _freed(self) -> str:
        enough = [(name, size) for name, size in self.remedies if size >= self.shortfall_bytes]
        shown = (enough or list(self.remedies))[:_SHOWN]
        if not shown:
            return "; use more GPUs"
        listed = ", ".join(f"{name} frees {format_size(size)}" for name, size in shown)
        return f"; {listed}{'' if enough else ': none is enough alone'}"


def usable_bytes(hbm_bytes: float) -> float:
    """Return the bytes that programs can use of a GPU sold with that many: 80e9 for "80 GB", which are 80 GiB."""
    return VISIBLE * _GIB_PER_GB * hbm_bytes


class Deviation(Struct, frozen=True, forbid_unknown_fields=True):
    """How far the memory model is off for some frameworks, as ``data/memory/error.toml`` has it."""

    deviation: float
    """Standard deviation of the logarithm of measured over predicted memory."""
    source: str
    frameworks: tuple[str, ...] = ()


class _Deviations(Struct, frozen=True, forbid_unknown_fields=True):
    measured: tuple[Deviation, ...]
    unmeasured: Deviation


def memory_deviation(framework: str = "") -> float:
    """Return the standard deviation of the logarithm of measured over predicted memory of a framework, by its name."""
    found = constant(_deviations)
    return next((each for each in found.measured if framework in each.frameworks), found.unmeasured).deviation


def _deviations() -> _Deviations:
    return shipped_toml("memory/error.toml", _Deviations)


def chance_of_oom(peak_bytes: float, usable_bytes: float, framework: str = "") -> float:
    """Return the chance that a GPU runs out of memory; 0.5 where it is predicted to need what programs can use.

    By default the framework is one that nobody measured.
    """
    return chance_with(memory_deviation(framework), peak_bytes, usable_bytes)


def chance_with(deviation: float, peak_bytes: float, usable_bytes: float) -> float:
    """Return the chance that a GPU runs out of memory with a deviation of the memory model."""
    if peak_bytes <= 0:
        return 0.0
    return 0.5 * math.erfc(-math.log(peak_bytes / usable_bytes) / deviation / math.sqrt(2))


def fits(memory: JobMemory, hbm_bytes: float, gpus_per_node: int = 8, host_bytes: float = 0.0) -> Verdict:
    """Say whether a job fits and how sure that is, and if it may not, what would free memory.

    `hbm_bytes` is the memory of a GPU as its datasheet gives it. Remedies are found by computing the memory of the
    changed job, on as many GPUs; they keep tensor parallelism inside a node. `host_bytes` is what a rank has of its
    host's memory, to which it may offload where nothing else is enough.
    """
    peak, usable = memory.peak, usable_bytes(hbm_bytes)
    deviation = memory_deviation(memory.job.framework.name)
    chance, shortfall = chance_with(deviation, peak, usable), max(0.0, peak - usable)
    found = memory.remedies(gpus_per_node) if chance > WARNED_ABOVE else ()
    if chance > WARNED_ABOVE and not any(size >= shortfall for _, size in found):
        found = tuple(sorted((*found, *memory.offloads(host_bytes)), key=lambda remedy: -remedy[1]))
    return Verdict(
        fits=peak <= usable,
        chance_of_oom=chance,
        deviation=deviation,
        stage=memory.worst,
        peak_bytes=peak,
        usable_bytes=usable,
        shortfall_bytes=shortfall,
        largest=tuple(sorted(memory.stages[memory.worst].terms, key=lambda term: -term[1])[:3]),
        remedies=found,
    )


def _gib(size_bytes: float) -> str:
    return f"{size_bytes / _GIB:,.1f} GiB"


def shown_chance(chance: float) -> str:
    """Write a chance for people; nothing is certain."""
    return "above 99 %" if chance > CERTAIN else "below 1 %" if chance < 1 - CERTAIN else format_share(chance, 0)
