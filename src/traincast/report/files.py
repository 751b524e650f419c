"""Files that are written whole or not at all: the reports of a result, and single ones."""

import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from msgspec import Struct

from traincast.errors import ConfigError, TraincastError
from traincast.registry import Registry
from traincast.simulation.result import Result

Writer = Callable[[Result, BinaryIO], None]
"""Writes a result to a binary stream; the same result gives the same bytes."""


class FileReport(Struct, frozen=True):
    """One kind of output file."""

    name: str
    """Name in `REPORTS`: ``"json"``."""
    filename: str
    """File in the output directory: ``"result.json"``."""
    write: Writer
    needs_timeline: bool = False
    """Whether it shows single operations; a result read back from JSON has none."""
    on_request: bool = False
    """Whether it is written only where it is asked for."""


REPORTS: Registry[FileReport] = Registry("report", "traincast.report")


def file_report(
    name: str, filename: str, *, needs_timeline: bool = False, on_request: bool = False
) -> Callable[[Writer], Writer]:
    """Return a decorator that enters a writer in `REPORTS`; parameters as in `FileReport`."""

    def enter(write: Writer) -> Writer:
        REPORTS.register(name)(FileReport(name, filename, write, needs_timeline, on_request))
        return write

    return enter


def write_directory(
    result: Result, out: Path, names: Sequence[str] | None = None, further: Sequence[str] = ()
) -> list[Path]:
    """Write file reports of a result into a directory, which is made where it does not exist.

    The files are first written whole into a temporary directory inside `out`, so that they
    share its file system, and then moved into place. After a failure none of them is left.

    Parameters
    ----------
    result : Result
        What to report.
    out : Path
        Directory.
    names : sequence of str, optional
        Names in `REPORTS`; None means every report that this result allows, but for those on request.
    further : sequence of str
        Names of more.

    Returns
    -------
    list of Path
        The files, in the order of the names.

    Raises
    ------
    UnknownNameError
        If a name is in no registry.
    ConfigError
        If `out` is a file or cannot be created, or a named report needs the timeline and the
        result has none.
    TraincastError
        If a file cannot be written.
    """
    reports = _chosen(result, names, further)
    targets = [out / report.filename for report in reports]
    with _made(out), _staging(out) as staging:
        for target in targets:
            if target.is_dir():
                raise ConfigError(f"{target} is a directory; a report of that name cannot be written")
        staged = [_write(report, result, staging) for report in reports]
        _publish(staged, targets, staging)
    return targets


def _chosen(result: Result, names: Sequence[str] | None, further: Sequence[str]) -> list[FileReport]:
    has_timeline = result.program is not None and result.timeline is not None
    usual = [each for each in REPORTS.entries() if (has_timeline or not each.needs_timeline) and not each.on_request]
    named = list(map(REPORTS.get, (*(names or ()), *further)))
    for report in named:
        if report.needs_timeline and not has_timeline:
            raise ConfigError(
                f"the report {report.name!r} shows single operations, which this result does not hold; "
                "simulate again to get it"
            )
    return list(dict.fromkeys([*(usual if names is None else ()), *named]))


@contextmanager
def _made(out: Path) -> Iterator[None]:
    """Make the directory; take away again what was made if the body fails."""
    missing: list[Path] = []
    try:
        try:
            missing += [path for path in (out, *out.parents) if not path.exists()]
            out.mkdir(parents=True, exist_ok=True)
        except FileExistsError:
            raise ConfigError(f"{out} is a file; name a directory for the output") from None
        except OSError as error:
            raise ConfigError(f"the output directory {out} cannot be created: {error.strerror}") from None
        yield
    except BaseException:
        for path in missing:
            try:
                path.rmdir()
            except OSError:
                # Never made, or somebody else put a file there meanwhile: then so are its parents.
                continue
        raise


@contextmanager
def _staging(out: Path) -> Iterator[Path]:
    """Make a temporary directory inside `out`, and take it away in any case."""
    try:
        staging = Path(tempfile.mkdtemp(prefix=".traincast-", dir=out))
    except OSError as error:
        raise ConfigError(f"the output directory {out} cannot be written to: {error.strerror}") from None
    try:
        yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _write(report: FileReport, result: Result, directory: Path) -> Path:
    path = directory / report.filename
    try:
        with path.open("wb") as stream:
            report.write(result, stream)
    except OSError as error:
        raise TraincastError(f"{report.filename} cannot be written: {error.strerror or error}") from error
    return path


def _publish(staged: Sequence[Path], targets: Sequence[Path], staging: Path) -> None:
    """Move files into place; if one cannot be moved, what stood in the place of those before it comes back."""
    before = staging / ".before"
    done: list[Path] = []
    try:
        before.mkdir()
        for place, (source, target) in enumerate(zip(staged, targets, strict=True)):
            if target.is_symlink() or target.exists():
                _keep(target, before / str(place))
            source.replace(target)
            done.append(target)
    except OSError as error:
        raise TraincastError(f"{targets[len(done)]} cannot be written: {error.strerror or error}") from error
    finally:
        if len(done) < len(targets):
            for place, target in enumerate(done):
                with suppress(OSError):
                    _put_back(before / str(place), target)


def _keep(path: Path, kept: Path) -> None:
    """Keep a file under another name, too, without copying it where the file system can."""
    try:
        kept.hardlink_to(path)
    except OSError:
        shutil.copy2(path, kept, follow_symlinks=False)


def _put_back(kept: Path, path: Path) -> None:
    """Put back what was kept of a file; take the file away where nothing was."""
    if kept.is_symlink() or kept.exists():
        kept.replace(path)
    else:
        path.unlink(missing_ok=True)


def write_files(out: Path, files: Iterable[tuple[str, Iterable[bytes]]], *, force: bool = False) -> list[Path]:
    """Write files into a directory, which is made where it does not exist; all of them or none.

    Parameters
    ----------
    out : Path
        Directory.
    files : iterable of (str, iterable of bytes)
        Path of each below it, with ``/``, and its content in pieces; nothing of it is kept in memory.
    force : bool
        Write over files that are there.

    Raises
    ------
    ConfigError
        If `out` is a file or cannot be created, or a file is there already.
    TraincastError
        If a file cannot be written.
    """
    with _made(out), _staging(out) as staging:
        staged = [_stored(staging / name, content) for name, content in files]
        targets = [out / path.relative_to(staging) for path in staged]
        for target in targets:
            if target.is_dir():
                raise ConfigError(f"{target} is a directory; a file of that name cannot be written")
            if not force:
                refuse_existing(target)
            target.parent.mkdir(parents=True, exist_ok=True)
        _publish(staged, targets, staging)
    return targets


def refuse_existing(path: Path) -> None:
    """Refuse to write over a file that is there.

    Raises
    ------
    ConfigError
        If it is there.
    """
    if path.is_file():
        raise ConfigError("is there already; give --force to write over it, or another name", str(path))


def _stored(path: Path, content: Iterable[bytes]) -> Path:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as stream:
            stream.writelines(content)
    except OSError as error:
        raise TraincastError(f"{path.name} cannot be written: {error.strerror or error}") from error
    return path


def write_whole(path: Path, content: bytes | Iterable[bytes]) -> None:
    """Write a file through a temporary one next to it; an existing file is replaced in one step.

    Of a symbolic link the file that it leads to is replaced. A device or pipe, such as ``/dev/null``, is written to as
    it is: replacing it would take it away.

    Raises
    ------
    ConfigError
        If it is a directory or cannot be written; nothing is left behind then.
    """
    if path.is_dir():
        raise ConfigError(f"{path} is a directory; name a file for the output")
    pieces = [content] if isinstance(content, bytes) else content
    try:
        if path.exists() and not path.is_file():
            with path.open("wb") as device:
                device.writelines(pieces)
            return
        target = path.resolve() if path.is_symlink() else path
        temporary = target.with_name(f".traincast-{secrets.token_hex(8)}")
        # "x": the file is ours from the beginning, whoever else may write to the folder.
        stream = temporary.open("xb")
        try:
            with stream:
                stream.writelines(pieces)
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)
    except (OSError, RuntimeError) as error:
        # A circle of links is a RuntimeError.
        raise ConfigError(f"{path} cannot be written: {getattr(error, 'strerror', None) or error}") from None


def check_writable(path: Path) -> None:
    """Refuse a file that `write_whole` could not write, before the work that it is for.

    Raises
    ------
    ConfigError
        If it is a directory, its folder is not there, or nothing may be written there.
    """
    if path.is_dir():
        raise ConfigError(f"{path} is a directory; name a file for the output")
    target = path.resolve() if path.is_symlink() else path
    if not target.parent.is_dir():
        raise ConfigError(f"{path} cannot be written: the folder {target.parent} is not there")
    if not os.access(target.parent, os.W_OK):
        raise ConfigError(f"{path} cannot be written: nothing may be written to {target.parent}")
