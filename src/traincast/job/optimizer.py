"""The types in which Adam keeps its state, and what they take.

Source, the precision-aware optimizer of Megatron Core: Megatron-LM, megatron/core/optimizer:
optimizer_config.py (rules, store_param_remainders), distrib_optimizer.py (which copies there are); Transformer Engine,
FusedAdam.
"""

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from traincast.errors import ConfigError, InfeasibleError
from traincast.hardware.cluster import Cluster
from traincast.hardware.host import host_of
from traincast.job.decisions import Decisions
from traincast.job.fields import FIELDS, needing
from traincast.job.parallel import Parallel
from traincast.job.request import JobRequest
from traincast.model.counts import parameters
from traincast.model.numbers import Number
from traincast.units import format_count, format_time

MOMENT_TYPES: Mapping[str, int] = {"fp32": 4, "fp16": 2, "bf16": 2, "fp8": 1}
"""Types of the moments, and their bytes (fp8 is kept as uint8; its scales, one a tensor, do not count)."""

MAIN_PARAMETER_TYPES: Mapping[str, int] = {"fp32": 4, "fp16": 2}
MAIN_GRADIENT_TYPES: Mapping[str, int] = {"fp32": 4, "bf16": 2}

_OF_MUON, _OF_ADAM, _OUTER = needing("optimizer=muon"), needing("optimizer=adam"), needing("local_steps")
"""Fields of a job without effect on other optimizers, and without islands to exchange with."""
_STATE_TYPES = tuple(name for name in _OF_ADAM if FIELDS[name].choices)
_TYPES = ("main_grads_dtype", *_STATE_TYPES)
"""Fields that name a type of Adam's state, and those with the type of the gradients."""

GRADIENT_TYPE, STATE_TYPES = "assumed-gradient-type", "assumed-state-types"
"""Codes of the assumptions about the types of gradients, and of main parameters and moments."""

_OWN_MASTER = ("fp8_block", "mxfp8")
"""Precisions whose fp32 main parameters stay with the framework, outside the kernel of the optimizer; ``fp8`` is taken
as delayed scaling, whose do not."""


OPTIMIZERS = ("adam", "muon")

TP_MODES = ("blockwise", "duplicated", "distributed", "layer_sharded")
"""How tensor parallel ranks update a matrix that is split: each its part alone; each the whole; all of them together,
each multiplying with its part; or each a part of all matrices, whole. Source: Megatron-LM, --muon-tp-mode."""


class Muon(Struct, frozen=True, kw_only=True):
    """How Muon updates hidden matrices (`traincast.mechanisms.muon`)."""

    steps: int = 5
    """Newton-Schulz steps."""
    tp_mode: str = "blockwise"
    """One of `TP_MODES`."""
    owned: bool = True
    """Whether each matrix is updated by one of the ranks that share its state."""


OUTER_BITS = (32, 16, 8, 4)
"""Bits in which outer gradients are exchanged. Sources: PyTorch torchft, torchft/local_sgd.py (as the parameters, or
8 bits where `should_quantize`); Douillard et al. 2025, arXiv 2501.18512 (4 bits, E3M0)."""


class LocalSteps(Struct, frozen=True, kw_only=True):
    """Steps that an island trains by itself, and the exchange of its outer gradient with the others after them.

    Sources: Stich 2018, arXiv 1805.09767 (local SGD); Douillard et al. 2023, arXiv 2311.08105 (DiLoCo: the difference
    of parameters is the gradient of an outer optimizer with momentum) and 2025, arXiv 2501.18512 (Streaming DiLoCo:
    fragments of the model in turn, overlapped with the steps that follow).
    """

    steps: int
    """From one exchange of a parameter to the next."""
    bits: int = 16
    """Of an element as it is exchanged: one of `OUTER_BITS`."""
    fragments: int = 1
    """Parts of the model, exchanged one after another."""
    overlap: bool = False
    """Whether an exchange is overlapped with the steps that follow; else they wait for it."""
    on_host: bool = True
    """Whether the host keeps the parameters of the last exchange and the outer momentum, and updates them."""
    islands: int = 1
    """Of the cluster; 1 where that is not known."""
    bytes_per_s: float | None = None
    """What an island sends to the others, each way; None: what is sent takes no time."""
    latency_s: float = 0.0
    """Of a message from one island to the next."""
    host_link_bytes_per_s: float | None = None
    host_update_bytes_per_s: float | None = None
    """What a GPU has of its host (`traincast.hardware.host`); None: it takes no time."""

    def exchange_s(self, parameters: Number) -> Number:
        """Return the seconds of one exchange of all parameters that the ranks of an island update, in a ring.

        A ring over I islands sends 2 (I - 1) / I of the bytes, in 2 (I - 1) steps for each fragment (Patarasuk and Yuan
        2009, Bandwidth optimal all-reduce algorithms for clusters of workstations).
        """
        steps = 2 * (self.islands - 1)
        sent_bytes = steps / self.islands * self.bits / 8 * parameters
        late_s = steps * self.latency_s * self.fragments
        return late_s + (0.0 if self.bytes_per_s is None else sent_bytes / self.bytes_per_s)


class OptimizerTypes(Struct, frozen=True, kw_only=True):
    """How Adam keeps its state."""

    precision_aware: bool = False
    """Whether its kernel reads and writes types other than fp32."""
    main_params: str = "fp32"
    exp_avg: str = "fp32"
    exp_avg_sq: str = "fp32"
    """Types of the main parameters and of both moments."""
    local: LocalSteps | None = None
    """What an outer optimizer does with other islands; None: there are none."""
    muon: Muon | None = None
    """How hidden matrices are updated, where Adam does not do it."""

    @property
    def moment_bytes(self) -> int:
        """Bytes of both moments of a parameter."""
        return MOMENT_TYPES[self.exp_avg] + MOMENT_TYPES[self.exp_avg_sq]

    def fused(self, precision: str) -> bool:
        """Say whether its kernel reads gradients as they were reduced, and keeps the main parameters itself."""
        return self.precision_aware and (self.main_params != "fp32" or precision not in _OWN_MASTER)

    def main_parameter_bytes(self, precision: str, parameter_bytes: int = 2) -> int:
        """Return the bytes of a main parameter next to the one that GEMMs read; 0 where that is fp32 itself.

        The parameter that GEMMs read has `parameter_bytes` where it is not fp32: 2, or 1 where it is kept in 8 bits.
        """
        if precision in ("fp32", "tf32"):
            return 0
        return 2 if self._keeps_remainders(precision, parameter_bytes) else MAIN_PARAMETER_TYPES[self.main_params]

    def _keeps_remainders(self, precision: str, parameter_bytes: int) -> bool:
        """Say whether of an fp32 main parameter only the 16 bits are kept that the bf16 one leaves out."""
        bf16 = precision not in ("fp16", "fp32", "tf32") and parameter_bytes == 2
        return self.fused(precision) and self.main_params == "fp32" and bf16

    def copies_gradients(self, precision: str) -> bool:
        """Say whether gradients that are reduced in 16 bits are copied to fp32 for the step."""
        return not self.fused(precision)

    def step_bytes(self, precision: str, gradient_bytes: int, parameter_bytes: int = 2) -> int:
        """Return the bytes that a step moves for each parameter.

        Moments and main parameters are read and written, the gradient is read; the parameter that GEMMs read is
        written, and read where the main parameter is its remainder.
        """
        main = self.main_parameter_bytes(precision, parameter_bytes)
        narrow = parameter_bytes if main else 0
        read = self._keeps_remainders(precision, parameter_bytes)
        # A 16-bit gradient is copied to fp32 first, unless the kernel reads it as it is.
        copied = 2 * 4 if gradient_bytes < 4 and self.copies_gradients(precision) else 0
        return 2 * self.moment_bytes + 2 * (main or 4) + narrow * (2 if read else 1) + gradient_bytes + copied


PLAIN = OptimizerTypes()
"""Adam in fp32."""


def check_types(request: JobRequest) -> None:
    """Refuse types that need Megatron-LM's precision-aware optimizer where it is off, or that contradict each other."""
    for field in _TYPES:
        name = getattr(request, field)
        if name not in (None, "fp32") and request.precision_aware_optimizer is False:
            raise ConfigError(f"is {name}; without precision_aware_optimizer it can only be fp32", field)
    gradient, reduced = request.main_grads_dtype, request.grad_reduce_bytes
    if gradient is not None and reduced is not None and MAIN_GRADIENT_TYPES[gradient] != reduced:
        raise ConfigError(f"is {gradient}, but grad_reduce_bytes is {reduced}; give one of them", "main_grads_dtype")


def _types(request: JobRequest) -> OptimizerTypes:
    """Return the types that a request names; any other than fp32 stands for the precision-aware optimizer."""
    named = {field: getattr(request, field) or "fp32" for field in _TYPES}
    aware = request.precision_aware_optimizer
    return OptimizerTypes(
        precision_aware=any(name != "fp32" for name in named.values()) if aware is None else aware,
        main_params=named["main_params_dtype"],
        exp_avg=named["exp_avg_dtype"],
        exp_avg_sq=named["exp_avg_sq_dtype"],
    )


def decide_gradient_type(request: JobRequest, decided: Decisions) -> None:
    """Decide in how many bytes the framework reduces gradients, and note which types of the state are open."""
    reduced = request.grad_reduce_bytes
    if request.main_grads_dtype is not None:
        reduced = MAIN_GRADIENT_TYPES[request.main_grads_dtype]
    if reduced is not None:
        decided.framework = replace(decided.framework, grad_reduce_bytes=reduced)
    elif not decided.framework.memory.gradient_bytes:
        kept = f"gradients are kept and reduced in {decided.framework.grad_reduce_bytes} bytes"
        decided.note(GRADIENT_TYPE, f"grad_reduce_bytes is not given: {kept}, as {decided.framework.name} does")
    if all(getattr(request, name) is None for name in _STATE_TYPES):
        text = "types of the optimizer's state are not given: main parameters and both moments in fp32"
        decided.note(STATE_TYPES, text)


def decide_optimizer(request: JobRequest, decided: Decisions, parallel: Parallel, zero: int) -> OptimizerTypes:
    """Return the types of the optimizer's state; as Megatron-LM refuse others than fp32 where it is not sharded."""
    types = _types(request)
    if types.precision_aware and zero == 0 and (request.zero == 0 or parallel.replicas > 1):
        raise ConfigError("needs a sharded optimizer (zero 1), as in Megatron-LM", "precision_aware_optimizer")
    if types.precision_aware and request.precision_aware_optimizer is None:
        decided.note(
            "assumed-precision-aware-optimizer",
            "precision_aware_optimizer is not given: on, as the optimizer's state has types other than fp32",
        )
    return replace(types, local=_local_steps(request, decided, parallel, zero), muon=_muon(request, decided, zero))


def _muon(request: JobRequest, decided: Decisions, zero: int) -> Muon | None:
    """Decide how Muon updates hidden matrices; None where Adam does."""
    given = {name.removeprefix("muon_"): getattr(request, name) for name in _OF_MUON}
    given = {name: value for name, value in given.items() if value is not None}
    if request.optimizer != "muon":
        if given:
            unused = ", ".join(f"muon_{name}" for name in given)
            decided.note("muon-unused", f"{unused}: no effect without optimizer muon")
        return None
    if request.offload_optimizer:
        raise ConfigError(
            f"is {request.offload_optimizer:g}; the host updates with Adam alone: leave it out, or take optimizer adam",
            "offload_optimizer",
        )
    if _types(request).precision_aware:
        raise ConfigError("keeps Adam's state in other types; leave it out with optimizer muon", _aware_field(request))
    found = Muon(**given)
    if found.owned and zero and request.param_gather_bytes == 1:
        raise ConfigError(
            "is 1, but matrices that one rank owns are gathered in 16 bits, as in Megatron-LM", "param_gather_bytes"
        )
    for name in _OF_MUON:
        value = getattr(found, name.removeprefix("muon_"))
        if getattr(request, name) is None:
            decided.note("assumed-muon", f"{name} is not given: {str(value).lower()}, as Megatron-LM has it")
    return found


def _aware_field(request: JobRequest) -> str:
    """Return the field that asks for a precision-aware optimizer."""
    named = (field for field in _TYPES if getattr(request, field) not in (None, "fp32"))
    return next(named, "precision_aware_optimizer")


def _local_steps(request: JobRequest, decided: Decisions, parallel: Parallel, zero: int) -> LocalSteps | None:
    """Decide how an island exchanges with the others of its cluster; None where it is not asked to."""
    steps, bits, fragments = request.local_steps, request.outer_bits or 16, request.outer_fragments or 1
    if steps is None:
        unused = [name for name in _OUTER if getattr(request, name) is not None]
        if unused:
            decided.note("outer-unused", f"{', '.join(unused)}: no effect without local_steps")
        return None
    if bits not in OUTER_BITS:
        raise ConfigError(f"is {bits}; it must be one of {', '.join(map(str, OUTER_BITS))}", "outer_bits")
    if fragments > steps:
        raise ConfigError(
            f"is {fragments}, but local_steps is {steps}: at most one part in each step", "outer_fragments"
        )
    if request.shard is not None and request.shard < parallel.replicas:
        raise InfeasibleError(
            f"shard {request.shard} with local_steps: the copies of sharded state are the other islands; leave shard "
            f"out, so that all {parallel.replicas} ranks of an island share one"
        )
    on_host = request.offload_outer
    if on_host is None:
        on_host = True
        decided.note(
            "assumed-offload-outer", "offload_outer is not given: on, the host keeps the outer optimizer's state"
        )
    found = LocalSteps(
        steps=steps,
        bits=bits,
        fragments=fragments,
        overlap=bool(request.overlap_outer),
        on_host=on_host,
    )
    if decided.cluster is None:
        return found
    found = _among_islands(found, decided.cluster, parallel.world_size)
    text = f"local_steps {steps}: this is one of {found.islands} islands alike; GPUs, batch and tokens are its own"
    once = ""
    if request.task != "lora":
        count = parameters(request.model).total * (1 if zero else parallel.replicas)
        once = f"about {format_time(found.exchange_s(count))} for an exchange in every {steps} steps"
        text += f"; {once}, of {format_count(count)} parameters in {found.bits} bits"
    decided.note("one-island", text, brief=f"one of {found.islands} islands{once and ': '}{once}")
    return found


def _among_islands(local: LocalSteps, cluster: Cluster, gpus: int) -> LocalSteps:
    """Return local steps with the islands of a cluster; refuse one that has none, and jobs larger than an island."""
    rate, count = cluster.island_bandwidth_bytes_per_s, len(cluster.islands)
    if rate is None or not count:
        raise ConfigError(
            f"is {local.steps}, but the cluster {cluster.name} names no islands to exchange with; give a cluster file "
            f'with base = "{cluster.name}", islands = ["east", "west"] and island_bandwidth_bytes_per_s = "10Gb/s"',
            "local_steps",
        )
    if cluster.island_gpus is not None and gpus > cluster.island_gpus:
        raise InfeasibleError(
            f"{gpus} GPUs, but an island of {cluster.name} has {cluster.island_gpus}: with local_steps gpus and "
            f"global_batch are those of one of its {count} islands, as tp, pp, cp and dp stay inside one"
        )
    host = host_of(cluster.gpu, min(cluster.ranks_per_node, gpus))
    return replace(
        local,
        islands=count,
        bytes_per_s=None if cluster.ideal else rate,
        latency_s=0.0 if cluster.ideal else cluster.island_latency_s,
        host_link_bytes_per_s=host.link_bytes_per_s,
        host_update_bytes_per_s=host.adam_bytes_per_s,
    )
