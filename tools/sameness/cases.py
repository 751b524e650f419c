"""All cases of a recording: random jobs, and what is done with the examples."""

import json
from collections.abc import Iterator
from itertools import product
from typing import Any

from sameness.jobs import Job, draw
from sameness.running import INPUTS, Case

SECTIONS = {
    "batch": ("seq_length", "micro_batch", "global_batch", "expert_imbalance", "moe_routing"),
    "cluster": ("gpus",),
    "parallel": (
        *("tp", "pp", "vpp", "cp", "ep", "etp", "schedule", "first_stage_layers", "last_stage_layers"),
        *("stage_layers", "pipeline_layout", "embedding_as_layer", "head_as_layer", "mtp_layers"),
        *("sequence_parallel", "zero", "shard", "overlap_grad_reduce", "overlap_param_gather", "overlap_tp"),
        *("overlap_p2p", "cp_kind", "sharp", "reshard_after_forward", "param_gather_bytes"),
    ),
}
"""Keys by section of a job file; all others are of ``software``."""

JOB_FILES = (
    *("examples/llama3_70b_512gpu.toml", "examples/aicb_gpt405b_1024gpu.toml"),
    "examples/megatron_pp4_tp2_job.toml",
)
REPLAYS = (
    *("examples/aicb_gpt_405b_1024gpu.txt", "examples/aicb_scaled_512gpu.txt", "examples/megatron_pp4_tp2"),
    *("examples/megatron_rank0_pp2.txt", "examples/megatron_moe_profile_rank7.txt"),
    *("examples/neusight_gpt2_large_dp.tsv", "examples/pytorch_ddp_2gpu_rank0.json.gz"),
)
TABLES = ("examples/all_reduce_a100.csv", "examples/kernels_a100.csv", "examples/training_runs.csv")
FORMATS = ("aicb", "aicb-physical", "busbw", "chakra", "echo", "neusight")


def job_case(job: Job, number: int) -> Case:
    """Return the forecast of a job: of even numbers and of what no flag says as a file, of others as flags."""
    name = f"job {number}"
    if number % 2 == 0 or "stage_layers" in job.fields:
        arguments = ["predict", "job.toml", *job.options, "--json"]
        return Case(name, "job", tuple(arguments), {"job.toml": job_file(job)})
    flags = [word for key, value in job.fields.items() for word in _flag(key, value)]
    return Case(
        name, "job", ("predict", "--model", job.shape.name, "--cluster", job.cluster, *flags, *job.options, "--json")
    )


def job_file(job: Job) -> str:
    """Return a job as the text of a job file."""
    homes = {key: section for section, keys in SECTIONS.items() for key in keys}
    lines: dict[str, list[str]] = {"model": [f'name = "{job.shape.name}"'], "cluster": [f'name = "{job.cluster}"']}
    for key, value in job.fields.items():
        # Values of TOML that stand here are written as those of JSON.
        lines.setdefault(homes.get(key, "software"), []).append(f"{key} = {json.dumps(value)}")
    return "\n".join(f"[{section}]\n" + "\n".join(told) + "\n" for section, told in lines.items())


def _flag(key: str, value: Any) -> tuple[str, ...]:  # noqa: ANN401
    flag = key.replace("_", "-")
    if isinstance(value, bool):
        return (f"--{'' if value else 'no-'}{flag}",)
    return f"--{flag}", ",".join(value) if isinstance(value, list) else str(value)


def jobs(count: int, seed: int) -> Iterator[Case]:
    """Yield the forecasts of so many random jobs."""
    return (job_case(draw(seed, number), number) for number in range(count))


PLANS: dict[str, str] = {
    "dense": "--model llama3-8b --cluster h100 --gpus 16 --global-batch 32",
    "dense, in 8 bits": "--model llama3-8b --cluster b200 --gpus 8 --global-batch 16 --fix precision=bf16,mxfp8",
    "larger dense": "--model llama3-70b --cluster h100 --gpus 64 --global-batch 64 --max-cp 1 --max-micro-batch 1",
    "long sequences": "--model llama3-8b --cluster h100 --gpus 16 --global-batch 8 --seq-length 64k --max-pp 2",
    "experts": "--model mixtral-8x7b --cluster h100 --gpus 32 --global-batch 64 --max-cp 1 --max-micro-batch 2",
    "many experts": "--model qwen3-30b-a3b --cluster h100 --gpus 16 --global-batch 64 --max-tp 2 --max-cp 1",
    "latent attention": "--model deepseek-v2-lite --cluster h800 --gpus 16 --global-batch 32 --max-tp 2 --max-cp 1",
    "hybrid": "--model nemotron-h-8b --cluster h100 --gpus 8 --global-batch 16",
    "full space": "--model llama3-8b --cluster h100 --gpus 4 --global-batch 8 --space full --max-cp 1 --max-vpp 2"
    " --max-micro-batch 1 --fix precision=bf16",
    "offload": "--model llama3-8b --cluster l40s --gpus 8 --global-batch 8 --allow-offload --max-cp 1",
    "a100": "--model gpt3-13b --cluster a100 --gpus 16 --global-batch 32 --framework megatron-2022",
    "torchtitan": "--model llama3-8b --cluster h100 --gpus 16 --global-batch 32 --framework torchtitan-2025 --zero 3",
    "adapters": "--model llama3-8b --cluster h100 --gpus 8 --global-batch 8 --task lora --max-cp 1",
    "several clusters": "--model llama3-8b --cluster h100 --cluster b200 --cluster mi300x --gpus 8 --global-batch 16"
    " --max-cp 1",
    "several models and sizes": "--model llama3-8b --model qwen3-8b --cluster h100 --gpus 8,16 --global-batch 16"
    " --max-cp 1 --max-pp 2 --tokens 1T --gpu-hour-price 2.5",
    "from a job": "--from examples/megatron_pp4_tp2_job.toml",
    "questions": "--model llama3-8b --cluster h100 --gpus 8 --global-batch 16 --explain tp=8 --explain pp=4,tp=1"
    " --headroom 0.1 --max-cp 1",
    "limits that nothing keeps": "--model llama3-70b --cluster h100 --gpus 2 --global-batch 2",
}
"""What is planned; each tells all its finalists."""


def plans() -> Iterator[Case]:
    """Yield plans with all their finalists."""
    for name, words in PLANS.items():
        yield Case(f"plan {name}", "plan", ("plan", *words.split(), "--top", "40", "--json"))


def forecasts() -> Iterator[Case]:
    """Yield forecasts of the examples' jobs, of other tools' recipes, and what is told in addition to a step."""
    ways = {
        **{"as it is": "", "with suggestions": "--suggest", "unfolded": "--unfold --gpus 64 --global-batch 64"},
        **{"jitter": "--jitter 0.05 --seeds 8", "slow": "--slow 1=1.3", "hashes": "--network flow --network-seeds 3"},
        **{"what if": "--what-if tp_comm*0.5 --what-if nic_bandwidth=800Gb/s", "risk": "--fail-on-oom-risk 0.5"},
        "whole run": "--tokens 15T --gpu-hour-price 2.5 --goodput --grid-intensity 300",
    }
    for path, (way, words) in product(JOB_FILES, ways.items()):
        suggest = () if "--suggest" in words else ("--no-suggest",)
        arguments = ("predict", path, *words.split(), *suggest, "--allow-oom", "--json")
        yield Case(f"predict {path} {way}", "forecast", arguments)
    for path in JOB_FILES[1:]:
        written = Case(f"predict {path} to files", "forecast", ("predict", path, "--out", "run", "--quiet"), out="run")
        yield written
    for file in sorted(INPUTS["recipes"].iterdir()):
        words = (*_recipe(file.name), "--cluster", "h100", "--allow-oom", "--no-suggest", "--json")
        yield Case(f"predict {file.name}", "forecast", ("predict", *words))


def _recipe(name: str) -> tuple[str, ...]:
    """Return how the file of another tool is forecast, with what it leaves open."""
    path, size = f"recipes/{name}", ("--gpus", "64")
    batch = ("--seq-length", "4096", "--global-batch", "64")
    if name.startswith("hf"):
        return ("--model", path, *size, *batch, "--tp", "2")
    if name.startswith(("acc", "ds")):
        return (path, "--model", "llama3-8b", *size, *batch)
    if name.startswith(("br", "nemo")):
        return (path, "--seq-length", "4096")
    return (path, *size) if name.startswith("tt") else (path,)


def kept() -> Iterator[Case]:
    """Yield what is done with results that were written before."""
    job, trace = JOB_FILES[2], REPLAYS[2]
    forecast, replay = ("predict", job, "--out", "kept", "--quiet"), ("simulate", trace, "--out", "kept", "--quiet")
    again = {
        **{"shown": ("report", "kept"), "with other degrees": ("predict", "kept", "--tp", "4", "--pp", "2")},
        **{"again": ("predict", "kept"), "beside a trace": ("compare", "kept", trace)},
    }
    for name, arguments in again.items():
        yield Case(f"forecast {name}", "kept", (*arguments, "--json"), out="kept", before=forecast)
    again = {"again": ("simulate", "kept"), "beside a job": ("compare", "kept", job), "shown": ("report", "kept")}
    for name, arguments in again.items():
        yield Case(f"replay {name}", "kept", (*arguments, "--json"), out="kept", before=replay)
    yield Case("replay in other files", "kept", ("convert", "kept", "x", "--to", "chakra"), out="x", before=replay)


def replays() -> Iterator[Case]:
    """Yield simulations of the examples' workloads and traces."""
    ways = {
        **{
            "as it is": "--cluster h100",
            "on a100": "--cluster a100",
            "no cluster": "",
            "with suggestions": "--suggest",
        },
        **{"modelled": "--comm model", "measured": "--comm measured", "jitter": "--jitter 0.05 --seeds 4"},
        **{"jitter of more seeds": "--jitter 0.1 --seeds 12", "slow": "--slow 0=1.3", "forward": "--forward-only"},
        **{"interleaved": "--pp 8 --vpp 2", "gpipe": "--schedule gpipe --microbatches 4", "unfolded": "--unfold"},
        **{"overlapped": "--overlap-grad-reduce", "as written": "--stage-roles as-written", "wider": "--gpus 2048"},
        **{"what if": "--what-if tp_comm*0.5 --what-if rank1.compute=peers", "hashes": "--network flow"},
        **{"busbw": "--busbw tp=300GB/s", "imbalanced": "--expert-imbalance 1.5", "as SimAI": "--pricing simai"},
    }
    for path, (way, words) in product(REPLAYS, ways.items()):
        if way == "unfolded" and "405b" in path:
            continue
        suggest = () if "--suggest" in words else ("--no-suggest",)
        yield Case(f"simulate {path} {way}", "replay", ("simulate", path, *words.split(), *suggest, "--json"))
    for path in REPLAYS[2:]:
        yield Case(f"simulate {path} to files", "replay", ("simulate", path, "--out", "run", "--quiet"), out="run")


def conversions() -> Iterator[Case]:
    """Yield every example in every format that it can be written to, or why it cannot."""
    smaller = ("--gpus", "128")
    for path, to in product((*JOB_FILES, *REPLAYS), FORMATS):
        large = smaller if to in ("chakra", "echo") and "405b" in path and path.endswith(".txt") else ()
        arguments = ("convert", path, "converted", "--to", to, *large, "--json")
        yield Case(f"convert {path} to {to}", "conversion", arguments, out="converted")


def others() -> Iterator[Case]:
    """Yield what is read, compared, measured against and listed."""
    jobs, trace = ("examples/llama3_70b_512gpu.toml", "examples/megatron_pp4_tp2_job.toml"), "examples/megatron_pp4_tp2"
    for path in (*JOB_FILES, *REPLAYS, *TABLES):
        yield Case(f"inspect {path}", "inspect", ("inspect", path, "--json"))
    told = {
        "compare jobs": ("compare", *jobs),
        "compare clusters": ("compare", *jobs, "--cluster", "b200", "--tokens", "1T"),
        "compare trace and forecast": ("compare", trace, jobs[1]),
        "validate runs": ("validate", TABLES[2]),
        "validate kernels": ("validate", TABLES[1]),
        "validate collectives": ("validate", TABLES[0], "--cluster", "a100"),
        "calibrate collectives": ("calibrate", TABLES[0], "--cluster", "a100"),
        "calibrate kernels": ("calibrate", TABLES[1], "--gpu", "a100"),
        "models": ("models",),
        "clusters": ("clusters",),
    }
    for name, arguments in told.items():
        yield Case(name, "other", (*arguments, "--json"))
    for cluster, operation in product(("h100", "gb200", "a100", "mi300x"), ("all_reduce", "all_to_all", "send_recv")):
        words = ("--cluster", cluster, *(("--gpus", "16") if operation != "send_recv" else ()), "--json")
        yield Case(f"collective {operation} on {cluster}", "other", ("collective", operation, *words))
    gemm = ("operator", "gemm", "--m", "8192", "--n", "8192", "--k", "4096")
    for gpu in ("h100", "b200", "a100", "l40s", "mi300x"):
        yield Case(f"gemm on {gpu}", "other", (*gemm, "--gpu", gpu, "--json"))
    sweep = ("sweep", "examples/sweep_llama3.toml", "--out", "swept.csv", "--workers", "1", "--quiet")
    yield Case("sweep", "sweep", sweep, out="swept.csv")


def all_cases(count: int, seed: int) -> Iterator[Case]:
    """Yield every case of a recording."""
    for some in (forecasts(), replays(), kept(), conversions(), others(), plans(), jobs(count, seed)):
        yield from some
