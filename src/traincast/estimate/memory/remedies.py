"""Changes to a job that would free memory: only such as one would run."""

import math
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import lru_cache

from msgspec.structs import replace

from traincast.errors import InfeasibleError, TraincastError
from traincast.estimate.memory.stage import stage_memory
from traincast.job.feasible import check_model
from traincast.job.job import Job
from traincast.job.layers import Split, split_layers
from traincast.model.recompute import DISCARDING_MODULES, available_modules, known_modules
from traincast.schedules.schedule import planned, usual_schedule

CONTEXT_TOKENS = 8192
"""Fewest tokens of a sequence on each rank for which more context parallelism is proposed: published recipes split no
shorter ones (Llama 3, arXiv 2407.21783, table 4: cp 1 at 8,192 tokens, 8,192 on each rank at 131,072)."""


@lru_cache(maxsize=16)
def remedies(job: Job, peak_bytes: float, gpus_per_node: int) -> tuple[tuple[str, float], ...]:
    """Return changes that would free memory on the stage that needs most, with the bytes that each frees, best first.

    Each is on as many GPUs and with the same global batch; tensor parallelism stays inside a node.
    """
    return _freed(_changes(job, gpus_per_node), peak_bytes)


def offloads(job: Job, peak_bytes: float, host_bytes: float) -> tuple[tuple[str, float], ...]:
    """Return what offloading to the host would free likewise, where a rank has so much of its memory.

    It costs transfers in every step, so that it is proposed where no other change is enough.
    """
    return _freed(_offloads(job), peak_bytes, host_bytes)


def _freed(
    changes: Iterable[tuple[str, Job]], peak_bytes: float, host_bytes: float = math.inf
) -> tuple[tuple[str, float], ...]:
    """Return the changes that free memory and need no more of the host, with the bytes that each frees, best first."""
    found = []
    for name, changed in changes:
        try:
            parallel = changed.parallel
            plan = planned(changed.schedule, parallel.pp, parallel.vpp, parallel.microbatches)
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
    if job.recompute == "none" and job.attention_kernel == "unfused":
        yield "recompute selective", replace(job, recompute="selective")
    yield from _modules(job)
    if job.recompute != "full" or job.recompute_layers is not None:
        yield "recompute full", replace(job, recompute="full", recompute_layers=None, recompute_group=1)
    replicas = parallel.dp * parallel.cp
    for zero in range(job.zero + 1, 4):
        if replicas > 1 and (zero < 2 or parallel.pp == 1):
            yield f"zero {zero}", replace(job, zero=zero, shard=job.shard if job.zero else replicas)
    with suppress(TraincastError):
        more = replace(parallel, microbatches=parallel.microbatches * job.micro_batch)
        yield "micro batch 1", replace(job, micro_batch=1, parallel=more)
    yield from _other_degrees(job, gpus_per_node)


def _offloads(job: Job) -> Iterator[tuple[str, Job]]:
    """Yield what the memory of the host may keep, as far as it does not: optimizer states, activations of all layers.

    Activations that are recomputed whole are small, and stay.
    """
    most, changed = max(job.layers_Q), {}
    if job.offload_optimizer < 1:
        changed["offload_optimizer 1"] = replace(job, offload_optimizer=1.0)
    if job.offload_activations < most and job.recompute != "full":
        changed[f"offload_activations {most}"] = replace(job, offload_activations=most)
    yield from changed.items()
    if len(changed) > 1:
        yield " with ".join(changed), replace(job, offload_optimizer=1.0, offload_activations=most)


def _modules(job: Job) -> Iterator[tuple[str, Job]]:
    """Yield the recomputation of one more module, and of all cheap ones together.

    Only where the framework knows modules and layers are not recomputed whole. Fused attention saves next to nothing
    that recomputing it would free.
    """
    if job.recompute == "full" or not job.framework.recomputes_modules:
        return
    chosen = job.recomputed_modules
    more = [name for name in available_modules(job.model) if name not in (*chosen, "core_attn")]
    cheap = [name for name in more if name in DISCARDING_MODULES]
    for names in (*([name] for name in more), *([cheap] if len(cheap) > 1 else [])):
        modules = tuple(each for each in known_modules() if each in (*chosen, *names))
        yield f"recompute {' '.join(names)}", replace(job, recompute="selective", recompute_modules=modules)


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
    if parallel.vpp == 1 or job.schedule != usual_schedule(parallel.vpp):
        return None
    changed = replace(job, parallel=replace(parallel, vpp=1), schedule=usual_schedule())
    return replace(changed, layers_Q=_split(changed))


def _more_tensor(job: Job, gpus_per_node: int) -> Job | None:
    """Return the job with twice the tensor parallelism, within a node and with whole key/value heads on each rank."""
    parallel, attention, tp = job.parallel, job.model.attention, 2 * job.parallel.tp
    whole_heads = attention.latent is not None or attention.kv_heads % tp == 0
    if gpus_per_node % tp or not whole_heads or (job.sequence_parallel and job.seq_length % (tp * parallel.cp)):
        return None
    check_model(job.model, tp=tp, ep=parallel.ep, etp=tp if parallel.expert_tp == parallel.tp else parallel.expert_tp)
    sequence = job.sequence_parallel or (parallel.tp == 1 and job.framework.sequence_parallel)
    return replace(_half(job, tp=tp), sequence_parallel=sequence)


def _more_stages(job: Job) -> Job | None:
    """Return the job with twice the stages, which it must have the layers and the microbatches to fill."""
    parallel, pp = job.parallel, 2 * job.parallel.pp
    if 2 * parallel.microbatches < pp or job.zero > 1:
        return None
    changed = replace(_half(job, pp=pp), schedule=usual_schedule() if parallel.pp == 1 else job.schedule)
    return replace(changed, layers_Q=_split(changed))


def _more_experts(job: Job) -> Job | None:
    """Return the job with its experts on twice the ranks."""
    parallel = job.parallel
    if job.model.experts is None:
        return None
    check_model(job.model, tp=parallel.tp, ep=2 * parallel.ep, etp=parallel.expert_tp)
    return replace(job, parallel=replace(parallel, ep=2 * parallel.ep))


def _more_context(job: Job) -> Job | None:
    """Return the job with its sequences on twice the ranks, if they stay long enough."""
    cp = 2 * job.parallel.cp
    if job.seq_length % (2 * cp) or job.seq_length // cp < CONTEXT_TOKENS:
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
    shard = job.shard if keeps else max(1, job.shard // 2)
    changed = replace(
        parallel,
        **degrees,
        dp=parallel.dp // 2,
        microbatches=2 * parallel.microbatches,
        shard=None if parallel.shard is None else shard,
    )
    return replace(job, parallel=changed, shard=shard)
