"""Jobs of the tests, and what their workloads add up to over all ranks."""

from collections import Counter

import numpy as np
from msgspec.structs import replace

from traincast.hardware.clusters import load_cluster
from traincast.job.request import JobRequest
from traincast.job.resolve import resolve_job
from traincast.lowering.build import build_workload
from traincast.lowering.plans import plan_of_job
from traincast.model.load import load_model
from traincast.model.model import Attention, Experts, Latent, Model
from traincast.workload.words import Group, Kind, Operation, Phase

TINY = Model(
    name="tiny",
    layers=8,
    hidden=512,
    attention=Attention(heads=8, kv_heads=4, head_dim=64),
    ffn_hidden=1536,
    gated=True,
    vocab=32768,
)
"""Grouped-query attention and a gated feed-forward part; 8 divides everything."""

TINY_EXPERTS = replace(
    TINY, name="tiny experts", experts=Experts(experts=8, topk=2, ffn_hidden=768, shared_ffn_hidden=512)
)
TINY_LATENT = replace(
    TINY,
    name="tiny latent",
    attention=Attention(
        heads=8,
        kv_heads=8,
        head_dim=96,
        latent=Latent(q_rank=192, kv_rank=128, rope_head_dim=32, nope_head_dim=64, v_head_dim=64),
    ),
)
TINY_ALL = replace(
    TINY_EXPERTS,
    name="tiny of all",
    attention=TINY_LATENT.attention,
    experts=replace(TINY_EXPERTS.experts, first_dense_layers=2),
)
"""Latent attention, two dense layers, six with routed and shared experts: it has every module to recompute."""


def job_of(model=TINY, cluster="h100", **fields):
    """Return a decided job: one GPU, 8 sequences of 1024 tokens, unless told otherwise."""
    given = {"gpus": 1, "seq_length": 1024, "global_batch": 8, "framework": "megatron-core-2025", "vpp": 1} | fields
    found = load_model(model) if isinstance(model, str) else model
    return resolve_job(JobRequest(model=found, **given), load_cluster(cluster))


def workload_of(job, gpus_per_node=8):
    """Return the workload of a job."""
    return build_workload(job, plan_of_job(job), gpus_per_node)


def slots(workload, which):
    """Yield the rows of every slot of one rank of each stage: ``forward``, ``backward``, ``start`` or ``end``."""
    template = workload.templates[0]
    held = {"forward": "forward_QM", "backward": "backward_QM", "start": "start_P", "end": "end_P"}[which]
    for segment in np.ravel(getattr(template, held)).tolist():
        if segment >= 0:
            yield from workload.segments[segment].tolist()


def product_flops(call):
    """Return the FLOPs of a matrix product or of a fused attention kernel's forward pass, 0 for all else.

    Worked out here from the sizes, apart from the code that prices them; of a causal mask half is left.
    """
    if call.family in ("gemm", "grouped_gemm"):
        m, n, k = call.shape[:3]
        return 2.0 * m * n * k
    if call.family in ("attention", "unfused_attention"):
        batch, queries, keys, heads, _, qk_dim, v_dim = call.shape
        seen = min(call.window, keys) if call.window else keys
        if call.causal:
            seen = seen * (1 - seen / (2 * keys))
        return 2.0 * batch * heads * queries * seen * (qk_dim + v_dim)
    return 0.0


def total_flops(job, which, *, phases=tuple(Phase), families=("gemm", "grouped_gemm", "attention"), directions=None):
    """Return the FLOPs of all ranks in one kind of slot; attention counts as its forward pass does."""
    workload = workload_of(job)
    total = 0.0
    for row in slots(workload, which):
        if Phase(int(workload.ops.phase_T[row])) not in phases:
            continue
        for call, count in workload.ops.calls_T[row] or ():
            if call.family in families and (directions is None or call.direction in directions):
                total += count * product_flops(call)
    return total * job.parallel.ranks_per_stage


def calls_of(job, which):
    """Return how often each call runs, over one rank of each stage."""
    workload, found = workload_of(job), Counter()
    for row in slots(workload, which):
        for call, count in workload.ops.calls_T[row] or ():
            found[call] += count
    return found


def exchanged(job, which, gpus_per_node=8):
    """Return the bytes by (group, operation) that one rank of each stage exchanges, over all stages."""
    workload, found = workload_of(job, gpus_per_node), Counter()
    ops = workload.ops
    for row in slots(workload, which):
        if ops.kind_T[row] == Kind.COLLECTIVE:
            key = Group(int(ops.group_T[row])), Operation(int(ops.operation_T[row]))
            found[key] += float(ops.size_bytes_T[row] * ops.repeats_T[row])
    return found
