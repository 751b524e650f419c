"""The contract of a writer: what it needs of a run, the files that it makes, what they cannot say.

A writer of the format NAME is registered in `WRITERS` by ``traincast.formats.NAME.write``, which its package names, so
that it is imported when that format is written.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from msgspec import Struct, field

from traincast.diagnostics import Note
from traincast.errors import ConfigError, FormatError
from traincast.hardware.cluster import Cluster
from traincast.job.job import Job
from traincast.model.model import Model
from traincast.names import find_name, known_names
from traincast.registry import Registry
from traincast.units import counted, format_size
from traincast.workload.ops import OperatorCall
from traincast.workload.program import Program, Timeline
from traincast.workload.workload import Workload


class Run(Struct, frozen=True, kw_only=True):
    """What there is to be written: one step of a workload, as far as a writer asks for it."""

    name: str
    """What it was made from, for people: the name of a file or a model."""
    workload: Workload
    """As it was read, or built of a job with an estimated time for every computation."""
    cluster: Cluster
    """What it runs on."""
    job: Job | None = None
    """What is trained, where the input describes it."""
    program: Program | None = None
    """Every operation of all ranks, of a writer that needs the step."""
    timeline: Timeline | None = None
    """When each operation ran."""
    call_s: Callable[[OperatorCall, float], float] | None = None
    """Seconds of so many equal operator calls of the job, for formats that show single ones."""
    fills: Workload | None = None
    """A workload of files in the writer's own format, whose times are to be those of the job."""
    alone_s: Callable[[OperatorCall], float] | None = None
    """Seconds of an operator call by itself, without what a whole step adds."""

    def described_job(self) -> Job:
        """Return the job.

        Raises
        ------
        FormatError
            If the input is a file that describes none.
        """
        if self.job is None:
            raise FormatError(
                "describes no job, only a workload; give a job file or the result of a forecast", self.name
            )
        return self.job

    def calls_s(self, calls: Mapping[OperatorCall, float]) -> float:
        """Return what operator calls of the job take one after the other, each as often as it is said."""
        if self.call_s is None:
            raise FormatError("has no estimated operators; give a job file or the result of a forecast", self.name)
        return sum(self.call_s(call, count) for call, count in calls.items())

    def calls_alone_s(self, calls: Mapping[OperatorCall, float]) -> float:
        """Return what operator calls take by themselves, as if each ran on an idle GPU."""
        if self.alone_s is None:
            raise FormatError("has no estimated operators; give a job file or the result of a forecast", self.name)
        return sum(count * self.alone_s(call) for call, count in calls.items())

    def simulated(self) -> tuple[Program, Timeline]:
        """Return every operation of all ranks and when it ran; of a writer that did not ask for them it is a fault."""
        if self.program is None or self.timeline is None:
            raise ConfigError("was not simulated; a writer that needs the step says so", self.name)
        return self.program, self.timeline


class WriterOption(Struct, frozen=True, kw_only=True):
    """A choice that a format leaves to its writer, given as text: ``--option generation=v1.1``."""

    name: str
    help: str
    default: str = ""
    choices: tuple[str, ...] = ()
    """The values that it can have; any text where there are none."""


class Written(Struct, frozen=True):
    """What a writer made: files by name, each in pieces that are made when they are asked for."""

    files: Iterable[tuple[str, Iterable[bytes]]]
    """Path below the output folder with ``/``, and content; of a writer of one file its name does not matter."""
    lost: tuple[Note, ...] = ()
    """What of the run the format cannot say."""


class Writer(Struct, kw_only=True, eq=False):
    """Writes runs in one format; registered in `WRITERS`."""

    name: str
    title: str
    """What it writes, for people: ``"AICB/SimAI workload"``."""
    write: Callable[[Run, Mapping[str, str]], Written]
    """Makes the files of a run, given every option of the writer. Raises FormatError for a run that cannot be written,
    with the reason."""
    one_file: bool = False
    """Whether it makes one file; else it fills a folder."""
    needs_job: bool = False
    """Whether it writes described jobs alone."""
    needs_step: bool = False
    """Whether it needs program and timeline of all ranks, simulated one by one."""
    implied_fields: Callable[[Workload, Model], Mapping[str, Any]] | None = None
    """Fields of the job that files of the format imply for a model, of a writer whose option ``model`` fills them."""
    as_traced: bool = False
    """Whether a trace is written as it was traced, and not as it is replayed."""
    options: tuple[WriterOption, ...] = field(default=())

    def chosen(self, given: Mapping[str, str], of_job: Mapping[str, Mapping[str, str]] | None = None) -> dict[str, str]:
        """Return a value for each option: the given one, else what a job says of writers by name, else its own.

        Raises
        ------
        ConfigError
            If an option or value is not known.
        UnknownNameError
            If the job says something of a writer that is not known.
        """
        said = {WRITERS.get(name).name: options for name, options in (of_job or {}).items()}
        given = {**said.get(self.name, {}), **given}
        known = {option.name: option for option in self.options}
        values = {option.name: option.default for option in self.options}
        for name, value in given.items():
            found = find_name(name, known)
            if found is None:
                hint = known_names(name, known) if known else "it has none"
                raise ConfigError(f"{name!r} is not an option of {self.title}; {hint}", "option")
            choices = known[found].choices
            meant = find_name(value, choices) if choices else value
            if meant is None:
                raise ConfigError(
                    f"{value!r} is not a value of {found}; {known_names(value, choices)}", f"option {found}"
                )
            values[found] = meant
        return values


class Conversion(Struct, frozen=True, kw_only=True):
    """What a conversion wrote."""

    format: str
    """Name of the format."""
    files: tuple[str, ...]
    """Their paths."""
    size_bytes: int
    """Bytes of all files."""
    lost: tuple[Note, ...]
    """What of the run the format cannot say."""
    assumptions: tuple[Note, ...]
    warnings: tuple[Note, ...]
    """What reading or building the run brought up."""

    def __repr__(self) -> str:
        """Say what was written, in a line."""
        lost = f", {counted(len(self.lost), 'loss', 'losses')}" if self.lost else ""
        return (
            f"<Conversion: {counted(len(self.files), 'file')} of {self.format}, {format_size(self.size_bytes)}{lost}>"
        )


WRITERS: Registry[Writer] = Registry("format to write", "traincast.formats", group="traincast.writers")
