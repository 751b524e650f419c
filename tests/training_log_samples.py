"""A small log of every dialect, as its framework writes it, and what it says.

The functions of `training_logs` that make the lines name the framework's file and print statement each.
"""

import json
from typing import Any

from msgspec import Struct

from training_logs import (
    bridge_lines,
    deepspeed_line,
    deepspeed_settings,
    event_file,
    maxtext_line,
    megatron_line,
    megatron_settings,
    megatron_world,
    nemo_line,
    pipeline_line,
    progress_bar,
    throughput_timer,
    torchtitan_line,
    torchtitan_start,
    trainer_bar,
    trainer_dict,
    trainer_start,
    trainer_state,
)

GIB = 2**30


class Sample(Struct):
    """A log and what it says."""

    data: bytes
    framework: str
    """Name of the dialect."""
    step: list[int]
    step_s: list[float]
    known: dict[str, int] = {}
    """What a job says in addition."""
    also: dict[str, list[float]] = {}
    """Further columns."""
    facts: dict[str, Any] = {}
    counts: tuple[str, ...] = ()
    """How its FLOP/s are counted."""
    memory: str = ""
    """Kind of its memory."""
    lines: bool = True
    """Whether it is text of which each line stands for itself."""


def lines(*parts: str) -> bytes:
    return ("\n".join(parts) + "\n").encode()


def rows(names: str, *cells: tuple[object, ...], by: str = ",") -> bytes:
    return lines(names, *(by.join(map(str, row)) for row in cells))


TIMES = [5.0, 1.25, 1.5, 1.75]
STEPS = [1, 2, 3, 4]
BOTH = [*zip(STEPS, TIMES, strict=True)]
JOB = {"gpus": 64, "global_batch": 64, "seq_length": 8192}

SAMPLES = {
    "megatron": Sample(
        lines(
            megatron_world(),
            megatron_settings(seq_length=4096, num_layers=32),
            *(megatron_line(step, 1e3 * time, tflops=400.5) for step, time in BOTH),
        ),
        *("megatron", STEPS, TIMES),
        also={"flops_per_s": [400.5e12] * 4, "global_batch": [128] * 4, "loss": [10.5] * 4, "steps": [1] * 4},
        facts={"gpus": 64, "tp": 4, "pp": 2, "cp": 1, "seq_length": 4096, "layers": 32},
        counts=("causal", "full"),
        memory="allocated",
    ),
    "megatron-undated": Sample(
        lines(*(megatron_line(step, 1e3 * time, dated=False) for step, time in BOTH)), "megatron", STEPS, TIMES
    ),
    "megatron-deepspeed": Sample(
        lines(*(f"[default7]:{deepspeed_line(step, time)}" for step, time in BOTH)),
        *("megatron", STEPS, TIMES),
        also={"flops_per_s": [140e12] * 4},
    ),
    "megatron-bridge": Sample(
        lines(*(line for step, time in BOTH for line in bridge_lines(step, time, 800 + step))),
        *("megatron-bridge", STEPS, TIMES),
        also={"flops_per_s": [801e12, 802e12, 803e12, 804e12]},
        counts=("causal", "full"),
    ),
    "maxtext": Sample(
        lines("noise", *(maxtext_line(step - 1, time) for step, time in BOTH)),
        *("maxtext", STEPS, TIMES),
        also={"flops_per_s": [400.5e12] * 4, "tokens_per_s": [7000.25] * 4},
        counts=("causal", "full"),
    ),
    "torchtitan": Sample(
        lines(torchtitan_start(), *(torchtitan_line(step, 8192 / time, tflops=412.25) for step, time in BOTH)),
        *("torchtitan", STEPS, [8192 / round(8192 / time) for time in TIMES]),
        also={"flops_per_s": [412.25e12] * 4, "memory_bytes": [47.25 * GIB] * 4},
        facts={"gpu": "NVIDIA H100 80GB HBM3", "gpus": 64, "global_batch": 64, "seq_length": 8192},
        counts=("full",),
        memory="reserved",
    ),
    "torchtitan-2024": Sample(
        lines(*(torchtitan_line(step, 8192 / time, word="wps", coloured=False) for step, time in BOTH)),
        *("torchtitan", STEPS, [8192 / round(8192 / time) for time in TIMES], JOB),
    ),
    "nemo": Sample(
        lines("[NeMo W 2026-03-01 10:00:00 nemo_logging:405] x", *(nemo_line(s - 1, t, tflops=755.5) for s, t in BOTH)),
        *("nemo", STEPS, TIMES),
        also={"flops_per_s": [755.5e12] * 4, "memory_bytes": [5.6e10] * 4, "global_batch": [512] * 4},
        counts=("causal", "full"),
        memory="allocated",
    ),
    "lightning": Sample(
        ("Starting\n" + "".join(progress_bar(step, time) for step, time in BOTH)).encode(), "lightning", STEPS, TIMES
    ),
    "lightning-clock": Sample(
        "".join(progress_bar(step, None, elapsed=25 * step, steps=9) for step in range(6)).encode(),
        *("lightning", [1, 2, 3, 4, 5], [25.0] * 5),
    ),
    "trainer": Sample(
        lines(
            trainer_start(),
            "".join(trainer_bar(10 * step, 30 * step) for step in range(4)),
            trainer_dict(30),
            trainer_bar(3, 9, steps=17),
            trainer_bar(40, 120),
            f"{{'eval_loss': 2.5, 'eval_runtime': 7.5, 'epoch': 0.04}}{trainer_bar(50, 160)}",
        ),
        *("hugging-face", [10, 20, 30, 40, 50], [3.0, 3.0, 3.0, 3.0, 4.0]),
        facts={"global_batch": 64},
        also={"steps": [10] * 5},
    ),
    "trainer-callback": Sample(
        lines(*(trainer_dict(step, quoted=True, step=step, step_time=time) for step, time in BOTH)),
        *("hugging-face", STEPS, TIMES),
    ),
    "trainer-end": Sample(
        lines(
            trainer_dict(10),
            "{'train_runtime': 2500.0, 'train_samples_per_second': 25.6, 'train_steps_per_second': 0.4, 'epoch': 1.0}",
        ),
        *("hugging-face", [1000], [2.5]),
        also={"steps": [1000]},
    ),
    "trainer-state": Sample(
        trainer_state(
            [
                {
                    "epoch": 0.01 * n,
                    "loss": 2.5,
                    "step": 10 * n,
                    "train_runtime": 30.0 * n,
                    "train_tokens_per_second": 9,
                }
                for n in range(1, 5)
            ]
        ).encode(),
        *("trainer-state", [20, 30, 40], [3.0] * 3),
        also={"steps": [10] * 3},
        lines=False,
    ),
    "trainer-state-end": Sample(
        trainer_state(
            [{"loss": 2.5, "step": 500}, {"step": 1000, "train_loss": 2.5, "train_runtime": 2500.0}]
        ).encode(),
        *("trainer-state", [1000], [2.5]),
        lines=False,
    ),
    "deepspeed": Sample(
        lines(
            deepspeed_settings(train_batch_size=64, train_micro_batch_size_per_gpu=2, world_size=8),
            *(throughput_timer(step, 64 / time) for step, time in BOTH),
        ),
        *("deepspeed", STEPS, TIMES),
        also={"memory_bytes": [61.52 * GIB] * 4},
        facts={"global_batch": 64, "micro_batch": 2, "gpus": 8},
        memory="allocated",
    ),
    "deepspeed-pipeline": Sample(
        lines(*(pipeline_line(step, time, more="lm loss: 2.5000 ") for step, time in BOTH)),
        *("deepspeed-pipeline", STEPS, TIMES),
    ),
    "csv": Sample(
        rows("step,step_s,loss,memory_gib", *((step, time, 2.5, 70.5) for step, time in BOTH)),
        *("csv", STEPS, TIMES),
        also={"memory_bytes": [70.5 * GIB] * 4, "line": [2, 3, 4, 5]},
    ),
    "csv-ms": Sample(rows("iter_time_ms;Iteration", *((1e3 * t, s) for s, t in BOTH), by=";"), "csv", STEPS, TIMES),
    "csv-lightning": Sample(
        rows(
            "epoch,global_step,train_step_timing in s,reduced_train_loss",
            *((0, step, time, 9.5) for step, time in BOTH),
        ),
        *("csv", STEPS, TIMES),
    ),
    "csv-rates": Sample(
        rows("step\ttokens_per_sec_per_gpu", *((step, 8192 / time) for step, time in BOTH), by="\t"),
        *("csv", STEPS, TIMES, JOB),
    ),
    "json-lines": Sample(
        lines(*(json.dumps({"step": step, "step_s": time, "memory_bytes": 7e10}) for step, time in BOTH)),
        *("json-lines", STEPS, TIMES),
        also={"memory_bytes": [7e10] * 4},
    ),
    "json-lines-maxtext": Sample(
        lines(
            *(
                json.dumps(
                    {"perf/step_time_seconds": time, "perf/per_device_tflops_per_sec": 400.5, "step": float(step)}
                )
                for step, time in BOTH
            )
        ),
        *("json-lines", STEPS, TIMES),
        also={"flops_per_s": [400.5e12] * 4},
        counts=("causal", "full"),
    ),
    "json-lines-in-text": Sample(
        lines(
            "INFO starting",
            *(f"[rank0]:INFO {json.dumps({'iteration': s, 'perf': {'iter_time_ms': 1e3 * t}})}" for s, t in BOTH),
        ),
        *("json-lines", STEPS, TIMES),
    ),
    "wandb-csv": Sample(
        rows(
            "_step,_runtime,_timestamp,train/global_step,train/loss,perf/step_time",
            *((7 * s, 10.5 * s, 1.77e9 + 10.5 * s, s, 2.5, t) for s, t in BOTH),
            (99, 60.5, 1.77e9 + 60.5, "", "", ""),
        ),
        *("csv", STEPS, TIMES),
    ),
    "wandb-chart": Sample(
        rows(
            '"Step","run-7 - time_metrics/end_to_end(s)","run-7 - time_metrics/end_to_end(s)__MIN",'
            '"run-7 - time_metrics/end_to_end(s)__MAX"',
            *((f'"{s}"', f'"{t}"', f'"{t - 1}"', f'"{t + 1}"') for s, t in BOTH),
        ),
        *("csv", STEPS, TIMES),
        counts=("full",),
        memory="reserved",
    ),
    "wandb-jsonl": Sample(
        lines(
            *(
                json.dumps(
                    {"_step": s, "_runtime": 30.0 * s, "iteration-time": t, "throughput": 410.5, "lm loss": None}
                )
                for s, t in BOTH
            )
        ),
        *("json-lines", STEPS, TIMES),
        also={"flops_per_s": [410.5e12] * 4},
        counts=("causal", "full"),
        memory="allocated",
    ),
    "wandb-clock": Sample(
        lines(*(json.dumps({"_step": 10 * n, "_runtime": 25.0 * n, "train/loss": 2.5}) for n in range(1, 5))),
        *("json-lines", [20, 30, 40], [2.5] * 3),
    ),
    "json-lines-llama-factory": Sample(
        lines(
            *(
                json.dumps({"current_steps": 10 * n, "total_steps": 90, "loss": 2.5, "elapsed_time": f"0:0{n}:20"})
                for n in range(1, 5)
            )
        ),
        *("json-lines", [20, 30, 40], [6.0] * 3),
    ),
    "json-list": Sample(
        (json.dumps([{"_step": s, "step_time": t} for s, t in BOTH], indent=1) + "\n").encode(),
        *("trainer-state", STEPS, TIMES),
        lines=False,
    ),
    "tensorboard-megatron": Sample(
        event_file(
            [
                row
                for s, t in BOTH
                for row in (
                    (1.7e9 + s, s, "lm loss", 9.5),
                    (1.7e9 + s, 64 * s, "lm loss vs samples", 9.5),
                    (1.7e9 + s, s, "iteration-time", t),
                    (1.7e9 + s, s, "throughput", 410.5),
                )
            ]
        ),
        *("tensorboard", STEPS, TIMES),
        also={"flops_per_s": [410.5e12] * 4, "loss": [9.5] * 4},
        counts=("causal", "full"),
        memory="allocated",
        lines=False,
    ),
    "tensorboard-tensors": Sample(
        event_file([(1.7e9 + s, s, "perf/step_time_seconds", t) for s, t in BOTH], tensors=True),
        *("tensorboard", STEPS, TIMES),
        lines=False,
    ),
    "tensorboard-clock": Sample(
        event_file([(1.7e9 + 25.0 * n, 10 * n, "loss", 2.5) for n in range(1, 5)]),
        *("tensorboard", [20, 30, 40], [2.5] * 3),
        lines=False,
    ),
}
