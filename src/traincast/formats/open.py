"""Find the files that are meant, find out what a file is, and read a run."""

from collections import Counter
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from glob import glob, has_magic
from pathlib import Path

from msgspec.structs import fields, replace

from traincast.diagnostics import Note
from traincast.errors import ConfigError, FormatError
from traincast.files import LOADS, MOST_TRACE_BYTES, InputFile, input_of, read_head, unpacked_head
from traincast.formats.contract import FORMATS, FileKind, Format, Sniff
from traincast.job.flags import flag_of
from traincast.job.options import LayoutOptions
from traincast.workload.experts import ExpertLoads
from traincast.workload.workload import Workload

_HEAD_BYTES = 65536
_LONG_HEAD_BYTES = 2**22
"""What is looked at where the head says nothing: logs may begin with thousands of warnings."""
_SURE_ENOUGH = 0.25


def expand_inputs(paths: Sequence[Path]) -> list[Path]:
    """Replace folders by the files in them, and patterns by what they match, each sorted by path.

    Hidden files and folders in a folder are left out, and all but the Parquet files where there are some. A pattern is
    one such as ``run/rank*.txt`` or ``runs/**/*.txt`` where no file has that very name. A file that is given and does
    not exist stays, so that its reader says so.

    Raises
    ------
    FormatError
        If a folder cannot be read or holds no file, or nothing matches a pattern.
    """
    return [file for path in paths for file in _expanded(path)]


def _expanded(path: Path) -> list[Path]:
    try:
        if path.is_dir():
            return _files_in(path)
        if path.exists() or not has_magic(str(path)):
            return [path]
        matches = sorted(map(Path, glob(str(path), recursive=True)))  # noqa: PTH207 paths may be absolute
        found = [file for match in matches for file in (_files_in(match) if match.is_dir() else [match])]
    except OSError as error:
        raise FormatError(f"cannot be read: {error.strerror or error}", str(path)) from None
    if not found:
        raise FormatError("no file matches this pattern", str(path))
    return found


def _files_in(folder: Path) -> list[Path]:
    files = sorted(each for each in folder.iterdir() if each.is_file() and not each.name.startswith("."))
    if not files:
        raise FormatError("is a folder without files", str(folder))
    # A table of a whole run is a run in itself; what stands next to it describes it.
    return [each for each in files if each.suffix == ".parquet"] or files


def identify(path: Path, given: Sequence[Path] = ()) -> FileKind:
    """Return the kind of file that is surest of a file; `given` are the folders that the user gave.

    Raises
    ------
    FormatError
        If the file cannot be read, or no kind knows it; the message lists what was tried, and says how to leave
        out a file in one of the folders.
    """
    head = _head(path, _HEAD_BYTES)
    if not head.strip("\0 \t\r\n"):
        raise FormatError(f"the file is empty{_advice(path, given)}", str(path), 1)
    best, found, tried = _surest(head)
    if best.confidence < _SURE_ENOUGH and len(longer := _head(path, _LONG_HEAD_BYTES)) > len(head):
        best, found, _ = _surest(longer)
    if best.confidence < _SURE_ENOUGH:
        reasons = "; ".join(f"{kind.name}: {sniff.reason}" for sniff, kind in tried)
        raise FormatError(f"not a file of a known format (tried {reasons}){_advice(path, given)}", str(path), 1)
    return found


def _head(path: Path, count: int) -> str:
    """Return the text of so many of the first bytes of a file, packed or not."""
    data = unpacked_head(read_head(path, count, MOST_TRACE_BYTES), count)
    return data.decode("utf-8-sig", errors="replace")


def _surest(head: str) -> tuple[Sniff, FileKind, list[tuple[Sniff, FileKind]]]:
    """Return the kind of file that is surest of a beginning, the first of equals, how sure it is, and what was said.

    Kinds that cannot be surer are not asked.
    """
    kinds = FORMATS.entries()
    said: dict[int, Sniff] = {}
    surest = -1.0, 0
    for place in sorted(range(len(kinds)), key=lambda each: (-kinds[each].most_sure, each)):
        if (kinds[place].most_sure, -place) > surest:
            said[place] = kinds[place].looks_like(head)
            surest = max(surest, (said[place].confidence, -place))
    found = -surest[1]
    return said[found], kinds[found], [(said[place], kinds[place]) for place in sorted(said)]


def identify_run(paths: Sequence[Path], given: Sequence[Path]) -> Format:
    """Return the one format of all the files of a run, of which the user gave `given`.

    Raises
    ------
    FormatError
        If a file cannot be read, no format knows it, it is of another format than most, or holds no workload.
    """
    kinds = [identify(path, given) for path in paths]
    # The commonest is meant, the first one where two are as common.
    usual = max(kinds, key=kinds.count)
    for path, kind in zip(paths, kinds, strict=True):
        if kind is not usual:
            text = f"is of format {kind.name}, but {paths[kinds.index(usual)]} is {usual.name}{_advice(path, given)}"
            raise FormatError(text, str(path))
    if not isinstance(usual, Format):
        raise FormatError(f"{usual.title}: {usual.instead.format(name=paths[0].name)}", str(paths[0]))
    return usual


def _advice(path: Path, given: Sequence[Path]) -> str:
    """Return what to do about a stray file, where it stands in a folder that was given."""
    if path in given or path.parent not in given:
        return ""
    return f"; if it is not part of the run, give a pattern such as {str(path.parent / _pattern(path))!r}"


def _pattern(stray: Path) -> str:
    """Return a pattern of the other files' names, if possible one that does not match the stray one."""
    others = [each.name for each in _files_in(stray.parent) if each != stray]
    ending = Counter(Path(name).suffix for name in others).most_common(1)
    suffix = ending[0][0] if ending else ".txt"
    for pattern in (f"*rank*{suffix}", f"*{suffix}"):
        if any(fnmatchcase(name, pattern) for name in others) and not fnmatchcase(stray.name, pattern):
            return pattern
    return f"*rank*{suffix}"


class OpenRun:
    """The files of one run, from which workloads in several layouts are made; what allows it is read only once."""

    def __init__(self, form: Format, paths: Sequence[Path]) -> None:
        """Take files that are of one format (`identify_run`); they are read when a layout is asked for."""
        self._form, self._paths = form, paths
        self._build: Callable[[LayoutOptions], Workload] | None = None

    def read(self, layout: LayoutOptions, *, recorded: bool = False) -> Workload:
        """Read the run in a layout; where its expert loads are a path, with those of the traces there, inputs too.

        With `recorded` a trace is taken as it is (`Reader.recorded`).

        Raises
        ------
        FormatError
            If a file cannot be read, or the path is of no traces that show loads.
        ConfigError
            If what is overridden means nothing to the format.
        """
        refuse_meaningless(self._form, layout)
        as_recorded = self._form.loaded().recorded
        if recorded and as_recorded is not None:
            return replace(as_recorded(self._paths, self._form.name, layout), layout=layout)
        traces = layout.expert_loads
        if not isinstance(traces, Path):
            return replace(self._built(layout), layout=layout)
        loads, note, read = _loads_of(traces, layout)
        workload = self._built(replace(layout, expert_loads=loads))
        notes, inputs = (*workload.assumptions, note), (*workload.inputs, *read)
        return replace(workload, assumptions=notes, inputs=inputs, layout=layout)

    def _built(self, layout: LayoutOptions) -> Workload:
        if self._build is None:
            self._build = self._form.opened(self._paths)
        return self._build(layout)


def _loads_of(traces: Path, layout: LayoutOptions) -> tuple[ExpertLoads, Note, tuple[InputFile, ...]]:
    """Return the expert loads that traces show, what is to be said of them, and the traces."""
    files = expand_inputs([traces])
    form = identify_run(files, [traces])
    expert_loads = form.loaded().expert_loads
    if expert_loads is None:
        raise FormatError(f"is not a rank trace, but of format {form.name}; it shows no loads of experts", str(traces))
    loads, note = expert_loads(files, layout.ep)
    return loads, note, tuple(input_of(path, LOADS) for path in files)


def refuse_meaningless(form: Format, layout: LayoutOptions) -> None:
    """Refuse an option that the user set and the format does not know, lest it is ignored in silence.

    Raises
    ------
    ConfigError
        With the flag of the first such option.
    """
    for option in fields(layout):
        if option.name not in form.options and getattr(layout, option.name) != option.default:
            article = "an" if form.title[0] in "AEIOU" else "a"
            raise ConfigError(f"{flag_of(option.name)} has no meaning for {article} {form.title}")
