"""What random jobs are drawn from: models as far as they decide a layout, clusters, schedules, frameworks.

Names are written out here and not asked of the package: another version is held to the same jobs.
"""

from dataclasses import dataclass

SCHEDULES = {
    **{"1f1b": (1,), "gpipe": (1,), "zb_h1": (1,), "dualpipe": (1,)},
    **{"zb_v": (2,), "dualpipe_v": (2,), "interleaved": (2, 3, 4), "looped_bfs": (2, 4), "interleaved_zb": (2, 4)},
}
"""Pipeline schedules, and the virtual stages that a stage has under each."""

CLUSTERS = (
    *("h100", "h100", "h100", "h200", "h800", "a100", "a100-azure", "a800", "b200", "b200", "b300", "gb200", "gb300"),
    *("ideal", "l40s", "mi300x", "rtx-pro-6000", "tpu-v5p"),
)
SIXTEEN_BITS = ("a100", "a100-azure", "a800", "tpu-v5p", "mi300x")
"""Clusters whose jobs say no type of less than 16 bits, but where they say anything."""
SMALL_BLOCKS = ("b200", "b300", "gb200", "gb300")
"""Those whose GPUs have types with a scale for each small block."""

FRAMEWORKS = (
    *("megatron-core-2024", "megatron-core-2025", "megatron-core-2026", "megatron-2021", "megatron-2022"),
    *("megatron-bridge-2025", "megatron-deepspeed-2022", "deepspeed-2021", "deepspeed-2024", "eager", "nanotron-2024"),
    *("torchtitan-2025", "torchtitan-eager-2024", "transformers-2024", "maxtext-2024", "automodel-2025"),
    *("colossalai-2025", "fms-fsdp-2024", "internevo-2024", "llm-foundry-2023", "mindspeed-2024", "neuronx-2025"),
    *("oneflow-2021", "pai-megatron-2025", "primus-2025", "xtuner-2024"),
)


@dataclass(frozen=True, slots=True)
class Shape:
    """What a job must know of a model to be laid out."""

    name: str
    layers: int
    tp: int = 8
    """Largest power of two that divides its heads, at most 8."""
    experts: int = 0
    latent: bool = False
    mtp: bool = False
    mixers: bool = False
    """Whether some layers have a state instead of attention."""
    longest: int = 8192


SHAPES = (
    *(Shape("gpt2-xl", 48, 1, longest=1024), Shape("gpt3-13b", 40, longest=2048), Shape("llama3-8b", 32)),
    *(Shape("llama3-70b", 80), Shape("llama2-7b", 32), Shape("qwen3-8b", 36), Shape("gemma3-12b", 48)),
    *(Shape("gemma2-9b", 42), Shape("gemma4-e4b", 42, 2), Shape("falcon-7b", 32, 1), Shape("bloom-7b1", 30)),
    *(Shape("mpt-7b", 32, longest=2048), Shape("bert-large", 24, longest=512), Shape("nemotron4-15b", 32)),
    *(Shape("mixtral-8x7b", 32, experts=8), Shape("qwen3-30b-a3b", 48, 4, experts=128)),
    *(Shape("deepseek-moe-16b", 28, experts=64), Shape("gpt-oss-20b", 24, experts=32)),
    *(Shape("llama4-scout", 48, experts=16), Shape("glm-4.5-air", 46, experts=128, mtp=True)),
    *(Shape("olmoe-1b-7b", 16, experts=64), Shape("dbrx", 40, experts=16), Shape("gemma4-26b", 30, 4, experts=128)),
    *(Shape("deepseek-v2-lite", 27, experts=64, latent=True), Shape("moonlight-16b-a3b", 27, experts=64, latent=True)),
    *(Shape("deepseek-v3", 61, experts=256, latent=True, mtp=True), Shape("minimax-m2", 62, experts=256)),
    *(Shape("deepseek-v3.2", 61, experts=256, latent=True, mtp=True), Shape("deepseek-v4-flash", 43, 1, 256, mtp=True)),
    *(Shape("kimi-linear-48b-a3b", 27, experts=256, mixers=True), Shape("lfm2-8b-a1b", 24, experts=32, mixers=True)),
    *(Shape("qwen3-next-80b-a3b", 48, 2, experts=512, mtp=True, mixers=True), Shape("lfm2-1.2b", 16, mixers=True)),
    *(Shape("jamba-52b", 32, experts=16, mixers=True), Shape("nemotron-h-8b", 52, mixers=True)),
    *(Shape("falcon-h1-7b", 44, 2, mixers=True), Shape("nemotron-3-nano", 52, 2, experts=128, mixers=True)),
    Shape("minimax-m1", 80, experts=32, mixers=True),
)
