"""Fine-tuning: which weights are trained, those of the model or adapters on frozen ones."""

from msgspec import Struct

from traincast.errors import ConfigError
from traincast.job.decisions import Decisions
from traincast.job.fields import needing
from traincast.job.request import JobRequest
from traincast.model.blocks.share import LORA_TARGETS, Adapters
from traincast.units import counted


class Finetuning(Struct, frozen=True, kw_only=True):
    """What is trained."""

    task: str = "pretrain"
    """One of `traincast.model.counts.TASKS`."""
    lora_rank: int = 16
    """Width of adapters, with task ``lora``."""
    lora_targets: tuple[str, ...] = LORA_TARGETS
    """Linear layers that have them, of `traincast.model.blocks.share.LORA_TARGETS`."""

    @property
    def trains_adapters(self) -> bool:
        """Whether adapters are trained, and the weights of the model are frozen."""
        return self.task == "lora"

    @property
    def adapters(self) -> Adapters:
        """The adapters that blocks have; of no width where there are none."""
        return Adapters(rank=self.lora_rank if self.trains_adapters else 0, targets=self.lora_targets)


def decide_finetuning(request: JobRequest, decided: Decisions) -> Finetuning:
    """Decide rank and targets of adapters; what is open is as the framework does.

    Raises
    ------
    ConfigError
        If adapters are described for a task that has none, or none of them is named.
    """
    if request.task != "lora":
        for name in needing("task=lora"):
            said = getattr(request, name)
            if said is not None:
                shown = " ".join(said) if isinstance(said, tuple) else said
                raise ConfigError(f"is {shown}, but the task is {request.task}; it needs task lora", name)
        return Finetuning(task=request.task)
    rank = decided.by_framework("lora_rank", request.lora_rank, decided.framework.lora_rank)
    targets = request.lora_targets
    if targets is None:
        targets = decided.framework.lora_targets
        decided.note(
            "assumed-lora-targets", f"lora_targets is not given: {' '.join(targets)}, as {decided.framework.name} does"
        )
    elif not targets:
        raise ConfigError("is empty; adapters need at least one kind of linear layer", "lora_targets")
    experts = request.model.experts
    if experts is not None and {"linear_fc1", "linear_fc2"} & set(targets):
        shown = counted(experts.experts, "routed expert")
        decided.note("lora-experts", f"experts have no adapters here, neither the {shown} nor shared ones")
    return Finetuning(task=request.task, lora_rank=rank, lora_targets=targets)
