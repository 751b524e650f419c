"""Physical workloads that are written: what each stage communicates is what the job communicates."""

from collections import Counter

import pytest

import traincast
from support import rich_rows, write_aicb
from traincast.errors import FormatError
from traincast.formats.aicb_physical.grammar import parse
from traincast.formats.aicb_physical.steps import steps_of
from traincast.job.options import StepOptions
from traincast.workload.words import Group, Kind, Operation


def job_file(folder, **changes):
    said = {"model": "llama3-8b", "tp": 2, "pp": 2, "vpp": 1, **changes}
    degrees = "".join(f"{key} = {value}\n" for key, value in said.items() if key != "model")
    path = folder / "job.toml"
    path.write_text(
        f'[model]\nname = "{said["model"]}"\n[parallel]\n{degrees}[batch]\nglobal_batch = 16\nseq_length = 2048\n'
        '[cluster]\nname = "h100"\ngpus = 16\n'
    )
    return path


def written(folder, source):
    out = folder / "workload.csv"
    done = traincast.convert(source, out, "aicb-physical", force=True)
    return parse(str(out), out.read_text()), done


def of_stage(file, stage):
    """Return the bytes of a stage's collectives by group and operation, and how often it sends."""
    found = Counter()
    for row in file.sections[stage].rows:
        if row.operation is not Operation.NONE:
            found[row.group, row.operation] += row.size_bytes
        elif row.kind == "isend":
            found["messages"] += 1
    return found


def simulated(source, stage):
    """Return the same of a rank of the simulated step."""
    result = traincast.predict(source, options=StepOptions(unfold=True))
    program, ops = result.program, result.program.ops
    index = int((program.stage_R == stage).argmax())
    found = Counter()
    for row in program.row_N[program.rank_slice(index)].tolist():
        if ops.kind_T[row] == Kind.COLLECTIVE and ops.size_bytes_T[row] > 0:
            group = Group(int(ops.group_T[row]))
            group = Group.TP if group is Group.ETP else group
            found[group, Operation(int(ops.operation_T[row]))] += ops.size_bytes_T[row] * ops.repeats_T[row]
        elif ops.kind_T[row] == Kind.SEND:
            found["messages"] += 1
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"pp": 1},
        {"tp": 1, "pp": 4},
        {"sequence_parallel": "false"},
        {"zero": 0},
        {"tp": 1, "pp": 1, "zero": 3},
        {"model": "mixtral-8x7b", "pp": 4, "ep": 2, "etp": 2},
    ],
)
def test_each_stage_exchanges_what_the_job_exchanges(changes, tmp_path):
    source = job_file(tmp_path, **changes)
    file, _ = written(tmp_path, source)
    stages = changes.get("pp", 2)
    assert len(file.sections) == stages
    for stage in range(stages):
        own, rows = simulated(source, stage), of_stage(file, stage)
        assert set(rows) == {key for key, amount in own.items() if amount}
        for key, amount in own.items():
            assert rows[key] == pytest.approx(amount, rel=1e-6), key


def test_the_order_is_1f1b_and_every_pass_is_there(tmp_path):
    file, _ = written(tmp_path, job_file(tmp_path, pp=4, tp=1))
    steps = steps_of(file)
    assert [(len(passes.forward), len(passes.backward)) for passes in steps.passes] == [(4, 4)] * 4
    kinds = [row.kind for row in file.sections[0].rows if row.kind in ("isend", "irecv")]
    # Three forward passes fill the pipeline before the first backward one.
    assert kinds[:4] == ["isend"] * 4 and kinds.count("isend") == kinds.count("irecv") == 4
    assert file.sections[3].ranks == 4


def test_gemms_have_the_shapes_of_all_their_passes(tmp_path):
    file, done = written(tmp_path, job_file(tmp_path, pp=1))
    gemms = Counter(row.gemm for row in file.rows if row.gemm)
    # Of the output projection: forward, gradient of the input, gradient of the weight; 32 layers, 2 microbatches.
    microbatches = steps_of(file).passes[0].microbatches
    for shape in ((1, 2048, 4096, 2048), (1, 2048, 2048, 4096), (1, 2048, 4096, 2048)):
        assert gemms[shape] >= 32 * microbatches
    assert {"aicb-kernels", "aicb-host"} <= {note.code for note in done.lost}


def test_a_workload_without_shapes_keeps_its_communication(tmp_path):
    path = write_aicb(tmp_path / "w.txt", rich_rows(), tp=2, ep=2, pp=2, ga=2, gpus=16, pp_comm=1 << 20)
    file, done = written(tmp_path, path)
    assert not any(row.gemm for row in file.rows)
    assert "aicb-times" in {note.code for note in done.lost}
    totals = {(row.group, row.operation) for row in file.rows}
    assert {(Group.TP, Operation.ALL_GATHER), (Group.EP, Operation.ALL_TO_ALL)} <= totals
    assert {(Group.EDP, Operation.REDUCE_SCATTER)} <= totals


def test_a_group_that_aicb_does_not_know_is_refused(tmp_path):
    with pytest.raises(FormatError, match="no cp group"):
        written(tmp_path, job_file(tmp_path, cp=2))


def test_virtual_stages_run_in_a_row_and_that_is_said(tmp_path):
    file, done = written(tmp_path, job_file(tmp_path, vpp=4))
    assert "aicb-order" in {note.code for note in done.lost}
    assert steps_of(file).passes[0].microbatches == 4
