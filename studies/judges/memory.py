"""Whether jobs fit: recorded peaks of memory, layouts that crashed, and golden runs of Megatron-LM.

    python -m judges.memory

What is fitted to recorded peaks are deviations alone (`traincast.estimate.memory.fits`): chances of a source's layouts
follow from those of all other sources. Golden runs print what PyTorch's allocator has given out at most on the rank
that logs: the last one, with the last stage (Megatron-LM, megatron/training/global_vars.py, _set_tensorboard_writer).
What XLA plans for a program on TPUs its compiler says without a chip (`xla_programs`).
"""

import csv
import gzip
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from math import prod
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from datafiles import table_path
from forecasts import PUBLISHED, published_rows
from judges.board import Board, board_of
from traincast.calibration.kinds.runs import ONE_DEVIATION
from traincast.calibration.run_memory import as_run, meant
from traincast.calibration.runs import MeasuredRun, job_of_run
from traincast.dialects import draft_like
from traincast.errors import TraincastError
from traincast.estimate.memory import JobMemory, chance_of_oom, usable_bytes
from traincast.estimate.memory.fits import REFUSED_ABOVE, chance_with
from traincast.hardware.clusters import load_cluster
from traincast.job.draft import Draft
from traincast.job.frameworks import MemoryPolicy
from traincast.job.job import Job
from traincast.job.request import JobRequest
from traincast.job.resolve import resolve_job
from traincast.model.load import model_over_base
from traincast.schedules.check import checked_plan
from traincast.schedules.plan import SchedulePlan

CLUSTERS = {"A100": "a100", "H100": "h100", "GB200": "gb200"}
GOLDEN, SWEEP = "golden runs of Megatron-LM", "nanotron"
PLANNED, ON_TPU = "programs planned for TPUs", "maxtext-tpu-2025"
KEPT = {
    "save_qkv_proj": ("linear_qkv",),
    "minimal": ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"),
}
"""What a policy of MaxText keeps, as a job says it."""
FLOOR = 0.1
"""Least deviation of a framework: runs that print their memory say all of their settings, jobs leave some open. Of
1,108 published runs, all of which ran, one in fifteen is forecast to need a little more than it had."""
TENTHS, LEAST_ROWS = 10, 20
LEFT_OUT = "memory, source left out"
OWN_SLACK = ("megatron-deepspeed-2022",)
"""Frameworks whose allocator slack is fitted to these runs, which are judged with the usual one."""


class Peak(NamedTuple):
    """What is known of the memory of one run."""

    source: str
    framework: str
    usable_bytes: float
    """What programs can use of its GPU."""
    needs_bytes: float
    """What the stage needs that needs most."""
    forecast_bytes: float = 0.0
    """The peak of the rank that prints it, in the meaning in which it is printed."""
    measured_bytes: float = 0.0
    """The peak that it prints; 0 where it prints none."""
    ran: bool = True


@cache
def peaks() -> tuple[Peak, ...]:
    """Return the memory of every run and of every layout of the sweep."""
    found = []
    for run in (run for name in (PUBLISHED, "nanotron_ultrascale_h100.csv") for run in published_rows(name)):
        found += _peak_of_run(run)
    path = table_path("megatron_golden.csv")
    for row in csv.DictReader(gzip.decompress(path.read_bytes()).decode().splitlines()):
        found += _golden_peak(row)
    return tuple(found)


def _peak_of_run(run: MeasuredRun) -> list[Peak]:
    """Return the memory of a run; none where its layout cannot be described, which says nothing of memory."""
    try:
        job = job_of_run(run)
    except TraincastError:
        return []
    if job.framework.name in OWN_SLACK:
        usual = replace(job.framework.memory, slack=MemoryPolicy().slack)
        job = replace(job, framework=replace(job.framework, memory=usual))
    plan = _plan(job.pipeline.schedule, *_degrees(job), job.experts.pairs_passes)
    # How long its steps take nobody knows before it runs.
    ran, asked = (as_run(each, job) for each in (run, replace(run, measured_s=None)))
    memory = JobMemory(ran, plan)
    stages = memory.stages
    printed = stages[0] if run.first_stage_memory else stages[memory.worst]
    needs = memory.peak if asked is ran else JobMemory(asked, plan).peak
    return [
        Peak(
            source=run.groups.source,
            framework=job.framework.name,
            usable_bytes=usable_bytes(run.cluster.gpu.memory_bytes),
            needs_bytes=needs,
            forecast_bytes=meant(printed, run.memory_kind),
            measured_bytes=run.peak_bytes or 0.0,
            ran=run.outcome == "ok",
        )
    ]


def _degrees(job: Job) -> tuple[int, int, int]:
    return job.parallel.pp, job.parallel.vpp, job.parallel.microbatches


@cache
def _plan(schedule: str, pp: int, vpp: int, microbatches: int, pairs: bool) -> SchedulePlan:
    """Return the plan of a pipeline, which many runs share."""
    return checked_plan(schedule, pp, vpp, microbatches, pairs)


def _golden_peak(row: Mapping[str, str]) -> list[Peak]:
    """Return the memory of a golden run; none where its flags make no job, or nobody knows how many GPUs it had."""
    if not (row["peak_mem_bytes"] and row["num_gpus"]) or row["model_kind"] == "multimodal":
        return []
    cluster = load_cluster(CLUSTERS[row["gpu"] or "A100"])
    try:
        draft = draft_like("megatron", row["flags"].split()).under(Draft(fields={"gpus": int(row["num_gpus"])}))
        memory = JobMemory(resolve_job(draft.request(), cluster))
    except TraincastError:
        return []
    return [
        Peak(
            source=GOLDEN,
            framework=memory.job.framework.name,
            usable_bytes=usable_bytes(cluster.gpu.memory_bytes),
            needs_bytes=memory.peak,
            forecast_bytes=memory.stages[-1].allocated,
            measured_bytes=float(row["peak_mem_bytes"]),
        )
    ]


@cache
def programs() -> tuple[Peak, ...]:
    """Return the memory of programs that XLA's compiler planned for TPUs; those that chose a rule are left out."""
    with gzip.open(table_path("xla_programs.csv"), "rt", encoding="utf-8", newline="") as stream:
        return tuple(_peak_of_program(row) for row in csv.DictReader(stream) if row["use"] == "judges")


def _peak_of_program(row: Mapping[str, str]) -> Peak:
    size = {name: int(text) for name, text in row.items() if text.isdigit()}
    attention = {name: size[name] for name in ("heads", "kv_heads", "head_dim")}
    shape = {name: size[name] for name in ("layers", "hidden", "ffn_hidden", "vocab")}
    model = model_over_base({**shape, "attention": attention, "gated": True, "tied_embeddings": False}, row["id"])
    gpus = prod(map(int, row["topology"].partition(":")[2].split("x")))
    request = JobRequest(
        model=model,
        gpus=gpus,
        seq_length=size["seq_length"],
        global_batch=size["batch"] * gpus,
        micro_batch=size["batch"] * size["tp"],
        tp=size["tp"],
        pp=1,
        zero=3,
        framework=ON_TPU,
        recompute="none" if row["policy"] == "none" else "full",
        recompute_keeps=KEPT.get(row["policy"]),
        offload_activations=size["layers"] if row["policy"] == "offload" else None,
        loss_tiles=size["tiles"],
    )
    memory = JobMemory(resolve_job(request, None))
    forecast = memory.peak - memory.job.memory_policy.runtime_bytes
    return Peak(PLANNED, ON_TPU, 0.0, memory.peak, forecast, float(row["hbm_bytes"]))


def deviation_of(rows: Iterable[Peak]) -> float:
    """Return within how much two of three recorded peaks lie: the logarithm of measured over forecast."""
    logs = [abs(np.log(each.measured_bytes / each.forecast_bytes)) for each in rows if each.measured_bytes]
    return float(np.quantile(logs, ONE_DEVIATION))


def deviations() -> dict[str, float]:
    """Return the deviation of each source."""
    sources = sorted({each.source for each in peaks() if each.measured_bytes})
    return {name: deviation_of(each for each in peaks() if each.source == name) for name in sources}


def unmeasured(found: Mapping[str, float]) -> float:
    """Return the deviation of a framework of none of these sources, each counted once and no less than `FLOOR`."""
    return float(np.sqrt(np.mean([max(FLOOR, each) ** 2 for each in found.values()])))


def without_sweep(found: Mapping[str, float]) -> dict[str, float]:
    """Return the deviations of all sources but `SWEEP`, whose chances of running out they judge."""
    return {name: each for name, each in found.items() if name != SWEEP}


def gap(chances: Sequence[float], crashed: Sequence[bool]) -> float:
    """Return how far chances are from the share that crashed, at most of all tenths with enough rows."""
    chance, out = np.array(chances), np.array(crashed, np.float64)
    tenth = np.minimum((TENTHS * chance).astype(np.int64), TENTHS - 1)
    filled = [tenth == each for each in range(TENTHS) if (tenth == each).sum() >= LEAST_ROWS]
    return max((abs(float((chance[each] - out[each]).mean())) for each in filled), default=0.0)


def boards() -> list[Board]:
    """Return the boards of chances, recorded peaks and golden runs."""
    known = deviations()
    others = unmeasured(without_sweep(known))
    sweep = [each for each in peaks() if each.source == SWEEP]
    recorded = [each for each in peaks() if each.source != GOLDEN and each.measured_bytes]
    golden = [each for each in peaks() if each.source == GOLDEN]
    found = [
        _chances(LEFT_OUT, sweep, others, gap=10.0),
        _chances("memory, nothing left out", sweep, max(FLOOR, known[SWEEP])),
        _recorded("recorded peaks", recorded, median=5.0, p90=15.0),
        *(
            _recorded(f"recorded peaks, {name}", [each for each in recorded if each.framework == name])
            for name in sorted({each.framework for each in recorded})
        ),
        _recorded("golden runs", golden, median=8.0),
        _recorded(PLANNED, programs()),
    ]
    published = [each for each in peaks() if each.source not in (GOLDEN, SWEEP)]
    compiled = [each for each in published if each.framework.startswith("maxtext")]
    return [
        *found,
        _called("golden runs called out of memory", golden, called=0.0),
        _called("published runs called out of memory", [each for each in published if each not in compiled]),
        _called("published runs of JAX called out of memory", compiled),
    ]


def _called(name: str, rows: Sequence[Peak], **asked: float) -> Board:
    """Return how many runs that ran are forecast to need more than they had, and how many a forecast refuses."""
    called = np.mean([each.needs_bytes > each.usable_bytes for each in rows])
    chances = [chance_of_oom(each.needs_bytes, each.usable_bytes, each.framework) for each in rows]
    refused = np.mean(np.array(chances) > REFUSED_ABOVE)
    figures = {"called": round(100 * float(called), 2), "refused": round(100 * float(refused), 2)}
    return Board(LEFT_OUT, name, len(rows), figures, asked)


def _chances(subject: str, rows: Sequence[Peak], deviation: float, **asked: float) -> Board:
    chances = [chance_with(deviation, each.needs_bytes, each.usable_bytes) for each in rows]
    figures = {"gap": round(100 * gap(chances, [not each.ran for each in rows]), 2)}
    return Board(subject, "chance of running out", len(rows), figures, asked)


def _recorded(name: str, rows: Sequence[Peak], **asked: float) -> Board:
    forecast, measured = [each.forecast_bytes for each in rows], [each.measured_bytes for each in rows]
    return board_of(LEFT_OUT, name, forecast, measured)._replace(asked=asked)


def main() -> None:
    """Print the boards, and the deviations that `src/traincast/data/memory/error.toml` has."""
    for board in boards():
        print(f"{board.subject:26} {board.name:46} {board.rows:5} {dict(board.figures)} asked {dict(board.asked)}")
    found = deviations()
    for name, each in found.items():
        print(f"deviation of {name}: {each:.4f}")
    print(f"deviation of {PLANNED}: {deviation_of(programs()):.4f}")
    print(f"deviation of a framework that nobody measured: {unmeasured(found):.4f}")
    print(f"the same without {SWEEP}: {unmeasured(without_sweep(found)):.4f}")


if __name__ == "__main__":
    main()
