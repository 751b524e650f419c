"""PyTorch's own training loop over a job, and how long its steps take."""

import gc
import math
import os
import sys
import time
from collections.abc import Callable, Mapping
from importlib import import_module, metadata
from pathlib import Path
from statistics import median
from typing import Any

import torch
import transformers

from machine.decoder import Decoder
from machine.jobs import ALL_LINEAR, LAYERS, LIBRARY, LORA_RANK, SHAPES, WHOLE, Shape, TrainingJob
from machine.watch import Watch, attention_kernel, profiled

FEWEST, MOST = 8, 40
"""Steps that are timed."""
LONG_S, FEWEST_LONG = 1.0, 5
"""Of steps of such a length fewer do."""
SPAN_S = 2.5
"""About how long steps are timed: the counter of a GPU's energy is renewed ten times a second."""
WARM_UP = 3
_MODULES = {
    "linear_qkv": ("q_proj", "v_proj"),
    "linear_proj": ("o_proj",),
    "linear_fc1": ("gate_proj", "up_proj"),
    "linear_fc2": ("down_proj",),
}
"""What gets adapters where traincast says its own names; of all linear layers the keys' projection, too."""

Cells = dict[str, str]


def measure_job(job: TrainingJob, device: str, trace: Path | None, shapes: Mapping[str, Shape] = SHAPES) -> Cells:
    """Train a few steps of a job and return the measured columns; running out of memory is a result.

    Parameters
    ----------
    trace : Path, optional
        Where the profile of a step is kept.
    """
    watch = Watch(torch, device)
    cells = {"gpu": watch.name, "torch": torch.__version__, "transformers": metadata.version("transformers")}
    begin = time.perf_counter()
    try:
        step = Step(job, shapes[job.model], device)
        for _ in range(WARM_UP):
            step()
        watch.synchronise()
        cells["warm_up_s"] = f"{time.perf_counter() - begin:.1f}"
        return cells | timed(step, watch) | seen(step, watch, trace)
    except torch.OutOfMemoryError as error:
        reserved = watch.memory().get("reserved_gib", "")
        note = f"out of memory with {reserved} GiB: {str(error).split('. ')[0]}"
        return cells | {"outcome": "crashed", "note": note}


class Step:
    """A step of a job: forward and backward passes, clipping, update."""

    def __init__(self, job: TrainingJob, shape: Shape, device: str) -> None:
        self.job, self.device = job, device
        torch.manual_seed(0)
        with torch.device(device):
            self.model = library_model(job, shape) if job.layers_of == LIBRARY else own_model(job, shape)
            self.tokens = torch.randint(shape.vocab, (job.microbatches, job.micro_batch, job.seq_length))
        self.model.train()
        self.trained = [each for each in self.model.parameters() if each.requires_grad]
        self.optimizer = torch.optim.AdamW(self.trained, lr=1e-5, fused=True)
        self.loss = self.library_loss if job.layers_of == LIBRARY else self.model
        if job.compiled == WHOLE:
            self.model.compile()

    def __call__(self) -> None:
        """Run it; nothing waits for the GPU."""
        for tokens in self.tokens:
            with torch.autocast(self.device, torch.bfloat16):
                loss = self.loss(tokens) / self.job.microbatches
            loss.backward()
        torch.nn.utils.clip_grad_norm_(self.trained, 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def library_loss(self, tokens: Any) -> Any:  # noqa: ANN401
        """Return the loss as the Trainer asks for it."""
        return self.model(input_ids=tokens, labels=tokens, use_cache=False).loss


def library_model(job: TrainingJob, shape: Shape) -> Any:  # noqa: ANN401
    """Return a model of Hugging Face Transformers with random weights, perhaps with adapters of PEFT."""
    kind: Any = transformers.Qwen2Config if shape.qkv_bias else transformers.LlamaConfig
    config = kind(
        vocab_size=shape.vocab,
        hidden_size=shape.hidden,
        intermediate_size=shape.ffn_hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        max_position_embeddings=job.seq_length,
        tie_word_embeddings=shape.tied,
        attn_implementation="sdpa",
    )
    lora = bool(job.lora_targets)
    dtype = torch.bfloat16 if lora else torch.float32
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)
    if job.recompute:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if not lora:
        return model
    if job.recompute:
        model.enable_input_require_grads()
    peft = import_module("peft")
    names = "all-linear" if job.lora_targets == ALL_LINEAR else [n for each in job.lora_targets for n in _MODULES[each]]
    return peft.get_peft_model(model, peft.LoraConfig(r=LORA_RANK, lora_alpha=2 * LORA_RANK, target_modules=names))


def own_model(job: TrainingJob, shape: Shape) -> Any:  # noqa: ANN401
    """Return `Decoder`, its layers perhaps compiled, or in 8 bits by torchao with one scale for each tensor.

    torchao is in the folder that the variable TORCHAO names, or installed.
    """
    model = Decoder(shape, recompute=job.recompute)
    if job.precision == "fp8":
        # Not on the path of the others: Transformers imports it where it finds it, and it looks at the GPU then.
        sys.path += filter(None, [os.environ.get("TORCHAO")])
        import_module("torchao.float8").convert_to_float8_training(model.layers)
    if job.compiled == LAYERS:
        for layer in model.layers:
            layer.compile(fullgraph=True)
    return model


def timed(step: Callable[[], None], watch: Watch) -> Cells:
    """Return the median of the steps' times by the host's clock, each until the GPU is done, and what is seen."""
    gc.collect()
    watch.begin()
    times, launched = list[float](), list[float]()
    begin = time.perf_counter()
    while True:
        at = time.perf_counter()
        step()
        launched.append(time.perf_counter() - at)
        watch.synchronise()
        times.append(time.perf_counter() - at)
        span, enough = time.perf_counter() - begin, FEWEST if times[-1] < LONG_S else FEWEST_LONG
        if len(times) >= enough and (span >= SPAN_S or len(times) >= MOST):
            break
    middle = median(times)
    return {
        "step_time_s": f"{middle:.6g}",
        "deviation": f"{math.sqrt(sum((each / middle - 1) ** 2 for each in times) / len(times)):.3g}",
        "steps": str(len(times)),
        "launched_s": f"{median(launched):.6g}",
        **watch.memory(),
        **watch.end(),
    }


def seen(step: Callable[[], None], watch: Watch, trace: Path | None) -> Cells:
    """Return what a profile of a step tells; a profile that fails takes nothing from what was timed."""
    if not watch.has_gpu:
        return {}
    try:
        kernels = profiled(torch, step, trace)
    except Exception as error:
        # Whatever the profiler or its file says against it, the step has been timed.
        return {"note": f"no profile: {error}"[:200]}
    return {
        "kernels_s": f"{kernels.busy_s:.6g}",
        "kernels": str(kernels.launches),
        "attention_kernel": attention_kernel(kernels.names),
        "longest": " ".join(f"{name}:{time_s * 1e3:.3g}ms" for name, time_s in kernels.longest(6)),
    }
