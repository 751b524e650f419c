"""Run one command in this process and judge what it did.

What is called a failure: an exception that nobody turned into a message, a refusal without a message or with two, a
number that is not finite, a step of no time, a breakdown that does not sum to the step, a cut or mixed output, a
control character on the terminal, a message that repeats a long value, and more time or memory than is allowed.
"""

import contextlib
import csv
import gzip
import io
import json
import math
import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from fuzzing.arguments import takes_value
from fuzzing.case import Case
from fuzzing.values import LONG
from traincast.cli.main import main

EXITS = {0: "done", 1: "refused", 2: "usage", 3: "infeasible", 4: "slower", 5: "cannot tell"}
"""Exit code to what it is called."""
SAID = (EXITS[4], EXITS[5])
"""What a run is called by `check` and `watch`."""
_VERDICTS = {"check": (4, 5), "watch": (4,)}
"""Exit codes that are a command's answer and need no message."""
_SILENT = ("watch",)
"""Commands that print nothing while all is well."""
_EXCEPTION = re.compile(r"error: (?:internal error.*?: )?([A-Za-z]*(?:Error|Exception|Interrupt))\b: ?(.*)", re.DOTALL)
# "neither inf nor train": a mode of NeuSight's measurements.
_NOT_FINITE = re.compile(r"(?<![\w./-])[+-]?(?:inf|nan)(?![\w./-]| nor\b)")
_WITH_UNIT = re.compile(
    r"(?<![\w'\"])[+-]?(?:inf|nan) ?(?:%|x\b|[mun]?s\b|[KMGTPE]i?B\b|B/s)|(?:^|(?<=\s))[+-]inf(?=\s\s|$)", re.MULTILINE
)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
ANNOUNCED = "announced"
"""Outcome of a case that took more than is allowed after it had told how long it is."""
FINE = (*EXITS.values(), ANNOUNCED)
"""Outcomes that are no failures."""
_ANNOUNCEMENT = re.compile(
    r"^(?:running the points of .*|(?:scheduling|simulating|predicting|fitting) .*[0-9].*"
    r"|[0-9]+% done, about [0-9]+ s left|took [0-9.]+ s, at most [0-9]+ MiB of memory)\n",
    re.MULTILINE,
)
"""What long work and ``--verbose`` tell beside the result."""
_WAITING = 4
"""A case may take so many times its time of the processor; the pool's patience is longer."""
_SOURCE = f"{os.sep}traincast{os.sep}"


class TimeUpError(BaseException):
    """The input has had its time; nothing that catches exceptions is to catch it."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a case did.

    Parameters
    ----------
    outcome : str
        One of `FINE`, or the failure: ``"exception"``, ``"timeout"``, ``"not finite"``, ...
    signature : str
        What makes it another failure than others of its outcome: the exception and its place; empty for no failure.
    message : str
        What was printed, or is wrong, in short.
    time_s : float
        Seconds of the processor that it took.
    """

    outcome: str
    signature: str
    message: str
    time_s: float

    @property
    def failed(self) -> bool:
        """Whether this must not happen."""
        return self.outcome not in FINE


@dataclass(slots=True)
class _Ran:
    code: object = 0
    out: str = ""
    err: str = ""
    escaped: BaseException | None = None


def judge(case: Case, folder: Path, limit_s: float) -> Verdict:
    """Run a case in a folder that holds its files, and say what it did.

    Parameters
    ----------
    case : Case
        The case; its files are written here.
    folder : Path
        An empty folder; the working folder of this process afterwards.
    limit_s : float
        Seconds of the processor that it may take.
    """
    case.write(folder)
    os.chdir(folder)
    start_s = time.process_time()
    ran = _run(case.arguments, limit_s)
    time_s = time.process_time() - start_s
    found = _announced(ran) or _crash(ran) or _exit(case, ran) or _printed(case, ran) or _written(folder)
    if found is None:
        return Verdict(EXITS[int(str(ran.code))], "", ran.err.strip()[:300], time_s)
    outcome, signature, message = found
    if outcome == "exception" and not signature:
        signature = _place_of(case, folder, limit_s)
    return Verdict(outcome, f"{outcome}: {signature}", message, time_s)


def _run(arguments: tuple[str, ...], limit_s: float) -> _Ran:
    ran, out, err = _Ran(), io.BytesIO(), io.BytesIO()
    with _captured(out, err):
        # Time of the processor, so that a busy machine fails nothing; who waits for processes of its own uses none.
        previous = signal.signal(signal.SIGPROF, _time_up), signal.signal(signal.SIGALRM, _time_up)
        signal.setitimer(signal.ITIMER_PROF, limit_s)
        signal.setitimer(signal.ITIMER_REAL, _WAITING * limit_s)
        try:
            main(list(arguments))
        except SystemExit as stop:
            ran.code = 0 if stop.code is None else stop.code
        except BaseException as error:
            ran.escaped = error
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGPROF, previous[0])
            signal.signal(signal.SIGALRM, previous[1])
    ran.out, ran.err = (each.getvalue().decode("utf-8", "surrogateescape") for each in (out, err))
    return ran


def _time_up(_: int, __: FrameType | None) -> None:
    raise TimeUpError


@contextlib.contextmanager
def _captured(out: io.BytesIO, err: io.BytesIO) -> Iterator[None]:
    """Put both streams of this process into buffers, as files would take them."""
    streams = [
        io.TextIOWrapper(each, encoding="utf-8", errors="surrogateescape", write_through=True) for each in (out, err)
    ]
    kept = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = streams
    try:
        yield
    finally:
        sys.stdout, sys.stderr = kept
        for stream in streams:
            with contextlib.suppress(ValueError):
                stream.detach()


_Found = tuple[str, str, str] | None


def _announced(ran: _Ran) -> _Found:
    """Return that too long a case had told its length."""
    long = isinstance(ran.escaped, TimeUpError) or "error: not enough memory" in ran.err
    return (ANNOUNCED, "", ran.err[:300]) if long and _ANNOUNCEMENT.match(ran.err) else None


def _crash(ran: _Ran) -> _Found:
    """Return what no code may let through: time, memory, exceptions."""
    if isinstance(ran.escaped, TimeUpError):
        return "timeout", _frame_of(ran.escaped), "took too long"
    if ran.escaped is not None:
        said = f"{type(ran.escaped).__name__}: {ran.escaped}"[:300]
        return "exception", f"{type(ran.escaped).__name__} at {_frame_of(ran.escaped)}", f"uncaught {said}"
    if ran.err.startswith("error: not enough memory"):
        return "memory", "MemoryError", ran.err[:300]
    match = _EXCEPTION.match(ran.err)
    if match is None:
        return None
    return "exception", "", ran.err[:300]


def _exit(case: Case, ran: _Ran) -> _Found:
    """Return what is wrong with the exit code and the message that belongs to it."""
    if ran.code in _VERDICTS.get(case.arguments[0], ()):
        return None
    if ran.code not in EXITS or ran.code in (4, 5):
        return "exit code", str(ran.code), ran.err[:300]
    said = len(re.findall(r"(?im)^error: ", ran.err))
    if ran.code and said != 1:
        return "messages", f"{said} messages", ran.err[:300] or "nothing was said"
    if not ran.code and (more := _ANNOUNCEMENT.sub("", ran.err)):
        return "messages", "stderr on success", more[:300]
    return None


def _printed(case: Case, ran: _Ran) -> _Found:
    """Return what is wrong with what was printed."""
    both = ran.out + ran.err
    if match := _CONTROL.search(both):
        around = both[max(match.start() - 60, 0) : match.end() + 20]
        stream = "stdout" if match.start() < len(ran.out) else "stderr"
        return "control character", f"{case.arguments[0]} {stream}", repr(around)
    if LONG[:400] in re.sub(r"\s", "", both):
        stream = "stdout" if LONG[:400] in re.sub(r"\s", "", ran.out) else "stderr"
        if "--json" not in case.arguments:
            return "long value", f"{case.arguments[0]} {stream}", re.sub("A{99,}", "AAA[...]", both)[:300]
    # A refusal may quote the value that it refuses.
    if match := _not_finite(case, ran.out):
        return "not finite", f"{case.arguments[0]}", ran.out[max(match.start() - 60, 0) : match.end() + 20]
    if _asks_for_json(case.arguments) and ran.code == 0:
        return _json(case, ran.out)
    if ran.code == 0 and not ran.out and "--quiet" not in case.arguments and case.arguments[0] not in _SILENT:
        return "messages", "nothing printed on success", ""
    return None


def _asks_for_json(arguments: tuple[str, ...]) -> bool:
    """Say whether JSON is asked for; ``--json`` may also stand where an option has its value."""
    at = arguments.index("--json") if "--json" in arguments and "--" not in arguments else 0
    return at > 0 and not takes_value(arguments[0], arguments[at - 1])


def _not_finite(case: Case, text: str) -> re.Match[str] | None:
    """Find an infinity or NaN that is printed as a number; words that the input has may come back as they are."""
    given = "\n".join([content.decode("utf-8", "replace") for content in case.files.values()] + list(case.arguments))
    echo = re.search("inf|nan", given, re.IGNORECASE)
    pattern = _WITH_UNIT if echo or "--json" in case.arguments else _NOT_FINITE
    return next((match for match in pattern.finditer(text) if match[0] not in given), None)


def _json(case: Case, out: str) -> _Found:
    """Return what is wrong with JSON on stdout: one document, several of ``inspect``."""
    decoder, at, documents = json.JSONDecoder(parse_constant=_refuse), 0, []
    try:
        while out[at:].strip():
            document, at = decoder.raw_decode(out, at + len(out[at:]) - len(out[at:].lstrip()))
            documents.append(document)
    except (ValueError, RecursionError) as error:
        return "bad JSON", case.arguments[0], f"{error}: {out[-200:]!r}"
    if "--help" in case.arguments or "-h" in case.arguments:
        return None
    if not documents and case.arguments[0] in _SILENT:
        return None
    if not documents or not all(isinstance(each, dict) and "schema" in each for each in documents):
        return "bad JSON", case.arguments[0], f"no document with a schema: {out[:200]!r}"
    return next((found for each in documents if (found := _result(each, case.arguments[0]))), None)


def _refuse(constant: str) -> float:
    raise ValueError(f"the constant {constant}")


def _result(document: dict[str, Any], command: str) -> _Found:
    """Return what is wrong with a result: its step, or the sum of its parts."""
    if not str(document.get("schema")).startswith("traincast.result/"):
        return None
    step_s = document["iteration_time_s"]
    if not step_s > 0:
        return "step", command, f"iteration_time_s is {step_s}"
    for each in (document, *document["ranks"]):
        parts = each["breakdown_s"].values()
        if min(parts) < 0 or not math.isclose(math.fsum(parts), step_s, rel_tol=1e-9, abs_tol=1e-12):
            return "breakdown", command, f"{each['breakdown_s']} against {step_s}"
    return None


def _written(folder: Path) -> _Found:
    """Return what is wrong with files that were written: leftovers, and files that are not whole."""
    left = [path.name for path in folder.rglob(".*") if "traincast" in path.name or path.suffix == ".tmp"]
    if left:
        return "leftover", "temporary file", ", ".join(left)
    out = folder / "out"
    if not out.is_dir():
        return None
    try:
        if (out / "result.json").exists():
            json.loads((out / "result.json").read_bytes(), parse_constant=_refuse)
        if (out / "trace.json.gz").exists():
            json.loads(gzip.decompress((out / "trace.json.gz").read_bytes()), parse_constant=_refuse)
        if (out / "ops.csv").exists():
            widths = {len(row) for row in csv.reader(io.StringIO((out / "ops.csv").read_text("utf-8"), newline=""))}
            if len(widths) > 1:
                return "bad output", "ops.csv", f"rows of {sorted(widths)} cells"
    except (ValueError, OSError, EOFError, csv.Error) as error:
        return "bad output", type(error).__name__, str(error)[:300]
    return None


def _place_of(case: Case, folder: Path, limit_s: float) -> str:
    """Run again with tracebacks, and return the exception with the place that raised it."""
    case.write(folder)
    os.environ["TRAINCAST_DEBUG"] = "1"
    try:
        escaped = _run(case.arguments, limit_s).escaped
    finally:
        del os.environ["TRAINCAST_DEBUG"]
    return "not repeated" if escaped is None else f"{type(escaped).__name__} at {_frame_of(escaped)}"


def _frame_of(error: BaseException) -> str:
    """Return file and function of the innermost frame of traincast, and the line of it."""
    frames = [each for each in traceback.extract_tb(error.__traceback__) if _SOURCE in each.filename]
    if not frames:
        return "outside traincast"
    last = frames[-1]
    return f"{last.filename.rpartition(_SOURCE)[2]}:{last.lineno} {last.name}"
