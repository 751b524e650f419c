"""``traincast convert`` with a writer that counts: what reaches a writer, and what is left when one fails."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

import traincast
from support import write_pipeline
from traincast.cli.main import cli
from traincast.diagnostics import Note
from traincast.errors import ConfigError, FormatError
from traincast.formats.writer import WRITERS, Writer, WriterOption, Written


def count(run, choices):
    """Write one file per rank with its number of operations, which a run without a step does not have."""
    if choices["fail"] == "before":
        raise FormatError("holds what counts cannot say", run.name)
    program, timeline = run.simulated()

    def files():
        for index, rank in enumerate(program.rank_R.tolist()):
            if choices["fail"] == "midway" and index:
                raise FormatError("rank 1 has no number", run.name)
            mine = program.rank_slice(index)
            yield (
                f"ranks/{rank}.txt",
                [b"%d " % (mine.stop - mine.start), b"%r\n" % float(timeline.end_s_N[mine].max())],
            )

    return Written(files(), lost=(Note("names", "names of operations are not written"),))


@pytest.fixture(autouse=True)
def writers():
    fail = WriterOption(name="fail", help="When to fail.", default="never", choices=("never", "before", "midway"))
    known = WRITERS.entries()
    WRITERS.register("counts")(Writer(name="counts", title="counts", write=count, needs_step=True, options=(fail,)))
    WRITERS.register("gpus")(
        Writer(
            name="gpus",
            title="number of GPUs",
            write=lambda run, _: Written([("gpus.txt", [b"%d\n" % run.described_job().parallel.world_size])]),
            one_file=True,
            needs_job=True,
        )
    )
    yield
    for name in set(WRITERS.names()) - {each.name for each in known}:
        del WRITERS._entries[name]


JOB = """
[model]
name = "llama3-8b"
[parallel]
tp = 2
pp = 2
[batch]
global_batch = 16
seq_length = 2048
[cluster]
name = "h100"
gpus = 16
"""


@pytest.fixture
def aicb(tmp_path):
    return write_pipeline(tmp_path / "workload.txt", f_ns=1000, b_ns=2000, p=4)


@pytest.fixture
def job(tmp_path):
    file = tmp_path / "job.toml"
    file.write_text(JOB)
    return file


def run(*words):
    return CliRunner().invoke(cli, [str(word) for word in words])


def test_every_rank_of_a_job_is_written(job, tmp_path):
    done = run("convert", job, tmp_path / "out", "--to", "counts", "--json")
    document = json.loads(done.stdout)
    assert document["schema"] == "traincast.conversion/1"
    assert document["files"] == [str(tmp_path / f"out/ranks/{rank}.txt") for rank in range(16)]
    assert [note["code"] for note in document["lost"]] == ["names"]
    result = traincast.predict(job)
    ends = [float((tmp_path / f"out/ranks/{rank}.txt").read_text().split()[1]) for rank in range(16)]
    assert max(ends) == result.iteration_time_s
    assert document["size_bytes"] == sum(each.stat().st_size for each in (tmp_path / "out/ranks").iterdir())


def test_a_result_is_written_as_it_was_run(job, tmp_path):
    assert run("predict", job, "--out", tmp_path / "result", "--cluster", "a100").exit_code == 0
    assert run("convert", tmp_path / "result", tmp_path / "a", "--to", "counts").exit_code == 0
    assert run("convert", job, tmp_path / "b", "--to", "counts", "--cluster", "a100").exit_code == 0
    assert run("convert", job, tmp_path / "c", "--to", "counts").exit_code == 0
    first, second, third = ((tmp_path / name / "ranks/3.txt").read_text() for name in "abc")
    assert first == second != third


def test_a_workload_and_a_trace_have_steps_but_no_job(aicb, tmp_path):
    assert "and 3 files more" in run("convert", aicb, tmp_path / "out", "--to", "counts").output
    assert len(list((tmp_path / "out/ranks").iterdir())) == 4
    refused = run("convert", aicb, tmp_path / "gpus.txt", "--to", "gpus")
    assert refused.exception and not (tmp_path / "gpus.txt").exists()
    assert "a job file or the result of a forecast" in str(refused.exception)


@pytest.mark.parametrize("fail", ["before", "midway"])
def test_a_writer_that_fails_leaves_nothing(job, tmp_path, fail):
    with pytest.raises(FormatError, match="cannot say" if fail == "before" else "rank 1"):
        traincast.convert(job, tmp_path / "deep/out", "counts", fail=fail)
    assert {each.name for each in tmp_path.iterdir()} == {"job.toml"}


def test_what_is_there_is_kept_unless_forced(job, tmp_path):
    for to, out in (("gpus", tmp_path / "n"), ("counts", tmp_path / "out")):
        traincast.convert(job, out, to)
        file = out if out.is_file() else out / "ranks/0.txt"
        file.write_text("mine")
        with pytest.raises(ConfigError, match="there already; give --force"):
            traincast.convert(job, out, to)
        assert file.read_text() == "mine"
        traincast.convert(job, out, to, force=True)
        assert file.read_text() != "mine"
    assert (tmp_path / "n").read_text() == "16\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--to", "count"], "unknown format to write 'count'; known:"),
        (["--to", "counts", "--option", "fail"], "not of the form NAME=VALUE"),
        (
            ["--to", "counts", "--option", "fial=never"],
            "'fial' is not an option of counts; known: fail; did you mean fail?",
        ),
        (["--to", "counts", "--option", "fail=often"], "'often' is not a value of fail; known: never, before, midway"),
        (["--to", "gpus", "--option", "a=b"], "it has none"),
        (["--to", "counts", "--tp", "4"], "a job says its degrees"),
        ([], "Missing option '--to'"),
    ],
)
def test_what_is_asked_wrongly_is_said(job, tmp_path, words, message):
    done = run("convert", job, tmp_path / "out", *words)
    assert message in f"{done.exception} {done.output}"
    assert not (tmp_path / "out").exists()


def test_input_and_output_are_both_needed(job):
    assert "both needed" in run("convert", job, "--to", "counts").output


def test_the_model_that_fills_a_file_is_a_flag(tmp_path):
    job = "examples/aicb_gpt405b_1024gpu.toml"
    full = Path("examples/aicb_gpt_405b_1024gpu.txt").read_text()
    head, count, *rows = full.splitlines()
    empty = tmp_path / "empty.txt"
    cells = [row.split("\t") for row in rows]
    times = [["1" if at in (2, 5, 8) and cell != "0" else cell for at, cell in enumerate(row)] for row in cells]
    empty.write_text("\n".join([head, count, *("\t".join(row) for row in times)]) + "\n")
    out = tmp_path / "filled.txt"
    done = CliRunner().invoke(cli, ["convert", str(empty), str(out), "--to", "aicb", "--model", job])
    assert done.exit_code == 0, done.output
    assert out.read_text() == full
