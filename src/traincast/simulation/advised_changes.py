"""What might be changed of a job: switches of its framework, less recomputation, less in the memory of the host."""

from collections.abc import Iterator, Mapping
from typing import Any

from traincast.hardware.dtypes import ELEMENT_TYPES, PEAK_OF_DTYPE
from traincast.hardware.gpu import Gpu
from traincast.job.job import Job
from traincast.job.recompute import Recomputation
from traincast.job.switches import Switch, offered
from traincast.model.recompute import DEFAULT_MODULES
from traincast.schedules.schedule import usual_schedule
from traincast.simulation.alternatives import COMPUTE, Alternative


def changes_of(job: Job, gpu: Gpu) -> Iterator[Alternative]:
    """Yield what a job might do otherwise, on as many GPUs, in the same layout and with the same batch."""
    yield from map(_switched, offered(job.framework))
    yield from _recompute(job)
    yield from _offload(job)
    yield from _sharding(job)
    yield from _narrower(job, gpu)
    yield from _layouts(job)


_REPLICAS = ("dp", "edp", "shard", "replica")
_KINDS: Mapping[str, tuple[str, ...]] = {
    "graphs": ("host",),
    "stash": ("host",),
    "dispatcher": ("ep", "host", *COMPUTE),
    "exchanges": ("ep", "host"),
    "router": ("host", *COMPUTE),
    "permute": ("host", *COMPUTE),
    "compiler": ("host", *COMPUTE),
    "reduction overlap": _REPLICAS,
    "gather overlap": _REPLICAS,
    "reshard": _REPLICAS,
    "switch reduction": _REPLICAS,
    "gathers": (*_REPLICAS, "step"),
    "gradient reduction": (*_REPLICAS, "step"),
    "optimizer state": ("step",),
    "step checks": ("step", "host"),
    "tp overlap": ("tp", "etp"),
    "activation offload": ("nothing",),
    "optimizer offload": ("nothing",),
}
"""Axis of switches to the kinds of work of the critical path that they shorten; others shorten computations."""


def _switched(switch: Switch) -> Alternative:
    return Alternative(
        name=switch.name,
        fields=switch.fields,
        shortens=_KINDS.get(switch.axis, ()),
        asks=switch.asks,
        numbers=switch.changes,
        usual=switch.level == "usual",
        source=switch.source,
        needs=switch.needs,
    )


def _recompute(job: Job) -> Iterator[Alternative]:
    """Yield less recomputation: none, the core of attention alone, half of the layers, one module less."""
    now = job.recompute
    if now.granularity == "none":
        return
    yield _less_again("no recomputation", {"recompute": "none"})
    if job.framework.kin == "xla":
        yield from _policies(now)
        return
    if job.framework.selective_share == 0 and "core_attn" not in now.recomputed_modules:
        core = {"recompute": "selective", "recompute_modules": DEFAULT_MODULES}
        yield _less_again("recomputation of the core of attention alone", core)
    if now.whole_layers and now.group == 1 and job.framework.recomputes_some_layers:
        most = max(job.pipeline.layers_Q)
        half = (now.layers or most) // 2
        if half:
            fewer = {"recompute": "full", "recompute_method": "block", "recompute_layers": half}
            yield _less_again(f"recomputation of {half} of {most} layers of each virtual stage", fewer)
    modules = now.recomputed_modules
    for name in modules if len(modules) > 1 else ():
        kept = tuple(each for each in modules if each != name)
        yield _less_again(f"no recomputation of {name}", {"recompute": "selective", "recompute_modules": kept})


_POLICIES: Mapping[str, tuple[str, ...]] = {
    "queries": ("linear_qkv",),
    "what attention's GEMMs make": ("linear_qkv", "core_attn", "linear_proj"),
    "what all GEMMs make": (
        *("linear_qkv", "core_attn", "linear_proj"),
        *("linear_fc1", "linear_fc2", "expert_fc1", "expert_fc2"),
    ),
}
"""What policies of MaxText save of recomputed layers: save_qkv_proj, save_dot_with_context_except_mlp and
minimal_with_context. Source: AI-Hypercomputer/maxtext, layers/decoders.py (get_remat_policy)."""


def _policies(now: Recomputation) -> Iterator[Alternative]:
    """Yield the policies that save more of each layer that is recomputed."""
    for name, keeps in _POLICIES.items():
        if now.whole_layers and not set(keeps) <= set(now.keeps):
            fields = {"recompute": "full", "recompute_keeps": keeps}
            yield _less_again(f"recomputation that keeps {name}", fields)


def _less_again(name: str, fields: Mapping[str, Any]) -> Alternative:
    return Alternative(name=name, fields=fields, shortens=("recompute", "host"))


def _offload(job: Job) -> Iterator[Alternative]:
    """Yield what stays on the GPU rather than in the memory of the host, and copies that are overlapped."""
    offload, waits = job.offload, ("copy", "host", "step")
    if offload.optimizer > 0:
        kept = {"offload_optimizer": 0.0}
        yield Alternative(name="the optimizer on the GPU", fields=kept, shortens=waits)
        if not offload.overlap:
            overlapped = {"overlap_offload": True}
            yield Alternative(
                name="copies to the host overlapped with the update there",
                fields=overlapped,
                shortens=waits,
            )
    if offload.activations > 0:
        kept = {"offload_activations": 0}
        yield Alternative(name="activations on the GPU", fields=kept, shortens=waits)
    if offload.modules:
        none = {"offload_modules": ()}
        yield Alternative(name="inputs of modules on the GPU", fields=none, shortens=waits)


_WITH_STAGES: Mapping[str, tuple[int, ...]] = {"megatron": (0, 1, 3), "deepspeed": (0, 1, 2, 3), "torch": (0, 3)}
"""Kin of frameworks to the stages of ZeRO that they are told by a switch of their own."""


def _sharding(job: Job) -> Iterator[Alternative]:
    """Yield the next lower stage of ZeRO, which exchanges less and keeps more."""
    lower = [stage for stage in _WITH_STAGES.get(job.framework.kin, ()) if 0 < stage < job.sharding.zero]
    if lower:
        names = {1: "the optimizer's state", 2: "the optimizer's state and gradients"}
        fields = {"zero": lower[-1], "reshard_after_forward": None, "offload_parameters": None}
        yield Alternative(name=f"{names[lower[-1]]} sharded alone", fields=fields, shortens=(*_REPLICAS, "host"))


def _layouts(job: Job) -> Iterator[Alternative]:
    """Yield the nearest layouts that often save: fewer ranks that share each layer, longer or shorter microbatches.

    Fields that follow from the layout are decided anew.
    """
    parallel, batch = job.parallel, job.batch
    again: dict[str, Any] = {"shard": None, "etp": None}
    if parallel.tp > 1:
        fields = {**again, "tp": parallel.tp // 2}
        yield _layout(f"tp {parallel.tp // 2} instead of {parallel.tp}", fields, ("tp", "etp", "host"))
    if parallel.cp > 1:
        fields = {**again, "cp": parallel.cp // 2}
        yield _layout(f"cp {parallel.cp // 2} instead of {parallel.cp}", fields, ("cp",))
    if parallel.microbatches > parallel.pp:
        twice = 2 * batch.micro_batch
        yield _layout(f"micro batch {twice} instead of {batch.micro_batch}", {"micro_batch": twice}, ("host",))
    if parallel.pp > 1 and job.pipeline.schedule == usual_schedule(parallel.vpp):
        split = {"stage_layers": None, "pipeline_layout": None, "schedule": None}
        fields = {**split, "vpp": 2 * parallel.vpp}
        yield _layout(f"vpp {2 * parallel.vpp} instead of {parallel.vpp}", fields, ("bubble",))


def _layout(name: str, fields: Mapping[str, Any], shortens: tuple[str, ...]) -> Alternative:
    asks = "a plan, as another layout (traincast plan --from JOB weighs it against all others)"
    return Alternative(name=name, fields=fields, shortens=shortens, asks=asks, is_layout=True)


_TYPES: Mapping[str, tuple[str, ...]] = {
    "megatron": ("fp8", "mxfp8", "nvfp4"),
    "fsdp": ("fp8", "mxfp8"),
    "xla": ("fp8",),
}
"""Kin of frameworks to the types of GEMMs narrower than 16 bits that they train in. Sources: Megatron-LM,
megatron/training/arguments.py (--fp8-format, --fp8-recipe, --fp4-format); torchtitan, its page on float8 and
components/quantization/mxfp8.md; MaxText, docs/guides/optimization (quantization)."""


def _narrower(job: Job, gpu: Gpu) -> Iterator[Alternative]:
    """Yield narrower types of the GEMMs that the GPU has and the framework trains in."""
    now = _bits(job.precision.dtype)
    for name in _TYPES.get(job.framework.kin, ()):
        bits = _bits(name)
        scaled = ELEMENT_TYPES[name].small_blocks
        if bits < now and gpu.has_peak(name) and (not scaled or name in gpu.generation.scaled_blocks):
            yield Alternative(
                name=f"GEMMs in {name}",
                fields={"precision": name},
                numbers=f"inputs of GEMMs are rounded to {bits} bits, and their gradients",
                usual=bits == 8,
            )


def _bits(dtype: str) -> int:
    """Return the bits of the inputs of GEMMs of a type, 16 for all that are as wide or wider."""
    return {"fp8": 8, "fp4": 4}.get(PEAK_OF_DTYPE[dtype], 16)
