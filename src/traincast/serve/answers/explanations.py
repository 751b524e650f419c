"""Files that a page brings: what they are, and where they hold a step why it took so long."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from traincast import api, report
from traincast.errors import ConfigError, TraincastError
from traincast.files import read_bytes
from traincast.formats.contract import Inspection
from traincast.serve.answers.advices import suggestions_of
from traincast.serve.answers.bench import Workbench
from traincast.serve.answers.bundled import unpacked
from traincast.serve.answers.forecasts import forecast_shown, notes_of
from traincast.serve.answers.readings import reading_of
from traincast.serve.answers.shown import time_shown
from traincast.serve.answers.timelines import STORED, packed
from traincast.serve.answers.words import number_or_text, said, words_of
from traincast.serve.records.explanations import ExplanationShown, FileAbout, FilesRecord
from traincast.serve.records.forecasts import NoteShown
from traincast.serve.records.forms import PastedJob
from traincast.serve.wire import FILES
from traincast.simulation.result import Result

_ASKED = "asked.json"
"""File of a task that holds what was asked, for what-ifs."""
_MOST_TOLD = 12
"""Files of which is told what each is."""


def explain(asked: FilesRecord, bench: Workbench) -> ExplanationShown:
    """Say what files are, and explain the step that they hold."""
    if asked.example:
        asked = replace(asked, files=unpacked(asked.example, bench.folder / FILES))
    (bench.folder / _ASKED).write_bytes(msgspec.json.encode(asked))
    with bench.among_files(), bench.telling("reading files"):
        return _explained(asked, bench)


def _explained(asked: FilesRecord, bench: Workbench) -> ExplanationShown:
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


def _about(found: Inspection) -> FileAbout:
    return FileAbout(
        path=found.path,
        format=found.format,
        text=found.generation,
        taken_by=found.taken_by or "",
        evidence=tuple(found.evidence),
    )


def _of_job(path: str, found: tuple[FileAbout, ...], bench: Workbench) -> ExplanationShown:
    reading = reading_of(api.described(path), "job", bench.scratch)
    return ExplanationShown(kind="job", headline=f"{path}: {found[0].text}", files=found, reading=reading)


def _of_log(
    tops: Sequence[str], asked: FilesRecord, found: tuple[FileAbout, ...], bench: Workbench
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


def _cluster_named(asked: FilesRecord, bench: Workbench) -> Any:  # noqa: ANN401
    name = _cluster(asked)
    return None if name is None else _cluster_of(name, bench)


def _of_step(
    kind: str, result: Result, found: tuple[FileAbout, ...], bench: Workbench, why_not: str | None = None
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


def sections_shown(printer: Any, *args: object, **options: object) -> tuple[dict[str, Any], ...]:  # noqa: ANN401
    """Return what a printer of the terminal report prints."""
    return tuple(msgspec.to_builtins(each) for each in report.sections_of(printer, *args, **options))


_UNSAID = ("constants", "expert_loads")
"""Words of a simulation that may be files."""


def _simulated(asked: FilesRecord, bench: Workbench, **more: Any) -> Result:  # noqa: ANN401
    """Simulate the files of a run."""
    words: dict[str, Any] = {}
    for name, value in said({**asked.words, "cluster": _cluster(asked)}):
        if name in _UNSAID:
            raise ConfigError("is a file, which a page cannot name; use the command line", name)
        words[name] = _cluster_of(str(value), bench) if name == "cluster" else number_or_text(value)
    return api.simulate(_tops(asked.files), engine=bench.engine, **words, **more)


def _cluster_of(value: str, bench: Workbench) -> object:
    return words_of({"cluster": value}, bench.scratch)["cluster"]


def _asked(bench: Workbench) -> FilesRecord:
    """Return what a task was asked.

    Raises
    ------
    ConfigError
        If it brought no files.
    """
    path = bench.folder / _ASKED
    if not path.is_file():
        raise ConfigError("has no files to simulate; explain a trace or a workload", "task")
    return msgspec.json.decode(read_bytes(path), type=FilesRecord)


def files_of(bench: Workbench) -> list[str]:
    """Return the folders and files at the top of what a task brought."""
    return _tops(_asked(bench).files)


def simulated_again(bench: Workbench, **more: Any) -> Result:  # noqa: ANN401
    """Return the step of a task simulated anew, with further words."""
    asked = _asked(bench)
    with bench.among_files():
        tops = _tops(asked.files)
        if len(tops) == 1 and api.is_result(tops[0]):
            return _result_again(tops[0], bench, more)
        return _simulated(asked, bench, **more)


def _result_again(path: str, bench: Workbench, more: dict[str, Any]) -> Result:
    record = api.load_record(path)
    if record.command == "predict":
        return api.predict(path, engine=bench.engine, study=bench.study, **more)
    return api.simulate(path, engine=bench.engine, **more)
