"""The contract of a format: tell a file, describe it, read it into a workload.

Files of a known kind are registered in `FORMATS`. A `FileKind` is told and described; a `Format` is read into a
workload besides. Its `Reader` may stand in a module that is imported when such a file is read. A format of which one
text file says a whole run gives three functions more to `text_format`: its grammar, what there is to be said of a file,
and what it means.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import IntEnum
from importlib import import_module
from math import fsum
from pathlib import Path
from typing import NamedTuple, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from traincast.diagnostics import Note, Notebook
from traincast.errors import FormatError
from traincast.files import InputFile, input_of, read_bytes, read_unpacked, unpacked
from traincast.job.options import LayoutOptions
from traincast.job.parallel import Parallel
from traincast.registry import Registry
from traincast.workload.builder import WorkloadBuilder
from traincast.workload.experts import ExpertLoads
from traincast.workload.ops import OperatorCall
from traincast.workload.words import Group, Phase
from traincast.workload.workload import Workload

F = TypeVar("F")
"""What the text of a file of some format says, before anything is made of it."""


class Sniff(Struct, frozen=True):
    """How sure a format is that a file is its own: 0 is no, 1 is certain, with the reason."""

    confidence: float
    reason: str


class Total(Struct, frozen=True, kw_only=True):
    """One line of an inspection's totals: communications of one group, or compute of one phase."""

    group: str
    """``compute`` or a group's name."""
    what: str
    """Phase of the compute (``forward``), or operation of the communication (``all_gather``)."""
    count: int
    size_bytes: int
    """Bytes; 0 for compute."""
    time_s: float | None
    """Seconds written in the file; None where it says none."""


class Counted(NamedTuple):
    """Part of a total (see `totals_of`): computations of `Group.NONE`, or communications of a group."""

    group: Group
    what: IntEnum | str
    number: int = 1
    size_bytes: int = 0
    time_s: float | None = None


def totals_of(found: Iterable[Counted]) -> Iterator[Total]:
    """Add up what a file has of each group and kind, in their order; a time is unknown where one of its parts is."""
    parts: dict[tuple[Group, IntEnum | str], list[Counted]] = defaultdict(list)
    for each in found:
        parts[each.group, each.what].append(each)
    for group, what in sorted(parts):
        those = parts[group, what]
        times = [each.time_s for each in those if each.time_s is not None]
        yield Total(
            group="compute" if group is Group.NONE else group.name.lower(),
            what=what if isinstance(what, str) else what.name.lower(),
            count=sum(each.number for each in those),
            size_bytes=sum(each.size_bytes for each in those),
            time_s=fsum(times) if len(times) == len(those) else None,
        )


class Inspection(Struct, frozen=True, kw_only=True):
    """What a file is, in the words of ``traincast inspect``; its kind fills in path and format."""

    path: str = ""
    format: str = ""
    generation: str
    """Version or producer of the file, as far as it can be told."""
    confidence: float = 0.95
    evidence: tuple[str, ...] = ()
    """Why the generation is believed."""
    counts: dict[str, int] = field(default_factory=dict)
    """Rows, blocks, layers and the like."""
    layout: dict[str, int | str | None] = field(default_factory=dict)
    """What the file says of its layout; None where it is silent."""
    totals: tuple[Total, ...] = ()
    oddities: tuple[Note, ...] = ()
    """Everything unusual, each with its ``file:line``."""
    taken_by: str = ""
    """Which command takes the file, where it is not a workload."""
    recorded: Workload | None = None
    """The step that a trace recorded, for analyses; not part of the document."""

    def __eq__(self, other: object) -> bool:
        """Tell whether another inspection says the same; the recorded step is not looked at."""
        if not isinstance(other, Inspection):
            return NotImplemented
        said = (name for name in self.__struct_fields__ if name != "recorded")
        return all(getattr(self, name) == getattr(other, name) for name in said)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        """Say what the file is, in a line."""
        return f"<Inspection: {self.path or 'a file'} is {self.format or 'of a format'}, {self.generation}>"


class Computation(NamedTuple):
    """What a measured rank computed: one pass of a microbatch over its stage, its update, or one kernel."""

    rank: int
    stage: int
    phase: Phase
    """FORWARD, BACKWARD with all that belongs to it, or STEP for the optimizer."""
    microbatch: int
    time_s: float
    """Without communication and without the host's gaps around it."""
    call: OperatorCall | None = None
    """The kernel's operator; None for a pass, whose operators the job tells."""


class MeasuredComputations(NamedTuple):
    """All that the ranks of a run computed, and the layout that they ran in."""

    parallel: Parallel | None
    """None where the files do not show it."""
    rows: tuple[Computation, ...]
    files: tuple[str, ...]
    notes: tuple[Note, ...] = ()
    gpu: str = ""
    """As the files name it; empty where they do not."""


class Reader(Struct, frozen=True, kw_only=True, eq=False):
    """What reads the files of one kind. A module that a `FileKind` names has it as ``READER``."""

    describe: Callable[[Path], Inspection]
    """Describes a file. Raises FormatError with the line of the first thing that cannot be read."""
    read_run: Callable[[Sequence[Path], str, LayoutOptions], Workload] | None = None
    """Of a `Format`: reads the files of a run, given the name of their format and what to override of their layout."""
    open_run: Callable[[Sequence[Path], str], Callable[[LayoutOptions], Workload]] | None = None
    """Reads files that are read once for all layouts, and returns what builds the workload in a layout."""
    recorded: Callable[[Sequence[Path], str, LayoutOptions], Workload] | None = None
    """Reads traces not into templates but as a recorded program with its measured times, unless
    the layout asks for another run."""
    expert_loads: Callable[[Sequence[Path], int | None], tuple[ExpertLoads, Note]] | None = None
    """Returns the tokens that each expert rank of a traced run got, over the mean, and a note on them."""
    computations: Callable[[Sequence[Path]], MeasuredComputations] | None = None
    """Returns what each traced rank computed, for a calibration of its job's operators."""


class FileKind(Struct, kw_only=True, eq=False):
    """Files of one kind, such as a description of a network; an instance is registered in `FORMATS` under its name."""

    name: str
    title: str
    """What such a file is, in the words of a message: ``NeuSight operator forecast``."""
    looks_like: Callable[[str], Sniff]
    """Tells from the first 64 KiB (text without a byte-order mark, undecodable bytes replaced) how sure it is."""
    reader: Reader | str
    """What reads such files; or the module that has it, which is imported when the first of them is read."""
    instead: str = ""
    """What a file that is not a workload is, and what to do with it; ``{name!r}`` stands for the file's name."""
    most_sure: float = 1.0
    """The most that `looks_like` ever says: where another kind is surer, it need not be asked."""

    def loaded(self) -> Reader:
        """Return what reads such files."""
        if isinstance(self.reader, str):
            found: Reader = import_module(self.reader).READER
            return found
        return self.reader

    def inspect(self, path: Path) -> Inspection:
        """Describe a file (see `Reader.describe`)."""
        return replace(self.loaded().describe(path), path=str(path), format=self.name)


class Format(FileKind, kw_only=True, eq=False):
    """A kind of files that hold a workload."""

    options: frozenset[str]
    """Fields of `LayoutOptions` that mean something to it; the user may set no other one."""

    def read(self, paths: Sequence[Path], options: LayoutOptions) -> Workload:
        """Read the files of one run into the intermediate form."""
        return self.opened(paths)(options)

    def opened(self, paths: Sequence[Path]) -> Callable[[LayoutOptions], Workload]:
        """Return what reads the files of one run in a layout; what all layouts share is read once, here."""
        reader = self.loaded()
        if reader.open_run is not None:
            return reader.open_run(paths, self.name)
        read = reader.read_run
        if read is None:
            raise TypeError(f"the reader of {self.name} has neither read_run nor open_run")
        return lambda layout: read(paths, self.name, layout)


class Source(Struct, frozen=True):
    """The one file of a run that is being read: its name, what is noted of it, and its digest."""

    path: Path
    notes: Notebook
    inputs: tuple[InputFile, ...]

    def builder(self, parallel: Parallel, schedule: str) -> WorkloadBuilder:
        """Return the builder of the file's workload."""
        return WorkloadBuilder(self.path.name, parallel, schedule, self.notes, self.inputs)


def text_reader(
    *,
    one: str,
    parse: Callable[[str, str], F],
    describe: Callable[[F], Inspection],
    build: Callable[[F, LayoutOptions, Source], Workload],
) -> Reader:
    """Return the reader of a format in which one text file describes a whole run (parameters as of `text_format`)."""

    def inspected(path: Path) -> Inspection:
        return describe(parse(str(path), _text(read_unpacked(path))))

    def open_run(paths: Sequence[Path], form: str) -> Callable[[LayoutOptions], Workload]:
        if len(paths) != 1:
            raise FormatError(f"{one} is one file for a whole run; give one file", str(paths[1]))
        path, data = paths[0], read_bytes(paths[0])
        inputs = (input_of(path, form, data),)
        file = parse(str(path), _text(unpacked(data, str(path))))
        return lambda layout: build(file, layout, Source(path, Notebook(str(path)), inputs))

    return Reader(describe=inspected, open_run=open_run)


def text_format(
    name: str,
    title: str,
    *,
    one: str,
    options: Iterable[str],
    looks_like: Callable[[str], Sniff],
    parse: Callable[[str, str], F],
    describe: Callable[[F], Inspection],
    build: Callable[[F, LayoutOptions, Source], Workload],
    most_sure: float = 1.0,
) -> Format:
    """Return a format in which one text file describes a whole run, and register it.

    Parameters
    ----------
    name, title, options, looks_like, most_sure
        As in `Format`; `one` is such a file with its article, for the refusal of several.
    parse : callable
        Its grammar: what a file says, given its path and text (undecodable bytes replaced), or a FormatError.
    describe : callable
        What there is to be said of it.
    build : callable
        What it means: a call of `Source.builder` and of what that makes.
    """
    form = Format(
        name=name,
        title=title,
        options=frozenset(options),
        looks_like=looks_like,
        reader=text_reader(one=one, parse=parse, describe=describe, build=build),
        most_sure=most_sure,
    )
    FORMATS.register(name)(form)
    return form


def _text(data: bytes) -> str:
    return data.decode("utf-8", errors="replace")


FORMATS: Registry[FileKind] = Registry("format", "traincast.formats")


def read_again(workload: Workload) -> Workload:
    """Return a workload as its files say it, read with what they were read with before.

    Raises
    ------
    FormatError
        If its files are of no format that is read into a workload, or can no longer be read.
    """
    form = FORMATS.get(workload.inputs[0].format)
    if not isinstance(form, Format):
        raise FormatError(f"is {form.title}, not a workload", workload.inputs[0].path)
    return form.read([Path(each.path) for each in workload.inputs], workload.layout)
