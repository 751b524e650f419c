"""What of a job the memory of the host keeps instead of the GPU's.

=========================  ========================================================================================
``offload_optimizer``      a share of the optimizer's states, and their update: gradients go down, Adam runs on the
                           host, updated parameters come up (DeepSpeed ZeRO-Offload, ``offload_optimizer``;
                           Megatron-LM, ``--optimizer-cpu-offload --optimizer-offload-fraction``)
``offload_parameters``     sharded parameters, too: they come up for every gather (DeepSpeed, ``offload_param``;
                           PyTorch, ``CPUOffloadPolicy``)
``offload_activations``    what so many layers of each virtual stage save for the backward pass: it goes down behind the
                           layer's forward pass and comes up ahead of its backward pass (Megatron-LM,
                           ``--cpu-offloading-num-layers``)
``offload_modules``        the inputs of some modules of every layer, instead of whole layers (Megatron-LM,
                           ``--fine-grained-activation-offloading --offload-modules``)
=========================  ========================================================================================

Sources: Ren et al. 2021, arXiv 2101.06840 (ZeRO-Offload); Megatron-LM,
megatron/core/optimizer/cpu_offloading/hybrid_optimizer.py; Transformer Engine, pytorch/cpu_offload.py.
"""

from collections.abc import Mapping
from types import MappingProxyType

from msgspec import Struct

from traincast.errors import ConfigError, InfeasibleError
from traincast.job.decisions import Decisions
from traincast.job.request import JobRequest

OFFLOAD_MODULES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "attn_norm": ("attention", "layernorm inputs"),
        "qkv_linear": ("attention", "attention inputs"),
        "core_attn": ("attention", "queries, keys, values"),
        "attn_proj": ("attention", "attention outputs"),
        "mlp_norm": ("mlp", "layernorm inputs"),
        "expert_fc1": ("mlp", "expert inputs"),
        "moe_act": ("mlp", "expert FC1 outputs"),
        "fused_group_mlp": ("mlp", "expert inputs"),
    }
)
"""Modules whose inputs can be offloaded by themselves: the kind of block that has them, and the tensor that they read.
Source: Megatron-LM, megatron/core/transformer/transformer_config.py (offload_modules)."""


class Offload(
    Struct,
    frozen=True,
    kw_only=True,
    rename={
        "optimizer": "offload_optimizer",
        "gradients": "offload_gradients",
        "parameters": "offload_parameters",
        "activations": "offload_activations",
        "modules": "offload_modules",
        "overlap": "overlap_offload",
    },
):
    """What the memory of the host keeps."""

    optimizer: float = 0.0
    """Share of the optimizer's states that the host keeps and updates, 0 to 1."""
    gradients: bool = False
    """Whether gradients leave with them though no ranks share them: ZeRO-2 asked of a single replica."""
    parameters: bool = False
    """Whether sharded parameters (zero 3) stay there, too, and come for each gather."""
    activations: int = 0
    """Layers of each virtual stage whose activations wait there for the backward pass."""
    modules: tuple[str, ...] = ()
    """Modules of every layer whose inputs do, instead of whole layers: of `OFFLOAD_MODULES`."""
    overlap: bool = True
    """Whether copies to and from the host overlap with the update there."""

    @property
    def any(self) -> bool:
        """Whether anything is kept in the memory of the host."""
        return self.optimizer > 0 or self.parameters or self.any_activations

    @property
    def any_activations(self) -> bool:
        """Whether saved activations are, of layers or of modules."""
        return self.activations > 0 or bool(self.modules)


def decide_offload(
    request: JobRequest, decided: Decisions, zero: int, most_layers: int, *, recomputes_all: bool = False
) -> Offload:
    """Decide what the host keeps: nothing unless it is asked for; of modules in recomputed layers nothing is saved.

    Raises
    ------
    ConfigError
        If two fields contradict each other.
    InfeasibleError
        If parameters are to be offloaded that are not sharded.
    """
    share, layers = request.offload_optimizer or 0.0, request.offload_activations or 0
    if request.offload_parameters and zero < 3:
        raise InfeasibleError(
            f"offload_parameters needs sharded parameters (zero 3), not zero {zero}: give zero=3, or offload the "
            "optimizer alone (offload_optimizer=1)"
        ).typed(zero="--zero", offload_optimizer="--offload-optimizer")
    if request.offload_parameters and share < 1:
        if request.offload_optimizer is not None:
            raise ConfigError(f"is {share:g}, but offload_parameters takes the optimizer along: 1", "offload_optimizer")
        decided.note("assumed-offload-optimizer", "offload_optimizer is not given: 1, as parameters are offloaded")
        share = 1.0
    if layers > most_layers:
        text = f"offload_activations {layers}: a virtual stage has at most {most_layers} layers, all are offloaded"
        decided.note("offload-activations-capped", text)
        layers = most_layers
    if layers and request.offload_modules:
        shown = " ".join(request.offload_modules)
        raise ConfigError(f"is {shown}, and offload_activations {layers}; give one of them", "offload_modules")
    if request.offload_modules and recomputes_all:
        decided.note("offload-modules-unused", "offload_modules has no effect where all layers are recomputed whole")
    if request.overlap_offload is not None and not share:
        decided.note("overlap-offload-unused", "overlap_offload has no effect where no optimizer is offloaded")
    return Offload(
        optimizer=share,
        gradients=share > 0 and zero == 0 and (request.zero or 0) >= 2,
        parameters=bool(request.offload_parameters),
        activations=layers,
        modules=request.offload_modules or (),
        overlap=request.overlap_offload is not False,
    )
