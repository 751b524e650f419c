"""How many parameters the built-in models have by what was published, with what the product counts apart.

A checkpoint's count is exact: `HUB` is what the Hugging Face hub says of a repository (``safetensors.total`` of its
API), `INDEX` half of ``metadata.total_size`` in its ``model.safetensors.index.json``, where all tensors have 16 bits,
`TENSORS` the sum of the shapes of its tensors. `PAPER` is a number printed with so many digits as it has here.
"""

from typing import NamedTuple

HUB, INDEX, TENSORS, PAPER = "safetensors.total", "total_size / 2", "tensors", "paper or page"


class Published(NamedTuple):
    """A count that was published."""

    count: float
    source: str
    kind: str
    more: int = 0
    """Parameters that it has more than the product, or fewer below 0."""
    cause: str = ""


def hub(repository, count, more=0, cause=""):
    """A count of the hub."""
    return Published(count, repository, HUB, more, cause)


def index(repository, total_bytes):
    """A count of an index of 16-bit tensors."""
    return Published(total_bytes // 2, repository, INDEX)


def tensors(repository, count, more=0, cause=""):
    """A count of tensors."""
    return Published(count, repository, TENSORS, more, cause)


def paper(where, billions):
    """A rounded number of billions."""
    return Published(billions * 1e9, where, PAPER)


TIED = "the file has the tied LM head as a second copy"
VISION = "the file has the model of images, too"
CORRECTION = "the correction biases of routers, which are updated without gradients"

CHECKPOINTS = {
    "gpt2": tensors("openai-community/gpt2", 124_439_808),
    "gpt2-medium": tensors("openai-community/gpt2-medium", 354_823_168),
    "gpt2-large": tensors("openai-community/gpt2-large", 774_030_080),
    "gpt2-xl": tensors("openai-community/gpt2-xl", 1_557_611_200),
    "bert-base": tensors("google-bert/bert-base-uncased", 110_106_428),
    "bert-large": tensors("google-bert/bert-large-uncased", 336_226_108),
    "opt-6.7b": tensors("facebook/opt-6.7b", 6_658_473_984),
    "gpt-neox-20b": tensors("EleutherAI/gpt-neox-20b", 20_554_567_680),
    "gpt-j-6b": tensors(
        "EleutherAI/gpt-j-6b, as its card counts",
        6_053_381_344,
        2_383_872,
        "not known: its 28 layers and tables have no such part",
    ),
    "pythia-70m": tensors("EleutherAI/pythia-70m", 70_426_624),
    "pythia-1.4b": tensors("EleutherAI/pythia-1.4b", 1_414_647_808),
    "pythia-12b": tensors("EleutherAI/pythia-12b", 11_846_072_320),
    "bloom-560m": tensors("bigscience/bloom-560m", 559_214_592),
    "bloom-7b1": tensors("bigscience/bloom-7b1", 7_069_016_064),
    "bloom-176b": tensors("bigscience/bloom", 176_247_271_424),
    "falcon-7b": tensors("tiiuae/falcon-7b", 6_921_720_704),
    "mpt-7b": tensors("mosaicml/llm-foundry, as its benchmarks print", 6_658_859_008),
    "mpt-30b": tensors("mosaicml/llm-foundry, as its benchmarks print", 29_975_214_080),
    "llama2-7b": tensors("meta-llama/Llama-2-7b-hf", 6_738_415_616),
    "llama2-13b": tensors("meta-llama/Llama-2-13b-hf", 13_015_864_320),
    "llama2-70b": tensors("meta-llama/Llama-2-70b-hf", 68_976_648_192),
    "tinyllama-1.1b": tensors("TinyLlama/TinyLlama-1.1B-intermediate-step-1431k-3T", 1_100_048_384),
    "llama3-8b": index("meta-llama/Meta-Llama-3-8B", 16_060_522_496),
    "llama3-70b": index("meta-llama/Meta-Llama-3-70B", 141_107_412_992),
    "llama3.1-8b": hub("meta-llama/Llama-3.1-8B-Instruct", 8_030_261_248),
    "llama3.1-70b": hub("meta-llama/Llama-3.3-70B-Instruct", 70_553_706_496),
    "llama3.1-405b": tensors("meta-llama/Llama-3.1-405B", 405_853_388_800),
    "llama3.2-1b": hub("meta-llama/Llama-3.2-1B-Instruct", 1_235_814_400),
    "llama3.2-3b": hub("meta-llama/Llama-3.2-3B-Instruct", 3_212_749_824),
    "llama4-scout": hub("meta-llama/Llama-4-Scout-17B-16E-Instruct", 108_641_793_536, 871_932_416, VISION),
    "mistral-7b": index("mistralai/Mistral-7B-v0.1", 14_483_464_192),
    "mistral-7b-v0.3": hub("mistralai/Mistral-7B-v0.3", 7_248_023_552),
    "mistral-small-24b": hub("sarvamai/sarvam-m, which is trained on from it", 23_572_403_200),
    "mixtral-8x7b": index("mistralai/Mixtral-8x7B-v0.1", 93_405_585_408),
    "qwen2-0.5b": hub("Qwen/Qwen2.5-0.5B-Instruct", 494_032_768),
    "qwen2-1.5b": hub("Qwen/Qwen2.5-1.5B-Instruct", 1_543_714_304),
    "qwen2.5-3b": hub("Qwen/Qwen2.5-3B-Instruct", 3_085_938_688),
    "qwen2.5-7b": index("Qwen/Qwen2.5-7B", 15_231_233_024),
    "qwen2.5-32b": index("Qwen/Qwen2.5-32B", 65_527_752_704),
    "qwen3-0.6b": hub("Qwen/Qwen3-0.6B", 751_632_384, 151_936 * 1024, TIED),
    "qwen3-1.7b": hub("Qwen/Qwen3-1.7B", 2_031_739_904, 151_936 * 2048, TIED),
    "qwen3-4b": hub("Qwen/Qwen3-4B", 4_022_468_096),
    "qwen3-8b": index("Qwen/Qwen3-8B", 16_381_470_720),
    "qwen3-32b": hub("Qwen/Qwen3-32B", 32_762_123_264),
    "qwen3-30b-a3b": index("Qwen/Qwen3-30B-A3B", 61_064_245_248),
    "deepseek-v3": tensors("deepseek-ai/DeepSeek-V3, without its MTP layer", 671_026_419_200, 58 * 256, CORRECTION),
    "kimi-k2": hub(
        "moonshotai/Kimi-K2-Instruct",
        1_026_408_235_864,
        60 * 384 + 3416,
        f"{CORRECTION}; of 3,416 the cause is not known",
    ),
    "kimi-linear-48b-a3b": hub("moonshotai/Kimi-Linear-48B-A3B-Instruct", 49_122_681_728, 26 * 256, CORRECTION),
    "lfm2-350m": hub("LiquidAI/LFM2-350M", 354_483_968),
    "lfm2-700m": hub("LiquidAI/LFM2-700M", 742_489_344),
    "lfm2-1.2b": hub("LiquidAI/LFM2-1.2B", 1_170_340_608),
    "lfm2-2.6b": hub("LiquidAI/LFM2-2.6B", 2_569_272_320),
    "jamba-52b": hub("ai21labs/Jamba-v0.1", 51_570_323_328),
    "falcon-h1-0.5b": hub("tiiuae/Falcon-H1-0.5B-Instruct", 521_411_104),
    "minimax-m1": hub("MiniMaxAI/MiniMax-M1-80k", 456_089_655_296),
    "minimax-m2": hub("MiniMaxAI/MiniMax-M2", 228_689_764_864, 62 * 256, CORRECTION),
    "gemma-2b": tensors("google/gemma-2b", 2_506_172_416),
    "gemma-7b": tensors("google/gemma-7b", 8_537_680_896),
    "gemma2-2b": hub("google/gemma-2-2b-it", 2_614_341_888),
    "gemma2-9b": tensors("google/gemma-2-9b", 9_241_705_984),
    "gemma2-27b": tensors("google/gemma-2-27b", 27_227_128_320),
    "gemma3-1b": hub("google/gemma-3-1b-it", 999_885_952),
    "gemma3-4b": hub("google/gemma-3-4b-it", 4_300_079_472, 419_816_304, VISION),
    "gemma3-12b": hub("google/gemma-3-12b-it", 12_187_325_040, 421_290_864, VISION),
    "gemma3-27b": hub("google/gemma-3-27b-it", 27_432_406_640, 423_060_336, VISION),
    "gpt-oss-20b": hub("openai/gpt-oss-20b", 20_914_757_184),
    "gpt-oss-120b": hub("openai/gpt-oss-120b", 116_829_156_672),
    "phi-2": index("microsoft/phi-2", 5_559_367_680),
    "phi-3-mini": hub("microsoft/Phi-3-mini-4k-instruct", 3_821_079_552),
    "phi-3-medium": tensors("microsoft/Phi-3-medium-4k-instruct", 13_960_238_080),
    "phi-4": hub("microsoft/phi-4", 14_659_507_200),
    "phi-4-mini": hub("microsoft/Phi-4-mini-instruct", 3_836_021_760),
    "olmo2-7b": hub("allenai/OLMo-2-1124-7B-Instruct", 7_298_617_344),
    "starcoder2-3b": tensors("bigcode/starcoder2-3b", 3_030_371_328),
    "smollm2-135m": hub("HuggingFaceTB/SmolLM2-135M-Instruct", 134_515_008),
    "smollm2-360m": hub("HuggingFaceTB/SmolLM2-360M-Instruct", 361_821_120),
    "smollm2-1.7b": hub("HuggingFaceTB/SmolLM2-1.7B-Instruct", 1_711_376_384),
}
"""Counts of checkpoints: the product's are the same, but for what is said."""

PRINTED = {
    **{f"gpt3-{size}": paper("arXiv 2005.14165, table D.1", count) for size, count in (
        ("125m", 0.125), ("350m", 0.356), ("760m", 0.760), ("1.3b", 1.316), ("2.7b", 2.651),
        ("6.7b", 6.658), ("13b", 12.850), ("175b", 174.600),
    )},
    "mt-nlg-530b": paper("arXiv 2201.11990", 530),
    "mpt-125m": paper("mosaicml/llm-foundry", 0.1253),
    "mpt-760m": paper("mosaicml/llm-foundry", 0.7605),
    "mpt-70b": paper("mosaicml/llm-foundry", 64.86),
    "palm-8b": paper("arXiv 2204.02311, table 1", 8.63),
    "palm-62b": paper("arXiv 2204.02311, table 1", 62.50),
    "palm-540b": paper("arXiv 2204.02311, table 1", 540.35),
    "llama1-13b": paper("arXiv 2302.13971, table 2", 13.0),
    "llama1-33b": paper("arXiv 2302.13971, table 2", 32.5),
    "llama1-65b": paper("arXiv 2302.13971, table 2", 65.2),
    "llama2-34b": paper("arXiv 2307.09288", 33.7),
    "llama4-maverick": paper("meta-llama/Llama-4-Maverick-17B-128E", 400),
    "mistral-nemo-12b": paper("mistralai/Mistral-Nemo-Base-2407", 12.2),
    "mistral-large-123b": paper("mistralai/Mistral-Large-Instruct-2407", 123),
    "mixtral-8x22b": paper("mistralai/Mixtral-8x22B-v0.1", 140.6),
    "qwen1.5-7b": paper("Qwen/Qwen1.5-7B", 7.72),
    "qwen1.5-14b": paper("Qwen/Qwen1.5-14B", 14.17),
    "qwen1.5-32b": paper("Qwen/Qwen1.5-32B", 32.5),
    "qwen1.5-110b": paper("Qwen/Qwen1.5-110B", 111.2),
    "qwen1.5-moe-a2.7b": paper("Qwen/Qwen1.5-MoE-A2.7B", 14.3),
    "qwen2-57b-a14b": paper("arXiv 2407.10671, table 1", 57.4),
    "qwen2-7b": paper("arXiv 2407.10671", 7.62),
    "qwen2-72b": paper("Qwen/Qwen2-72B", 72.7),
    "qwen2.5-14b": paper("Qwen/Qwen2.5-14B", 14.8),
    "qwen3-14b": paper("Qwen/Qwen3-14B", 14.8),
    "qwen3-235b-a22b": paper("Qwen/Qwen3-235B-A22B", 235.0),
    "qwen3-coder-480b-a35b": paper("Qwen/Qwen3-Coder-480B-A35B-Instruct", 480.0),
    "deepseek-v2-lite": paper("deepseek-ai/DeepSeek-V2-Lite", 15.7),
    "deepseek-v2": paper("arXiv 2405.04434", 236),
    "chatglm3-6b": paper("THUDM/chatglm3-6b", 6.24),
    "glm-4-9b": paper("THUDM/glm-4-9b", 9.40),
    "yi-6b": paper("01-ai/Yi-6B", 6.06),
    "yi-34b": paper("01-ai/Yi-34B", 34.4),
    "baichuan-7b": paper("baichuan-inc/Baichuan-7B", 7.00),
    "baichuan2-7b": paper("baichuan-inc/Baichuan2-7B-Base", 7.51),
    "baichuan2-13b": paper("baichuan-inc/Baichuan2-13B-Base", 13.9),
    "internlm2-7b": paper("internlm/internlm2-7b", 7.74),
    "internlm2-20b": paper("internlm/internlm2-20b", 19.9),
    "phi-3.5-moe": paper("microsoft/Phi-3.5-MoE-instruct", 41.9),
    "olmo2-13b": paper("allenai/OLMo-2-1124-13B", 13.7),
    "olmo2-32b": paper("allenai/OLMo-2-0325-32B", 32.2),
    "olmoe-1b-7b": paper("arXiv 2409.02060", 6.92),
    "starcoder": paper("arXiv 2305.06161", 15.5),
    "starcoder2-7b": paper("bigcode/starcoder2-7b", 7.17),
    "command-r": paper("CohereForAI/c4ai-command-r-v01", 35),
    "command-r-plus": paper("CohereForAI/c4ai-command-r-plus", 104),
    "dbrx": paper("databricks/dbrx-base", 132),
    "nemotron4-340b": paper("arXiv 2406.11704, table 1", 341.0),
    "minicpm-2b": paper("openbmb/MiniCPM-2B-sft-bf16", 2.72),
    "lfm2-8b-a1b": paper("LiquidAI/LFM2-8B-A1B", 8.3),
    "jamba-1.5-large": paper("arXiv 2408.12570", 398),
    "falcon-h1-3b": paper("arXiv 2507.22448", 3.15),
    "falcon-h1-7b": paper("arXiv 2507.22448", 7.59),
    "falcon-h1-34b": paper("arXiv 2507.22448", 33.6),
    "gemma4-31b": paper("google/gemma-4-31B", 30.7),
    "gemma4-26b": paper("google/gemma-4-26B-A4B", 25.2),
}  # fmt: skip
"""Rounded numbers, which the product's counts round to within 0.5 %."""
