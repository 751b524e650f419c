"""Random jobs that together say everything that a job may say.

A job is a frame, which is a model, a cluster and degrees that go together, and topics that it says something about;
most say what goes together, some say anything, so that refusals are among the results.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sameness.shapes import CLUSTERS, FRAMEWORKS, SCHEDULES, SHAPES, SIXTEEN_BITS, SMALL_BLOCKS, Shape
from traincast.job.optimizer import TP_MODES

Fields = dict[str, Any]


@dataclass(slots=True)
class Job:
    """A drawn job: fields of a job file, and options of the command that forecasts it."""

    shape: Shape
    cluster: str
    fields: Fields
    options: list[str] = field(default_factory=list)

    @property
    def replicas(self) -> int:
        """Ranks that hold equal dense parameters."""
        return int(self.fields["gpus"]) // (self.fields["tp"] * self.fields["pp"])


def draw(seed: int, number: int) -> Job:
    """Return the job of a number; of the same seed and number it is always the same."""
    rng = random.Random(f"{seed}:{number}")
    job = _frame(rng)
    for topic, share in TOPICS.items():
        if rng.random() < share:
            job.fields |= topic(rng, job)
    if rng.random() < 0.15:
        job.fields |= _anything(rng)
    job.options += _options(rng, job)
    _with_lengths(random.Random(f"lengths {seed}:{number}"), job)
    _with_muon(random.Random(f"muon {seed}:{number}"), job)
    _with_kernels(random.Random(f"kernels {seed}:{number}"), job)
    _with_local_batch(random.Random(f"local batch {seed}:{number}"), job)
    return job


def _with_lengths(rng: random.Random, job: Job) -> None:
    """Let a few jobs that pack sequences of one length pack several; what others draw stays as it was."""
    if "packed_length" in job.fields and rng.random() < 0.15:
        packed, longest = job.fields.pop("packed_length"), job.fields["seq_length"]
        job.fields["packed_lengths"] = f"{packed}:{rng.choice((1, 9))},{longest}:1,100:{rng.choice((2, 30))}"
        job.fields["cp_splits_packs"] = rng.random() < 0.5


def _with_muon(rng: random.Random, job: Job) -> None:
    """Let a few jobs update hidden matrices with Muon, likewise."""
    others = (
        "offload_optimizer",
        "precision_aware_optimizer",
        "exp_avg_dtype",
        "exp_avg_sq_dtype",
        "main_params_dtype",
    )
    if rng.random() < 0.04 and not any(each in job.fields for each in (*others, "param_gather_bytes")):
        job.fields |= {"optimizer": "muon", "muon_steps": rng.choice((3, 5)), "muon_owned": rng.random() < 0.6}
        job.fields["muon_tp_mode"] = rng.choice(TP_MODES)


def _with_kernels(rng: random.Random, job: Job) -> None:
    """Let a few jobs say what is not fused, what a step is checked for, and whether layers have dropout, likewise."""
    ways: Fields = {
        "unfused": rng.sample(("rope", "gradient_sums", "experts"), rng.choice((1, 2, 3))),
        "step_checks": rng.sample(("params_norm", "zeros_in_grad"), rng.choice((1, 2))),
        "loss_kernel": rng.choice(("unfused", "compiled", "fused")),
        "dropout": rng.random() < 0.6,
        "launch_blocking": rng.random() < 0.6,
    }
    if rng.random() < 0.06:
        job.fields |= {name: ways[name] for name in rng.sample(sorted(ways), rng.choice((1, 2, 4)))}


def _with_local_batch(rng: random.Random, job: Job) -> None:
    """Let a few pipelines run empty in the middle of a step, likewise."""
    if job.fields["pp"] > 1 and rng.random() < 0.06:
        job.fields["local_batch"] = job.fields["micro_batch"] * job.fields["pp"] * rng.choice((1, 2))


def _frame(rng: random.Random) -> Job:
    """Return a job with a model and degrees that go together, of 1 to 512 GPUs and 1 to 64 microbatches."""
    shape = rng.choice(SHAPES)
    tp = rng.choice([each for each in (1, 1, 2, 4, 8) if each <= shape.tp])
    pp = rng.choice([each for each in (1, 1, 2, 4, 8, 16) if each * 2 <= shape.layers])
    cp = 1 if shape.longest < 4096 else rng.choice((1, 1, 1, 1, 2, 4))
    dp = rng.choice([each for each in (1, 2, 4, 4, 8, 8, 16, 3) if each * tp * pp * cp <= 512])
    microbatches = rng.choice((1, 2, 4, 8, 16, 32, 64) if pp <= 4 else (pp, 2 * pp, 3 * pp))
    if pp * microbatches > 256:
        microbatches = max(pp, 256 // pp)
    micro_batch = rng.choice((1, 1, 1, 2, 4))
    fields: Fields = {
        **{"gpus": tp * pp * cp * dp, "tp": tp, "pp": pp, "cp": cp, "micro_batch": micro_batch},
        "seq_length": min(shape.longest, rng.choice((1024, 2048, 4096, 4096, 8192))),
        "global_batch": dp * micro_batch * microbatches,
    }
    if shape.experts:
        degrees = [each for each in (1, 2, 4, 8, 16, 32) if dp * cp % each == 0 and shape.experts % each == 0]
        fields["ep"] = rng.choice(degrees[-3:])
        if rng.random() < 0.5:
            fields["etp"] = 1
    return Job(shape, rng.choice(CLUSTERS), fields)


def _schedule(rng: random.Random, job: Job) -> Fields:
    pp = job.fields["pp"]
    fitting = {
        name: [each for each in vpp if pp * each <= job.shape.layers] for name, vpp in SCHEDULES.items() if pp > 1
    }
    if not any(fitting.values()):
        return {"schedule": rng.choice(("1f1b", "gpipe"))}
    name = rng.choice([name for name, vpp in fitting.items() if vpp])
    return {"schedule": name, "vpp": rng.choice(fitting[name])}


def _split(rng: random.Random, job: Job) -> Fields:
    """Return how layers are split onto stages, where it is not evenly."""
    pp, layers, vpp = job.fields["pp"], job.shape.layers, job.fields.get("vpp", 1)
    if pp == 1:
        return {"embedding_as_layer": rng.random() < 0.5, "head_as_layer": rng.random() < 0.5}
    kind = rng.choice(("counted", "first_stage_layers", "last_stage_layers", "both", "stages", "layout"))
    counted = next((number for number in (1, 2) if (layers + number) % (pp * vpp) == 0), None)
    if kind == "counted" and counted:
        return {"embedding_as_layer": True, "head_as_layer": counted == 2}
    ends = ("first_stage_layers", "last_stage_layers") if kind == "both" else (kind,)
    between = max(1, pp - len(ends)) * vpp
    whole = [short for short in range(vpp, layers // pp + 3, vpp) if (layers - short * len(ends)) % between == 0]
    if whole and ends[-1].endswith("layers"):
        return dict.fromkeys(ends, rng.choice(whole))
    return _written_out(rng, job, pp * vpp, as_text=kind != "stages")


def _written_out(rng: random.Random, job: Job, virtual: int, *, as_text: bool) -> Fields:
    """Return the layers of every virtual stage, one by one."""
    layers = job.shape.layers
    counts = [layers // virtual + (index < layers % virtual) for index in range(virtual)]
    if rng.random() < 0.5 and counts[0] > 1:
        counts = [counts[0] - 1, *counts[1:-1], counts[-1] + 1]
    vpp = {"vpp": virtual // job.fields["pp"]}
    if not as_text:
        return {**vpp, "stage_layers": counts}
    stages = "|".join(f"t*{count}" for count in counts)
    return {**vpp, "pipeline_layout": f"E{stages}{'m' if job.shape.mtp else ''}L"}


def _sharding(rng: random.Random, job: Job) -> Fields:
    zero = rng.choice((0, 1, 1, 2, 3, 3))
    fields: Fields = {"zero": zero}
    shards = [each for each in (2, 4, 8, 16) if job.replicas % each == 0]
    if zero and shards and rng.random() < 0.4:
        fields["shard"] = rng.choice(shards)
    if zero == 3 and rng.random() < 0.5:
        fields["reshard_after_forward"] = rng.random() < 0.4
    if rng.random() < 0.3:
        fields["grad_reduce_bytes"] = rng.choice((2, 4))
    if rng.random() < 0.1:
        fields["sharp"] = rng.choice(("dp", "dp_replica"))
    return fields


def _overlaps(rng: random.Random, job: Job) -> Fields:
    names = ["overlap_grad_reduce", "overlap_param_gather", "overlap_tp", "overlap_p2p"]
    said = rng.sample(names, rng.choice((1, 2, 4)))
    fields: Fields = {name: rng.random() < 0.6 for name in said}
    if fields.get("overlap_param_gather"):
        fields["overlap_grad_reduce"] = True
    if job.fields["tp"] > 1 and rng.random() < 0.4:
        fields["sequence_parallel"] = rng.random() < 0.5
    return fields


def _recompute(rng: random.Random, job: Job) -> Fields:
    kind = rng.choice(("none", "selective", "selective", "full", "full"))
    fields: Fields = {"recompute": kind}
    if kind == "full" and rng.random() < 0.6:
        fields |= {"recompute_method": rng.choice(("block", "uniform")), "recompute_layers": rng.choice((1, 2))}
    if kind == "selective" and rng.random() < 0.7:
        modules = ["core_attn", "layernorm", "mlp"]
        modules += ["moe", "moe_act", "shared_experts"] if job.shape.experts else []
        modules += ["mla_up_proj"] if job.shape.latent else []
        fields["recompute_modules"] = rng.sample(modules, rng.choice((1, 2)))
    return fields


OFFLOAD_MODULES = ("attn_norm", "qkv_linear", "core_attn", "attn_proj", "mlp_norm", "expert_fc1", "moe_act")


def _offload(rng: random.Random, job: Job) -> Fields:
    kind = rng.choice(("optimizer", "optimizer", "parameters", "layers", "layers", "modules"))
    fields: Fields = {"overlap_offload": rng.random() < 0.5} if rng.random() < 0.4 else {}
    if kind == "optimizer":
        return {**fields, "zero": rng.choice((1, 2, 3)), "offload_optimizer": rng.choice((0.25, 0.5, 1.0, 1.0))}
    if kind == "parameters":
        job.fields["framework"] = rng.choice(("deepspeed-2024", "torchtitan-2025", "deepspeed-2021"))
        return {**fields, "zero": 3, "offload_parameters": True, "offload_optimizer": 1.0}
    if kind == "layers":
        return {"offload_activations": rng.choice((1, 2))}
    modules = OFFLOAD_MODULES if job.shape.experts else OFFLOAD_MODULES[:5]
    return {"offload_modules": rng.sample(modules, rng.choice((1, 2)))}


RECIPES = {
    "fp8": ("delayed", "current", "rowwise", "rowwise_with_gw_hp"),
    **{"fp8_block": ("blockwise",), "mxfp8": ("mxfp8",), "nvfp4": ("nvfp4",), "mxfp4": ("mxfp4",), "fp4": ()},
}


def _precision(rng: random.Random, job: Job) -> Fields:
    narrow = ["fp8", "fp8", "fp8_block"] if job.cluster not in SIXTEEN_BITS else []
    narrow += ["mxfp8", "mxfp8", "nvfp4", "mxfp4", "fp4"] if job.cluster in SMALL_BLOCKS else []
    wide = ["bf16", "fp32"] if job.cluster.startswith("tpu") else ["bf16", "fp16", "fp32", "tf32"]
    precision = rng.choice([*narrow, *wide])
    fields: Fields = {"precision": precision}
    if RECIPES.get(precision) and rng.random() < 0.6:
        fields["fp8_recipe"] = rng.choice(RECIPES[precision])
    if precision in narrow:
        said = ("fp8_attention", "bf16_first_last", "te_op_fuser", *(["fp8_lm_head"] if precision == "mxfp8" else ()))
        fields |= {name: True for name in said if rng.random() < 0.25}
        if rng.random() < 0.3:
            fields |= {"zero": 3, "param_gather_bytes": rng.choice((1, 2))}
    return fields


def _graphs(rng: random.Random, job: Job) -> Fields:
    kind = rng.choice(("layers", "impl", "scope", "scope"))
    if kind == "layers":
        return {"cuda_graphs": rng.random() < 0.7}
    if kind == "impl":
        return {"cuda_graph_impl": rng.choice(("none", "local", "transformer_engine", "full_iteration"))}
    modules = ["attn"]
    modules += ["moe_router", "moe_preprocess", "moe"] if job.shape.experts else ["mlp"]
    modules += ["mamba"] if job.shape.mixers else []
    return {"cuda_graph_scope": rng.sample(modules, rng.choice((1, 2))) if rng.random() < 0.9 else ["full_iteration"]}


def _experts(rng: random.Random, job: Job) -> Fields:
    if not job.shape.experts:
        return {}
    fields: Fields = {"moe_dispatcher": rng.choice(("allgather", "alltoall", "deepep", "hybridep"))}
    if rng.random() < 0.3:
        fields["moe_dispatch_dtype"] = rng.choice(("bf16", "fp8"))
    if rng.random() < 0.35:
        fields["moe_a2a_overlap"] = True
        job.fields["ep"] = max(2, job.fields["ep"]) if job.replicas % 2 == 0 else job.fields["ep"]
        fields["delay_wgrad"] = rng.random() < 0.4
    elif rng.random() < 0.4:
        fields["moe_shared_expert_overlap"] = True
    if rng.random() < 0.3 and job.fields["ep"] > 2:
        fields |= rng.choice(({"expert_imbalance": rng.choice((1.2, 2.0))}, {"moe_routing": "natural"}))
    for name in ("moe_paged_stash", "fused_router", "fused_permute", "te_op_fuser"):
        if rng.random() < 0.25:
            fields[name] = rng.random() < 0.7
    if rng.random() < 0.1:
        fields = {"deduplicated_dispatch": rng.random() < 0.6}
    return fields


def _optimizer(rng: random.Random, job: Job) -> Fields:
    moments = ("fp32", "fp16", "bf16", "fp8")
    types = {
        **{"exp_avg_dtype": rng.choice(moments), "exp_avg_sq_dtype": rng.choice(moments)},
        **{"main_grads_dtype": rng.choice(("fp32", "bf16")), "main_params_dtype": rng.choice(("fp32", "fp16"))},
    }
    said = rng.sample(sorted(types), rng.choice((1, 2, 4)))
    fields: Fields = {"zero": rng.choice((1, 1, 2, 3)), **{name: types[name] for name in said}}
    job.fields.pop("grad_reduce_bytes", None)
    if rng.random() < 0.5:
        fields["precision_aware_optimizer"] = rng.random() < 0.9
    return fields


LORA_TARGETS = ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2", "in_proj", "out_proj")


def _finetuning(rng: random.Random, job: Job) -> Fields:
    task = rng.choice(("sft", "lora", "lora", "pretrain"))
    fields: Fields = {"task": task}
    if task == "lora" and rng.random() < 0.6:
        targets = LORA_TARGETS if job.shape.mixers else LORA_TARGETS[:4]
        fields |= {"lora_rank": rng.choice((8, 16, 64)), "lora_targets": rng.sample(targets, rng.choice((1, 2, 4)))}
    if rng.random() < 0.5:
        fields["packed_length"] = job.fields["seq_length"] // rng.choice((2, 4, 8))
    return fields


def _software(rng: random.Random, _: Job) -> Fields:
    if rng.random() < 0.25:
        return {"year": rng.choice(range(2020, 2027))}
    return {"framework": rng.choice(FRAMEWORKS)}


def _kernels(rng: random.Random, job: Job) -> Fields:
    kernels = ["unfused", "fa2", "cudnn", "triton"]
    kernels += ["fa3", "fa3"] if job.cluster.startswith(("h", "ideal")) else []
    kernels += ["fa1"] if job.cluster.startswith("a") else []
    kernels = kernels[:2] if job.cluster.startswith(("tpu", "mi")) else kernels
    fields: Fields = {"attention_kernel": rng.choice(kernels)}
    if job.fields["cp"] > 1:
        fields["cp_kind"] = rng.choice(("ring", "all_gather", "all_to_all"))
    if rng.random() < 0.3:
        fields["vocab_multiple"] = rng.choice((64, 128, 1024))
    if rng.random() < 0.2 and "pipeline_layout" not in job.fields:
        fields["mtp_layers"] = rng.choice((0, 1, 2))
    return fields


Topic = Callable[[random.Random, Job], Fields]
TOPICS: dict[Topic, float] = {
    **{_software: 0.35, _schedule: 0.7, _split: 0.25, _sharding: 0.5, _overlaps: 0.4, _recompute: 0.45},
    **{_precision: 0.45, _graphs: 0.2, _experts: 0.7, _optimizer: 0.15, _finetuning: 0.15, _kernels: 0.25},
    _offload: 0.2,
}
"""What a job may say something about, and how many do."""


def _anything(rng: random.Random) -> Fields:
    """Return a few fields, each with any value, whatever else the job says."""
    any_value: Fields = {
        **{"tp": (3, 16), "vpp": (2, 3, 8), "ep": (2, 3, 8), "etp": (2, 4), "cp": (2, 8), "zero": (0, 1, 2, 3)},
        **{"schedule": (*SCHEDULES, "zigzag"), "shard": (2, 3), "sharp": ("dp", "dp_replica"), "gpus": (6, 24, 48)},
        **{"precision": (*RECIPES, "int8"), "fp8_recipe": ("none", "delayed", "blockwise", "nvfp4")},
        **{"recompute_modules": (["mla_up_proj"], ["moe"], ["sofa"]), "recompute_layers": (1, 400)},
        **{"recompute_keeps": (["linear_qkv"], ["sofa"])},
        **{"cuda_graph_scope": (["mamba"], ["attn", "full_iteration"]), "offload_parameters": (True,)},
        **{"moe_dispatcher": ("hybridep", "deepep"), "moe_a2a_overlap": (True,), "attention_kernel": ("fa3", "cudnn")},
        **{"lora_rank": (8,), "packed_length": (100, 512), "seq_length": (1, 100_000), "global_batch": (7, 96)},
        **{"main_params_dtype": ("fp16", "fp8"), "param_gather_bytes": (1,), "expert_imbalance": (0.5, 3.0)},
        **{"sequence_parallel": (True,), "delay_wgrad": (True,), "first_stage_layers": (1, 200), "mtp_layers": (1, 3)},
        **{"offload_activations": (1, 99), "year": (2019, 2026), "framework": ("megatron", "eager")},
    }
    return {name: rng.choice(any_value[name]) for name in rng.sample(sorted(any_value), rng.choice((1, 2)))}


def _options(rng: random.Random, job: Job) -> list[str]:
    """Return options of the forecast: what is simulated, and what is told of it."""
    gpus = job.fields["gpus"]
    any_of = (
        *(["--slow", f"{rng.randrange(gpus)}=1.3"], ["--busbw", "tp=300GB/s"], ["--busbw", "dp.all_gather=50GB/s"]),
        *(["--network", "analytical"], ["--network", "flow"], ["--network-seeds", "2"], ["--goodput"]),
        *(["--overlap-slowdown", "0"], ["--overlap-slowdown", "memory=0.2"], ["--gpus-used-per-node", "all"]),
        *(["--gpus-used-per-node", "4"], ["--jitter", "0.05", "--seeds", "4"], ["--tokens", "1T"]),
        *(["--what-if", "tp_comm*0.5"], ["--what-if", "nic_bandwidth=800Gb/s"], ["--goodput", "mtbf=50000h"]),
        ["--tokens", "15T", "--gpu-hour-price", "2.5", "--pue", "1.2"],
    )
    found = [] if rng.random() < 0.1 else ["--allow-oom"]
    found += [] if gpus <= 64 and rng.random() < 0.1 else ["--no-suggest"]
    found += ["--unfold"] if gpus <= 32 and rng.random() < 0.1 else []
    if rng.random() < 0.3:
        found += [word for option in rng.sample(any_of, 1) for word in option]
    return found
