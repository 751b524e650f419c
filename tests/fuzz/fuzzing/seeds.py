"""Sound inputs of every kind, small so that a thousand mutations of each take seconds.

They are written here or taken from ``examples/``; their numbers are made up where nothing else is said.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from fuzzing.case import ROOT, Seed
from fuzzing.measured import MEASURED
from traincast.formats.straggler_st import COLUMNS
from traincast.shipped import shipped_text

_EXAMPLES = ROOT / "examples"


def _text(text: str) -> bytes:
    return text.encode()


def _example(name: str) -> bytes:
    return (_EXAMPLES / name).read_bytes()


AICB = _text(
    "HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 2 ep: 2 pp: 2 vpp: 2 ga: 2 all_gpus: 8 checkpoints: 0 "
    "checkpoint_initiates: 0 pp_comm: 65536\n20\n"
    + "\n".join(
        "\t".join(line.split())
        for line in (
            "grad_gather -1 1 NONE 0 1 NONE 0 1 ALLGATHER 2097152 100",
            "grad_param_comm -1 1 NONE 0 1 NONE 0 1 REDUCESCATTER 4194304 100",
            "grad_param_compute -1 1 NONE 0 90000 NONE 0 1 NONE 0 100",
            "embedding_grads -1 1 NONE 0 1 ALLREDUCE 1048576 1 NONE 0 100",
            "moe_grad_norm1 -1 1 NONE 0 1 NONE 0 1 ALLGATHER_DP_EP 524288 100",
            *(
                "embedding_layer -1 30000 ALLREDUCE 1048576 1 NONE 0 22000 NONE 0 100",
                "attention_column -1 90000 ALLGATHER 1048576 90000 REDUCESCATTER 0 90000 NONE 0 100",
                "attention_row -1 90000 REDUCESCATTER 1048576 90000 ALLGATHER 1048576 90000 NONE 0 100",
                "mlp_moelayer -1 45000 ALLTOALL_EP 1048576 9000 ALLTOALL_EP 1048576 9000 REDUCESCATTER_DP_EP 262144 1",
                "attention_column -1 90000 ALLGATHER 1048576 90000 REDUCESCATTER 0 90000 NONE 0 100",
                "attention_row -1 90000 REDUCESCATTER 1048576 90000 ALLGATHER 1048576 90000 NONE 0 100",
            )
            * 2,
            "final_column -1 45000 ALLREDUCE 524288 90000 NONE 0 1 NONE 0 100",
            "cross_entropy1 -1 1 ALLREDUCE 8192 1 NONE 0 1 NONE 0 100",
            "optimizer1 -1 10000 ALLREDUCE 4 1 NONE 0 1 NONE 0 100",
        )
    )
    + "\n"
)
"""A step of two microbatches over tp 2, pp 2 and ep 2."""


def _aicb() -> list[Seed]:
    commands = (
        ("simulate", "w.txt", "--json"),
        ("simulate", "w.txt"),
        ("simulate", "w.txt", "--cluster", "h100", "--out", "out"),
        ("simulate", "w.txt", "--pricing", "simai"),
        ("inspect", "w.txt"),
    )
    bundled = Seed({"w.txt": _example("aicb_scaled_512gpu.txt")}, commands[:2] + commands[-1:])
    return [*[Seed({"w.txt": AICB}, commands)] * 4, bundled]


_PHYSICAL_HEADER = (
    "comm_type,comm_group,comm_group_size,msg_size,stage,dst,src,additional,_elapsed_time,algbw,busbw,count"
)


def _physical_section(stage: int, timed: bool) -> str:
    """Return the rows of one of two stages: an initialisation, and a step of two microbatches."""
    other, step = "CommType.{},CommGroup.pp_group,1,65536,{}", "CommType.{},CommGroup.{},{},{},{}"
    forward = [
        step.format("all_gather", "tp_group", 2, 1048576, "forward.MegatronColumnLinear"),
        "CommType.computation,CommGroup.all,None,((512 1 1024) (1024 512)),forward.MegatronColumnLinear",
    ]
    backward = [step.format("reduce_scatter", "tp_group", 2, 1048576, "backward.MegatronColumnLinear")]
    pieces = (forward, backward, forward, backward)
    message = other.format("isend" if stage == 0 else "irecv", "forward_step")
    rows = [step.format("all_reduce", "dp_group", 2, 8, "init.model_setup"), "CommType.epoch_end,None,None,0,"]
    rows += [row for piece in pieces for row in (*piece, message)]
    rows += [step.format("all_reduce", "dp_group", 2, 4194304, "step"), "CommType.epoch_end,None,None,0,"]
    ends = ",None,None,,{},None,None,1"
    ranks = ", ".join(f"rank{rank}" for rank in range(4 * stage, 4 * stage + 4))
    lines = [f"{row}{ends.format(number + 1.5 if timed else None)}" for number, row in enumerate(rows)]
    return "\n".join([f"[ pp_stage{stage}: [{ranks}] ]", _PHYSICAL_HEADER, *lines, ""])


def _physical() -> list[Seed]:
    commands = (
        ("simulate", "w.csv", "--json", "--cluster", "h100"),
        ("simulate", "w.csv", "--comm", "model", "--gpus", "16"),
        ("inspect", "w.csv"),
    )
    texts = [_physical_section(0, timed) + _physical_section(1, timed) for timed in (False, True)]
    return [Seed({"w.csv": _text(text)}, commands) for text in texts]


_BUSBW = (
    "mine\nTP:\n  allreduce,: 300 # GB/s\n  allgather,: 280\nDP:\nreducescatter,: null\nEP:\nalltoall,: 80\n"
    "PP:\nbusbw: 40\n"
)


def _busbw() -> list[Seed]:
    commands = (("simulate", "w.txt", "--cluster", "h100", "--busbw", "b.yaml", "--json"), ("inspect", "b.yaml"))
    return [Seed({"b.yaml": _text(_BUSBW), "w.txt": AICB}, commands, ("b.yaml",))]


def _megatron() -> list[Seed]:
    # Two ranks of a pipeline: of the bundled run those with tensor rank 0 on the first stages.
    folder = "megatron_pp4_tp2"
    run = {f"run/{path.name}": path.read_bytes() for path in sorted((_EXAMPLES / folder).iterdir())}
    profile = "trace_rank7.txt"
    layout = ("--pp", "4", "--ep", "4", "--dp", "4", "--microbatches", "8", "--cluster", "h800")
    moe = (("simulate", profile, *layout, "--json"), ("simulate", profile, *layout), ("inspect", profile))
    one = (("simulate", "r.txt", "--microbatches", "4", "--json"), ("simulate", "r.txt"), ("inspect", "r.txt"))
    many = (("simulate", "run", "--json"), ("inspect", "run"), ("compare", "run", "run"))
    return [
        *[Seed({profile: _example("megatron_moe_profile_rank7.txt")}, moe)] * 3,
        *[Seed({"r.txt": _example("megatron_rank0_pp2.txt")}, one)] * 2,
        Seed(run, many),
    ]


def _kineto() -> list[Seed]:
    samples = ROOT / "tests" / "conformance" / "samples" / "kineto"
    run = {f"run/{path.name}": path.read_bytes() for path in sorted((samples / "two_ranks").iterdir())}
    many = (
        ("simulate", "run", "--json"),
        ("simulate", "run", "--comm", "model", "--cluster", "h100"),
        ("inspect", "run"),
    )
    one = (("simulate", "t.json", "--json"), ("simulate", "t.json"), ("inspect", "t.json", "--json"))
    return [Seed(run, many), Seed({"t.json": (samples / "one_rank_old.json").read_bytes()}, one)]


def _chakra() -> list[Seed]:
    samples = ROOT / "tests" / "conformance" / "samples" / "chakra"
    found = []
    for folder in sorted(samples.iterdir()):
        run = {f"run/{path.name}": path.read_bytes() for path in sorted(folder.iterdir())}
        commands = (
            ("simulate", "run", "--cluster", "h100", "--json"),
            ("simulate", "run", "--comm", "model", "--cluster", "h100"),
            ("convert", "run", "out", "--to", "chakra", "--cluster", "h100"),
            ("inspect", "run"),
        )
        found.append(Seed(run, commands))
    return found


def _neusight() -> list[Seed]:
    table = _example("neusight_gpt2_large_dp.tsv")
    names, *rows = [line.split("\t") for line in table.decode().splitlines()]
    small = _text("\n".join("\t".join(row) for row in (names, *rows[:24])) + "\n")
    objects = [dict(zip(names, [row[0], *map(_cell, row[1:])], strict=True)) for row in rows[:24]]
    document = _text(json.dumps(objects))
    flags = ("--gpus", "4", "--layers", "2")
    of_table = (("simulate", "f.tsv", "--gpus", "4", "--json"), ("simulate", "f.tsv"), ("inspect", "f.tsv"))
    of_json = (("simulate", "f.json", "--gpus", "2", "--json"), ("simulate", "f.json"), ("inspect", "f.json"))
    whole = (("simulate", "f.tsv", *flags, "--json"), ("simulate", "f.tsv", *flags), ("inspect", "f.tsv"))
    return [Seed({"f.tsv": small}, of_table), Seed({"f.json": document}, of_json), Seed({"f.tsv": table}, whole)]


def _cell(text: str) -> float | str | None:
    if text == "None":
        return None
    try:
        return float(text)
    except ValueError:
        return text


_CLUSTER = """base = "{base}"
description = "a cluster of the fuzzer"
gpus_per_node = {gpus}

[gpu]
hbm_bytes = "80GB"
bf16_dense_flops_per_s = {{ value = 989e12, source = "made up" }}

[intra]
base_latency_s = "5us"
bandwidth_bytes_per_s = "326GB/s"

[inter]
bandwidth_bytes_per_s = "48.5GB/s"
node_bandwidth_bytes_per_s = 350e9
hop_latency_s = {{ value = "6.46us", source = "made up" }}
fill_bytes = "2.8MB"

[fabric]
{fabric}
"""
_FABRICS = (
    'kind = "non-blocking"',
    'kind = "fat-tree"\nnodes_per_leaf = 2\noversubscription = 2.0\nspines = 2\nleaves_per_pod = 2',
    'kind = "rail-optimised"\nnodes_per_leaf = 2\nrails = 4\nrouting = "ecmp"\nqueue_pairs = 2\nseed = 3',
    'kind = "rail-only"\nrails = 4\nlink_bytes_per_s = "50GB/s"',
    'kind = "dual-plane"\nnodes_per_leaf = 2\nplanes = 2',
    'kind = "dragonfly+"\nnodes_per_leaf = 2\nleaves_per_pod = 2\nspines = 2',
    'kind = "torus"\ndims = [4, 2, 2]',
)
_ON_CLUSTER = (
    ("collective", "all_reduce", "--cluster", "c.toml", "--gpus", "16", "--size", "1MiB..4MiB"),
    ("collective", "all_to_all", "--cluster", "c.toml", "--gpus", "16", "--size", "1MiB", "--json"),
    ("clusters", "c.toml"),
    ("clusters", "c.toml", "--json"),
    ("inspect", "c.toml"),
    ("simulate", "w.txt", "--cluster", "c.toml", "--json"),
    ("simulate", "w.txt", "--cluster", "c.toml", "--network", "flow"),
)


def _clusters() -> list[Seed]:
    found = []
    for at, fabric in enumerate(_FABRICS):
        text = _CLUSTER.format(base=("h100", "a100", "h200")[at % 3], gpus=4, fabric=fabric)
        found.append(Seed({"c.toml": _text(text), "w.txt": AICB}, _ON_CLUSTER, ("c.toml",)))
    preset = shipped_text("clusters/h100.toml").encode()
    return [*found, Seed({"c.toml": preset, "w.txt": AICB}, _ON_CLUSTER, ("c.toml",))]


def _simai_topology() -> str:
    """Two nodes of four GPUs, a switch in each, two leaves, one spine; in the form of SimAI's generator."""
    nodes, gpus = 2, 4
    world = nodes * gpus
    leaf, spine = world + nodes, world + nodes + 2
    links = [f"{rank} {world + rank // gpus} 2880Gbps 0.000025ms 0" for rank in range(world)]
    links += [f"{rank} {leaf + rank % 2} 400Gbps 0.0005ms 0" for rank in range(world)]
    links += [f"{leaf + low} {spine} 400Gbps 0.0005ms 0" for low in range(2)]
    head = [f"{spine + 1} {gpus} {nodes} 3 {len(links)} H100", " ".join(map(str, range(world, spine + 1)))]
    return "\n".join([*head, *links]) + "\n"


_ASTRA = """# two tiers
topology: [ Switch, Ring ]
npus_count: [ 4, 2 ]  # 8 GPUs
bandwidth: [ 400.0, 50 ]
latency: [ 936.25, 500 ]
"""


def _topologies() -> list[Seed]:
    cluster = 'base = "h100"\ngpus_per_node = 4\n\n[fabric]\nkind = "file"\nfile = "{}"\nrouting = "ecmp"\n'
    commands = (
        ("inspect", "{}"),
        ("collective", "all_reduce", "--cluster", "c.toml", "--gpus", "8", "--size", "1MiB"),
        ("simulate", "w.txt", "--cluster", "c.toml", "--json"),
    )
    found = []
    for name, text in (("net.txt", _simai_topology()), ("net.yml", _ASTRA)):
        files = {name: _text(text), "c.toml": _text(cluster.format(name)), "w.txt": AICB}
        found.append(Seed(files, tuple(tuple(word.format(name) for word in line) for line in commands), (name,)))
    return found


def _logs() -> list[Seed]:
    times = "    time   algbw   busbw #wrong"
    head = f"#       size         count      type   redop    root{times * 2}"
    rows = [(1 << power, 20 + (1 << power) / 2e5) for power in range(10, 31, 4)]
    lines = [
        "$ mpirun -np 8 ./build/all_reduce_perf -b 8 -e 1G -f 2",
        "# nThread 1 nGpus 1 minBytes 8 maxBytes 1073741824 step: 2(factor)",
        "#",
        "# Using devices",
        *(
            f"#  Rank {rank:2} Group  0 Pid {4000 + rank} on  node-0 device {rank} [0x{rank:02x}] NVIDIA A100-SXM4-40GB"
            for rank in range(8)
        ),
        "#",
        "#                                             out-of-place                       in-place",
        head,
        "#        (B)    (elements)                   (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)",
        *(
            f"{size:12} {size // 4:12} float     sum      -1 {2 * f'{out:8.2f}     0.5     0.8      0 '}"
            for size, out in rows
        ),
        "# Out of bounds values : 0 OK",
        "# Avg bus bandwidth    : 42.0",
        "#",
    ]
    log = _text("\n".join(lines) + "\n")
    commands = (
        ("inspect", "r.log"),
        ("validate", "r.log", "--json"),
        ("validate", "r.log", "--cluster", "a100"),
        ("calibrate", "r.log", "--cluster", "a100", "--out", "p.toml"),
        ("calibrate", "r.log", "--cluster", "a100", "--table", "--json"),
    )
    timing = {"time": 25.5, "alg_bw": 41.1, "bus_bw": 20.5, "nwrong": 0.0}
    device = {"group": 0, "pid": 4000, "hostname": "node-0", "device_info": "NVIDIA A100-SXM4-40GB"}
    report = {
        **{"version": 1, "start_time": "2026-03-01 10:00:00", "args": ["./build/all_reduce_perf", "-J", "r.json"]},
        **{"nccl_version": 22703, "config": {"devices": [{"rank": rank, **device} for rank in range(8)]}},
        "results": [
            {"size": size, "count": size // 4, "type": "float", "redop": "sum", "root": "-1", "out_of_place": timing}
            | {"in_place": timing}
            for size, _ in rows
        ],
    }
    of_report = (("inspect", "r.json"), ("validate", "r.json", "--json"), ("compare", "r.json", "r.json", "--json"))
    return [Seed({"r.log": log}, commands), Seed({"r.json": _text(json.dumps(report))}, of_report), *_training_logs()]


_ARGUMENTS = {
    **{"num_layers": 8, "hidden_size": 1024, "num_attention_heads": 16, "seq_length": 2048, "swiglu": True},
    **{"max_position_embeddings": 2048, "position_embedding_type": "rope", "padded_vocab_size": 32000, "bf16": True},
    **{"tensor_model_parallel_size": 2, "micro_batch_size": 1, "global_batch_size": 16, "world_size": 8},
    **{"fp8": None, "use_distributed_optimizer": True},
}


def _training_logs() -> list[Seed]:
    """Return logs of Megatron-LM, torchtitan and NeMo, and those of named columns, keys and bars."""
    megatron = [
        "using world size: 8, data-parallel size: 4, context-parallel size: 1, tensor-model-parallel size: 2",
        "------------------------ arguments ------------------------",
        *(f"  {name} {'.' * (48 - len(name))} {value}" for name, value in _ARGUMENTS.items()),
        "-------------------- end of arguments ---------------------",
        *(
            f" [2026-03-01 10:00:{step:02d}] iteration {step:8d}/     100 | consumed samples: {16 * step:12d} | "
            f"elapsed time per iteration (ms): {400.5 + step:.1f} | throughput per GPU (TFLOP/s/GPU): 380.2 | "
            "global batch size:    16 | lm loss: 1.050000E+01 | number of nan iterations:   0 |"
            for step in range(1, 16)
        ),
    ]
    titan = [
        "[titan] 2026-03-01 10:00:00,000 - root - INFO - Training starts at step 1, with local batch size 1, global "
        "batch size 8, sequence length 2048, total steps 1000 (warmup 200)",
        *(
            f"[rank0]:[titan] 2026-03-01 10:{step:02d}:00,123 - root - INFO - \033[31mstep: {step:2}  "
            f"\033[32mloss:  8.125  \033[34mtps: {6000 + step:,}  \033[36mtflops: 400.50  \033[35mmfu: 40.25%\033[39m"
            for step in (1, 10, 20, 30, 40)
        ),
    ]
    bars = "".join(
        f"\rEpoch 0: : {step}%|#    | {step}/100 [00:{step:02d}<01:00, v_num=0, train_step_timing in s=1.25{step % 10}]"
        for step in range(1, 20)
    )
    nemo = [f"Training epoch 0, iteration {step}/99 | train_step_timing in s: 1.2{step % 10}" for step in range(12)]
    job = _text(
        '[model]\nname = "llama3-8b"\n[parallel]\ntp = 2\n[batch]\nseq_length = 2048\nglobal_batch = 16\n'
        '[cluster]\nname = "h100"\ngpus = 8\n'
    )
    with_job = (
        ("inspect", "r.log"),
        ("compare", "j.toml", "r.log"),
        ("compare", "j.toml", "r.log", "--json"),
        ("validate", "r.log", "--job", "j.toml", "--json"),
        ("calibrate", "r.log", "--job", "j.toml", "--out", "p.toml"),
        ("check", "r.log", "--job", "j.toml", "--no-causes"),
        ("check", "r.log", "--job", "j.toml", "--no-causes", "--json"),
    )
    followed = (("watch", "r.log", "--once", "--json"),)
    alone = (("predict", "r.log", "--cluster", "h100", "--json"), ("compare", "r.log", "--cluster", "h100"))
    table = ["step,step_s,memory_gib,_timestamp", *(f"{step},1.2{step % 10},70.5,17e8" for step in range(1, 15))]
    rows = [json.dumps({"_step": step, "perf": {"iter_time_ms": 1250 + step}}) for step in range(1, 15)]
    trainer = [
        "  Total optimization steps = 1,000",
        *(
            f" {n}%|#  | {10 * n}/1000 [00:{3 * n:02d}<09:45, 1.54it/s]\r{{'loss': 2.5, 'epoch': 0.1}}"
            for n in range(1, 15)
        ),
    ]
    state = json.dumps({"log_history": [{"step": n, "step_time": 1.25, "loss": 2.5} for n in range(1, 15)]}, indent=2)
    logs = ["\n".join(lines) + "\n" for lines in (megatron, titan, nemo, table, rows, trainer)] + [bars, state]
    return [
        Seed(
            {"r.log": _text(log), "j.toml": job},
            (*with_job, *(alone if number == 0 else ()), *(followed if log is not state else ())),
            ("r.log",),
        )
        for number, log in enumerate(logs)
    ]


_LLAMA = {
    "model_type": "llama",
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_attention_heads": 16,
    "num_hidden_layers": 8,
    "num_key_value_heads": 8,
    "vocab_size": 32000,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
}
_DEEPSEEK = {
    **_LLAMA,
    **{"model_type": "deepseek_v3", "num_key_value_heads": 16, "moe_intermediate_size": 512, "n_routed_experts": 16},
    **{"num_experts_per_tok": 4, "n_shared_experts": 1, "first_k_dense_replace": 1, "kv_lora_rank": 128},
    **{"q_lora_rank": 256, "qk_rope_head_dim": 32, "qk_nope_head_dim": 64, "v_head_dim": 64, "moe_layer_freq": 1},
    **{
        "attention_bias": False,
        "scoring_func": "sigmoid",
        "num_nextn_predict_layers": 1,
        "n_group": 4,
        "topk_group": 2,
    },
}
_MODEL = """base = "llama3-8b"
layers = 8
hidden = 1024
ffn_hidden = 4096
vocab = 32000

[attention]
heads = 16
kv_heads = 8
head_dim = 64

[experts]
experts = 8
topk = 2
ffn_hidden = 512
shared_ffn_hidden = 512
"""
_JOB_FLAGS = ("--gpus", "8", "--seq-length", "2048", "--global-batch", "8", "--cluster", "h100")


def _models() -> list[Seed]:
    def commands(name: str) -> tuple[tuple[str, ...], ...]:
        predict = ("predict", "--model", name, *_JOB_FLAGS)
        return ("models", name), ("models", name, "--json"), (*predict, "--json"), (*predict, "--tp", "2", "--pp", "2")

    configs = [Seed({"config.json": _text(json.dumps(each))}, commands("config.json")) for each in (_LLAMA, _DEEPSEEK)]
    return [*configs, Seed({"m.toml": _text(_MODEL)}, commands("m.toml"))]


_JOB = """[model]
base = "llama3-8b"
layers = 8

[parallel]
tp = 2
pp = 2
vpp = 2
cp = 1
schedule = "interleaved"
sequence_parallel = true
zero = 1
overlap_grad_reduce = true
overlap_p2p = true

[batch]
seq_length = 2048
micro_batch = 1
global_batch = 8

[cluster]
name = "h100"
gpus = 8

[software]
framework = "megatron-core-2025"
precision = "bf16"
recompute = "full"
recompute_layers = 1
vocab_multiple = 128
"""


def _jobs() -> list[Seed]:
    commands = (("predict", "j.toml", "--json"), ("predict", "j.toml"), ("predict", "j.toml", "--out", "out"))
    experts = _JOB.replace("llama3-8b", "mixtral-8x7b").replace("cp = 1", "ep = 2\netp = 1")
    return [Seed({"j.toml": _text(text)}, commands) for text in (_JOB, experts)]


_MEGATRON_FLAGS = (
    "torchrun --nproc_per_node 8 --nnodes 1 pretrain_gpt.py --num-layers 8 --hidden-size 1024 --num-attention-heads 16 "
    "--group-query-attention --num-query-groups 8 --ffn-hidden-size 4096 --swiglu --seq-length 2048 "
    "--max-position-embeddings 2048 --vocab-size 32000 --micro-batch-size 1 --global-batch-size 8 --bf16 "
    "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --sequence-parallel --use-distributed-optimizer "
    "--overlap-grad-reduce --recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
)
_TORCHTITAN = """[model]
name = "llama3"
flavor = "8B"

[training]
local_batch_size = 1
seq_len = 2048
global_batch_size = 8

[parallelism]
data_parallel_shard_degree = -1
data_parallel_replicate_degree = 1
tensor_parallel_degree = 2
pipeline_parallel_degree = 1
context_parallel_degree = 1

[compile]
enable = true

[activation_checkpoint]
mode = "selective"
selective_ac_option = "2"
"""


_LAUNCHER = "TP=2 NCCL_DEBUG=INFO srun -N 1 torchrun --nproc_per_node=8 --nnodes $SLURM_NNODES pretrain_gpt.py"
_SCRIPT = """#SBATCH --nodes=1
GPUS=${{GPUS:-8}}
ARGS=({flags} --save "$1")
if [ -n "$X" ]; then ARGS+=("--lr 1e-4"); fi
torchrun --nproc_per_node $(($GPUS*1)) pretrain_gpt.py \\
    ${{ARGS[@]}} 2>&1 | tee log
"""


def _pasted() -> list[Seed]:
    head = ("predict", "--cluster", "h100", "--like")
    megatron = (*head, "megatron", "--", *_MEGATRON_FLAGS.split())
    experts = (*megatron, *["--num-experts", "8", "--expert-model-parallel-size", "2", "--moe-router-topk", "2"])
    titan = (*head, "torchtitan", "--gpus", "8", "--", "--job.config_file", "t.toml")
    dotted = (*titan, "--parallelism.tensor_parallel_degree", "4", "--training.seq_len", "1024")
    flags = " ".join(_MEGATRON_FLAGS.partition("pretrain_gpt.py")[2].split())
    launched = (*head, "megatron", "--", *_LAUNCHER.split(), *flags.split(), "--unheard-of", "3")
    script = (*head, "megatron", "--", _SCRIPT.format(flags=flags))
    seeds = [Seed({}, (megatron, experts)), Seed({"t.toml": _text(_TORCHTITAN)}, (titan, dotted))]
    return [*seeds, Seed({}, (launched, script)), *_settings(head)]


_SETTINGS = {
    "deepspeed": ("f.json", '{"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}, '
                  '"bf16": {"enabled": true}, '
                  '"train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": 2}',
                  "--model_name_or_path llama3-8b --max_seq_length 512 --per_device_train_batch_size 1"),
    "accelerate": ("f.yaml", "distributed_type: FSDP\nmixed_precision: bf16\nnum_processes: 8\nfsdp_config:\n"
                   "  fsdp_sharding_strategy: HYBRID_SHARD\n  fsdp_offload_params: false\n",
                   "--model_name_or_path llama3-8b --max_seq_length 512 --per_device_train_batch_size 1"),
    "maxtext": ("f.yml", "model_name: 'llama3-8b' # a model\nmax_target_length: 512\n"
                "logical_axis_rules: [\n  ['a', []],\n]\n",
                "per_device_batch_size=1 ici_tensor_parallelism=2"),
    "bridge": ("f.yaml", "model: {seq_length: 512}\ntrain:\n  micro_batch_size: 1\n  global_batch_size: 8\n",
               "--recipe llama3_8b_pretrain_config -tp 2"),
    "nemo": ("f.py", "recipe = llm.llama3_8b.pretrain_recipe(num_nodes=1)\nrecipe.data.seq_length = 512\n"
             "recipe.data.global_batch_size = 8\n", "trainer.strategy.tensor_model_parallel_size=2"),
}  # fmt: skip


def _settings(head: tuple[str, ...]) -> list[Seed]:
    """Return configuration files of other frameworks, with words over them."""
    found = []
    for like, (name, text, words) in _SETTINGS.items():
        given = ("--gpus", "8", "--global-batch", "8") if like == "nemo" else ("--gpus", "8")
        found.append(Seed({name: _text(text)}, ((*head, like, *given, "--", name, *words.split()),)))
    return found


def _measured() -> list[Seed]:
    found = []
    for name, text in MEASURED.items():
        commands: tuple[tuple[str, ...], ...] = (
            ("validate", "m.csv"),
            ("validate", "m.csv", "--json"),
            ("inspect", "m.csv"),
        )
        if name in ("gemm", "attention", "named"):
            commands += (("validate", "m.csv", "--by", "gpu", "--out", "p.csv"),)
        if name == "memory":
            commands += (("validate", "m.csv", "--kind", "memory-of-runs"),)
        if name == "fit":
            # A fit takes seconds; the readers before it are what is tried.
            commands += (*commands, ("validate", "m.csv", "--cv", "shape"))
            commands += (("calibrate", "m.csv", "--gpu", "a100", "--out", "k.csv"),)
        if name == "collectives":
            commands += (("calibrate", "m.csv", "--cluster", "a100", "--out", "c.toml"),)
        found.append(Seed({"m.csv": _text(text)}, commands))
    return found


@cache
def _result_json() -> bytes:
    """Return what ``simulate --json`` prints for the small workload."""
    import contextlib
    import tempfile

    from traincast import api
    from traincast.report.json import to_json

    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        Path("w.txt").write_bytes(AICB)
        return to_json(api.simulate("w.txt", cluster="h100"))


@cache
def _forecast_json() -> bytes:
    """Return what ``predict --json`` prints for the small job, with every kind of option."""
    import contextlib
    import tempfile

    from traincast import api
    from traincast.job.options import make_options
    from traincast.report.json import to_json

    options = make_options(busbw_bytes_per_s={"tp": 3e11}, compute_slowdown={1: 1.2}, overlap_slowdown=0.1)
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        Path("j.toml").write_bytes(_text(_JOB))
        return to_json(api.predict("j.toml", options=options))


def _results() -> list[Seed]:
    commands = (
        ("report", "result.json"),
        ("inspect", "result.json"),
        ("simulate", "result.json"),
        ("compare", "result.json", "other.json"),
        ("compare", "other.json", "result.json", "--ranks"),
        ("compare", "result.json", "other.json", "--json"),
    )
    simulated = {"result.json": _result_json(), "other.json": _result_json(), "w.txt": AICB}
    forecast = (("predict", "forecast.json"), ("report", "forecast.json"), ("predict", "forecast.json", "--tp", "1"))
    return [
        Seed(simulated, commands, ("result.json",)),
        Seed({"forecast.json": _forecast_json()}, forecast, ("forecast.json",)),
    ]


def _options() -> list[Seed]:
    """Return every command with sound arguments; mutations add options that the command declares."""
    job = ("predict", "--model", "llama3.2-1b", *_JOB_FLAGS)
    lines: tuple[tuple[str, ...], ...] = (
        ("simulate", "w.txt"),
        ("simulate", "w.txt", "--json"),
        ("simulate", "f.tsv", "--json"),
        ("inspect", "w.txt"),
        job,
        (*job, "--json"),
        ("predict", "j.toml", "--json"),
        ("collective", "all_reduce", "--size", "1MiB"),
        ("collective", "all_to_all", "--gpus", "16", "--size", "1MiB", "--cluster", "h100", "--json"),
        ("operator", "gemm", "--m", "512", "--n", "512", "--k", "512"),
        ("operator", "attention", "--seq", "512", "--heads", "8", "--head-dim", "64", "--json"),
        ("operator", "norm", "--rows", "512", "--width", "512", "--gpu", "a100"),
        ("validate", "m.csv"),
        ("calibrate", "m.csv", "--cluster", "a100"),
        ("report", "result.json"),
        ("compare", "result.json", "result.json"),
        ("check", "r.log", "--job", "j.toml", "--no-causes"),
        ("watch", "r.log", "--once"),
        ("models",),
        ("schema",),
        ("schema", "result"),
        ("models", "gpt2", "--json"),
        ("clusters",),
        ("clusters", "h100", "--json"),
        ("recipes",),
        ("recipes", "gb200", "26.08"),
        ("predict", "--recipe", "qwen3_30b_a3b_pretrain_8gpu_gb200_fp8mx@26.08", "--micro-batch", "1", "--json"),
        ("predict", "j.toml", "--tuned", "usual"),
        ("completion", "bash"),
        ("man",),
        ("init",),
        ("init", "new.toml"),
        ("convert", "w.txt", "traces", "--to", "echo"),
        ("convert", "w.txt", "chakra", "--to", "chakra", "--json"),
        ("convert", "j.toml", "new.txt", "--to", "aicb"),
        ("convert", "j.toml", "new.tsv", "--to", "neusight"),
        ("measure", "j.toml", "--script", "measure.py"),
        ("plan", "j.toml", "--json"),
        ("sweep", "s.toml", "--out", "found.csv", "--workers", "1", "--quiet"),
    )
    files = {
        "w.txt": AICB,
        "f.tsv": _example("neusight_gpt2_large_dp.tsv"),
        "j.toml": _text(_JOB),
        "m.csv": _text(MEASURED["collectives"]),
        "r.log": _text("step,step_s\n" + "".join(f"{step},1.2{step % 10}\n" for step in range(1, 40))),
        "s.toml": b'base = "j.toml"\n[grid]\n"parallel.tp" = [1, 2]\n',
        "result.json": _result_json(),
    }
    beside = {"sweep": ("j.toml",)}
    return [
        Seed({name: files[name] for name in (*line, *beside.get(line[0], ())) if name in files}, (line,), ())
        for line in lines
    ]


def _straggler_rows(steps: int, microbatches: int) -> list[dict[str, object]]:
    """Return a trace of two stages whose every operation takes 10 ms."""
    rows: list[dict[str, object]] = []
    for step in range(steps):
        for stage in range(2):
            at = 100.0 * step + 0.01 * stage
            names = [("forward-compute", each) for each in range(microbatches)]
            names += [("backward-compute", each) for each in range(microbatches)]
            for name, microbatch in [*names, ("optimizer", -1)]:
                mine = (0, stage, stage, step, name, at, 0.01, 0, 0 if microbatch >= 0 else -1, microbatch)
                rows.append(dict(zip(COLUMNS, mine, strict=True)))
                at += 0.01
    return rows


_TO_PARQUET = """
import io, json, sys, polars
columns, copies = json.load(sys.stdin)
if copies > 1:
    columns = {name: polars.repeat(values[0], copies, eager=True) for name, values in columns.items()}
polars.DataFrame(columns).write_parquet(sys.stdout.buffer)
"""


def _parquet(rows: list[dict[str, object]], copies: int = 1) -> bytes:
    """Return rows as Parquet, or the first one many times; nothing without polars.

    Another process writes it: once polars has threads here, it does not work in a forked worker.
    """
    if find_spec("polars") is None:
        return b""
    columns = {name: [row[name] for row in rows] for name in COLUMNS}
    told = json.dumps([columns, copies]).encode()
    return subprocess.run([sys.executable, "-c", _TO_PARQUET], input=told, capture_output=True, check=True).stdout


def _stragglers() -> list[Seed]:
    rows = _straggler_rows(2, 2)
    text = "\n".join([",".join(COLUMNS), *(",".join(map(str, row.values())) for row in rows), ""])
    found = [Seed({"trace.csv": _text(text)}, _straggler_commands("trace.csv"))]
    if packed := _parquet(rows):
        found.append(Seed({"trace.parquet": packed}, _straggler_commands("trace.parquet")))
    return found


def _straggler_commands(name: str) -> tuple[tuple[str, ...], ...]:
    return ("simulate", name, "--cluster", "h100", "--json"), ("inspect", name)


def _constant() -> list[Seed]:
    """Return what every other kind reads, to be made long and constant, and tables of many equal rows."""
    return [seed for kind, make in SEEDS.items() if kind != CONSTANT for seed in make() if seed.targets]


EQUAL_ROWS = (1, 1000, 10**5, 10**6, 10**7)
"""Rows of the Parquet files that hold one row again and again."""


@cache
def equal_rows(rows: int) -> bytes:
    """Return a Parquet file of one row many times; nothing without polars."""
    return _parquet(_straggler_rows(1, 1), rows)


CONSTANT = "constant"
"""The kind whose files are long and say one thing again and again."""

SEEDS: dict[str, Callable[[], list[Seed]]] = {
    "aicb": _aicb,
    "aicb-physical": _physical,
    "busbw": _busbw,
    "megatron": _megatron,
    "kineto": _kineto,
    "chakra": _chakra,
    "neusight": _neusight,
    "cluster": _clusters,
    "topology": _topologies,
    "log": _logs,
    "model": _models,
    "job": _jobs,
    "pasted": _pasted,
    "measured": _measured,
    "result": _results,
    "straggler": _stragglers,
    "options": _options,
    CONSTANT: _constant,
}
"""Kind of input to the function that makes its sound examples."""
