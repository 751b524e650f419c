"""What a result tells of the job that was forecast: every field of it, as it was decided."""

from typing import Any

from msgspec import Struct

from traincast.job.job import Job
from traincast.job.optimizer import PLAIN, OptimizerTypes


class JobFacts(Struct, frozen=True, kw_only=True):
    """The job of a forecast with everything decided; fields as in `traincast.job.request.JobRequest`.

    Its parallel degrees and its schedule are the key ``parallel`` of the result. What was given and decided into
    another of these (``first_stage_layers``, ``year``) is told by that: column ``fact`` of the table of fields.
    """

    model: str
    """Its name."""
    framework: str
    """Name of the framework."""
    seq_length: int
    global_batch: int
    micro_batch: int
    precision: str
    task: str
    recompute: str
    recompute_layers: int | None
    attention_kernel: str
    zero: int
    shard: int
    sequence_parallel: bool
    overlap_grad_reduce: bool
    overlap_param_gather: bool
    overlap_tp: bool
    overlap_p2p: bool
    cuda_graphs: bool
    cp_kind: str
    padded_vocab: int
    expert_imbalance: float
    stage_layers: tuple[int, ...]
    """Layers of each virtual stage, in model order."""
    pipeline_layout: str = ""
    """The same with embedding, MTP layers and loss (`traincast.job.pipeline_layout`)."""
    stages: tuple[str, ...] = ()
    """What each pipeline stage holds in the same letters, its virtual stages apart by ``|``."""
    recompute_group: int = 1
    recomputed_modules: tuple[str, ...] = ()
    """Parts of each layer that are recomputed, with recompute ``selective``."""
    recompute_keeps: tuple[str, ...] = ()
    """Outputs of layers that are recomputed whole which do not run again."""
    optimizer_types: OptimizerTypes = PLAIN
    offload_optimizer: float = 0.0
    offload_parameters: bool = False
    offload_activations: int = 0
    offload_modules: tuple[str, ...] = ()
    overlap_offload: bool = True
    offload_gradients: bool = False
    mtp_layers: int = 0
    mtp_stage: int | None = None
    """Virtual stage of the MTP layers, in model order; None: the last."""
    sharp: str | None = None
    reshard_after_forward: bool = True
    grad_reduce_bytes: int | None = None
    """Bytes of a gradient element as replicas reduce it; None in results that did not tell it yet."""
    param_gather_bytes: int = 2
    gpus_used_per_node: int | str | None = None
    cuda_graph_scope: tuple[str, ...] = ()
    moe_dispatcher: str | None = None
    """None where the model has no experts, and in results that did not tell it yet; so of the type below."""
    moe_dispatch_dtype: str | None = None
    moe_a2a_overlap: bool = False
    delay_wgrad: bool = False
    moe_shared_expert_overlap: bool = False
    moe_paged_stash: bool = False
    fused_router: bool = False
    fused_permute: bool = False
    te_op_fuser: bool = False
    unfused: tuple[str, ...] = ()
    step_checks: tuple[str, ...] = ()
    launch_blocking: bool = False
    dropout: bool = False
    one_hot_embedding: bool = False
    loss_kernel: str | None = None
    """None in results that did not tell it yet."""
    loss_tiles: int = 1
    fp8_recipe: str = "none"
    fp8_transposes: bool = False
    fp8_attention: bool = False
    fp8_lm_head: bool = False
    bf16_first_last: bool = False
    lora_rank: int | None = None
    """None where no adapters are trained."""
    lora_targets: tuple[str, ...] = ()
    packed_length: int | None = None
    local_batch: int | None = None


def facts_of(job: Job, stages: tuple[str, ...]) -> JobFacts:
    """Return what a job is; `stages` are what its pipeline stages hold."""
    framework, adapters, experts = job.framework, job.finetuning.task == "lora", job.model.experts is not None
    worked_out: dict[str, Any] = {
        "model": job.model.name,
        "framework": framework.name,
        "stage_layers": job.pipeline.layers_Q,
        "pipeline_layout": str(job.layout),
        "stages": stages,
        "recomputed_modules": job.recompute.recomputed_modules,
        "recompute_keeps": job.recompute.keeps if job.recompute.whole_layers else (),
        "optimizer_types": job.optimizer,
        "mtp_layers": job.model.mtp_layers,
        "grad_reduce_bytes": framework.grad_reduce_bytes,
        "moe_dispatcher": job.experts.dispatcher if experts else None,
        "moe_dispatch_dtype": job.experts.dispatch_dtype if experts else None,
        "lora_rank": job.finetuning.lora_rank if adapters else None,
        "lora_targets": job.finetuning.lora_targets if adapters else (),
    }
    same = (name for name in JobFacts.__struct_fields__ if name not in worked_out)
    return JobFacts(**worked_out, **{name: job.decided(name) for name in same})
