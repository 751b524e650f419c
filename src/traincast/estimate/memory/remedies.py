"""Changes to a job that would free memory: only such as one would run."""

import math
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import TypeAlias

from msgspec.structs import replace

from traincast.errors import InfeasibleError, TraincastError
from traincast.estimate.memory.stage import stage_memory
from traincast.job.degrees import check_model
from traincast.job.job import Job
from traincast.job.layers import Split, split_layers
from traincast.job.parallel import divides_replicas
from traincast.mechanisms import all as mechanisms
from traincast.schedules.schedule import planned, usual_schedule

CONTEXT_TOKENS = 8192
"""Fewest tokens of a sequence on each rank for which more context parallelism is proposed: published recipes split no
shorter ones (Llama 3, arXiv 2407.21783, table 4: cp 1 at 8,192 tokens, 8,192 on each rank at 131,072)."""


Remedies: TypeAlias = tuple[tuple[str, float], ...]
"""Changes by what people call them, with the bytes that each frees on the stage that needs most."""


def remedies(job: Job, peak_bytes: float, gpus_per_node: int) -> Remedies:
    """Return changes that would free memory on the stage that needs most, with the bytes that each frees, best first.

    Each is on as many GPUs and with the same global batch; tensor parallelism stays inside a node.
    """
    return _freed(_changes(job, gpus_per_node), peak_bytes)


def offloads(job: Job, peak_bytes: float, host_bytes: float) -> Remedies:
    """Return what offloading to the host would free likewise, where a rank has so much of its memory.

    It costs transfers in every step, so that it is proposed where no other change is enough.
    """
    return _freed(mechanisms.host_remedies(job), peak_bytes, host_bytes)


def _freed(changes: Iterable[tuple[str, Job]], peak_bytes: float, host_bytes: float = math.inf) -> Remedies:
    """Return the changes that free memory and need no more of the host, with the bytes that each frees, best first."""
    found = []
    for name, changed in changes:
        try:
            parallel = changed.parallel
            plan = planned(changed.pipeline.schedule, parallel.pp, parallel.vpp, parallel.in_pipeline)
        except TraincastError:
            continue
        stages = stage_memory(changed, plan)
        saved = peak_bytes - max(stage.peak for stage in stages)
        if saved > 0 and max(stage.host for stage in stages) <= host_bytes:
            found.append((name, saved))
    return tuple(sorted(found, key=lambda remedy: -remedy[1]))


def _changes(job: Job, gpus_per_node: int) -> Iterator[tuple[str, Job]]:
    """Yield the changes that are worth a try, each on as many GPUs and with the same global batch."""
    parallel = job.parallel
    yield from mechanisms.remedies(job)
    with suppress(TraincastError):
        more = replace(parallel, microbatches=parallel.microbatches * job.batch.micro_batch)
        yield "micro batch 1", replace(job.with_values(micro_batch=1), parallel=more)
    yield from _other_degrees(job, gpus_per_node)


def _other_degrees(job: Job, gpus_per_node: int) -> Iterator[tuple[str, Job]]:
    """Yield no virtual stages, or twice the degree of one kind of parallelism, where the layout can be run."""
    for name, change in (
        ("vpp 1", _without_virtual_stages),
        (f"tp {2 * job.parallel.tp}", lambda job: _more_tensor(job, gpus_per_node)),
        (f"pp {2 * job.parallel.pp}", _more_stages),
        (f"ep {2 * job.parallel.ep}", _more_experts),
        (f"cp {2 * job.parallel.cp}", _more_context),
    ):
        with suppress(TraincastError):
            changed = change(job)
            if changed is not None:
                yield name, changed


def _without_virtual_stages(job: Job) -> Job | None:
    """Return the job without interleaving, whose first stages hold fewer microbatches."""
    parallel = job.parallel
    if parallel.vpp == 1 or job.pipeline.schedule != usual_schedule(parallel.vpp):
        return None
    changed = job.with_values(vpp=1, schedule=usual_schedule())
    return changed.with_values(layers_Q=_split(changed))


def _more_tensor(job: Job, gpus_per_node: int) -> Job | None:
    """Return the job with twice the tensor parallelism, within a node and with whole key/value heads on each rank."""
    parallel, attention, tp = job.parallel, job.model.attention, 2 * job.parallel.tp
    whole_heads = attention.latent is not None or attention.kv_heads % tp == 0
    whole_tokens = not job.communication.sequence_parallel or job.batch.seq_length % (tp * parallel.cp) == 0
    if gpus_per_node % tp or not whole_heads or not whole_tokens:
        return None
    check_model(job.model, tp=tp, ep=parallel.ep, etp=tp if parallel.expert_tp == parallel.tp else parallel.expert_tp)
    sequence = job.communication.sequence_parallel or (parallel.tp == 1 and job.framework.sequence_parallel)
    return _half(job, tp=tp).with_values(sequence_parallel=sequence)


def _more_stages(job: Job) -> Job | None:
    """Return the job with twice the stages, which it must have the layers and the microbatches to fill."""
    parallel, pp = job.parallel, 2 * job.parallel.pp
    if 2 * parallel.microbatches < pp or job.sharding.zero > 1:
        return None
    changed = _half(job, pp=pp).with_values(schedule=usual_schedule() if parallel.pp == 1 else job.pipeline.schedule)
    return changed.with_values(layers_Q=_split(changed))


def _more_experts(job: Job) -> Job | None:
    """Return the job with its experts on twice the ranks."""
    parallel = job.parallel
    tp, dp, ep, etp = parallel.tp, parallel.dp, 2 * parallel.ep, parallel.expert_tp
    if job.model.experts is None or not (parallel.folded_experts or divides_replicas(tp=tp, etp=etp, dp=dp, ep=ep)):
        return None
    check_model(job.model, tp=tp, ep=ep, etp=etp)
    return job.with_values(ep=ep)


def _more_context(job: Job) -> Job | None:
    """Return the job with its sequences on twice the ranks, if they stay long enough."""
    cp = 2 * job.parallel.cp
    if job.batch.seq_length % (2 * cp) or job.batch.seq_length // cp < CONTEXT_TOKENS:
        return None
    return _half(job, cp=cp)


def _split(job: Job) -> tuple[int, ...]:
    """Return the layers of each virtual stage as its framework splits them."""
    parallel, framework = job.parallel, job.framework
    return split_layers(
        Split(
            layers=job.model.layers,
            pp=parallel.pp,
            vpp=parallel.vpp,
            uneven=framework.uneven_split,
            counts_embedding=framework.counts_embedding,
        )
    )[0]


def _half(job: Job, **degrees: int) -> Job:
    """Return the job with half the replicas, each with twice the microbatches, and other degrees.

    Raises
    ------
    InfeasibleError
        If the replicas cannot be halved or the degrees do not divide.
    """
    parallel = job.parallel
    if parallel.dp % 2:
        raise InfeasibleError(f"dp {parallel.dp} cannot be halved; change it")
    # Ranks of a context parallel group hold equal parameters: halving dp for them leaves as many to share state.
    keeps = "cp" in degrees
    shard = parallel.shard if keeps or parallel.shard is None else max(1, parallel.shard // 2)
    microbatches = 2 * parallel.microbatches
    changed = replace(parallel, **degrees, dp=parallel.dp // 2, microbatches=microbatches, shard=shard)
    return replace(job, parallel=changed)
