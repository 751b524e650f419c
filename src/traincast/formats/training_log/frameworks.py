"""How training frameworks print a step: one row of the table `FRAMEWORKS` each, and what they print of the run.

Sources, by the file and version that prints the line:

* Megatron-LM: ``training_log`` of ``megatron/training/training.py`` (core_v0.4.0 to main of August 2026), of
  ``megatron/training.py`` (v2.0 to 23.06), which has no date and no throughput; Megatron-DeepSpeed prints the time in
  seconds (BigScience) or ms (Microsoft), and further ``samples per second``, ``tokens per gpu per second (tgs)`` and
  ``TFLOPs``.
* Megatron-Bridge: ``src/megatron/bridge/training/utils/train_utils.py`` (main of August 2026) prints Megatron-LM's line
  on the last rank and ``Step Time : 5.39s GPU utilization: 812.3MODEL_TFLOP/s/GPU`` on the first.
* torchtitan: ``MetricsProcessor.log`` of ``torchtitan/components/metrics.py`` (main of August 2026), in colours unless
  they are turned off; ``train.py`` of 2024 calls the tokens per second and GPU ``wps``.
* MaxText: ``log_metrics`` of ``src/MaxText/metric_logger.py`` (2023 to 2026; tokens since 2024).
* NeMo 2.x: ``ProgressPrinter`` of ``nemo/lightning/pytorch/callbacks/progress_printer.py`` (v2.4); its
  ``MegatronProgressBar``, NeMo 1.x and other users of Lightning: the progress bar of tqdm, which rewrites its line.
"""

import re
from collections.abc import Mapping
from types import MappingProxyType

from msgspec import Struct

from traincast.units import GIGA

NUMBER = r"([-+]?[\d.][\d.,]*(?:[eE][-+]?\d+)?|nan|inf)"
"""A number as logs have them, or what damage left of one; torchtitan puts commas between thousands."""

_TERA = 1e3 * GIGA
_MILLI = 1e-3


class Quantity(Struct, frozen=True):
    """A number of a step line: the expression that finds it, and what it is multiplied by to be SI."""

    pattern: re.Pattern[str]
    factor: float = 1.0


def _after(words: str, factor: float = 1.0, *, unit: str = "") -> Quantity:
    """Return the number that follows some words and a colon or equals sign, and stands before a unit."""
    return Quantity(re.compile(rf"(?:{words})\s?[:=]\s*{NUMBER}{unit}"), factor)


class Framework(Struct, frozen=True, kw_only=True):
    """How one framework, or a line of versions of it, prints a step."""

    name: str
    title: str
    """For people."""
    mark: str
    """Text that every such line has, so that others are passed over at once."""
    telling: re.Pattern[str] | None = None
    """Finds lines with the mark that are of a step even where they have no head, and so are damaged."""
    head: re.Pattern[str]
    """Finds such a line; its groups ``step``, ``steps``, ``epoch`` and ``clock`` may be missing."""
    quantities: Mapping[str, Quantity]
    """Fields of `grammar.Step` that are numbers of the line."""
    first_step: int = 1
    """What it calls the first step."""

    def stands_in(self, text: str) -> bool:
        """Say whether a line that has the mark is one of a step, if perhaps a damaged one."""
        return self.head.search(text) is not None or (self.telling is not None and bool(self.telling.search(text)))


MEGATRON = Framework(
    name="megatron",
    title="Megatron-LM",
    mark="elapsed time per iteration",
    telling=re.compile(""),
    head=re.compile(r"iteration\s+(?P<step>\d{1,12})/\s*(?P<steps>\d{1,12}) \|"),
    quantities=MappingProxyType(
        {
            "time_ms": _after(r"elapsed time per iteration \(ms\)", _MILLI),
            "time_s": _after(r"elapsed time per iteration \(s\)"),
            "flops_per_s": _after(
                r"throughput per GPU \(TFLOP/s/GPU\)|flop throughput \(TFLOP/sec/GPU\)|TFLOPs", _TERA
            ),
            "tokens_per_s": _after(r"tokens per gpu per second \(tgs\)|throughput \(token/sec/GPU\)"),
            "global_batch": _after("global batch size"),
            "loss": _after("lm loss"),
        }
    ),
)

BRIDGE = Framework(
    name="megatron-bridge",
    title="Megatron-Bridge",
    mark="MODEL_TFLOP/s/GPU",
    head=re.compile(r"Step Time ?:"),
    quantities=MappingProxyType(
        {
            "time_s": _after("Step Time", unit="s"),
            "flops_per_s": Quantity(re.compile(rf"GPU utilization: {NUMBER} ?MODEL_TFLOP/s/GPU"), _TERA),
        }
    ),
)
"""The line of the first rank; it has no number of the step."""

TORCHTITAN = Framework(
    name="torchtitan",
    title="torchtitan",
    mark="loss:",
    telling=re.compile(r"^(?!.*validate step:).*(?:\bstep:.*loss:|loss:.*\b[tw]ps:)"),
    head=re.compile(r"(?<!validate )step:\s+(?P<step>\d{1,12})\s+loss:\s(?=.*\b(?:tps|wps):)"),
    quantities=MappingProxyType(
        {
            "tokens_per_s": _after("tps|wps"),
            "flops_per_s": _after("tflops", _TERA),
            "loss": _after("loss"),
        }
    ),
)

NEMO = Framework(
    name="nemo",
    title="NeMo",
    mark="Training epoch ",
    telling=re.compile(""),
    head=re.compile(r"Training epoch (?P<epoch>\d{1,12}), iteration (?P<step>\d{1,12})/(?P<steps>\d{1,12}) \|"),
    quantities=MappingProxyType(
        {
            "time_s": _after("train_step_timing in s"),
            "flops_per_s": _after("TFLOPS_per_GPU", _TERA),
            "tokens_per_s": _after("tokens_per_sec_per_gpu"),
            "global_batch": _after("global_batch_size"),
            "loss": _after("reduced_train_loss"),
        }
    ),
    first_step=0,
)

LIGHTNING = Framework(
    name="lightning",
    title="Lightning progress bar (NeMo and others)",
    mark="Epoch ",
    head=re.compile(
        r"Epoch (?P<epoch>\d{1,12}): :?\s*(?:\d{1,12}%\|[^|]*\|\s*)?(?P<step>\d{1,12})/(?P<steps>\d{1,12}) "
        r"\[(?P<clock>\d[\d:]{0,11})<[^\],]*(?:,|\])"
    ),
    quantities=MappingProxyType(
        {
            "time_s": _after("train_step_timing in s"),
            "flops_per_s": _after("TFLOPS_per_GPU", _TERA),
            "tokens_per_s": _after("tokens_per_sec_per_gpu"),
            "global_batch": _after("global_batch_size"),
            "loss": _after("reduced_train_loss|train_loss|loss"),
        }
    ),
)

MAXTEXT = Framework(
    name="maxtext",
    title="MaxText",
    mark="completed step: ",
    telling=re.compile(""),
    head=re.compile(r"completed step: (?P<step>\d{1,12}), (?=seconds: )"),
    quantities=MappingProxyType(
        {
            "time_s": _after("seconds"),
            "flops_per_s": _after("TFLOP/s/device", _TERA),
            "tokens_per_s": _after("Tokens/s/device"),
            "loss": _after(r"\bloss"),
        }
    ),
    first_step=0,
)

FRAMEWORKS = (MEGATRON, BRIDGE, MAXTEXT, TORCHTITAN, NEMO, LIGHTNING)

FACTS: Mapping[str, str] = MappingProxyType(
    {
        "gpus": r"world_size",
        "global_batch": r"global_batch_size",
        "micro_batch": r"micro_batch_size|local_batch_size",
        "seq_length": r"seq_length|seq_len|max_context_length|encoder_seq_length",
        "tp": r"tensor_model_parallel_size|tensor_parallel_degree",
        "pp": r"pipeline_model_parallel_size|pipeline_parallel_degree",
        "vpp": r"virtual_pipeline_model_parallel_size",
        "cp": r"context_parallel_size|context_parallel_degree",
        "ep": r"expert_model_parallel_size|expert_parallel_degree",
        "layers": r"num_layers",
        "hidden": r"hidden_size",
    }
)
"""Name of a fact in the dump of all settings: Megatron-LM's ``hidden_size ..... 4096``, YAML of NeMo and
Megatron-Bridge, JSON of torchtitan. A number below 1 means that nothing is set."""

SENTENCES: tuple[re.Pattern[str], ...] = (
    re.compile(
        r"using world size: (?P<gpus>\d{1,12}), data-parallel size: \d{1,12},"
        r"(?: context-parallel size: (?P<cp>\d{1,12}))?"
        r"(?:.*?[, ]tensor-model-parallel size: (?P<tp>\d{1,12}))?"
        r"(?:.*? pipeline-model-parallel size: (?P<pp>\d{1,12}))?"
    ),
    re.compile(
        r"(?:Training starts at step \d{1,12}, with|Trainer is initialized with) "
        r"local batch size (?P<micro_batch>\d{1,12}), "
        r"global batch size (?P<global_batch>\d{1,12}), (?:gradient accumulation steps \d{1,12}, )?"
        r"sequence length (?P<seq_length>\d{1,12})"
    ),
    re.compile(
        r"Trainer is initialized with \d{1,12} tokens per DP rank, (?P<tokens>\d{1,12}) tokens per train step,"
        r".* maximum context length (?P<seq_length>\d{1,12})"
    ),
    re.compile(
        r"Building device mesh with parallelism: pp=(?P<pp>\d{1,12}), dp_replicate=(?P<dp_replicate>\d{1,12}), "
        r"dp_shard=(?P<dp_shard>\d{1,12}), cp=(?P<cp>\d{1,12}), tp=(?P<tp>\d{1,12})(?:, ep=(?P<ep>\d{1,12}))?"
    ),
    re.compile(r"GLOBAL_RANK: \d{1,12}, MEMBER: \d{1,12}/(?P<gpus>\d{1,12})"),
    re.compile(r"All distributed processes registered\. Starting with (?P<gpus>\d{1,12}) processes"),
)
"""What frameworks say of the run in sentences: Megatron-LM, torchtitan of 2024 and 2025, torchtitan since 2026, its
mesh, Lightning."""
GPU_NAME = re.compile(r"CUDA capacity: (?P<gpu>.+?) with [\d.]+GiB memory")
MESH = re.compile(r"Building \d{1,12}-D device mesh with \[(?P<names>[^\]]*)\], \[(?P<sizes>[\d, ]*)\]")
"""The mesh of torchtitan of 2024 and 2025."""

PREAMBLE = re.compile(
    r"^.{0,80}(?:-{10,} arguments -{10,}|\[titan\] \d{4}-|\[NeMo [IWE] \d{4}-|using world size: \d"
    r"|distributed_backend=nccl)",
    re.MULTILINE,
)
"""What stands before the first step of a log."""

INTERRUPTION = re.compile(
    r"sav(?:ing|ed)(?: the)? checkpoint|Global Checkpoint Save|validation loss at|validate step:|evaluat(?:ing|ion)|"
    r"Validation: iteration|Validation DataLoader|Finished saving",
    re.IGNORECASE,
)
"""Lines that say that something else than training was done: evaluations and checkpoints."""
