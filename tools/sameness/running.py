"""A case is one command; it runs in this process, in a folder of its own, and what it gave is recorded."""

import contextlib
import gzip
import hashlib
import io
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from traincast.cli.main import main

ROOT = Path(__file__).resolve().parent.parent.parent
INPUTS = {"examples": ROOT / "examples", "recipes": ROOT / "tests" / "dialects" / "recipes"}
"""Folders that cases read, by the name that they have where a case runs."""

PROVENANCE = ("version", "screen_s")
"""Keys that say who made a result and how long that took, not what it is."""

FEASIBLE, INFEASIBLE = "feasible", "infeasible"

Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Case:
    """One command, and the folder that it writes."""

    name: str
    kind: str
    arguments: tuple[str, ...]
    files: dict[str, str] = field(default_factory=dict)
    """Text of the files that it reads, by path."""
    out: str = ""
    """The file or folder that it writes, whose bytes are recorded."""
    before: tuple[str, ...] = ()
    """A command that writes what this one reads into `out`."""


@contextlib.contextmanager
def workshop() -> Iterator[Path]:
    """Work in a new folder that has the inputs of all cases."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as made:
        for name, folder in INPUTS.items():
            shutil.copytree(folder, Path(made, name))
        os.chdir(made)
        try:
            yield Path(made)
        finally:
            os.chdir(before)


def run(case: Case) -> Record:
    """Run a case in the working folder, and return all that it gave but its provenance."""
    for path, text in case.files.items():
        Path(path).write_text(text, encoding="utf-8")
    if case.before:
        _command(case.before)
    code, out, err = _command(case.arguments)
    record: Record = {"case": case.name, "kind": case.kind, "arguments": list(case.arguments), "files": case.files}
    record |= {"code": code, "out": _document(out)}
    if code:
        record["err"] = err
    if case.out:
        out = Path(case.out)
        record["written"] = dict(_written(out))
        shutil.rmtree(out, ignore_errors=True)
        out.unlink(missing_ok=True)
    return record


def outcome(record: Record) -> str:
    """Say whether a case ran, or was refused."""
    return INFEASIBLE if record["code"] else FEASIBLE


def _command(arguments: tuple[str, ...]) -> tuple[object, str, str]:
    """Return exit code and both outputs of a command; of an exception that escapes its type and message."""
    streams = [io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2)]
    code: object = 0
    with contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1]):
        try:
            main(list(arguments))
        except SystemExit as stop:
            code = stop.code or 0
        except Exception as error:
            code = f"{type(error).__name__}: {error}"
    out, err = (each.buffer.getvalue().decode() for each in streams)  # type: ignore[attr-defined]
    return code, out, err


def _document(text: str) -> Any:  # noqa: ANN401
    try:
        return _without_provenance(json.loads(text))
    except json.JSONDecodeError:
        return text.splitlines()


def _without_provenance(value: Any) -> Any:  # noqa: ANN401
    if isinstance(value, dict):
        return {key: _without_provenance(each) for key, each in value.items() if key not in PROVENANCE}
    return list(map(_without_provenance, value)) if isinstance(value, list) else value


def _written(out: Path) -> Iterator[tuple[str, str]]:
    """Yield the digest of the bytes of each file that was written, by path; of packed ones that of their content."""
    files = sorted(each for each in out.rglob("*") if each.is_file()) if out.is_dir() else [out] * out.is_file()
    for file in files:
        content = file.read_bytes()
        if file.suffix == ".gz":
            content = gzip.decompress(content)
        # A page is as its version draws it, and a result.json is compared key by key as the output of its command.
        if file.name not in ("report.html", "sweep.html", "result.json"):
            yield file.as_posix(), hashlib.sha256(content).hexdigest()
