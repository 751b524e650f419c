"""A sample of all results that is small enough to keep as a test: what counts of each, in a line of JSON.

There is a job for each schedule and each mechanism, so that a line that changes says what did.
"""

import json
from collections.abc import Iterator
from typing import Any

from sameness.cases import JOB_FILES, PLANS, REPLAYS
from sameness.running import ROOT, Case, Record, run, workshop

GOLDEN = ROOT / "tests" / "golden" / "same_results.jsonl"

_DENSE = "--model llama3-8b --gpus 32 --tp 2 --pp 4 --global-batch 64 --seq-length 4096"
_ONE_STAGE = "--model llama3-8b --gpus 32 --tp 2 --pp 1 --global-batch 64 --seq-length 4096"
_EXPERTS = "--model qwen3-30b-a3b --gpus 32 --tp 1 --pp 4 --ep 8 --global-batch 64 --seq-length 4096"
_LATENT = "--model deepseek-v3 --gpus 128 --tp 1 --pp 8 --ep 16 --global-batch 256 --seq-length 4096"
_MEGATRON = (
    "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention"
    " --num-query-groups 8 --seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 1 --bf16"
    " --global-batch-size 64 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --swiglu"
    " --vocab-size 128256 --use-distributed-optimizer --sequence-parallel --normalization RMSNorm"
)

JOBS = {
    **{f"schedule {name}": f"{_DENSE} --schedule {name}" for name in ("1f1b", "gpipe", "zb_h1", "dualpipe")},
    **{f"schedule {name}": f"{_DENSE} --schedule {name} --vpp 2" for name in ("interleaved", "looped_bfs")},
    **{f"schedule {name}": f"{_DENSE} --schedule {name} --vpp 2" for name in ("interleaved_zb", "zb_v", "dualpipe_v")},
    **{f"zero {stage}": f"{_ONE_STAGE} --zero {stage}" for stage in range(4)},
    "hybrid shards": f"{_ONE_STAGE} --zero 3 --shard 4 --no-reshard-after-forward",
    "overlaps": f"{_DENSE} --overlap-grad-reduce --overlap-param-gather --overlap-tp --no-overlap-p2p",
    "no overlaps": f"{_DENSE} --no-overlap-grad-reduce --no-overlap-param-gather --no-overlap-tp",
    "recompute full": f"{_DENSE} --recompute full --recompute-method uniform --recompute-layers 2",
    "recompute blocks": f"{_DENSE} --recompute full --recompute-method block --recompute-layers 2",
    "recompute modules": f"{_LATENT} --recompute selective --recompute-modules mla_up_proj,moe_act,layernorm",
    "offload optimizer": f"{_ONE_STAGE} --zero 2 --offload-optimizer 0.5",
    "offload parameters": f"{_ONE_STAGE} --zero 3 --offload-parameters --offload-optimizer 1"
    " --framework deepspeed-2024",
    "offload activations": f"{_DENSE} --offload-activations 2",
    "offload modules": f"{_DENSE} --offload-modules core_attn,attn_proj",
    "fp8 current": f"{_DENSE} --precision fp8 --fp8-recipe current --fp8-attention --bf16-first-last",
    "fp8 rowwise": f"{_ONE_STAGE} --precision fp8 --fp8-recipe rowwise --zero 3 --param-gather-bytes 1",
    "fp8 blocks": f"{_LATENT} --precision fp8_block --moe-dispatch-dtype fp8",
    "mxfp8": f"{_EXPERTS} --precision mxfp8 --te-op-fuser --cluster b200",
    "nvfp4": f"{_DENSE} --precision nvfp4 --cluster gb200",
    "fp16": f"{_DENSE} --precision fp16 --cluster a100 --framework megatron-2022",
    "tf32": f"{_DENSE} --precision tf32 --attention-kernel unfused",
    "types of the optimizer": f"{_ONE_STAGE} --zero 1 --exp-avg-dtype bf16 --exp-avg-sq-dtype fp8"
    " --main-grads-dtype bf16 --main-params-dtype fp16",
    "graphs": f"{_DENSE} --cuda-graph-impl full_iteration",
    "graphs of modules": f"{_EXPERTS} --cuda-graph-scope attn,moe_router",
    **{
        f"dispatcher {name}": f"{_EXPERTS} --moe-dispatcher {name}"
        for name in ("allgather", "alltoall", "deepep", "hybridep")
    },
    "exchanges hidden": f"{_EXPERTS} --moe-a2a-overlap --delay-wgrad --vpp 2",
    "shared experts hidden": "--model deepseek-v2-lite --gpus 16 --tp 2 --ep 8 --pp 1 --global-batch 32"
    " --seq-length 4096 --moe-shared-expert-overlap --moe-dispatcher alltoall",
    "natural routing": f"{_EXPERTS} --moe-routing natural --moe-paged-stash",
    "imbalance": f"{_EXPERTS} --expert-imbalance 1.5 --etp 1",
    "MTP and a layout": f"{_LATENT} --pipeline-layout Et*4|(t*4|)*14tmL --vpp 2",
    "uneven stages": f"{_DENSE} --first-stage-layers 7 --last-stage-layers 7",
    "ends as layers": "--model qwen3-8b --gpus 19 --tp 1 --pp 19 --global-batch 19 --seq-length 2048"
    " --embedding-as-layer --head-as-layer",
    "ring": f"{_ONE_STAGE} --cp 4 --cp-kind ring",
    "all-to-all of heads": f"{_ONE_STAGE} --cp 4 --cp-kind all_to_all",
    "hybrid model": "--model nemotron-h-8b --gpus 16 --tp 2 --pp 2 --global-batch 32 --seq-length 4096",
    "linear attention": "--model qwen3-next-80b-a3b --gpus 64 --tp 2 --pp 4 --ep 8 --global-batch 64 --seq-length 4096",
    "adapters": f"{_ONE_STAGE} --task lora --lora-rank 8 --lora-targets linear_qkv,linear_proj",
    "packed": f"{_ONE_STAGE} --task sft --packed-length 512",
    "torchtitan": f"{_ONE_STAGE} --framework torchtitan-2025 --zero 3",
    "an earlier year": f"{_DENSE} --year 2021 --cluster a100",
    "switches reduce": f"{_ONE_STAGE} --sharp dp",
    "rack": "--model llama3-70b --gpus 128 --tp 8 --pp 4 --global-batch 64 --seq-length 8192 --cluster gb200",
    "other vendors": f"{_DENSE} --cluster mi300x",
    "flows": f"{_EXPERTS} --network flow --network-seeds 2",
    "stragglers and jitter": f"{_DENSE} --slow 5=1.3 --jitter 0.05 --seeds 4",
    "what if": f"{_DENSE} --what-if tp_comm*0.5 --what-if nic_bandwidth=800Gb/s --goodput --tokens 1T",
    "suggestions": f"{_DENSE} --suggest",
    "pasted flags": f"--like megatron --gpus 16 -- {_MEGATRON}",
    "too large": "--model llama3-70b --gpus 8 --tp 8 --global-batch 8 --seq-length 8192 --refuse-oom",
    "heads do not divide": "--model llama3-8b --gpus 24 --tp 3 --global-batch 64 --seq-length 4096",
    "contradiction": f"{_DENSE} --precision bf16 --fp8-recipe delayed",
}
"""Forecasts by what each is there for; on h100 where nothing is said."""

PLANNED = ("dense", "experts", "offload", "several clusters")
"""Those of all plans that are in the sample."""


def cases() -> Iterator[Case]:
    """Yield the cases of the sample."""
    for name, words in JOBS.items():
        yield Case(name, "job", ("predict", *_options(words)))
    for path in JOB_FILES:
        yield Case(path, "job", ("predict", path, "--allow-oom", "--no-suggest", "--json"))
    for path in REPLAYS:
        yield Case(path, "replay", ("simulate", path, "--cluster", "a100", "--no-suggest", "--json"))
    for name in PLANNED:
        yield Case(f"plan {name}", "plan", ("plan", *PLANS[name].split(), "--top", "5", "--json"))


def _options(words: str) -> list[str]:
    """Return a forecast's options with the usual ones before them."""
    usual = [] if "--cluster" in words else ["--cluster", "h100"]
    usual += [] if "--refuse-oom" in words else ["--allow-oom"]
    usual += ["--json"] if "--suggest" in words else ["--no-suggest", "--json"]
    return [*usual, *words.replace(" --refuse-oom", "").split()]


def sampled(case: Case) -> Record:
    """Run a case of the sample in the working folder, and return what counts of it."""
    return {"case": case.name, **_counting(run(case))}


def _counting(record: Record) -> Record:
    out = record["out"]
    if record["code"]:
        return {"code": record["code"], "message": out["message"] if isinstance(out, dict) else record["err"]}
    if record["kind"] == "plan":
        return {
            **{name: out[name] for name in ("evaluated", "feasible", "simulated")},
            "best": [_planned(each) for each in out["best"]],
            "refused": out["refused"],
        }
    return _step(out)


def _planned(choice: Any) -> Record:  # noqa: ANN401
    return {"cluster": choice["cluster"], "layout": choice["layout"], "step_s": choice["step_s"]}


_AS_THEY_ARE = ("iteration_time_s", "breakdown_s", "interval", "parallel", "mfu", "what_if", "variability", "goodput")


def _step(out: Any) -> Record:  # noqa: ANN401
    """Return what counts of a step: its times, its peaks of memory, and how much it communicates."""
    collectives = out["collectives"]
    return {
        **{name: out[name] for name in _AS_THEY_ARE if out.get(name)},
        "peak_bytes": [stage["peak"] for stage in out["memory_bytes"] or ()],
        "ranks": len(out["ranks"]),
        "wait_s": sum(rank["wait_s"] for rank in out["ranks"]),
        "collectives": len(collectives),
        "runs": sum(each["count"] for each in collectives),
        "sent_bytes": sum(each["count"] * each["size_bytes"] for each in collectives),
        "transfers_s": sum(each["count"] * each["time_s"] for each in collectives),
        "notes": sorted({note["code"] for note in (*out["assumptions"], *out["warnings"])}),
    }


def kept() -> list[Record]:
    """Return the sample as it was written."""
    return [json.loads(line) for line in GOLDEN.read_text(encoding="utf-8").splitlines()]


def write_golden() -> None:
    """Record the sample anew."""
    with workshop():
        lines = [json.dumps(sampled(case)) + "\n" for case in cases()]
    GOLDEN.write_text("".join(lines), encoding="utf-8")
