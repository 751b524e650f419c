"""Training logs as the frameworks print them; the numbers are made up.

Each function has the format strings of the source that it names, so that a test reads what a user's file holds.
"""

import json
import struct

RESET = "\033[39m"


def megatron_line(step, ms, *, steps=100, batch=128, tflops=None, dated=True, loss=10.5):
    """Return a line of Megatron-LM: `training_log` of megatron/training/training.py, core_v0.13.0.

    Undated and without throughput: megatron/training.py, v2.5. The rates follow `--log-throughput`.
    """
    date = f" [2026-03-01 10:{step // 60 % 60:02d}:{step % 60:02d}]" if dated else ""
    text = f"{date} iteration {step:8d}/{steps:8d} |"
    text += f" consumed samples: {step * batch:12d} |"
    text += f" elapsed time per iteration (ms): {ms:.1f} |"
    if tflops is not None:
        text += f" throughput per GPU (TFLOP/s/GPU): {tflops:.1f} |"
    text += f" learning rate: {3e-4:.6E} |" if dated else f" learning rate: {3e-4:.3E} |"
    text += f" global batch size: {batch:5d} |"
    text += f" lm loss: {loss:.6E} |"
    text += f" loss scale: {1.0:.1f} |"
    text += f" grad norm: {1.25:.3f} |"
    return text + f" number of skipped iterations: {0:3d} | number of nan iterations: {0:3d} |"


def megatron_settings(**values):
    """Return the dump of all arguments: `_print_args` of megatron/training/arguments.py, core_v0.13.0."""
    lines = ["------------------------ arguments ------------------------"]
    lines += [f"  {name} {'.' * (48 - len(name))} {value}" for name, value in sorted(values.items())]
    return "\n".join([*lines, "-------------------- end of arguments ---------------------"])


def megatron_world(world=64, dp=8, cp=1, tp=4, pp=2):
    """Return the first sentence of Megatron-LM: `validate_args` of megatron/training/arguments.py, core_v0.13.0."""
    return (
        f"using world size: {world}, data-parallel size: {dp}, context-parallel size: {cp}, "
        f"hierarchical context-parallel sizes: None, tensor-model-parallel size: {tp}, "
        f"pipeline-model-parallel size: {pp}"
    )


def deepspeed_line(step, seconds, *, steps=100, batch=128, tflops=140.0):
    """Return a line of BigScience's Megatron-DeepSpeed: `training_log` of megatron/training.py, main of 2022."""
    return (
        f" iteration {step:8d}/{steps:8d} | consumed samples: {step * batch:12d} | consumed tokens: "
        f"{step * batch * 2048:12d} | elapsed time per iteration (s): {seconds:.2f} | learning rate: {6e-5:.3E} | "
        f"global batch size: {batch:5d} | lm loss: {2.5:.6E} | grad norm: {0.17:.3f} | num zeros: 0.0 | number of "
        f"skipped iterations: {0:3d} | number of nan iterations: {0:3d} | samples per second: "
        f"{batch / seconds:.3f} | TFLOPs: {tflops:.2f} |"
    )


def bridge_lines(step, seconds, tflops, **more):
    """Return both lines of Megatron-Bridge: src/megatron/bridge/training/utils/train_utils.py, main of August 2026."""
    return [
        f"Step Time : {seconds:.2f}s GPU utilization: {tflops:.1f}MODEL_TFLOP/s/GPU",
        megatron_line(step, seconds * 1e3, **more),
    ]


def torchtitan_line(step, tps, *, tflops=None, mfu=40.0, coloured=True, loss=8.0, word="tps", seconds=0.0):
    """Return a line of torchtitan: `MetricsProcessor.log` of torchtitan/components/metrics.py, v0.2.

    With `word` ``wps``, without FLOP/s and gradient norm: train.py of October 2024. The head of the line is that of
    torchtitan/tools/logging.py; colours are those of torchtitan/tools/utils.py.
    """

    def paint(code, text):
        return f"\033[{code}m{text}" if coloured else text

    text = paint("31", f"step: {step:2}  ") + paint("32", f"loss: {loss:8.5f}  ")
    if word == "tps":
        text += paint("38;2;180;60;0", f"grad_norm: {1.5:7.4f}  ")
    text += paint("38;2;54;234;195", f"memory: {47.25:5.2f}GiB({59.71:.2f}%)  ")
    text += paint("34", f"{word}: {round(tps):,}  ")
    if tflops is not None:
        text += paint("36", f"tflops: {tflops:,.2f}  ")
    text += paint("35", f"mfu: {mfu:.2f}%" if mfu is not None else "mfu: N/A") + (RESET if coloured else "")
    whole, part = divmod(seconds, 1)
    clock = (
        f"2026-03-01 {9 + int(whole) // 3600:02d}:{int(whole) // 60 % 60:02d}:{int(whole) % 60:02d},{part * 1e3:03.0f}"
    )
    return f"[titan] {clock} - root - INFO - {text}"


def torchtitan_start(batch=64, seq_length=8192, dp_shard=64, tp=1, pp=1, cp=1):
    """Return what torchtitan says before the first step: train.py and distributed/parallel_dims.py, v0.2."""
    head = "[titan] 2026-03-01 09:00:00,000 - root - INFO - "
    return "\n".join(
        head + text
        for text in (
            "\033[34mCUDA capacity: NVIDIA H100 80GB HBM3 with 79.11GiB memory\033[39m",
            f"Building device mesh with parallelism: pp={pp}, dp_replicate=1, dp_shard={dp_shard}, cp={cp}, tp={tp}, "
            "ep=1, etp=1",
            f"Trainer is initialized with local batch size {batch // dp_shard}, global batch size {batch}, gradient "
            f"accumulation steps 1, sequence length {seq_length}, total steps 1000 (warmup 200)",
            "Training starts at step 1",
        )
    )


def nemo_line(step, seconds, *, steps=100, batch=512, tflops=None):
    """Return a line of NeMo 2: `ProgressPrinter` of nemo/lightning/pytorch/callbacks/progress_printer.py, v2.4."""
    metrics = {
        "lr": 3e-06,
        "global_batch_size": float(batch),
        "global_step": float(step),
        "peak_memory_usage": 5.6e10,
        "reduced_train_loss": 11.03,
        "train_step_timing in s": seconds,
    }
    if step:
        metrics["consumed_samples"] = float((step + 1) * batch)
    if tflops is not None:
        metrics["TFLOPS_per_GPU"] = tflops
    text = f"Training epoch 0, iteration {step}/{steps - 1}"
    for name, value in metrics.items():
        text += f" | {name}: {int(value)}" if value.is_integer() else f" | {name}: {value:.4}"
    return text


def progress_bar(step, seconds, *, steps=100, elapsed=0, epoch=0):
    """Return the state of NeMo's progress bar, which begins with a carriage return: `MegatronProgressBar`, v2.4.

    Without `seconds` that of plain Lightning 2.x, whose tqdm adds a rate.
    """
    share = step / steps
    bar = ("█" * round(10 * share)).ljust(10)
    clock = f"{elapsed // 60:02d}:{elapsed % 60:02d}"
    text = f"\rEpoch {epoch}: : {100 * share:3.0f}%|{bar}| {step}/{steps} [{clock}<10:00, "
    if seconds is None:
        return f"{text} {step / max(elapsed, 1):.2f}it/s, v_num=0, train_loss=2.310]"
    return (
        f"{text}v_num=0, reduced_train_loss=11.00, global_step={step - 1}.0, consumed_samples={step * 512}.0, "
        f"train_step_timing in s={seconds:.3f}]"
    )


def maxtext_line(step, seconds, tflops=400.5, tokens=7000.25):
    """Return a line of MaxText: `log_metrics` of src/MaxText/metric_logger.py, 2025."""
    return (
        f"completed step: {step}, seconds: {seconds:.3f}, TFLOP/s/device: {tflops:.3f}, "
        f"Tokens/s/device: {tokens:.3f}, total_weights: 65536, loss: {10.5:.3f}"
    )


def trainer_start(*, batch=64, steps=1000):
    """Return what Hugging Face's Trainer logs before a step: `_inner_training_loop` of src/transformers/trainer.py."""
    return "\n".join(
        (
            "***** Running training *****",
            "  Num examples = 64,000",
            "  Num Epochs = 1",
            "  Instantaneous batch size per device = 1",
            f"  Total train batch size (w. parallel, distributed & accumulation) = {batch:,}",
            "  Gradient Accumulation steps = 1",
            f"  Total optimization steps = {steps:,}",
        )
    )


def trainer_bar(step, elapsed, *, steps=1000):
    """Return the state of the bar of Hugging Face's `ProgressCallback` (trainer_callback.py): tqdm without a title."""
    share = step / steps
    clock = f"{elapsed // 60:02d}:{elapsed % 60:02d}"
    rate = f"{elapsed / step:.2f}s/it" if step else "?it/s"
    return f"\r{100 * share:3.0f}%|{('█' * round(10 * share)).ljust(10)}| {step}/{steps} [{clock}<{clock}, {rate}]"


def trainer_dict(at, *, loss=2.5, quoted=False, **more):
    """Return what `ProgressCallback.on_log` writes (trainer_callback.py); since 2026 numbers are texts."""
    logs = {"loss": loss, "grad_norm": 1.25, "learning_rate": 5e-05, **more, "epoch": round(at / 1000, 2)}
    return str({name: f"{value:.4g}" if quoted else value for name, value in logs.items()})


def trainer_state(entries, *, steps=1000, indent=2):
    """Return a trainer_state.json: `TrainerState.save_to_json` of src/transformers/trainer_callback.py."""
    state = {
        "best_metric": None,
        "epoch": 1.0,
        "global_step": entries[-1]["step"],
        "is_local_process_zero": True,
        "log_history": entries,
        "logging_steps": 10,
        "max_steps": steps,
        "total_flos": 1.5e18,
        "train_batch_size": 1,
    }
    return json.dumps(state, indent=indent, sort_keys=True) + "\n"


def throughput_timer(step, samples_per_s, *, peak=61.52):
    """Return what DeepSpeed's engine logs: `ThroughputTimer.stop` of deepspeed/utils/timer.py, through its logger."""
    return (
        f"[2026-03-01 10:{step // 60 % 60:02d}:{step % 60:02d},123] [INFO] [timer.py:264:stop] epoch=0/"
        f"micro_step={8 * step}/global_step={step}, RunningAvgSamplesPerSec={samples_per_s * 0.99}, "
        f"CurrSamplesPerSec={samples_per_s}, MemAllocated=22.25GB, MaxMemAllocated={peak}GB"
    )


def deepspeed_settings(**values):
    """Return what DeepSpeed prints of its settings: `DeepSpeedConfig.print` of deepspeed/runtime/config.py."""
    head = "[2026-03-01 10:00:00,123] [INFO] [config.py:1001:print]   "
    return "\n".join(f"{head}{name} {'.' * (29 - len(name))} {value}" for name, value in values.items())


def pipeline_line(step, seconds, *, batch=64, more=""):
    """Return what DeepSpeed's pipeline engine prints: `train_batch` of deepspeed/runtime/pipe/engine.py."""
    return f"steps: {step} loss: {2.5:0.4f} {more}iter time (s): {seconds:0.3f} samples/sec: {batch / seconds:0.3f}"


def event_file(rows, *, tensors=False):
    """Return an event file of TensorBoard with one scalar an event: tensorflow/core/util/event.proto."""
    records = [_double(1, 1.7e9) + _text(3, b"brain.Event:2")]
    for clock, step, tag, value in rows:
        scalar = b"\x15" + struct.pack("<f", value)
        if tensors:
            scalar = _text(8, b"\x08\x01" + _text(4, struct.pack("<f", value)))
        summary = _text(1, _text(1, tag.encode()) + scalar)
        records.append(_double(1, clock) + b"\x10" + _varint(step) + _text(5, summary))
    return b"".join(map(event_record, records))


def event_record(data):
    """Return a record of TFRecord: tensorflow/core/lib/io/record_writer.h."""
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", _masked(length)) + data + struct.pack("<I", _masked(data))


def crc32c(data):
    """Return the CRC-32C of some bytes, bit by bit (RFC 3720, appendix B.4)."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def _masked(data):
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _varint(value):
    found = b""
    while value >= 128:
        found, value = found + bytes([value & 127 | 128]), value >> 7
    return found + bytes([value])


def _double(number, value):
    return bytes([number << 3 | 1]) + struct.pack("<d", value)


def _text(number, value):
    return bytes([number << 3 | 2]) + _varint(len(value)) + value


def maxtext_settings(**values):
    """Return MaxText's list of all settings: `_HyperParameters.__init__` of MaxText/pyconfig.py."""
    return "\n".join(f"Config param {name}: {value}" for name, value in sorted(values.items()))


def torchtitan_settings(**sections):
    """Return torchtitan's settings with `--job.print_config`: `Trainer.__init__` of torchtitan/train.py."""
    return f"[titan] 2026-03-01 09:00:00,000 - root - INFO - Running with args: {sections}"


def megatron_memory(iteration, megabytes, rank=0):
    """Return what `report_memory` prints (megatron/training/utils.py, called by `training_log` after some lines)."""
    return (
        f"[Rank {rank}] (after {iteration} iterations) memory (MB) | allocated: {megabytes / 2} | max allocated: "
        f"{megabytes} | reserved: {megabytes + 64} | max reserved: {megabytes + 64}"
    )
