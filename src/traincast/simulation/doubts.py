"""What a forecast may be off by: the reasons of its own interval, and what its job is (`simulation.differences`).

Two forecasts are off together by what they share: a factor that both were taken for, the links of one chip, the day of
one machine. Of numbers of a job, as its GPUs, every doubling is a reason, so that jobs drift apart as they differ.
"""

import math
from collections.abc import Hashable, Mapping

from msgspec.structs import replace

from traincast.estimate.factors import FactorTable, chip_of, factors_on
from traincast.hardware.cluster import Cluster
from traincast.job.degrees import DEGREES
from traincast.job.job import Job
from traincast.model.counts import flops_per_token
from traincast.simulation.confidence import basis_of_step
from traincast.simulation.differences import EFFICIENCY, SOFTWARE, Doubts
from traincast.simulation.job_step import JobStep
from traincast.simulation.widths import Basis, causes

KNOWN = "known"
_QUARTERS = 4
_SHARED: Mapping[str, tuple[str, ...]] = {
    "transfers": ("chip",),
    "overlap": ("framework",),
    "grouped GEMMs": ("architecture",),
    "GEMMs": ("architecture",),
    "launches": ("framework",),
    "new architecture": ("architecture",),
    "few microbatches": ("framework",),
    "context": ("model",),
}
"""Terms of the interval to what two forecasts must have alike to be off by it together; others: all of it."""
_ALL = ("model", "chip", "framework")


def doubts_of(done: JobStep, table: FactorTable | None = None) -> Doubts:
    """Return the reasons for which the forecast of a job's step may be off; `table` is what it was forecast with."""
    cluster = done.step.setting.cluster
    return doubts(basis_of_step(done), table or factors_on(cluster), done.job, cluster, done.step_s)


def doubts(basis: Basis, table: FactorTable, job: Job, cluster: Cluster, step_s: float) -> Doubts:
    """Return the reasons for which a forecast may be off that factors of a table were taken for."""
    found: dict[str, Mapping[Hashable, float]] = {
        KNOWN: _known(basis, table, job, cluster),
        EFFICIENCY: {"": math.log(_efficiency(job, cluster, step_s))},
        **_things(job, cluster),
    }
    return found


def _known(basis: Basis, table: FactorTable, job: Job, cluster: Cluster) -> dict[Hashable, float]:
    """Return by how much each reason of the forecast's own interval moves it."""
    alike = {
        "model": job.model.name,
        "chip": chip_of(basis.gpu),
        "architecture": str(basis.gpu.architecture),
        "framework": basis.framework,
    }
    found: dict[Hashable, float] = {}
    for cause, moved in causes(basis, table).items():
        if isinstance(cause, str):
            found["term", cause, *(alike[each] for each in _SHARED.get(cause, _ALL))] = moved
        else:
            of_cluster = isinstance(cause, tuple) and cause[0] == "own"
            found[(cluster.name, cause) if of_cluster else cause] = moved
    return found


def _efficiency(job: Job, cluster: Cluster, step_s: float) -> float:
    """Return the share of the 16-bit peak that the model's FLOP take, recomputation not counted."""
    gpu = cluster.gpu
    needed, _ = flops_per_token(job.model, job.batch.attended_length, task=job.finetuning.task)
    peak = gpu.peak_flops_per_s("bf16" if gpu.has_peak("bf16") else "fp16")
    return job.batch.tokens_per_step * needed / step_s / job.parallel.world_size / peak


def _things(job: Job, cluster: Cluster) -> dict[str, dict[Hashable, float]]:
    """Return what a job is: of a number reasons for every doubling, of all else one for each value."""
    parallel, batch = job.parallel, job.batch
    return {
        "GPUs": _doublings(gpus=parallel.world_size),
        "degrees": _doublings(**{name: getattr(parallel, name) for name in DEGREES}),
        "microbatches": _doublings(microbatches=parallel.microbatches),
        "shapes": _doublings(micro_batch=batch.micro_batch, seq_length=batch.seq_length),
        "precision": _one_of(precision=(job.precision, job.sharding.param_gather_bytes)),
        "recomputation": _one_of(recompute=job.recompute),
        SOFTWARE: _one_of(**_software(job)),
        "framework": _one_of(framework=job.framework.name),
        "chip": _one_of(gpu=cluster.gpu.name),
        "model": _one_of(model=job.model.name, task=job.finetuning),
    }


def _software(job: Job) -> dict[str, object]:
    """Return how the software of a job is set, by its part, as far as the job has use for it."""
    parallel = job.parallel
    found: dict[str, object] = {
        # The vocabulary is padded as tp asks for it, and what is gathered goes by the precision.
        "kernels": replace(job.kernels, padded_vocab=0),
        "optimizer": job.optimizer,
        "offload": job.offload,
    }
    if parallel.tp * parallel.cp > 1:
        found["communication"] = job.communication
    if parallel.dp > 1:
        found["sharding"] = (replace(job.sharding, param_gather_bytes=0), parallel.shard)
        found["gradients"] = job.framework.grad_reduce_bytes
    if parallel.pp > 1:
        found["schedule"] = job.pipeline.schedule
    if job.model.experts:
        found["experts"] = job.experts
    return found


def _one_of(**values: object) -> dict[Hashable, float]:
    """Return a reason for each value: of two that differ both count, which makes one width of them."""
    return {(name, str(value)): math.sqrt(0.5) for name, value in values.items()}


def _doublings(**numbers: int) -> dict[Hashable, float]:
    """Return reasons for each doubling of a number, one for every quarter of it: numbers drift apart as they differ."""
    found: dict[Hashable, float] = {}
    for name, number in numbers.items():
        quarters = _QUARTERS * math.log2(max(1, number))
        for place in range(math.ceil(quarters)):
            found[name, place] = math.sqrt(min(1.0, quarters - place) / _QUARTERS)
    return found
