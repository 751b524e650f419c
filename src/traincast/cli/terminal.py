"""The terminal of a command: all that it prints passes here, results to stdout, the rest to stderr.

What is printed is written whole or the command fails, as with files, and nothing that a file or an argument
says can steer the terminal (`traincast.report.plain.shown`).
"""

import io
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from traincast import report
from traincast.cli.manner import manner
from traincast.cli.time_left import TimeLeft
from traincast.errors import TraincastError
from traincast.progress import listening
from traincast.report.plain import printable, shown

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer
    from rich.console import Console

    from traincast.simulation.result import Result

_STEERING = re.compile("[\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""What JSON may say as it is and a terminal may obey: DEL, C1 controls, marks of the writing direction."""
_LONGEST_MESSAGE = 6000
"""Characters; the longest sound messages list some hundred known names."""
_LEAST_TOLD = 0.1
"""Least share that is told."""
_EVERY_S = 2.0
"""Least time between two lines about long work."""


class OutputError(TraincastError):
    """Standard output cannot be written."""


class _WholeOutput(io.FileIO):
    """A file descriptor that fails once: what is written after that goes nowhere.

    Python writes out what is left in its buffers when it ends, and would complain a second time, with an exit
    code of its own. None stands for a standard output that was closed before the command began; its number may
    belong to another file by now.
    """

    def __init__(self, descriptor: int | None) -> None:
        is_closed = descriptor is None
        super().__init__(os.devnull if descriptor is None else descriptor, "w", closefd=is_closed)
        self._is_closed, self._failed = is_closed, False

    def write(self, data: "ReadableBuffer") -> int:
        if self._failed:
            return memoryview(data).nbytes
        self._failed = True
        if self._is_closed:
            raise OutputError("standard output is closed; nothing can be printed")
        try:
            written = os.write(self.fileno(), data)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise OutputError(f"standard output cannot be written: {error.strerror or error}") from None
        self._failed = False
        return written


@contextmanager
def whole_output() -> Iterator[None]:
    """Let the body print through a standard output that is written whole, or raises.

    Without it ``PYTHONUNBUFFERED`` makes of stdout a raw file, whose short writes nobody checks: what does not
    fit on a full disk is cut off in silence. A stdout that is not a file, of a test for example, stays.

    Raises
    ------
    OutputError
        If what was printed cannot be written.
    BrokenPipeError
        If nobody reads it any more.
    """
    kept, stream = sys.stdout, _checked(sys.stdout)
    if stream is None:
        yield
        sys.stdout.flush()
        return
    sys.stdout = stream
    try:
        yield
        stream.flush()
    except BaseException:
        # What was printed before comes out, if it can; what went wrong is already on its way.
        with suppress(OSError, OutputError):
            stream.flush()
        raise
    finally:
        sys.stdout = kept


def _checked(stream: Any) -> io.TextIOWrapper | None:  # noqa: ANN401
    """Return a text stream in the place of stdout; None where that is not one of a file."""
    if stream is None:
        return _text_on(_WholeOutput(None), "utf-8")
    try:
        descriptor = stream.fileno()
        stream.flush()
    except (OSError, ValueError, AttributeError):
        return None
    return _text_on(_WholeOutput(descriptor), stream.encoding)


def _text_on(raw: _WholeOutput, encoding: str) -> io.TextIOWrapper:
    # A character that the terminal's encoding lacks is escaped, as JSON escapes it.
    return io.TextIOWrapper(
        io.BufferedWriter(raw), encoding=encoding, errors="backslashreplace", line_buffering=raw.isatty()
    )


def console() -> "Console":
    """Return the console for what the user asked for; coloured only on a terminal, and without ``NO_COLOR``."""
    how = manner()
    return report.console_for(plain=how.plain, verbose=how.verbose, quiet=how.quiet)


def print_line(text: str) -> None:
    """Write one line to stdout; a path in it stays whole, so that it can be copied."""
    if manner().quiet:
        return
    sys.stdout.write(f"{printable(text)}\n")


def print_document(text: str) -> None:
    """Write a text for another program to stdout, as it is."""
    sys.stdout.write(f"{text}\n")


def flush() -> None:
    """Hand on what was written to stdout, for whoever follows a pipe."""
    sys.stdout.flush()


def print_json(document: Mapping[str, Any]) -> None:
    """Write one JSON document to stdout."""
    text = report.encode(document).decode("utf-8")
    escaped = _STEERING.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
    sys.stdout.flush()
    # A stream that somebody has put in its place may take text alone.
    stream = getattr(sys.stdout, "buffer", None)
    if stream is None:
        sys.stdout.write(escaped)
    else:
        stream.write(escaped.encode("utf-8"))


def is_read(out: Path | None, *, as_json: bool, quiet: bool) -> bool:
    """Tell whether more is read of a result than the exit code, so that it is worth looking for what would help."""
    return out is not None or as_json or not quiet


def show_result(
    result: "Result",
    written: Sequence[Path],
    *,
    as_json: bool,
    quiet: bool,
    analysed: bool = False,
    verbose: bool = False,
) -> None:
    """Print a simulated step, as JSON or for people, perhaps with its analysis, and which files were written."""
    if as_json:
        print_json(report.result_to_dict(result))
    elif not quiet:
        report.print_result(console(), result, analysed=analysed, verbose=verbose)
        for path in written:
            print_line(f"wrote {path}")


def complain(message: str) -> None:
    """Write a message to stderr: long values cut short, control characters made visible."""
    text = shown(message)
    if len(text) > _LONGEST_MESSAGE:
        half = _LONGEST_MESSAGE // 2
        text = f"{text[:half]} [... {len(text) - _LONGEST_MESSAGE:,} characters ...] {text[-half:]}"
    if sys.stderr is None:
        return
    try:
        print(text, file=sys.stderr, flush=True)
    except (OSError, ValueError):
        # Nobody can be told; the exit code says it.
        return


@contextmanager
def announced(*, quiet: bool) -> Iterator[None]:
    """Print lines on stderr about the long work in the body: its size, how far it is, the time left."""
    if quiet or manner().quiet:
        yield
        return
    last_s = monotonic()
    left, said = TimeLeft(last_s), ""

    def tell(what: str, share: float) -> None:
        nonlocal left, last_s, said
        now_s = monotonic()
        if what != said:
            complain(what)
            left, last_s, said = TimeLeft(now_s), now_s, what
        elif now_s - last_s >= _EVERY_S and _LEAST_TOLD <= share < 1:
            complain(f"{int(100 * share)} % done{left.text(now_s, share)}")
            last_s = now_s

    with listening(tell):
        yield


@contextmanager
def rated(what: str, units: str, *, quiet: bool) -> Iterator[Callable[[int, int], None]]:
    """Print lines on stderr about work in many pieces: how many are done, how fast, the time left.

    Yields what is told how many are done, and of how many; the rate is of what is done since the first time.
    """
    last_s = monotonic()
    first: tuple[int, TimeLeft, float] | None = None

    def tell(done: int, total: int) -> None:
        nonlocal first, last_s
        now_s = monotonic()
        if first is None:
            first = done, TimeLeft(now_s), now_s
        if quiet or now_s - last_s < _EVERY_S or done in (first[0], total):
            return
        rate = (done - first[0]) / (now_s - first[2])
        left = first[1].text(now_s, (done - first[0]) / (total - first[0]))
        complain(f"{done:,} of {total:,} {units}, {rate:.3g} a second{left}")
        last_s = now_s

    if not quiet:
        complain(what)
    yield tell


@contextmanager
def progress(what: str, *, quiet: bool) -> Iterator[None]:
    """Show a bar on stderr for work of more than two seconds, if stderr is a terminal, instead of lines about it."""
    if quiet or not _is_watched():
        yield
        return
    from traincast.cli.bar import late_bar

    furthest = 0.0

    def listener(doing: str, share: float) -> None:
        # Work may begin again, with other overlaps or for another layout; the bar does not go back.
        nonlocal furthest
        furthest = max(furthest, share)
        tell(doing or what, furthest, 1.0)

    with late_bar(what) as tell, listening(listener, every=True):
        yield


@contextmanager
def counted(what: str, *, quiet: bool) -> Iterator[Callable[[int, int], None] | None]:
    """Show such a bar of work in pieces; yield what is told how many are done, and of how many."""
    if quiet or not _is_watched():
        yield None
        return
    from traincast.cli.bar import late_bar

    # What is announced of the whole is what the bar shows.
    with late_bar(what) as tell, listening(lambda _, __: None):
        yield lambda done, total: tell(what, done, total)


def _is_watched() -> bool:
    """Say whether somebody looks at what moves on stderr; a screen reader would read each turn of it."""
    how = manner()
    return sys.stderr is not None and sys.stderr.isatty() and not (how.plain or how.quiet)
