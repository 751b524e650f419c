"""Rank traces are written as they were read, and a simulated run so that it is read as the same run."""

import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import traincast
from echo_runs import MoeRun
from traincast.errors import FormatError
from traincast.formats.echo.files import read_runs
from traincast.formats.echo.grammar import load
from traincast.formats.echo.lines import MESSAGES
from traincast.formats.echo.spelling import milliseconds
from traincast.job.parallel import Parallel
from traincast.workload.builder import collective_op, compute_op
from traincast.workload.ops import Op
from traincast.workload.recorder import RankRecord, Recorder
from traincast.workload.words import Group, Kind, Operation, Phase

ROOT = Path(__file__).parents[3]
TRACED = [
    ROOT / "examples" / "megatron_pp4_tp2",
    ROOT / "examples" / "megatron_rank0_pp2.txt",
    ROOT / "examples" / "megatron_moe_profile_rank7.txt",
]
JOBS = {
    "one_f_one_b": ("llama3-8b", 8, "tp = 2\npp = 2\nvpp = 1"),
    "interleaved": ("llama3-8b", 8, "pp = 4\nvpp = 2"),
    "context": ("llama3-8b", 8, "tp = 2\ncp = 2"),
    "experts": ("mixtral-8x7b", 16, "pp = 2\nep = 8"),
    "sharded": ("llama3-8b", 16, "zero = 3\nshard = 8"),
}

WITHIN_PASSES = ("exposed_tp", "exposed_cp", "exposed_ep", "exposed_pp")


def converted(source, out):
    return traincast.convert(source, out, "echo")


def bytes_of(path):
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    return {file.name: file.read_bytes() for file in files}


def said(ops):
    """Return all that is read of a file, but for where it stands."""
    return [[getattr(op, name) for name in op.__struct_fields__ if name not in {"path", "line"}] for op in ops]


@pytest.mark.parametrize("path", TRACED, ids=lambda path: path.stem)
def test_a_traced_run_is_written_byte_by_byte(path, tmp_path):
    done = converted(path, tmp_path / "again")
    assert bytes_of(tmp_path / "again") == bytes_of(path)
    assert done.lost == ()


def test_every_operation_of_a_run_that_was_written_otherwise_is_equal(tmp_path):
    """The tracer prints as many digits as a time has; here they are always two."""
    MoeRun().write(tmp_path / "run")
    converted(tmp_path / "run", tmp_path / "again")
    (was,), (found,) = read_runs([tmp_path / "run"]), read_runs([tmp_path / "again"])
    assert {rank: said(trace.ops) for rank, trace in was.traces.items()} == {
        rank: said(trace.ops) for rank, trace in found.traces.items()
    }


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("jobs")
    for name, (model, gpus, layout) in JOBS.items():
        (folder / f"{name}.toml").write_text(
            f'[model]\nname = "{model}"\n[parallel]\n{layout}\n[batch]\nglobal_batch = 16\nseq_length = 2048\n'
            f'[cluster]\nname = "h100"\ngpus = {gpus}\n'
        )
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", JOBS)
def test_a_simulated_run_is_read_as_the_same_run(name, jobs, tmp_path):
    forecast = traincast.predict(jobs / f"{name}.toml")
    converted(jobs / f"{name}.toml", tmp_path / "traces")
    again = traincast.simulate(tmp_path / "traces", cluster="h100")
    assert again.iteration_time_s == pytest.approx(forecast.iteration_time_s, rel=1e-6)
    # A line of a trace is a whole pass: where its end waits for the host, that is a part of its computation.
    within = {name: time_s for name, time_s in forecast.breakdown_s.items() if name in WITHIN_PASSES}
    found = {name: again.breakdown_s[name] for name in within}
    assert found == pytest.approx(within, abs=0.015 * forecast.iteration_time_s)
    assert sum(again.breakdown_s.values()) == pytest.approx(forecast.iteration_time_s, rel=1e-6)
    assert len(bytes_of(tmp_path / "traces")) == JOBS[name][1]
    assert "simulated-run" in {note.code for note in again.assumptions}
    converted(tmp_path / "traces", tmp_path / "again")
    assert bytes_of(tmp_path / "again") == bytes_of(tmp_path / "traces")


def test_what_a_simulated_line_says(jobs, tmp_path):
    converted(jobs / "one_f_one_b.toml", tmp_path / "traces")
    ops = load(next((tmp_path / "traces").glob("*_rank0.txt")))
    assert {op.description for op in ops} == {"simulation"}
    assert not any(op.is_simulated for op in ops)
    counts = {name: sum(op.op == name for op in ops) for name in ("forward_step", "backward_step", "send_forward")}
    assert counts == {"forward_step": 8, "backward_step": 8, "send_forward": 8}  # 16 sequences, dp 2
    assert [op.batch_id for op in ops if op.op == "backward_step"] == list(range(8))
    sizes = {sub.call.size_bytes for op in ops for sub in op.sub_ops if sub.call.comm_name == "reduce_scatter"}
    assert 2 * 2048 * 4096 in sizes
    ends = [op.end_s for op in ops if op.op not in MESSAGES]
    assert ends == sorted(ends)


def test_a_simulated_run_of_a_trace_is_written_as_it_was_simulated(tmp_path):
    """Flags make another run of it; the run of a result is the simulated one."""
    result = traincast.simulate(TRACED[0], cluster="h100", dp=2)
    options = traincast.SimulateOptions(cluster="h100", layout=traincast.LayoutOptions(dp=2))
    traincast.convert(TRACED[0], tmp_path / "traces", "echo", options=options)
    assert len(bytes_of(tmp_path / "traces")) == 16
    again = traincast.simulate(tmp_path / "traces", cluster="h100")
    assert again.iteration_time_s == pytest.approx(result.iteration_time_s, rel=1e-6)
    with pytest.raises(traincast.ConfigError, match="a simulated run is taken as it was"):
        traincast.simulate(tmp_path / "traces", cluster="h100", dp=4)


def test_a_recorded_run_takes_as_long_as_it_was_measured():
    workload = traincast.read(TRACED[0], recorded=True)
    result = traincast.simulate(workload, cluster="h100")
    assert result.iteration_time_s == pytest.approx(result.measured_s, rel=1e-4)
    assert result.measured_s == pytest.approx(3.8555, abs=1e-4)
    assert workload.timeline.step_s == pytest.approx(3.8555, abs=1e-4)


def test_a_line_without_a_time_takes_none_wherever_it_stands(tmp_path):
    MoeRun(pp=1, dp=1, ep=1, microbatches=1).write(tmp_path / "run")
    (path,) = (tmp_path / "run").iterdir()
    first, rest = path.read_text().split("\n", 1)
    open_ = first.replace("get_batch", "tp_allreduce").split("duration=")[0] + (
        "duration=0,description=None,group_kind=tp,input__shape=[1],input__dtype=torch.float16,timestamp=0,"
        "sub_operations=[])"
    )
    path.write_text("\n".join([open_, first, rest]))
    workload = traincast.read(path, recorded=True)
    timed = [op for op in load(path) if op.end_s is not None]
    assert workload.timeline.step_s == pytest.approx(timed[-1].end_s - timed[0].start_s)
    converted(path, tmp_path / "again")
    assert said(load(tmp_path / "again" / path.name)) == said(load(path))


@pytest.mark.parametrize(
    ("time_s", "clock_s", "text"),
    [
        (0.0002, 0.0, "0.2"),
        (0.005, 11_488_701.35583, "5.0"),
        (11_488_701.35583, 11_488_701.35583, "11488701355.83"),
        (0.1 / 3, 0.0, "33.333333"),
        (0.1 / 3, 4e6, "33.333333"),
        (1.0 - 2e-17, 0.0, "1000.0"),
        (4_509_232.00154 - 1e-9, 4_509_232.00154, "4509232001.54"),
    ],
)
def test_a_time_has_as_many_digits_as_it_has(time_s, clock_s, text):
    assert milliseconds(time_s, clock_s) == text


WORDS = st.text("abcXYZ012 ._-/():;[]", max_size=12).map(lambda text: text.replace("[", "").replace("]", "") or "x")
HUNDREDTHS = st.integers(0, 500_00)
SHAPES = st.lists(st.integers(0, 9999), max_size=4)
DTYPES = st.sampled_from(["torch.float16", "torch.bfloat16", "torch.int64", "None", "torch.other"])
GROUPS = st.sampled_from(["tp", "dp", "exp", "ep", "None", "what"])
NAMES = st.sampled_from(
    ["forward_step", "backward_step", "get_batch", "optimizer_step", "ep_allreduce", "dp_allreduce", "my_step"]
)


@st.composite
def traces(draw):
    """Draw the lines of a rank in the tracer's order of fields; spans may overlap, as those of a damaged clock do."""
    clock, lines = draw(st.sampled_from([0, 45_000_000_000, 1_148_870_133_583])), []
    for batch in range(draw(st.integers(1, 5))):
        clock += draw(HUNDREDTHS)
        subs = []
        for _ in range(draw(st.integers(0, 3))):
            named = f"func_name={draw(WORDS)}," if draw(st.booleans()) else ""
            subs.append(
                f"trace_src_func={draw(st.sampled_from(['allreduce', 'x_async']))},duration={draw(HUNDREDTHS) / 100},"
                f"timestamp={(clock + draw(HUNDREDTHS)) / 100},input__shape={draw(SHAPES)},input__dtype={draw(DTYPES)},"
                f"{named}group={draw(GROUPS)},comm_func={draw(st.sampled_from(['allreduce', 'allgather', 'other']))}"
            )
        times = draw(st.sampled_from([(draw(HUNDREDTHS) / 100, (clock + 1) / 100), ("0", "0"), ("None", "None")]))
        lines.append(
            f"rank:0:{draw(NAMES)}(stage_id=0,batch_id={batch},mg_state={draw(st.sampled_from(['warmup', 'None']))},"
            f"duration={times[0]},description={draw(WORDS)},group_kind={draw(GROUPS)},input__shape={draw(SHAPES)},"
            f"input__dtype={draw(DTYPES)},timestamp={times[1]},sub_operations={subs!r})\n"
        )
    return "".join(lines)


@settings(max_examples=40, deadline=None)
@given(traces())
def test_whatever_the_tracer_writes_is_written_again(tmp_path_factory, text):
    folder = tmp_path_factory.mktemp("trace")
    path = folder / "wd4_tp2_pp1_dp2_rank0.txt"
    path.write_text(text)
    try:
        converted(path, folder / "again")
        assert (folder / "again" / path.name).read_text() == text
    except FormatError as problem:
        assert "clock jumps" in str(problem) or "has 2^53" in str(problem)
    finally:
        shutil.rmtree(folder)


def recorded(parallel, group=(0, 1), peer=2, start_s=0.5):
    """Return a run of another format: GEMMs beside a collective, and a message to the next stage."""
    recorder = Recorder("run", parallel)
    gemm = recorder.row(compute_op("gemm, of 'all'", Phase.FORWARD))
    reduce = recorder.row(collective_op("c10d::allreduce_", Phase.FORWARD, Group.TP, Operation.ALL_REDUCE, 3000))
    ends = [
        Op(name=str(kind), kind=kind, phase=Phase.FORWARD, group=Group.PP, operation=Operation.SEND_RECV, size_bytes=8)
        for kind in (Kind.SEND, Kind.RECV)
    ]
    together = recorder.group(Group.TP, group)
    for rank in range(parallel.world_size):
        rows, groups, queues = [gemm, gemm, gemm], [-1, -1, -1], [0, 0, 0]
        start, end = [start_s, 1.0, 1.5], [1.0, 1.5, 2.0]
        if rank in group:
            rows, groups, queues = [*rows, reduce], [*groups, together], [*queues, 1]
            start, end = [*start, 1.0], [*end, 1.75]
        if rank in (0, peer):
            rows, groups = [*rows, recorder.row(ends[rank != 0])], [*groups, recorder.pair(0, peer)]
            queues, start, end = [*queues, 2], [*start, 2.0], [*end, 2.25]
        columns = {"row_L": rows, "group_L": groups, "queue_L": queues, "start_s_L": start, "end_s_L": end}
        recorder.add(RankRecord(rank=rank, **columns))
    return recorder.workload()


def test_a_run_of_another_format_is_written_with_its_times(tmp_path):
    converted(recorded(Parallel(tp=2, pp=2)), tmp_path / "traces")
    again = traincast.simulate(tmp_path / "traces", cluster="h100")
    assert again.iteration_time_s == pytest.approx(1.75)
    (trace,) = (load(path) for path in (tmp_path / "traces").glob("*_rank0.txt"))
    assert [(op.op, op.start_s, op.end_s) for op in trace] == [("forward_step", 0.0, 1.5), ("send_forward", 1.5, 1.75)]
    ((sub,),) = (op.sub_ops for op in trace if op.sub_ops)
    assert (sub.call.source, sub.call.is_async) == ("c10d_allreduce__async", True)
    assert (sub.start_s, sub.end_s, sub.call.size_bytes) == (0.5, 1.25, 3000)


@pytest.mark.parametrize(
    ("run", "words"),
    [
        ({"group": (0, 3)}, r"has a tp group of ranks \[0, 3\], which its layout does not have"),
        ({"peer": 1}, "is not a message between neighbours of a pipeline"),
        ({"peer": 3}, "is not a message between neighbours of a pipeline"),
    ],
)
def test_what_a_trace_cannot_name_is_refused(run, words, tmp_path):
    with pytest.raises(FormatError, match=words):
        converted(recorded(Parallel(tp=2, pp=2), **run), tmp_path / "traces")
    assert not (tmp_path / "traces").exists()
