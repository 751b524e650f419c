"""Flags of a job on the command line, one table: field, names (ours and Megatron-LM's), kind, help.

Source of the aliases: Megatron-LM, megatron/training/arguments.py.
"""

from typing import NamedTuple

from traincast.hardware.attention_kernels import ATTENTION_KERNELS
from traincast.job.frameworks import CP_KINDS, RECOMPUTE_METHODS
from traincast.job.job import PRECISIONS, SHARP_GROUPS
from traincast.job.optimizer_types import TYPE_CHOICES
from traincast.model.counts import TASKS
from traincast.model.recompute import RECOMPUTE, RECOMPUTE_MODULES

SCHEDULES = ("gpipe", "1f1b", "interleaved")
"""Schedules that are built in, as the command line offers them beside those of plug-ins."""


class JobFlag(NamedTuple):
    """One flag of a job."""

    field: str
    """Field of `JobRequest`, or ``model``."""
    names: tuple[str, ...]
    kind: str
    """``text``, ``count``, ``tokens``, ``number``, ``switch`` (with a ``--no-`` form), ``choice``, or ``names`` for
    several choices."""
    help: str
    choices: tuple[str, ...] = ()
    """All values of a ``choice`` or of ``names``, the built-in ones of a ``text`` to which plug-ins may add."""
    least: int = 1
    """Smallest value of a count or number; the largest below, None: that of `traincast.units`."""
    most: int | None = None


JOB_FLAGS: tuple[JobFlag, ...] = (
    JobFlag("model", ("--model",), "text", "Built-in model, Hugging Face config.json, or TOML."),
    JobFlag("gpus", ("--gpus", "--world-size"), "count", "GPUs of the job."),
    JobFlag("tp", ("--tp", "--tensor-model-parallel-size"), "count", "Tensor parallel degree."),
    JobFlag("pp", ("--pp", "--pipeline-model-parallel-size"), "count", "Pipeline stages."),
    JobFlag("vpp", ("--vpp", "--num-virtual-stages-per-pipeline-rank"), "count", "Virtual stages per stage."),
    JobFlag("cp", ("--cp", "--context-parallel-size"), "count", "Context parallel degree."),
    JobFlag("ep", ("--ep", "--expert-model-parallel-size"), "count", "Expert parallel degree."),
    JobFlag("etp", ("--etp", "--expert-tensor-parallel-size"), "count", "Expert tensor parallel degree."),
    JobFlag("seq_length", ("--seq-length",), "tokens", "Tokens of a sequence; 8k is 8192, 1M is 1048576."),
    JobFlag("micro_batch", ("--micro-batch", "--micro-batch-size"), "count", "Sequences of a microbatch and replica."),
    JobFlag("global_batch", ("--global-batch", "--global-batch-size"), "count", "Sequences of a step."),
    JobFlag("schedule", ("--schedule",), "text", "Pipeline schedule.", SCHEDULES),
    JobFlag(
        "first_stage_layers",
        ("--first-stage-layers", "--decoder-first-pipeline-num-layers"),
        "count",
        "Layers of the first stage.",
    ),
    JobFlag(
        "last_stage_layers",
        ("--last-stage-layers", "--decoder-last-pipeline-num-layers"),
        "count",
        "Layers of the last stage.",
    ),
    JobFlag("sequence_parallel", ("--sequence-parallel",), "switch", "Split norms of a TP group along the sequence."),
    JobFlag("zero", ("--zero",), "count", "ZeRO stage: 0, 1 optimizer, 2 gradients, 3 parameters (FSDP).", (), 0, 3),
    JobFlag("shard", ("--shard",), "count", "Ranks that share one copy of sharded state (HSDP)."),
    JobFlag("overlap_grad_reduce", ("--overlap-grad-reduce",), "switch", "Reduce gradients beside the backward pass."),
    JobFlag("overlap_param_gather", ("--overlap-param-gather",), "switch", "Gather parameters beside computation."),
    JobFlag("overlap_tp", ("--overlap-tp", "--tp-comm-overlap"), "switch", "TP transfers beside their products."),
    JobFlag("overlap_p2p", ("--overlap-p2p",), "switch", "Messages between stages beside computation."),
    JobFlag(
        "recompute",
        ("--recompute", "--recompute-granularity"),
        "choice",
        "What the backward pass computes again.",
        RECOMPUTE,
    ),
    JobFlag(
        "recompute_method",
        ("--recompute-method",),
        "choice",
        "With full: so many layers of each virtual stage, or all layers in groups of so many.",
        RECOMPUTE_METHODS,
    ),
    JobFlag(
        "recompute_modules",
        ("--recompute-modules",),
        "names",
        "Parts of each layer that selective recomputes, such as mla_up_proj,moe_act.",
        RECOMPUTE_MODULES,
    ),
    JobFlag(
        "recompute_layers",
        ("--recompute-layers", "--recompute-num-layers"),
        "count",
        "Layers per virtual stage computed again whole.",
    ),
    JobFlag("precision", ("--precision",), "choice", "Type of the matrix products' inputs.", PRECISIONS),
    JobFlag("attention_kernel", ("--attention-kernel",), "choice", "Generation of the kernel.", ATTENTION_KERNELS),
    JobFlag("cuda_graphs", ("--cuda-graphs",), "switch", "Replay CUDA graphs instead of launching kernels."),
    JobFlag("cp_kind", ("--cp-kind",), "choice", "How CP ranks exchange keys and values.", CP_KINDS),
    JobFlag("framework", ("--framework",), "text", "Framework by name or TOML."),
    JobFlag("year", ("--year",), "count", "Year of the software, where no framework is named."),
    JobFlag("task", ("--task",), "choice", "What is trained.", TASKS),
    JobFlag("lora_rank", ("--lora-rank",), "count", "Rank of LoRA adapters."),
    JobFlag("expert_imbalance", ("--expert-imbalance",), "number", "Tokens of the busiest expert rank over the mean."),
    JobFlag("grad_reduce_bytes", ("--grad-reduce-bytes",), "count", "Bytes of a gradient element as it is reduced."),
    JobFlag(
        "deduplicated_dispatch",
        ("--deduplicated-dispatch",),
        "switch",
        "Send a token to a node of its experts once (DeepEP, HybridEP).",
    ),
    JobFlag("sharp", ("--sharp",), "choice", "Group that InfiniBand switches reduce for.", SHARP_GROUPS),
    JobFlag(
        "reshard_after_forward",
        ("--reshard-after-forward",),
        "switch",
        "Free FSDP's parameters after the forward pass, and gather them again.",
    ),
    JobFlag(
        "param_gather_bytes",
        ("--param-gather-bytes",),
        "count",
        "Bytes of a weight's element as it is gathered.",
        (),
        1,
        2,
    ),
    JobFlag(
        "precision_aware_optimizer",
        ("--precision-aware-optimizer", "--use-precision-aware-optimizer"),
        "switch",
        "Adam keeps its state in the types below.",
    ),
    *(
        JobFlag(field, (f"--{field.replace('_', '-')}",), "choice", f"Type of {what}.", tuple(TYPE_CHOICES[field]))
        for field, what in (
            ("main_grads_dtype", "gradients as they are summed and reduced"),
            ("main_params_dtype", "Adam's main parameters"),
            ("exp_avg_dtype", "Adam's first moments"),
            ("exp_avg_sq_dtype", "Adam's second moments"),
        )
    ),
    JobFlag(
        "vocab_multiple",
        ("--vocab-multiple", "--make-vocab-size-divisible-by"),
        "count",
        "Pad the vocabulary to a multiple of this times tp.",
    ),
)


def job_flag_of(field: str) -> str:
    """Return the name of the flag that sets a field of a job."""
    named = {flag.field: flag.names[0] for flag in JOB_FLAGS}
    return named.get(field, f"--{field.replace('_', '-')}")
