"""Files that a page brings and what was found in them; a training log against a forecast."""

from typing import Any

from msgspec import Struct, field

from traincast.serve.records.advices import SuggestionShown
from traincast.serve.records.forecasts import ForecastShown, NoteShown
from traincast.serve.records.forms import PastedJob
from traincast.serve.records.values import Shown, Value


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


class CheckRecord(Struct, frozen=True, kw_only=True):
    """A training log, and the job that should have run; without one the arguments in the log say it."""

    log: str = ""
    """Its text."""
    task: str = ""
    """A task that explained logs, in place of a text."""
    job: dict[str, Value] = {}


class CheckAnswer(Struct, frozen=True, kw_only=True):
    """Whether a run is as fast as it should be."""

    verdict: str
    line: str
    exit_code: int
    measured: Shown | None
    expected: Shown
    sections: tuple[dict[str, Any], ...]
    document: dict[str, object]
    """``traincast.check/1``."""
