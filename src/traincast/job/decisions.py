"""What was decided about a job so far: a note for every decision, and for what is turned on without an effect."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from msgspec import Struct, field

from traincast.diagnostics import Note
from traincast.hardware.cluster import Cluster
from traincast.hardware.gpu import Gpu
from traincast.job.frameworks import Framework, framework_of_year, load_framework
from traincast.job.parallel import Parallel
from traincast.job.request import JobRequest

T = TypeVar("T")


class Decisions(Struct):
    """What was decided so far, each with its reason."""

    framework: Framework
    notes: list[Note] = field(default_factory=list)
    cluster: Cluster | None = None
    """What it is to run on, where that is known."""

    @property
    def gpu(self) -> Gpu | None:
        """The GPU of the cluster."""
        return None if self.cluster is None else self.cluster.gpu

    def note(self, code: str, text: str, *, brief: str | None = None, effect: float | None = None) -> None:
        """Add an assumption."""
        self.notes.append(Note(code, text, brief=brief, effect=effect))

    def by_framework(self, name: str, said: T | None, default: T) -> T:
        """Return what was said, or the framework's default with a note."""
        if said is not None:
            return said
        shown = {True: "on", False: "off"}.get(default, default) if isinstance(default, bool) else default
        self.note(f"assumed-{name.replace('_', '-')}", f"{name} is not given: {shown}, as {self.framework.name} does")
        return default

    def overlap(self, name: str, said: bool | None, default: bool, *, matters: bool) -> bool:
        """Return whether something is overlapped with computation; a note only where it can matter."""
        return bool(self.by_framework(name, said, default) if matters else said)


class Need(Struct, frozen=True):
    """What a field needs to have an effect."""

    field: str
    holds: Callable[[JobRequest, Parallel, int], bool]
    """Whether it has one, by the request, the degrees and the stage of ZeRO."""
    why: str
    """Why it has none otherwise; ``{zero}`` stands for the stage of ZeRO."""


def unused_fields(needs: Iterable[Need], request: JobRequest, parallel: Parallel, zero: int) -> Iterator[Note]:
    """Yield a note for each field that is turned on and has no effect on this job."""
    for need in needs:
        said = getattr(request, need.field)
        if said and not need.holds(request, parallel, zero):
            value = "" if said is True else f" {said}"
            text = f"{need.field}{value} has no effect {need.why.format(zero=zero)}"
            yield Note(f"{need.field.replace('_', '-')}-unused", text)


def choose_framework(request: JobRequest, cluster: Cluster | None = None) -> Decisions:
    """Start with the framework that is named, or that of the year."""
    named = framework_of_year(request.year) if request.framework is None else request.framework
    framework = named if isinstance(named, Framework) else load_framework(named)
    if framework.on_google and cluster is not None and cluster.gpu.vendor == "Google":
        framework = load_framework(framework.on_google)
    decided = Decisions(framework, list(request.model.notes), cluster)
    if request.framework is None:
        when = (
            "framework is not given" if request.year is None else f"framework is not given, the year is {request.year}"
        )
        brief = f"{when}: {framework.name}"
        decided.note("assumed-framework", f"{brief} ({framework.description})", brief=brief)
    elif request.year not in (None, framework.year):
        decided.note("year-unused", f"year {request.year} has no effect: the framework {framework.name} is named")
    return decided
