"""A training log against the forecast of its job."""

from traincast import api, report
from traincast.errors import FormatError
from traincast.serve.answers.bench import Workbench
from traincast.serve.answers.explanations import files_of, sections_shown
from traincast.serve.answers.shown import time_shown
from traincast.serve.answers.words import words_of
from traincast.serve.records.explanations import CheckAnswer, CheckRecord


def check(asked: CheckRecord, bench: Workbench) -> CheckAnswer:
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
