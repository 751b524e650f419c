"""The conformance suite of dialects: every log is told, read, followed, packed, cut and mixed up."""

import gzip

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traincast.errors import FormatError
from traincast.formats.open import identify
from traincast.formats.training_log import TRAINING_LOG
from traincast.formats.training_log.dialects import DIALECTS, OF_FILES
from traincast.formats.training_log.following import LogFollower
from traincast.formats.training_log.meaning import timed_steps
from traincast.formats.training_log.reader import read_chunks, read_log
from training_log_samples import SAMPLES

LINES = [name for name, sample in SAMPLES.items() if sample.lines]


def read(data, size=None):
    size = size or max(1, len(data))
    return read_chunks("run.log", (data[at : at + size] for at in range(0, len(data), size)))


def pairs(log, known):
    """Return the steps of a log, each with its time."""
    timed = timed_steps(log, known)
    return set() if timed is None else {*zip(timed.steps.step.tolist(), timed.steps.step_s.tolist(), strict=True)}


def test_every_dialect_has_a_log():
    assert {sample.framework for sample in SAMPLES.values()} == {each.name for each in (*DIALECTS, *OF_FILES)}


@pytest.mark.parametrize("name", SAMPLES)
def test_it_says_what_its_framework_wrote(name):
    sample = SAMPLES[name]
    log = read(sample.data)
    timed = timed_steps(log, sample.known).steps
    assert (log.framework.name, timed.step.tolist()) == (sample.framework, sample.step)
    assert timed.step_s.tolist() == pytest.approx(sample.step_s)
    for column, values in sample.also.items():
        assert getattr(timed, column).tolist() == pytest.approx(values), column
    assert sample.facts.items() <= log.facts.items()
    assert log.warnings == ()
    if sample.counts:
        assert log.framework.flops.counts == sample.counts
        assert ".py" in log.framework.flops.source
    if sample.memory:
        assert log.framework.memory.kind == sample.memory


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "packed"])
@pytest.mark.parametrize("name", SAMPLES)
def test_a_file_is_told_and_read(name, packed, tmp_path):
    sample = SAMPLES[name]
    path = tmp_path / "some.file"
    path.write_bytes(gzip.compress(sample.data) if packed else sample.data)
    assert identify(path) is TRAINING_LOG
    assert pairs(read_log(path), sample.known) == pairs(read(sample.data), sample.known)


@pytest.mark.parametrize("size", [1, 7, 64])
@pytest.mark.parametrize("name", SAMPLES)
def test_pieces_of_any_size_are_one_file(name, size):
    sample = SAMPLES[name]
    assert pairs(read(sample.data, size), sample.known) == pairs(read(sample.data), sample.known)


@pytest.mark.parametrize("name", LINES)
def test_line_by_line_is_as_at_once(name):
    sample = SAMPLES[name]
    follower = LogFollower("run.log", sample.known)
    parts = sample.data.decode().replace("\r", "\n").split("\n")
    points = [point for part in parts if part and (point := follower.feed(part)) is not None]
    timed = timed_steps(read(sample.data), sample.known).steps
    assert [(point.step, point.start) for point in points] == [*zip(timed.step, timed.start, strict=True)]
    assert [point.step_s for point in points] == pytest.approx(timed.step_s.tolist())


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(sorted(SAMPLES)), st.floats(0, 1))
def test_a_log_that_was_cut_anywhere_says_nothing_that_the_whole_does_not(name, share):
    sample = SAMPLES[name]
    cut = sample.data[: int(share * len(sample.data))]
    try:
        found = pairs(read(cut), sample.known)
    except FormatError as error:
        assert "\n" not in str(error)
        found = set()
    if name != "trainer-state":
        assert found <= pairs(read(sample.data), sample.known)


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(sorted(SAMPLES)),
    st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.binary(min_size=1, max_size=9)), min_size=1, max_size=5),
)
def test_a_log_that_is_damaged_anywhere_is_read_or_refused_with_one_message(name, damages):
    data = bytearray(SAMPLES[name].data)
    for share, what in damages:
        at = int(share * len(data))
        data[at : at + len(what)] = what
    try:
        log = read(bytes(data), 999)
        timed = timed_steps(log, SAMPLES[name].known)
    except FormatError as error:
        assert "\n" not in str(error)
    else:
        if timed is not None:
            assert np.isfinite(timed.steps.step_s).all()
            assert (timed.steps.step_s > 0).all()


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(LINES), st.integers(0, 2**32), st.binary(min_size=1, max_size=200))
def test_lines_of_anything_between_change_nothing(name, seed, noise):
    sample = SAMPLES[name]
    noise = noise.replace(b"\n", b" ").replace(b"\r", b" ")
    whole = sample.data.split(b"\n")
    # The first line of a table is its header.
    at = min(1 + seed % len(whole), len(whole) - 1)
    mixed = b"\n".join([*whole[:at], b"\xff\xfe " + noise, *whole[at:]])
    assert pairs(read(mixed), sample.known) == pairs(read(sample.data), sample.known)


@pytest.mark.parametrize("name", LINES)
def test_a_run_that_was_started_again_is_two_starts(name):
    sample = SAMPLES[name]
    log = read(sample.data + sample.data)
    if len(sample.step) > 1:
        assert log.starts == 2
        assert len(timed_steps(log, sample.known).steps) == 2 * len(sample.step)


@pytest.mark.parametrize(
    "name", [name for name in LINES if not SAMPLES[name].framework.startswith(("csv", "lightning"))]
)
def test_ranks_that_print_the_same_are_one(name):
    sample = SAMPLES[name]
    if b"[default7]" in sample.data or b"[rank0]" in sample.data:
        return
    ranked = [f"[rank{rank}]:{part}" for part in sample.data.decode().split("\n") if part.strip() for rank in (0, 1, 2)]
    log = read(("\n".join(ranked) + "\n").encode())
    assert pairs(log, sample.known) == pairs(read(sample.data), sample.known)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["step,step_s", "iteration,iter_time_ms", "json", "events"]),
    st.lists(st.floats(1e-3, 1e4), min_size=1, max_size=40),
)
def test_what_was_written_is_read(form, times):
    from json import dumps

    from training_logs import event_file

    if form == "events":
        data = event_file([(1.7e9, n, "iteration-time", time) for n, time in enumerate(times, 1)])
        times = np.array(times, np.float32).astype(float).tolist()
    elif form == "json":
        data = "".join(dumps({"step": n, "step_s": time}) + "\n" for n, time in enumerate(times, 1)).encode()
    else:
        factor = 1e3 if form.endswith("ms") else 1.0
        data = "".join([f"{form}\n", *(f"{n},{time * factor!r}\n" for n, time in enumerate(times, 1))]).encode()
    steps = read(data).steps
    assert steps.step.tolist() == [*range(1, len(times) + 1)]
    assert steps.step_s.tolist() == pytest.approx(times)
