"""Files that a page brings: what they are, and where they hold a step why it took so long."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from traincast import api, report
from traincast.errors import ConfigError, TraincastError
from traincast.serve.advices import SuggestionShown, suggestions_of
from traincast.serve.bench import FILES
from traincast.serve.examples import unpacked
from traincast.serve.forecasts import ForecastShown, NoteShown, forecast_shown, notes_of
from traincast.serve.readings import PastedJob, reading_of
from traincast.serve.shown import Shown
from traincast.serve.timelines import STORED, packed
from traincast.serve.words import Value, number_or_text, said, words_of

if TYPE_CHECKING:
    from traincast.formats.contract import Inspection
    from traincast.serve.bench import Workbench
    from traincast.simulation.result import Result

_ASKED = "asked.json"
"""File of a task that holds what was asked, for what-ifs."""
_MOST_TOLD = 12
"""Files of which is told what each is."""


class FilesRecord(Struct, frozen=True, kw_only=True):
    """Files of one run, or an example; as JSON with an `example`, or as files (multipart/form-data)."""

    files: tuple[str, ...] = ()
    """Paths as the page names them."""
    example: str = ""
    """Name of a bundled example, in place of files."""
    words: dict[str, Value] = {}
    """How they are read and simulated: ``cluster``, ``tp``, ``gpus`` and other words of ``traincast simulate``."""
    cluster: str | None = None
    """The same as in `words`."""


class FileAbout(Struct, frozen=True, kw_only=True):
    """What a file is."""

    path: str
    format: str
    text: str
    """In words."""
    taken_by: str
    evidence: tuple[str, ...]


class ExplanationShown(Struct, frozen=True, kw_only=True):
    """What was found in files."""

    kind: str
    """``result``, ``run`` (traces or a workload), ``log``, ``job``, or ``other``."""
    headline: str
    files: tuple[FileAbout, ...]
    more_files: int = 0
    """Beyond those that are listed."""
    shown: ForecastShown | None = None
    """Of a step."""
    measured: Shown | None = None
    """The measured step, where files hold one."""
    result: dict[str, object] = field(default_factory=dict)
    """The document ``traincast.result/1`` of a step."""
    sections: tuple[dict[str, Any], ...] = ()
    """All that the terminal report says, as sections of texts and tables."""
    stragglers: tuple[dict[str, object], ...] = ()
    suggestions: tuple[SuggestionShown, ...] = ()
    """What-ifs worth a try, with what each saves."""
    has_timeline: bool = False
    reading: PastedJob | None = None
    """Of a job, and of a log that says its arguments: what to open in a form."""
    assumptions: tuple[NoteShown, ...] = ()
    warnings: tuple[NoteShown, ...] = ()


def explain(asked: FilesRecord, bench: "Workbench") -> ExplanationShown:
    """Say what files are, and explain the step that they hold."""
    if asked.example:
        asked = replace(asked, files=unpacked(asked.example, bench.folder / FILES))
    (bench.folder / _ASKED).write_bytes(msgspec.json.encode(asked))
    with bench.among_files(), bench.telling("reading files"):
        return _explained(asked, bench)


def _explained(asked: FilesRecord, bench: "Workbench") -> ExplanationShown:
    tops = _tops(asked.files)
    path = Path(tops[0])
    if len(tops) == 1 and api.is_result(path):
        result, why_not = api.with_operations(api.load_result(path), engine=bench.engine)
        of_it = [each for each in asked.files if each.endswith(".json")]
        return _of_step("result", result, _inspected(of_it[:1]), bench, why_not)
    found = _inspected(asked.files)
    formats = {each.format for each in found}
    if formats == {"job"}:
        return _of_job(tops[0], found, bench)
    if formats == {"training-log"}:
        return _of_log(tops, asked, found, bench)
    if any(not each.evidence for each in found):
        return ExplanationShown(kind="other", headline=found[0].text, files=found[:_MOST_TOLD])
    return _of_step("run", _simulated(asked, bench, suggest=True), found, bench)


def _tops(files: Sequence[str]) -> list[str]:
    """Return the folders and files at the top of what was brought."""
    if not files:
        raise ConfigError("are none; choose a file, or drop one onto the page", "files")
    return list(dict.fromkeys(each.partition("/")[0] for each in files))


def _inspected(files: Sequence[str]) -> tuple[FileAbout, ...]:
    """Say what the first files are, and the last."""
    chosen = files if len(files) <= _MOST_TOLD else [*files[: _MOST_TOLD - 1], files[-1]]
    return tuple(_about(api.inspect(each)) for each in chosen)


def _about(found: "Inspection") -> FileAbout:
    return FileAbout(
        path=found.path,
        format=found.format,
        text=found.generation,
        taken_by=found.taken_by or "",
        evidence=tuple(found.evidence),
    )


def _of_job(path: str, found: tuple[FileAbout, ...], bench: "Workbench") -> ExplanationShown:
    reading = reading_of(api.described(path), "job", bench.scratch)
    return ExplanationShown(kind="job", headline=f"{path}: {found[0].text}", files=found, reading=reading)


def _of_log(
    tops: Sequence[str], asked: FilesRecord, found: tuple[FileAbout, ...], bench: "Workbench"
) -> ExplanationShown:
    """Return what a training log says: its steps against the forecast of its job, where it says one."""
    headline = f"{tops[0]}: {found[0].text}"
    reading: PastedJob | None = None
    try:
        reading = reading_of(api.described(tops[0]), "arguments in a log", bench.scratch)
        check = api.check(list(tops), cluster=_cluster_named(asked, bench), causes=False)
    except TraincastError as error:
        warning = NoteShown(code="log-without-job", text=str(error))
        return ExplanationShown(kind="log", headline=headline, files=found, reading=reading, warnings=(warning,))
    return ExplanationShown(
        kind="log",
        headline=report.check_line(check),
        files=found,
        reading=reading,
        measured=None if check.measured is None else time_shown(check.measured.step_s),
        sections=sections_shown(report.print_check, check),
    )


def _cluster(asked: FilesRecord) -> str | None:
    value = asked.words.get("cluster") or asked.cluster
    return None if not value else str(value)


def _cluster_named(asked: FilesRecord, bench: "Workbench") -> Any:  # noqa: ANN401
    name = _cluster(asked)
    return None if name is None else _cluster_of(name, bench)


def _of_step(
    kind: str, result: "Result", found: tuple[FileAbout, ...], bench: "Workbench", why_not: str | None = None
) -> ExplanationShown:
    """Return a step, as the terminal report tells of it, and keep its timeline."""
    result = replace(result, advice=())
    has_timeline = result.program is not None
    if has_timeline:
        bench.tell("progress", {"share": 0.9, "what": "packing the timeline"})
        stored = packed(result, found[0].path if found else "step")
        (bench.folder / STORED).write_bytes(msgspec.json.encode(stored))
    assumptions, warnings = notes_of(result)
    if why_not:
        told = f"there is no timeline: {why_not}"
        warnings = (*warnings, NoteShown(code="no-timeline", text=told))
    shown = forecast_shown(result)
    return ExplanationShown(
        kind=kind,
        headline=shown.headline,
        files=found,
        shown=shown,
        measured=None if result.measured_s is None else time_shown(result.measured_s),
        result=dict(report.result_to_dict(result)),
        sections=sections_shown(report.print_result, result, analysed=True),
        stragglers=tuple(msgspec.to_builtins(each) for each in result.stragglers),
        suggestions=suggestions_of(result),
        has_timeline=has_timeline,
        assumptions=assumptions,
        warnings=warnings,
    )


def time_shown(time_s: float) -> Shown:
    """Return a time with its text."""
    from traincast.units import format_time

    return Shown(time_s, format_time(time_s))


def sections_shown(printer: Any, *args: object, **options: object) -> tuple[dict[str, Any], ...]:  # noqa: ANN401
    """Return what a printer of the terminal report prints."""
    return tuple(msgspec.to_builtins(each) for each in report.sections_of(printer, *args, **options))


_UNSAID = ("constants", "expert_loads")
"""Words of a simulation that may be files."""


def _simulated(asked: FilesRecord, bench: "Workbench", **more: Any) -> "Result":  # noqa: ANN401
    """Simulate the files of a run."""
    words: dict[str, Any] = {}
    for name, value in said({**asked.words, "cluster": _cluster(asked)}):
        if name in _UNSAID:
            raise ConfigError("is a file, which a page cannot name; use the command line", name)
        words[name] = _cluster_of(str(value), bench) if name == "cluster" else number_or_text(value)
    return api.simulate(_tops(asked.files), engine=bench.engine, **words, **more)


def _cluster_of(value: str, bench: "Workbench") -> object:
    return words_of({"cluster": value}, bench.scratch)["cluster"]


def _asked(bench: "Workbench") -> FilesRecord:
    """Return what a task was asked.

    Raises
    ------
    ConfigError
        If it brought no files.
    """
    path = bench.folder / _ASKED
    if not path.is_file():
        raise ConfigError("has no files to simulate; explain a trace or a workload", "task")
    return msgspec.json.decode(path.read_bytes(), type=FilesRecord)


def files_of(bench: "Workbench") -> list[str]:
    """Return the folders and files at the top of what a task brought."""
    return _tops(_asked(bench).files)


def simulated_again(bench: "Workbench", **more: Any) -> "Result":  # noqa: ANN401
    """Return the step of a task simulated anew, with further words."""
    asked = _asked(bench)
    with bench.among_files():
        tops = _tops(asked.files)
        if len(tops) == 1 and api.is_result(tops[0]):
            return _result_again(tops[0], bench, more)
        return _simulated(asked, bench, **more)


def _result_again(path: str, bench: "Workbench", more: dict[str, Any]) -> "Result":
    record = api.load_record(path)
    if record.command == "predict":
        return api.predict(path, engine=bench.engine, study=bench.study, **more)
    return api.simulate(path, engine=bench.engine, **more)
