"""A check as a pipeline shows it next to a change: workflow commands of GitHub, or a code quality report of GitLab.

Sources: docs.github.com, workflow commands for GitHub Actions (``::error file=...,line=...,title=...::message``; %, CR
and LF are escaped, in properties also : and ,); docs.gitlab.com, code quality (description, check_name, fingerprint,
severity, location).
"""

import json
from hashlib import sha256
from pathlib import PurePath

from traincast.checking.check import Check
from traincast.checking.verdict import Word
from traincast.report.plain import printable
from traincast.report.terminal.check import check_line

FORMATS = ("github", "gitlab")
_TITLE = "traincast check"
_COMMANDS = {Word.SLOWER: "error", Word.CANNOT_TELL: "warning"}
_SEVERITIES = {Word.SLOWER: "major", Word.CANNOT_TELL: "minor"}
_MOST_CAUSES = 3


def annotated(check: Check, form: str) -> str:
    """Return a check for a pipeline; `form` is one of `FORMATS`."""
    return _github(check) if form == "github" else _gitlab(check)


def _message(check: Check) -> str:
    """Return the verdict and the likeliest causes of a slower step, a line each."""
    causes = check.causes if check.verdict.word in _COMMANDS else ()
    lines = [check_line(check), *(f"perhaps {each.name} ({each.ratio:.3f} x)" for each in causes[:_MOST_CAUSES])]
    return "\n".join(map(printable, lines))


def _place(check: Check) -> str:
    """Return the file that the annotation stands at: the first log, else the job."""
    logs = check.measured.logs if check.measured is not None else ()
    paths = (*logs, *(each.path for each in check.inputs))
    return PurePath(paths[0]).as_posix() if paths else "traincast.toml"


def _github(check: Check) -> str:
    command = _COMMANDS.get(check.verdict.word, "notice")
    return f"::{command} file={_property(_place(check))},title={_property(_TITLE)}::{_data(_message(check))}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def _gitlab(check: Check) -> str:
    """Return the report; it is empty where there is nothing to complain of."""
    severity = _SEVERITIES.get(check.verdict.word)
    if severity is None:
        return "[]"
    place = _place(check)
    entry = {
        "description": _message(check).replace("\n", "; "),
        "check_name": _TITLE,
        "fingerprint": sha256(f"{_TITLE}\n{place}\n{check.verdict.word}".encode()).hexdigest(),
        "severity": severity,
        "location": {"path": place, "lines": {"begin": 1}},
    }
    return json.dumps([entry], indent=2)
