"""What the user names is opened only where it is a regular file of a bounded size."""

import gzip
import io
import json
import os
import random
import re
import socket
from pathlib import Path

import pytest

import traincast
from traincast import files
from traincast.calibration.tables import read_table
from traincast.cli.terminal import print_json
from traincast.dialects import draft_like
from traincast.errors import FormatError, TraincastError
from traincast.estimate.operators.constants import load_constants
from traincast.files import MOST_DEPTH, parse_json, parse_toml, read_bytes, read_text, unpacked
from traincast.formats.contract import FORMATS, Format
from traincast.formats.open import identify
from traincast.hardware.clusters import load_cluster
from traincast.job.frameworks import load_framework
from traincast.job.job_file import read_job_file
from traincast.job.options import LayoutOptions
from traincast.model.load import load_model


def test_a_file_comes_back_as_it_is(tmp_path):
    path = tmp_path / "file"
    for content in (b"", b"a\r\nb\rc\n", bytes(range(256))):
        path.write_bytes(content)
        assert read_bytes(path) == content
        assert read_bytes(path, len(content)) == content
    path.write_bytes("ä\r\nb\rc\n".encode())
    assert read_text(path) == "ä\nb\nc\n"


def test_a_larger_file_is_refused_before_it_is_read(tmp_path):
    path = tmp_path / "large"
    with path.open("wb") as stream:
        # A hole: it has a size and takes no room.
        stream.truncate(2**40)
    with pytest.raises(FormatError, match=r"large: has 1 TiB; 256 MiB is the limit"):
        read_bytes(path)
    path.write_bytes(b"1234")
    with pytest.raises(FormatError, match=r"has 4 B; 3 B is the limit"):
        read_bytes(path, 3)


READERS = {
    "cluster": load_cluster,
    "framework": load_framework,
    "model": load_model,
    "job": read_job_file,
    "constants": load_constants,
    "torchtitan": lambda path: draft_like("torchtitan", [f"--job.config_file={path}"]),
    "table": lambda path: read_table(Path(path)),
}


def special_files(folder):
    """Yield what is not a regular file, under a name that every reader takes."""
    pipe = folder / "pipe.toml"
    os.mkfifo(pipe)
    yield pipe
    for number, device in enumerate(("/dev/zero", "/dev/full", "/dev/random")):
        link = folder / f"device{number}.toml"
        link.symlink_to(device)
        yield link
    (folder / "folder.toml").mkdir()
    yield folder / "folder.toml"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(folder / "s.toml"))
        yield folder / "s.toml"


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="no such file here")
def test_a_file_that_does_not_give_its_bytes_is_named():
    for read in (read_bytes, identify):
        with pytest.raises(FormatError, match=r"^/proc/self/mem: cannot be read: "):
            read(Path("/proc/self/mem"))


@pytest.mark.parametrize("reader", READERS.values(), ids=list(READERS))
def test_no_reader_opens_what_is_no_file(tmp_path, monkeypatch, reader):
    monkeypatch.chdir(tmp_path)
    for path in special_files(tmp_path.relative_to(tmp_path)):
        with pytest.raises(TraincastError, match=r"pipe or device|cannot be read"):
            reader(str(path))


def test_no_format_opens_what_is_no_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path in special_files(tmp_path.relative_to(tmp_path)):
        for read in (identify, *(form.inspect for form in FORMATS.entries())):
            with pytest.raises(FormatError, match=r"pipe or device|cannot be read"):
                read(path)
        for form in FORMATS.entries():
            if isinstance(form, Format):
                with pytest.raises(TraincastError):
                    form.read([path], LayoutOptions())


@pytest.mark.parametrize("members", [1, 3])
def test_a_packed_file_expands(members):
    data = bytes(range(256)) * 9000
    packed = b"".join(gzip.compress(data) for _ in range(members))
    assert unpacked(packed, "x") == data * members
    assert unpacked(packed + b"\0\0", "x") == data * members
    assert unpacked(b"plain", "x") == b"plain"


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-9], lambda data: data[:5], lambda data: data[:60] + b"?" + data[61:]]
)
def test_a_damaged_packed_file_is_refused(damage):
    packed = gzip.compress(random.Random(1).randbytes(1000))  # noqa: S311 - no secret
    with pytest.raises(FormatError, match=r"x: is not a complete gzip file"):
        unpacked(damage(packed), "x")


def test_a_packed_file_expands_no_further_than_the_limit():
    bomb = gzip.compress(bytes(2**22))
    assert len(unpacked(bomb, "x", 2**22)) == 2**22
    for data in (bomb, gzip.compress(b"") * 10 + bomb):
        with pytest.raises(FormatError, match=r"x: expands to more than 1 MiB, the limit"):
            unpacked(data, "x", 2**20)


@pytest.mark.parametrize(
    "text",
    [".".join(["a"] * 50_000) + " = 1", "[" + " . ".join(["a"] * 50_000) + "]", '"a".' * 50_000 + "a = 1",
     "x = { " + ".".join(["a"] * 50_000) + " = 1 }", "[" * 50_000, "x = " + "[" * 50_000, "x = " + "9" * 5000,
     "x = " + '{"a"=' * 50_000],
)  # fmt: skip
def test_deep_and_long_documents_are_refused(text):
    with pytest.raises(FormatError, match=r"^x.toml"):
        parse_toml(text, "x.toml")


def test_a_deep_key_says_its_line():
    assert parse_toml("a." * (MOST_DEPTH - 1) + "b = 1", "x")
    with pytest.raises(FormatError, match=r"^x:3: a dotted key has more than 32 parts"):
        parse_toml("\n\n" + "a." * MOST_DEPTH + "b = 1", "x")
    # Long words, and sentences in texts, are no deep keys.
    assert parse_toml(f'{"a" * 10**6} = "{"Ends. " * 20}"', "x")


@pytest.mark.parametrize("text", ["[" * 10**5, '{"a":' * 10**5, "9" * 5000])
def test_deep_and_long_json_is_refused(text):
    with pytest.raises(FormatError, match=r"^x.json"):
        parse_json(text, "x.json")


SOURCE = Path(traincast.__file__).parent
SHIPPED = re.compile(r"^from importlib(?: import |\.)resources|\bSHIPPED\b|Path\(__file__\)", re.MULTILINE)
PAST_THE_GUARD = re.compile(
    r"\.read_bytes\(|\.open\((?!\"[wax]b\")|(?<![\w.])open\(|json\.load\(|tomllib\.load\(|gzip\.(?:open|decompress)"
)


UNGUARDED = {"files.py", "shipped.py", "registry.py", "machine_code.py", "serve/memory.py", "serve/answers/bench.py"}
"""What the guard is, what is shipped, what is installed with Python, what was compiled, what the system says, and what
workers of the planner keep for each other."""


def test_no_module_opens_a_file_past_the_guard():
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        # Writing is another matter, and what is shipped or said by the system (/proc) needs no guard.
        past = PAST_THE_GUARD.search(text) or (".read_text(" in text and not SHIPPED.search(text))
        if past and str(path.relative_to(SOURCE)) not in UNGUARDED:
            found.append(str(path.relative_to(SOURCE)))
    assert not found


def test_a_toml_number_that_no_float_holds_is_refused():
    with pytest.raises(FormatError, match="out of range"):
        parse_toml("a = 1\nb = 1e400", "x.toml")
    assert parse_toml("a = inf\nb = 1e300", "x.toml") == {"a": float("inf"), "b": 1e300}


def test_a_file_that_has_nothing_to_give_yet_is_empty(tmp_path, monkeypatch):
    """Of /proc/kmsg and its kin a read returns None, for they are opened so that nobody waits."""
    path = tmp_path / "file"
    path.write_bytes(b"some")

    class Silent(io.BytesIO):
        def read(self, *_):
            return None

    monkeypatch.setattr(os, "fdopen", lambda handle, *_: os.close(handle) or Silent())
    assert files.read_head(path, 4) == b""
    assert files.read_bytes(path) == b""
    assert b"".join(files.chunks_of(path, 4)) == b""


def test_a_document_goes_to_a_stream_of_text_alone(monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr("sys.stdout", stream)
    print_json({"schema": "traincast.models/1"})
    assert json.loads(stream.getvalue())["schema"] == "traincast.models/1"
