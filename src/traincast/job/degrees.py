"""The degrees of a job: what they are where it leaves them open, and which of them GPUs and model allow."""

from traincast.errors import ConfigError, InfeasibleError
from traincast.job.decisions import Decisions
from traincast.job.experts import check_imbalance
from traincast.job.parallel import divides_replicas
from traincast.job.request import JobRequest
from traincast.model.model import Model
from traincast.units import counted

DEGREES = ("tp", "pp", "vpp", "cp", "ep")
"""The degrees that split the work of a model replica."""


def decide_degrees(request: JobRequest, decided: Decisions) -> tuple[int, int, int, int]:
    """Return tp, pp, cp and dp."""
    open_ones = [name for name in ("tp", "pp", "cp") if getattr(request, name) is None]
    tp, pp, cp = request.tp or 1, request.pp or 1, request.cp or 1
    if open_ones:
        decided.note("assumed-degrees", f"{', '.join(open_ones)} {'is' if len(open_ones) == 1 else 'are'} not given: 1")
    model_parallel = tp * pp * cp
    if request.gpus % model_parallel:
        raise InfeasibleError(
            f"{counted(request.gpus, 'GPU')} do not divide into tp {tp} x pp {pp} x cp {cp} = {model_parallel}; use a "
            f"multiple of {model_parallel} GPUs, or other degrees"
        )
    dp = request.gpus // model_parallel
    decided.note("dp-from-gpus", f"dp = {request.gpus} GPUs / (tp {tp} x pp {pp} x cp {cp}) = {dp}")
    return tp, pp, cp, dp


def decide_expert_degrees(request: JobRequest, decided: Decisions, tp: int, replicas: int) -> tuple[int, int]:
    """Return ep and etp."""
    if request.model.experts is None:
        if request.expert_imbalance != 1:
            raise ConfigError(
                f"is {request.expert_imbalance:g}, but {request.model.name} has no experts", "expert_imbalance"
            )
        # Results and plans say the degree of experts as it follows: that of the other layers.
        for name, fits in (("ep", (None, 1)), ("etp", (None, 1, tp))):
            if getattr(request, name) not in fits:
                raise ConfigError(f"is {getattr(request, name)}, but {request.model.name} has no experts", name)
        return 1, tp
    ep = request.ep
    if ep is None:
        decided.note("assumed-ep", "ep is not given: 1, every rank holds all experts")
        ep = 1
    check_imbalance(request.expert_imbalance, ep)
    if request.etp is not None:
        return ep, request.etp
    etp = tp if decided.framework.expert_tp else 1
    if tp * replicas % (etp * ep) and tp * replicas % ep == 0:
        etp = 1
    if tp > 1:
        why = "as tp" if etp == tp else "experts are not split"
        decided.note("assumed-etp", f"etp is not given: {etp} ({why}), as {decided.framework.name} does")
    return ep, etp


def decide_folding(request: JobRequest, decided: Decisions, *, tp: int, dp: int, ep: int, etp: int) -> bool:
    """Return whether groups of experts divide all ranks of a stage, as they must where they cannot divide replicas."""
    name = decided.framework.name
    if request.model.experts is None or decided.framework.folded_experts:
        return True
    if ep == 1 or divides_replicas(tp=tp, etp=etp, dp=dp, ep=ep):
        return False
    decided.note(
        "folded-experts",
        f"experts of ep {ep} and etp {etp} cannot divide the replicas of tp {tp} and dp {dp}, as those of {name} must: "
        "they divide all ranks of a stage here, as since Megatron Core 0.10",
    )
    return True


def check_model(model: Model, *, tp: int, ep: int, etp: int) -> None:
    """Refuse degrees that do not divide the heads, key/value heads, widths or experts of a model and its variants."""
    for _, variant in model.variants:
        check_model(variant, tp=tp, ep=ep, etp=etp)
    attention = model.attention
    if attention.heads % tp:
        raise InfeasibleError(
            f"tp {tp} does not divide the {attention.heads} attention heads of {model.name}; use "
            f"{divisors(attention.heads)}"
        )
    kv_heads = attention.kv_heads
    if attention.latent is None and kv_heads % tp and tp % kv_heads:
        raise InfeasibleError(
            f"tp {tp} neither divides the {kv_heads} key/value heads of {model.name} nor is a multiple of them; use "
            f"{divisors(kv_heads)}, or a multiple of {kv_heads}"
        )
    if model.ffn_hidden % tp:
        raise InfeasibleError(f"tp {tp} does not divide the MLP width {model.ffn_hidden} of {model.name}")
    if model.experts is None:
        return
    if model.experts.experts % ep:
        raise InfeasibleError(
            f"ep {ep} does not divide the {model.experts.experts} experts of {model.name}; use "
            f"{divisors(model.experts.experts)}"
        )
    if model.experts.ffn_hidden % etp:
        raise InfeasibleError(f"etp {etp} does not divide the width {model.experts.ffn_hidden} of an expert")


def divisors(number: int) -> str:
    """Say which numbers divide one."""
    found = [str(each) for each in range(1, number + 1) if number % each == 0]
    return ", ".join(found[:-1]) + f" or {found[-1]}" if len(found) > 1 else found[0]
