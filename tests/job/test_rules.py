"""What is refused of a job, on both sides of each limit."""

import pytest
from msgspec.structs import replace

from job_parts import TINY, TINY_EXPERTS, job_of
from traincast.errors import ConfigError, InfeasibleError
from traincast.hardware.clusters import load_cluster
from traincast.job.frameworks import load_framework

ISLANDS = replace(
    load_cluster("h100"),
    islands=("east", "west"),
    island_bandwidth_bytes_per_s=1e9,
    island_latency_s=0.5,
    island_gpus=4,
)


NARROW = replace(TINY, name="narrow", attention=replace(TINY.attention, heads=4))
EP = {"model": TINY_EXPERTS, "gpus": 8, "ep": 8}
"""Experts that are sent to."""


PAIRS = {"gpus": 8, "pp": 2}
WHOLE = replace(load_framework("megatron-core-2025"), distributed_optimizer=False)
"""A framework whose ranks have their state whole."""
TABLE = [
    # Degrees.
    (InfeasibleError, "8 GPUs do not divide", {"gpus": 8, "tp": 3}, {"gpus": 6, "tp": 2, "global_batch": 6}),
    (InfeasibleError, "does not divide the 8 attention heads", {"gpus": 16, "tp": 16}, {"gpus": 8, "tp": 8}),
    (
        InfeasibleError,
        "key/value heads",
        {"model": replace(TINY, attention=replace(TINY.attention, kv_heads=3, heads=12)), "gpus": 2, "tp": 2},
        {"model": replace(TINY, attention=replace(TINY.attention, kv_heads=2)), "gpus": 8, "tp": 8},
    ),
    (
        InfeasibleError,
        "MLP width 1530",
        {"model": replace(TINY, ffn_hidden=1530), "gpus": 4, "tp": 4},
        {"model": replace(TINY, ffn_hidden=1530), "gpus": 2, "tp": 2},
    ),
    (
        InfeasibleError,
        "ep 3 does not divide the 8 experts",
        {"model": TINY_EXPERTS, "gpus": 3, "ep": 3, "global_batch": 3},
        EP,
    ),
    (
        InfeasibleError,
        "etp 5 does not divide the width 768",
        {"model": TINY_EXPERTS, "gpus": 5, "etp": 5, "global_batch": 5},
        {"model": TINY_EXPERTS, "gpus": 3, "etp": 3, "global_batch": 3},
    ),
    (ConfigError, "is 2, but tiny has no experts", {"gpus": 2, "ep": 2}, {"gpus": 2, "ep": 1}),
    (ConfigError, "is 4, but tiny has no experts", {"gpus": 4, "tp": 2, "etp": 4}, {"gpus": 4, "tp": 2, "etp": 2}),
    (
        ConfigError,
        "is 2, but tiny has no experts",
        {"gpus": 4, "tp": 4, "etp": 2, "sequence_parallel": False},
        {"gpus": 4, "tp": 4, "etp": 1},
    ),
    (
        InfeasibleError,
        "tp 8 does not divide the 4 attention heads of narrow",
        {"model": replace(TINY, variants=(("narrow", NARROW),)), "gpus": 8, "tp": 8},
        {"model": replace(TINY, variants=(("narrow", NARROW),)), "gpus": 4, "tp": 4},
    ),
    (ConfigError, "is 2, but tiny has no experts", {"expert_imbalance": 2.0}, {"expert_imbalance": 1.0}),
    (
        ConfigError,
        "is 9; one of ep 8 has at most all tokens",
        {**EP, "expert_imbalance": 9.0},
        {**EP, "expert_imbalance": 8.0},
    ),
    (
        ConfigError,
        "moe_routing is natural",
        {**EP, "expert_imbalance": 2.0, "moe_routing": "natural"},
        {**EP, "expert_imbalance": 1.0, "moe_routing": "natural"},
    ),
    (
        ConfigError,
        "deduplicated_dispatch",
        {**EP, "moe_dispatcher": "alltoall", "deduplicated_dispatch": True},
        {**EP, "moe_dispatcher": "deepep", "deduplicated_dispatch": True},
    ),
    (
        ConfigError,
        "deduplicated_dispatch",
        {**EP, "moe_dispatcher": "deepep", "deduplicated_dispatch": False},
        {**EP, "moe_dispatcher": "alltoall", "deduplicated_dispatch": False},
    ),
    (ConfigError, "mtp_layers: is -1", {"mtp_layers": -1}, {"mtp_layers": 0}),
    # Batches and sequences.
    (
        InfeasibleError,
        r"dp 4 x micro_batch 3 = 12; use 24 or 36",
        {"gpus": 4, "micro_batch": 3, "global_batch": 28},
        {"gpus": 4, "micro_batch": 3, "global_batch": 24},
    ),
    (InfeasibleError, r"= 16; use 16$", {"gpus": 16}, {"gpus": 8}),
    (
        InfeasibleError,
        "1023 learned positions",
        {"model": replace(TINY, learned_positions=1023)},
        {"model": replace(TINY, learned_positions=1024)},
    ),
    (InfeasibleError, "cannot be packed", {"packed_length": 1025}, {"packed_length": 1024}),
    (
        InfeasibleError,
        "a sequence that tp x cp divides",
        {"gpus": 2, "tp": 2, "seq_length": 1023, "sequence_parallel": True},
        {"gpus": 2, "tp": 2, "seq_length": 1023, "sequence_parallel": False},
    ),
    (
        InfeasibleError,
        "a sequence that tp x cp divides",
        {"gpus": 8, "tp": 4, "cp": 2, "seq_length": 1020, "sequence_parallel": True},
        {"gpus": 8, "tp": 4, "cp": 2, "seq_length": 1024, "sequence_parallel": True},
    ),
    (
        InfeasibleError,
        "into 8 pieces",
        {"gpus": 4, "cp": 4, "seq_length": 1020},
        {"gpus": 4, "cp": 4, "seq_length": 1016},
    ),
    (
        InfeasibleError,
        "splits heads: 8 do not divide by cp 4 x tp 4",
        {"gpus": 16, "tp": 4, "cp": 4, "cp_kind": "all_to_all"},
        {"gpus": 8, "tp": 2, "cp": 4, "cp_kind": "all_to_all"},
    ),
    (
        InfeasibleError,
        "splits the sequence: 1022",
        {"gpus": 4, "cp": 4, "seq_length": 1022, "cp_kind": "all_to_all"},
        {"gpus": 4, "cp": 4, "seq_length": 1020, "cp_kind": "all_to_all"},
    ),
    # Sharding and the optimizer.
    (ConfigError, "is 2, but zero is 0", {"gpus": 4, "zero": 0, "shard": 2}, {"gpus": 4, "zero": 0, "shard": 1}),
    (
        InfeasibleError,
        "shard 3 does not divide the 4",
        {"gpus": 4, "zero": 1, "shard": 3},
        {"gpus": 4, "zero": 1, "shard": 2},
    ),
    (
        ConfigError,
        "GEMMs run in bf16",
        {"gpus": 2, "zero": 1, "param_gather_bytes": 1},
        {"gpus": 2, "zero": 1, "param_gather_bytes": 1, "precision": "fp8"},
    ),
    (
        ConfigError,
        "must be 1, 2 or 4",
        {"gpus": 2, "zero": 1, "param_gather_bytes": 3, "precision": "fp8"},
        {"gpus": 2, "zero": 1, "param_gather_bytes": 2, "precision": "fp8"},
    ),
    (
        ConfigError,
        "needs a sharded optimizer",
        {"gpus": 2, "zero": 0, "exp_avg_dtype": "bf16"},
        {"gpus": 2, "zero": 1, "exp_avg_dtype": "bf16"},
    ),
    (
        ConfigError,
        "needs a sharded optimizer",
        {"gpus": 2, "framework": WHOLE, "exp_avg_dtype": "bf16"},
        {"framework": WHOLE, "exp_avg_dtype": "bf16"},
    ),
    (ConfigError, "needs a sharded optimizer", {"zero": 0, "exp_avg_dtype": "bf16"}, {"exp_avg_dtype": "bf16"}),
    (
        ConfigError,
        "can only be fp32",
        {"gpus": 2, "precision_aware_optimizer": False, "main_params_dtype": "fp16"},
        {"gpus": 2, "precision_aware_optimizer": False, "main_params_dtype": "fp32"},
    ),
    (
        ConfigError,
        "is fp32, but grad_reduce_bytes is 2",
        {"main_grads_dtype": "fp32", "grad_reduce_bytes": 2},
        {"main_grads_dtype": "fp32", "grad_reduce_bytes": 4},
    ),
    (
        ConfigError,
        "the host updates with Adam alone",
        {"optimizer": "muon", "offload_optimizer": 0.5},
        {"optimizer": "muon", "offload_optimizer": 0.0},
    ),
    (
        ConfigError,
        "keeps Adam's state",
        {"gpus": 2, "zero": 1, "optimizer": "muon", "exp_avg_dtype": "bf16"},
        {"gpus": 2, "zero": 1, "optimizer": "muon", "exp_avg_dtype": "fp32"},
    ),
    (
        ConfigError,
        "matrices that one rank owns",
        {"gpus": 2, "zero": 1, "optimizer": "muon", "precision": "fp8", "param_gather_bytes": 1},
        {"gpus": 2, "zero": 1, "optimizer": "muon", "precision": "fp8", "param_gather_bytes": 1, "muon_owned": False},
    ),
    (
        ConfigError,
        "must be one of 32, 16, 8, 4",
        {"cluster": ISLANDS, "local_steps": 4, "outer_bits": 6},
        {"cluster": ISLANDS, "local_steps": 4, "outer_bits": 8},
    ),
    (
        ConfigError,
        "at most one part in each step",
        {"cluster": ISLANDS, "local_steps": 4, "outer_fragments": 5},
        {"cluster": ISLANDS, "local_steps": 4, "outer_fragments": 4},
    ),
    (
        InfeasibleError,
        "shard 2 with local_steps",
        {"cluster": ISLANDS, "gpus": 4, "zero": 1, "local_steps": 4, "shard": 2},
        {"cluster": ISLANDS, "gpus": 4, "zero": 1, "local_steps": 4, "shard": 4},
    ),
    (
        InfeasibleError,
        "8 GPUs, but an island of .* has 4",
        {"cluster": ISLANDS, "gpus": 8, "local_steps": 4},
        {"cluster": ISLANDS, "gpus": 4, "local_steps": 4},
    ),
    (ConfigError, "names no islands", {"local_steps": 4}, {}),
    (
        ConfigError,
        "names no islands",
        {"cluster": replace(ISLANDS, islands=()), "local_steps": 4},
        {"cluster": ISLANDS},
    ),
    # Recomputation and offloading.
    (
        ConfigError,
        "meaning only with recompute full",
        {"recompute": "none", "recompute_layers": 2},
        {"recompute": "full", "recompute_layers": 2},
    ),
    (
        ConfigError,
        "meaning only with recompute selective",
        {"recompute": "full", "recompute_modules": ("mlp",)},
        {"recompute": "selective", "recompute_modules": ("mlp",)},
    ),
    (
        ConfigError,
        "name the modules once",
        {"recompute": "selective:mlp", "recompute_modules": ("core_attn",)},
        {"recompute": "selective:mlp", "recompute_modules": ("mlp",)},
    ),
    (ConfigError, "must be a number from 0 to 1", {"offload_optimizer": 2.0}, {"offload_optimizer": 1.0}),
    (
        InfeasibleError,
        "needs sharded parameters",
        {"gpus": 2, "zero": 2, "offload_parameters": True},
        {"gpus": 2, "zero": 3, "offload_parameters": True},
    ),
    (
        ConfigError,
        "takes the optimizer along",
        {"gpus": 2, "zero": 3, "offload_parameters": True, "offload_optimizer": 0.5},
        {"gpus": 2, "zero": 3, "offload_parameters": True, "offload_optimizer": 1.0},
    ),
    (
        ConfigError,
        "give one of them",
        {"offload_activations": 2, "offload_modules": ("core_attn",)},
        {"offload_activations": 0, "offload_modules": ("core_attn",)},
    ),
    # Pipelines.
    (InfeasibleError, "vpp 2 needs pp above 1", {"vpp": 2}, {"vpp": 1}),
    (
        ConfigError,
        "has no virtual stages",
        {**PAIRS, "vpp": 2, "schedule": "1f1b"},
        {**PAIRS, "vpp": 1, "schedule": "1f1b"},
    ),
    (
        ConfigError,
        "names 3 virtual stages; pp is 2, vpp open",
        {**PAIRS, "vpp": None, "stage_layers": (3, 3, 2)},
        {**PAIRS, "vpp": None, "stage_layers": (3, 2, 2, 1)},
    ),
    (
        ConfigError,
        "names 4 virtual stages; pp is 2, vpp 1",
        {**PAIRS, "vpp": 1, "stage_layers": (3, 2, 2, 1)},
        {**PAIRS, "vpp": 2, "stage_layers": (3, 2, 2, 1)},
    ),
    (ConfigError, "sums to 7 layers", {**PAIRS, "stage_layers": (4, 3)}, {**PAIRS, "stage_layers": (8, 0)}),
    (
        InfeasibleError,
        "places 7 layers, but tiny has 8",
        {**PAIRS, "vpp": None, "pipeline_layout": "Et*4|t*3L"},
        {**PAIRS, "vpp": None, "pipeline_layout": "Et*4|t*4L"},
    ),
    (
        ConfigError,
        "must be from 0|must be a whole number from 0|at least 0",
        {**PAIRS, "stage_layers": (9, -1)},
        {**PAIRS, "stage_layers": (8, 0)},
    ),
    (
        ConfigError,
        "cannot be combined with",
        {**PAIRS, "stage_layers": (4, 4), "first_stage_layers": 4},
        {**PAIRS, "first_stage_layers": 4, "last_stage_layers": 4},
    ),
    (
        ConfigError,
        "cannot be combined with",
        {**PAIRS, "vpp": None, "stage_layers": (4, 4), "pipeline_layout": "Et*4|t*4L"},
        {**PAIRS, "vpp": None, "pipeline_layout": "Et*4|t*4L"},
    ),
    (
        InfeasibleError,
        "which need pp above 1",
        {"vpp": None, "pipeline_layout": "Et*4|t*4L"},
        {"vpp": None, "pipeline_layout": "Et*8L"},
    ),
    # Kernels and types.
    (
        ConfigError,
        "is none, but cuda_graphs is true",
        {"cuda_graph_impl": "none", "cuda_graphs": True},
        {"cuda_graph_impl": "local", "cuda_graphs": True},
    ),
    (
        ConfigError,
        "no CUDA graphs are captured",
        {"cuda_graph_scope": ("attn",), "cuda_graphs": False},
        {"cuda_graph_scope": ("attn",)},
    ),
    (
        ConfigError,
        "is all of them",
        {"cuda_graph_scope": ("attn", "full_iteration")},
        {"cuda_graph_scope": ("full_iteration",)},
    ),
    (
        ConfigError,
        "GEMMs run in mxfp8",
        {"cluster": "b200", "precision": "mxfp8", "fp8_recipe": "current"},
        {"cluster": "b200", "precision": "fp8", "fp8_recipe": "current"},
    ),
    (
        InfeasibleError,
        "no matrix units for bf16; use fp16",
        {"cluster": "V100", "precision": "bf16"},
        {"cluster": "V100", "precision": "fp16"},
    ),
    (
        InfeasibleError,
        r"A100-SXM-80GB \(ampere\) has no matrix units for fp8; use bf16",
        {"cluster": "A100-SXM-80GB", "precision": "fp8"},
        {"cluster": "h100", "precision": "fp8"},
    ),
    (
        InfeasibleError,
        "no matrix units for mxfp8; use fp8",
        {"precision": "mxfp8"},
        {"cluster": "b200", "precision": "mxfp8"},
    ),
    (InfeasibleError, "no matrix units for mxfp8; use bf16", {"cluster": "A100-SXM-80GB", "precision": "mxfp8"}, {}),
    (
        InfeasibleError,
        r"\(hopper\) has no matrix units for a 4-bit type .* use fp8",
        {"precision": "fp4"},
        {"cluster": "b200", "precision": "fp4"},
    ),
    (InfeasibleError, "4-bit type .* use bf16", {"cluster": "A100-SXM-80GB", "precision": "fp4"}, {}),
    (
        InfeasibleError,
        "use mxfp4",
        {"cluster": "mi355x", "precision": "nvfp4"},
        {"cluster": "mi355x", "precision": "mxfp4"},
    ),
    # Adapters.
    (ConfigError, "needs task lora", {"lora_rank": 8}, {"task": "lora", "lora_rank": 8}),
    (
        ConfigError,
        "needs task lora",
        {"lora_targets": ("linear_qkv",)},
        {"task": "lora", "lora_targets": ("linear_qkv",)},
    ),
    (ConfigError, "at least one kind", {"task": "lora", "lora_targets": ()}, {"task": "lora"}),
]


@pytest.mark.parametrize(("error", "message", "refused", "taken"), TABLE, ids=[str(row[1]) for row in TABLE])
def test_what_cannot_be_is_refused_and_its_neighbour_is_taken(error, message, refused, taken):
    with pytest.raises(error, match=message):
        job_of(**refused)
    job_of(**taken)
