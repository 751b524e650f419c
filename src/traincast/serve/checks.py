"""A training log against the forecast of its job."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from traincast import api, report
from traincast.errors import FormatError
from traincast.serve.explanations import sections_shown, stored_log, time_shown
from traincast.serve.shown import Shown
from traincast.serve.words import Value, words_of

if TYPE_CHECKING:
    from traincast.serve.bench import Bench


class CheckRecord(Struct, frozen=True, kw_only=True):
    """A training log, and the job that should have run; without one the arguments in the log say it."""

    log: str = ""
    """Its text; without it the log of a task."""
    task: str = ""
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


def check(asked: CheckRecord, bench: "Bench") -> CheckAnswer:
    """Say whether a run is as fast as it should be by its log, and what would explain it."""
    if asked.task:
        return _checked(asked, bench, stored_log(bench))
    path = bench.scratch / "pasted.log"
    path.write_text(asked.log, encoding="utf-8")
    return _checked(asked, bench, [path])


def _checked(asked: CheckRecord, bench: "Bench", logs: list[Path]) -> CheckAnswer:
    words = words_of({name: each for name, each in asked.job.items() if name != "allow_oom"}, bench.scratch)
    try:
        found = api.check(logs, cluster=words.pop("cluster", None), **words)
    except FormatError as error:
        raise FormatError(error.message, Path(error.path).name, error.line) from None
    return CheckAnswer(
        verdict=found.verdict.word.value,
        line=report.check_line(found),
        exit_code=found.exit_code,
        measured=None if found.measured is None else time_shown(found.measured.step_s),
        expected=time_shown(found.expected.step_s),
        sections=sections_shown(report.print_check, found),
        document=dict(report.check_to_dict(found)),
    )
