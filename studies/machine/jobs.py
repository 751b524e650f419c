"""The jobs that are measured, and how a forecast is asked for the same.

All parameters are fp32 and every GEMM and attention runs in bf16 under autocast, as the Trainer of Hugging Face
Transformers (``--bf16``) and torchtitan on one GPU do; the frozen weights of LoRA are bf16. AdamW is fused, gradients
are clipped by their norm, recompute is of every layer.
"""

from collections.abc import Mapping
from typing import NamedTuple

LIBRARY, OWN = "transformers", "pytorch"
"""Who wrote the layers: Hugging Face Transformers, or `machine.decoder` in the words of torchtitan."""
LAYERS, WHOLE = "layers", "whole"
"""What is compiled: each layer alone, as torchtitan does, or the model at once, as the Trainer does."""
ALL_LINEAR = ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")


class Shape(NamedTuple):
    """A decoder by the names that traincast has for it; each is a configuration on Hugging Face."""

    layers: int
    hidden: int
    ffn_hidden: int
    heads: int
    kv_heads: int
    vocab: int
    qkv_bias: bool = False
    tied: bool = True

    @property
    def head_dim(self) -> int:
        """Width of a head."""
        return self.hidden // self.heads


SHAPES: Mapping[str, Shape] = {
    "qwen2-0.5b": Shape(24, 896, 4864, 14, 2, 151936, qkv_bias=True),
    "tinyllama-1.1b": Shape(22, 2048, 5632, 32, 4, 32000, tied=False),
    "llama3.2-1b": Shape(16, 2048, 8192, 32, 8, 128256),
    "qwen2-1.5b": Shape(28, 1536, 8960, 12, 2, 151936, qkv_bias=True),
    "llama3.2-3b": Shape(28, 3072, 8192, 24, 8, 128256),
    "llama3.1-8b": Shape(32, 4096, 14336, 32, 8, 128256, tied=False),
}


class TrainingJob(NamedTuple):
    """One job on one GPU."""

    model: str
    seq_length: int
    micro_batch: int = 1
    microbatches: int = 1
    layers_of: str = LIBRARY
    compiled: str = ""
    """`LAYERS`, `WHOLE`, or empty: eager."""
    recompute: bool = False
    lora_targets: tuple[str, ...] = ()
    precision: str = "bf16"
    traced: bool = False
    """Whether its profile is kept, for ``traincast calibrate``."""
    use: str = ""
    """``calibrates``: a user would take it to calibrate with, so that it judges nothing."""
    seconds: int = 20
    """What it may take at most of what is left of the time, compiling included."""

    @property
    def id(self) -> str:
        """Return its name: ``transformers-llama3.2-1b-4096x2-full``."""
        batch = f"{self.seq_length}x{self.micro_batch}" + (f"x{self.microbatches}" if self.microbatches > 1 else "")
        lora = f"lora{len(self.lora_targets)}" if self.lora_targets else ""
        kind = self.precision if self.precision != "bf16" else ""
        words = (self.layers_of, self.model, batch, "full" if self.recompute else "", lora, self.compiled, kind)
        return "-".join(word for word in words if word)

    @property
    def framework(self) -> str:
        """Return what traincast calls the software; of compiled layers it knows torchtitan's."""
        if self.compiled:
            return "torchtitan-2025"
        return "transformers-2024" if self.layers_of == LIBRARY else "torchtitan-eager-2024"

    def cells(self) -> dict[str, str]:
        """Return the columns of a table of training runs (docs/data-files.md)."""
        return {
            "id": self.id,
            "model": self.model,
            "num_gpus": "1",
            "seq_length": str(self.seq_length),
            "global_batch": str(self.micro_batch * self.microbatches),
            "micro_batch": str(self.micro_batch),
            "tp": "1",
            "pp": "1",
            "precision": self.precision,
            "recompute": "full" if self.recompute else "none",
            "framework": self.framework,
            "task": "lora" if self.lora_targets else "pretrain",
            "lora_rank": str(LORA_RANK) if self.lora_targets else "",
            "lora_targets": "+".join(self.lora_targets),
            "layers_of": self.layers_of,
            "compiled": self.compiled,
            "use": self.use,
        }


LORA_RANK = 16
_CALIBRATES = "calibrates"

JOBS = (
    # What the host takes to launch, and the job whose operators are measured: a user calibrates with these.
    TrainingJob("llama3.2-1b", 256, use=_CALIBRATES),
    TrainingJob("llama3.2-1b", 4096, 2, traced=True, use=_CALIBRATES),
    TrainingJob("qwen2-0.5b", 2048),
    TrainingJob("llama3.2-1b", 4096, 4, recompute=True),
    TrainingJob("qwen2-1.5b", 4096),
    TrainingJob("llama3.1-8b", 2048, lora_targets=("linear_qkv",)),
    TrainingJob("llama3.2-3b", 2048),
    TrainingJob("tinyllama-1.1b", 2048, 8),
    TrainingJob("llama3.2-1b", 4096, 2, layers_of=OWN, compiled=LAYERS, traced=True, use=_CALIBRATES, seconds=60),
    TrainingJob("llama3.2-1b", 4096, 2, layers_of=OWN),
    TrainingJob("tinyllama-1.1b", 32768, recompute=True, seconds=40),
    TrainingJob("llama3.1-8b", 4096, 2, recompute=True, lora_targets=ALL_LINEAR, seconds=30),
    TrainingJob("llama3.2-1b", 4096, 2, compiled=WHOLE, seconds=100),
    TrainingJob("llama3.2-3b", 4096, microbatches=2, recompute=True),
    TrainingJob("llama3.2-3b", 4096, 2),
    TrainingJob("qwen2-0.5b", 2048, 4, microbatches=2),
    TrainingJob("llama3.2-1b", 8192),
    TrainingJob("llama3.2-1b", 4096, 2, layers_of=OWN, compiled=LAYERS, precision="fp8", seconds=60),
    TrainingJob("qwen2-1.5b", 2048, 4, microbatches=2, recompute=True),
    TrainingJob("qwen2-1.5b", 4096, 2, layers_of=OWN, compiled=LAYERS, recompute=True, seconds=60),
    TrainingJob("llama3.1-8b", 8192, recompute=True, lora_targets=("linear_qkv",), seconds=30),
    TrainingJob("qwen2-0.5b", 2048, layers_of=OWN, compiled=LAYERS, seconds=50),
    TrainingJob("tinyllama-1.1b", 4096, 2, microbatches=4),
    TrainingJob("qwen2-0.5b", 2048, 2, layers_of=OWN),
)
"""In the order in which they are measured, until the time is up."""
