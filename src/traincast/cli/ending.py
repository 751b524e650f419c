"""How a command ends that cannot go on: a message on stderr, under ``--json`` a document on stdout, an exit code."""

import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from io import StringIO
from typing import NamedTuple

import click

from traincast import report
from traincast.cli.terminal import OutputError, complain, print_json, whole_output
from traincast.errors import TraincastError


class StoppedError(BaseException):
    """The process was told to stop; no handler of errors is to catch it, but every ``finally`` runs."""

    def __init__(self, number: int) -> None:
        self.exit_code = 128 + number
        super().__init__("interrupted" if number == signal.SIGINT else f"stopped by {signal.Signals(number).name}")


class _End(NamedTuple):
    """What is said of an error."""

    code: str
    """Kind of error (`traincast.report.failure.Failure`)."""
    exit_code: int
    message: str
    shown: str
    """The same as people read it, less notes."""
    field: str | None = None
    path: str | None = None


def end(error: BaseException, arguments: Sequence[str]) -> int:
    """Say why a command with these arguments cannot go on; return its exit code."""
    said = _end_of(error)
    if _wants_json(arguments):
        failure = report.failure_of(error, said.code, said.message, said.exit_code, said.field, said.path)
        # Where standard output is what fails, stderr says it alone.
        with suppress(OSError, OutputError), whole_output():
            print_json(report.failure_to_dict(failure))
    complain(said.shown + _notes(error))
    return said.exit_code


def is_stop(error: BaseException) -> bool:
    """Return whether an error needs no traceback to explain it: wrong usage, or a stop."""
    return isinstance(error, (click.ClickException, click.Abort, KeyboardInterrupt, StoppedError))


def _end_of(error: BaseException) -> _End:
    if isinstance(error, click.ClickException):
        return _End("usage", error.exit_code, error.format_message(), _usage(error), _field(error))
    if is_stop(error):
        text = str(error) if isinstance(error, StoppedError) else "interrupted"
        return _End("interrupted", getattr(error, "exit_code", 130), text, text)
    match error:
        case TraincastError():
            return _failed(error.code, error.in_shell, error.exit_code)
        case MemoryError():
            return _failed("out_of_memory", f"not enough memory for this{f': {error}' if str(error) else ''}")
        case OSError() if error.filename is not None and error.strerror is not None:
            # Without a file it is nothing that a user can mend.
            path = os.fsdecode(error.filename)
            return _failed("system", f"{path}: {error.strerror}", path=path)
    text = (
        f"internal error: {type(error).__name__}: {error}; this is a fault of traincast: run it again with "
        "TRAINCAST_DEBUG=1 for the details, and report them with the input"
    )
    return _failed("internal", text)


def _failed(code: str, message: str, exit_code: int = 1, path: str | None = None) -> _End:
    return _End(code, exit_code, message, f"error: {message}", path=path)


def _usage(error: click.ClickException) -> str:
    """Return wrong usage as click tells it."""
    text = StringIO()
    error.show(text)
    return text.getvalue().rstrip("\n")


def _field(error: click.ClickException) -> str | None:
    """Return the option that is wrong, as the field that it sets."""
    if isinstance(error, click.NoSuchOption):
        return error.option_name
    param = getattr(error, "param", None)
    return None if param is None else param.name


def _wants_json(arguments: Sequence[str]) -> bool:
    """Return whether ``--json`` is among the arguments, which may be wrong, before pasted flags."""
    ours = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return "--json" in ours


def _notes(error: BaseException) -> str:
    """Return what may be the cause of an error (`BaseException.add_note`), a line each below its message."""
    return "".join(f"\nnote: {note}" for note in getattr(error, "__notes__", ()))
