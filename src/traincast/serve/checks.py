"""A training log against the forecast of its job."""

from typing import TYPE_CHECKING, Any

from msgspec import Struct

from traincast import api, report
from traincast.errors import FormatError
from traincast.serve.explanations import files_of, sections_shown, time_shown
from traincast.serve.shown import Shown
from traincast.serve.words import Value, words_of

if TYPE_CHECKING:
    from traincast.serve.bench import Workbench


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


def check(asked: CheckRecord, bench: "Workbench") -> CheckAnswer:
    """Say whether a run is as fast as it should be by its log, and what would explain it."""
    words = words_of({name: each for name, each in asked.job.items() if name != "allow_oom"}, bench.scratch)
    cluster = words.pop("cluster", None)
    if asked.task:
        logs = files_of(bench)
        with bench.among_files():
            found = api.check(logs, cluster=cluster, **words)
    else:
        path = bench.scratch / "pasted.log"
        path.write_text(asked.log, encoding="utf-8")
        try:
            found = api.check("pasted.log", cluster=cluster, **words)
        except FormatError as error:
            raise FormatError(error.message, "log", error.line) from None
    return CheckAnswer(
        verdict=found.verdict.word.value,
        line=report.check_line(found),
        exit_code=found.exit_code,
        measured=None if found.measured is None else time_shown(found.measured.step_s),
        expected=time_shown(found.expected.step_s),
        sections=sections_shown(report.print_check, found),
        document=dict(report.check_to_dict(found)),
    )
