"""Every registered format keeps these promises; a new one is tested by registering and by samples of its own.

A sample is a file, or a folder of the files of one run, in ``samples/NAME/``, NAME being that of the format; the
examples that users see count as well. Samples are small: every one is damaged in many ways. A package with a format
of its own names the folder of its samples in ``TRAINCAST_FORMAT_SAMPLES`` and runs this file with ``-m '' -k NAME``.
"""

import hashlib
import importlib
import importlib.util
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from msgspec import Struct
from msgspec.structs import fields, force_setattr

from support import expanded
from traincast import api
from traincast.errors import ConfigError, FormatError, TraincastError
from traincast.files import unpacked_head
from traincast.formats.contract import FORMATS, Format
from traincast.formats.open import expand_inputs, identify, refuse_meaningless
from traincast.job.options import LayoutOptions
from traincast.workload.words import STREAM_OF_GROUP, Group, Kind, Operation, Provenance, Stream

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "examples"
OF_EXAMPLES = {"aicb": ("aicb_*.txt",), "echo": ("megatron_*",), "neusight": ("neusight_*",)}
FORMS = FORMATS.entries()
FOLDERS = [HERE / "samples", *(Path(each) for each in [os.environ.get("TRAINCAST_FORMAT_SAMPLES")] if each)]
NOISY = {"training-log"}
"""Formats of files in which a program prints whatever it likes beside what is read."""
SURE, DOUBT = 0.5, 0.25
"""A format is surer than the one of its own files, and less sure than the other of those of all others."""


def _own(folder: Path) -> list[Path]:
    return sorted(each for each in folder.iterdir() if not each.name.startswith(".")) if folder.is_dir() else []


def _samples(name: str) -> list[Path]:
    """Return the runs of a format, each a file or a folder."""
    of_examples = [path for pattern in OF_EXAMPLES.get(name, ()) for path in sorted(EXAMPLES.glob(pattern))]
    # A job file may stand beside what was made of it.
    of_examples = [path for path in of_examples if path.suffix != ".toml"]
    return [*(path for folder in FOLDERS for path in _own(folder / name)), *of_examples]


RUNS = [(form, path) for form in FORMS for path in _samples(form.name)]
WORKLOADS = [(form, path) for form, path in RUNS if isinstance(form, Format)]
SMALL = [(form, path) for form, path in RUNS if path.parent != EXAMPLES]
FILES = [(form, file) for form, path in RUNS for file in expand_inputs([path])]


def _named(cases):
    return {"argvalues": cases, "ids": [f"{form.name}:{path.name}" for form, path in cases]}


def digest(value: object) -> str:
    """Return a digest of everything that a result of reading holds, arrays by their bytes."""
    if isinstance(value, np.ndarray):
        text = f"{value.dtype}{value.shape}{value.tobytes().hex()}"
    elif isinstance(value, Struct):
        text = ",".join(f"{each}={digest(getattr(value, each))}" for each in value.__struct_fields__)
    elif isinstance(value, dict):
        text = ",".join(f"{digest(key)}:{digest(item)}" for key, item in value.items())
    elif isinstance(value, list | tuple):
        text = ",".join(digest(item) for item in value)
    else:
        text = repr(sorted(value) if isinstance(value, frozenset) else value)
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_a_format_says_what_it_is(form):
    assert FORMATS.get(form.name) is form
    assert re.fullmatch(r"[a-z][a-z0-9-]*", form.name)
    assert form.title.strip()
    if isinstance(form, Format):
        assert form.options <= {*LayoutOptions.__struct_fields__}
    else:
        assert form.instead.format(name="a file").strip(), "say what to do with a file that is not a workload"
    assert _samples(form.name), f"put a file of the format into tests/conformance/samples/{form.name}/"


def test_every_folder_of_samples_is_of_a_format():
    assert {folder.name for folder in _own(HERE / "samples")} <= {form.name for form in FORMS}


@pytest.mark.parametrize(("form", "path"), **_named(FILES))
def test_a_file_is_told_by_its_own_format_and_no_other(form, path, tmp_path):
    data = unpacked_head(path.read_bytes(), 65536)
    head = data.decode(errors="replace")
    # Of bytes that are not text neither ends of lines nor what stands before them may change.
    is_text = "\0" not in head and "\ufffd" not in head
    for text in (head, head.replace("\n", "\r\n"), "\n" + head) if is_text else (head,):
        sure = {each.name: each.looks_like(text) for each in FORMATS.entries()}
        assert sure.pop(form.name).confidence >= SURE or text[0] == "\n", text[:40]
        for name, other in sure.items():
            assert 0 <= other.confidence < DOUBT, (name, other.reason)
            assert other.reason
    assert identify(path) is form
    copy = tmp_path / path.name
    copy.write_bytes(b"\xef\xbb\xbf" + data if is_text else path.read_bytes())
    assert identify(copy) is form


@pytest.mark.parametrize(("form", "path"), **_named(FILES))
def test_a_file_is_described(form, path):
    found = form.inspect(path)
    assert (found.format, found.path) == (form.name, str(path))
    assert 0 < found.confidence <= 1
    assert found.generation
    assert sum(found.counts.values()) > 0
    for total in found.totals:
        assert total.count > 0 or not total.size_bytes
        assert total.time_s is None or 0 <= total.time_s < np.inf
    for note in found.oddities:
        assert note.code and note.text and (note.place or "").startswith(str(path)), note
    assert digest(form.inspect(path)) == digest(found)


@pytest.mark.slow
@pytest.mark.parametrize(("form", "path"), **_named(WORKLOADS))
def test_what_is_read_is_a_sound_workload(form, path):
    workload = api.read(path)
    assert digest(workload) == digest(api.read(path))
    ops, parallel = workload.ops, workload.parallel
    files = expand_inputs([path])
    assert [each.path for each in workload.inputs] == [str(file) for file in files]
    assert all(each.format == form.name for each in workload.inputs)
    for note in (*workload.assumptions, *workload.warnings):
        assert note.code and note.text.strip() == note.text and "\n" not in note.text, note
    if workload.program is not None:
        _check_recorded(workload, files)
        return
    # Who points at what.
    for rows in workload.segments:
        assert len(rows) and rows.min() >= 0 and rows.max() < len(ops)
    stages, virtual = parallel.pp, parallel.pp * parallel.vpp
    for template in workload.templates:
        assert template.forward_QM.shape == template.backward_QM.shape == (virtual, parallel.microbatches)
        per_stage = (template.start_P, template.after_forward_P, template.end_P)
        assert all(numbers.shape == (stages,) for numbers in per_stage)
        for numbers in (template.forward_QM, template.backward_QM, *per_stage, template.before_recv_DQM):
            assert numbers is None or (numbers.min() >= -1 and numbers.max() < len(workload.segments))
    assert workload.template_W.shape == (parallel.world_size,)
    assert 0 <= workload.template_W.min() <= workload.template_W.max() < len(workload.templates)
    assert workload.message_bytes_Q.shape == (virtual,)
    assert workload.message_bytes_Q.min() >= 0
    # What the operations say.
    for row in range(len(ops)):
        kind, group, stream = Kind(ops.kind_T[row]), Group(ops.group_T[row]), Stream(ops.stream_T[row])
        case = (ops.name_T[row], kind.name, ops.line_T[row])
        known = not np.isnan(ops.duration_s_T[row])
        assert not known or 0 <= ops.duration_s_T[row] < np.inf, case
        if kind is Kind.COLLECTIVE:
            assert stream is STREAM_OF_GROUP[group], case
            assert Operation(ops.operation_T[row]) is not Operation.NONE, case
            assert known or ops.size_bytes_T[row] >= 0, case
        else:
            assert group is Group.NONE, case
            assert known or ops.calls_T[row], case
        assert (Stream(ops.waits_for_T[row]) is not Stream.NONE) == (kind is Kind.WAIT), case
        assert ops.blocking_T[row] or kind is not Kind.WAIT, case
        # A time that was written has a place; a place is in one of the files.
        if Provenance(ops.provenance_T[row]) is Provenance.FILE:
            assert known and ops.line_T[row] >= (0 if path.suffix == ".json" else 1), case
            assert 0 <= ops.file_T[row] < len(files), case
    expanded(workload)  # Whoever meets in it can meet.


def _check_recorded(workload, files):
    """Check a workload whose operations were recorded one by one: who points at what, and when it ran."""
    program, timeline = workload.program, workload.timeline
    count = len(program)
    assert count and 0 <= program.row_N.min() <= program.row_N.max() < len(workload.ops)
    assert not workload.segments and not workload.templates
    for ends in (program.edge_src_E, program.edge_dst_E):
        assert not len(ends) or 0 <= ends.min() <= ends.max() < count
    assert -1 <= program.group_N.min() <= program.group_N.max() < len(program.groups)
    assert program.op_ptr_R1[0] == 0 and program.op_ptr_R1[-1] == count
    assert ((program.recorded.file_N >= 0) & (program.recorded.file_N < len(files))).all()
    communicates_N = program.group_N >= 0
    sized_N = workload.ops.size_bytes_T[program.row_N] >= 0
    operators_N = np.array([calls is not None for calls in workload.ops.calls_T])[program.row_N]
    assert (~np.isnan(program.known_s_N) | (communicates_N & sized_N) | operators_N).all()
    if timeline is not None:
        assert (timeline.ready_s_N <= timeline.start_s_N).all() and (timeline.start_s_N <= timeline.end_s_N).all()
        assert timeline.step_s == workload.measured.step_s


@pytest.mark.parametrize(("form", "path"), **_named([run for run in WORKLOADS if run in SMALL]))
def test_what_is_read_runs(form, path):  # noqa: ARG001
    result = api.simulate(path, engine="reference", cluster="h100")
    assert 0 < result.iteration_time_s < np.inf
    assert sum(result.breakdown_s.values()) == pytest.approx(result.iteration_time_s, rel=1e-9)


@pytest.mark.parametrize(("form", "path"), **_named([run for run in RUNS if run not in WORKLOADS]))
def test_what_is_no_workload_is_refused_as_one(form, path):
    with pytest.raises(FormatError, match=re.escape(f"{path}: {form.title}: ")):
        api.read(path)


_DIGEST = """
import sys
sys.path[:0] = sys.argv[1].split(":")
from test_formats import SMALL, WORKLOADS, digest
from traincast import api
print(digest([digest(api.read(run[1])) for run in WORKLOADS if run in SMALL]))
"""


@pytest.mark.slow
def test_reading_does_not_depend_on_the_hash_seed():
    room = f"{HERE}:{HERE.parent}"
    printed = {
        subprocess.run(
            [sys.executable, "-c", _DIGEST, room],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(printed) == 1


@pytest.mark.parametrize("form", [form for form in FORMS if isinstance(form, Format)], ids=lambda form: form.name)
def test_an_option_without_meaning_is_refused(form):
    values = {"stage_roles": "as-written", "overlap_grad_reduce": True, "forward_only": True, "comm": "model"}
    for option in fields(LayoutOptions):
        given = LayoutOptions()
        force_setattr(given, option.name, values.get(option.name, 2))
        if option.name in form.options:
            refuse_meaningless(form, given)
        else:
            with pytest.raises(ConfigError, match="has no meaning"):
                refuse_meaningless(form, given)


# --- damage


def _damages(data: bytes):
    """Yield a name and a damaged copy, again and again: cut, changed in a line, changed in a word."""
    for tenth in range(1, 10):
        yield f"cut at {tenth} tenths", data[: len(data) * tenth // 10]
    lines = data.split(b"\n")
    places = sorted({0, 1, min(2, len(lines) - 1), len(lines) // 2, max(0, len(lines) - 2)})
    for place in places:
        before, line, after = lines[:place], lines[place], lines[place + 1 :]
        yield f"without line {place + 1}", b"\n".join([*before, *after])
        yield f"line {place + 1} twice", b"\n".join([*before, line, line, *after])
        for what in (b"what is this", b"\xff\xfe\x00", b"", b"[", b'{"a": 1}', b",,,,,,,,,,,", b"\t" * 11):
            yield f"line {place + 1} is {what!r}", b"\n".join([*before, what, *after])
        words = list(re.finditer(rb"[0-9]+(?:\.[0-9]+)?", line))
        for word in words[:: max(1, len(words) // 4)]:
            for what in (b"-1", b"1e999", b"nan", b"9" * 60, b"", b"x", b"1.5"):
                changed = line[: word.start()] + what + line[word.end() :]
                yield f"{word[0]!r} of line {place + 1} is {what!r}", b"\n".join([*before, changed, *after])


_PLACED = re.compile(
    r"entry \[\d+\]|column \w+|the list '\w+'|the object |at byte \d+|event \d+|the file (?:is|has|holds|lists|speaks) "
)
"""How a message names a place that is not a line: an entry or column of JSON, a list, what is missing as a whole."""


def _judge(error: TraincastError, path: Path, lines: int, case: str) -> None:
    text = str(error)
    assert text.isprintable(), case
    assert len(text) < 1500, case
    if not isinstance(error, FormatError):
        assert str(path.parent) in text, (case, text)
        return
    assert Path(error.path).parent == path.parent, (case, text)
    if error.line is None:
        assert _PLACED.search(error.message), (case, text)
    else:
        assert 1 <= error.line <= lines, (case, text)


def _slow_after_the_first(cases):
    """Return the cases of runs; the least of each format is what every run of the tests damages."""
    first = {}
    for form, path in sorted(cases, key=lambda case: sum(file.stat().st_size for file in expand_inputs([case[1]]))):
        first.setdefault(form.name, path)
    marks = [() if path == first[form.name] else pytest.mark.slow for form, path in cases]
    return [
        pytest.param(*case, marks=mark, id=f"{case[0].name}:{case[1].name}")
        for case, mark in zip(cases, marks, strict=True)
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("form", "path"), _slow_after_the_first(SMALL))
def test_a_damaged_file_is_read_or_refused_with_a_place(form, path, tmp_path):
    files = expand_inputs([path])
    for file in files:
        (tmp_path / file.name).write_bytes(file.read_bytes())
    victim = tmp_path / files[-1].name
    copies = [tmp_path / file.name for file in files]
    refused, odd = 0, len(form.inspect(victim).oddities)
    for case, damaged in _damages(files[-1].read_bytes()):
        victim.write_bytes(damaged)
        lines = damaged.count(b"\n") + damaged.count(b"\r") + 1
        head = damaged[:65536].decode("utf-8", errors="replace")
        assert 0 <= form.looks_like(head).confidence <= 1, case
        reads = [(partial(form.read, options=LayoutOptions()), copies)] if isinstance(form, Format) else []
        for act, of in ((form.inspect, victim), *reads):
            try:
                found = act(of)
            except TraincastError as error:
                _judge(error, victim, lines, case)
                refused += 1
            else:
                # What is not a workload may say what it passed over, and where.
                refused += not isinstance(form, Format) and len(found.oddities) > odd
    assert refused > (0 if form.name in NOISY else 20), "damage is hardly noticed"


@pytest.mark.parametrize("form", [form for form in FORMS if hasattr(form, "write")])
def test_what_a_format_writes_it_reads_back(form, tmp_path):
    for sample in _samples(form.name):
        workload = api.read(sample)
        again = api.read(form.write(workload, tmp_path / sample.name))
        for each in workload.__struct_fields__:
            if each not in ("name", "inputs", "assumptions", "warnings"):
                assert digest(getattr(again, each)) == digest(getattr(workload, each)), each


# --- a new one

STEP = "pass,name,time_ms,all_reduce_bytes\nforward,mlp,1.5,\nbackward,mlp,2.5,1048576\nbackward,embedding,0.5,4096\n"


def _plugin(folder: Path) -> None:
    """Write the format that docs/adding.md adds as a package would install it: one module and its entry point."""
    page = (HERE.parents[1] / "docs" / "adding.md").read_text()
    (code,) = re.findall(r'```python\n("""Step tables.*?)```', page, re.DOTALL)
    (folder / "step_table.py").write_text(code)
    (folder / "step_table-1.dist-info").mkdir()
    (folder / "step_table-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: step-table\nVersion: 1\n")
    point = "[traincast.formats]\nstep-table = step_table:STEP_TABLE\n"
    (folder / "step_table-1.dist-info" / "entry_points.txt").write_text(point)


@pytest.fixture
def step_table(monkeypatch, tmp_path):
    """Install the format of docs/adding.md for this process, which finds it by its entry point."""
    _plugin(tmp_path)
    FORMATS.names()  # What comes with traincast is there before it.
    monkeypatch.setattr(FORMATS, "_entries", dict(FORMATS._entries))
    monkeypatch.setattr(FORMATS, "_loaded", False)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield FORMATS.get("step-table")
    del sys.modules["step_table"]


@pytest.fixture
def suite(step_table, monkeypatch, tmp_path):  # noqa: ARG001
    """Return this module as it is loaded where the format is installed and its samples are named."""
    sample = tmp_path / "samples" / "step-table" / "step.csv"
    sample.parent.mkdir(parents=True)
    sample.write_text(STEP)
    monkeypatch.setenv("TRAINCAST_FORMAT_SAMPLES", str(sample.parent.parent))
    spec = importlib.util.spec_from_file_location("suite_with_step_table", __file__)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_format_is_added_as_one_file_and_keeps_every_promise(suite, step_table, tmp_path):
    sample = tmp_path / "samples" / "step-table" / "step.csv"
    assert step_table in suite.FORMS
    for cases in (suite.RUNS, suite.WORKLOADS, suite.SMALL, suite.FILES):
        assert [case for case in cases if case[0] is step_table] == [(step_table, sample)]
    suite.test_a_format_says_what_it_is(step_table)
    suite.test_a_file_is_told_by_its_own_format_and_no_other(step_table, sample, tmp_path)
    suite.test_a_file_is_described(step_table, sample)
    suite.test_what_is_read_is_a_sound_workload(step_table, sample)
    suite.test_what_is_read_runs(step_table, sample)
    suite.test_an_option_without_meaning_is_refused(step_table)
    suite.test_a_damaged_file_is_read_or_refused_with_a_place(step_table, sample, tmp_path)


def test_the_added_format_means_what_its_rows_say(step_table, tmp_path):  # noqa: ARG001
    path = tmp_path / "step.csv"
    path.write_text(STEP)
    ideal = api.simulate(path, cluster="ideal", engine="reference", dp=4)
    assert ideal.iteration_time_s == pytest.approx(4.5e-3)
    assert ideal.parallel.dp == 4
    # The first all-reduce overlaps with the rest of the backward pass, the last one with nothing.
    slow = api.simulate(path, cluster="ideal", engine="reference", dp=4, busbw_bytes_per_s={"dp": 1e9})
    first_s, last_s = (2 * 3 / 4 * size / 1e9 for size in (1048576, 4096))
    assert slow.iteration_time_s == pytest.approx(4e-3 + max(first_s, 0.5e-3) + last_s, rel=0.05)
