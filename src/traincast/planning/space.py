"""The space of layouts: what every axis may be, as far as the user leaves it open.

By default it leaves out what nobody would run: tensor parallelism over nodes, experts over NVLink domains without a
dispatcher for it, context parallelism of short sequences, schedules that the framework does not have. ``full`` has all
that can be run at all.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from itertools import combinations, product
from typing import Any

from msgspec import Struct, field
from msgspec.structs import asdict, replace

from traincast.errors import ConfigError, InfeasibleError
from traincast.hardware.cluster import Cluster
from traincast.job.condition_facts import job_facts, layout_facts, precision_facts
from traincast.job.degrees import check_model
from traincast.job.fields import fields, ways
from traincast.job.frameworks import CP_KINDS, Framework
from traincast.job.habits import facts_asked, settings_of
from traincast.job.job import Job
from traincast.job.layers import Split, split_layers
from traincast.job.levels import BEST, USUAL
from traincast.job.precision import check_gpu, precision_on
from traincast.job.request import JOB_FIELDS, JobRequest
from traincast.model.dispatch import DISPATCHERS, dispatcher_of
from traincast.model.recompute import DISCARDING_MODULES, available_modules
from traincast.planning.layout import Settings
from traincast.planning.options import Recompute, Variant
from traincast.planning.software import Software, is_of_way, routed, software_of
from traincast.schedules.schedule import SCHEDULES, fixed_virtual_stages, planned, usual_schedule

PRECISIONS = ("bf16", "fp8", "fp8_block", "mxfp8")
"""Types that training is planned in, as far as the GPU has them."""

MOST_MICRO_BATCH = 8
"""Largest micro batch of the default space: published recipes of large models have 1 to 4."""

LEAST_CONTEXT = 4096
"""Fewest tokens of a sequence that a rank has in the default space: NVIDIA's recipes of Llama 3 70B and Llama 3.1 405B
split 8,192 tokens over two ranks (NVIDIA/dgxc-benchmarking, llama3.1)."""


_LEAST_DISPATCHER = "deepep"
"""Dispatcher with the fewest kernels of its own."""

_WAYS = ways()

_DECIDED_LATER = {*Recompute.__struct_fields__, *(each.name for each in fields(group="sharding") if each.is_axis)}
"""Facts that each layout of a pipeline decides."""


class Degrees(Struct, frozen=True):
    """What says which rank holds what, but for the pipeline's order."""

    tp: int
    pp: int
    cp: int
    dp: int
    ep: int
    etp: int

    @property
    def replicas(self) -> int:
        """Ranks with equal dense parameters: dp x cp."""
        return self.dp * self.cp


class Space(Struct, frozen=True, kw_only=True, dict=True):
    """The axes of a plan: what a job leaves open, on one number of GPUs of one cluster."""

    request: JobRequest
    """What is trained on how many GPUs; of its layout only what the user fixed."""
    framework: Framework
    cluster: Cluster
    full: bool = False
    allow_offload: bool = False
    fixed: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Values that single fields are held to."""
    most: Mapping[str, int] = field(default_factory=dict)
    """Upper limits of single fields."""
    tuned: str | None = None
    """How far the framework's software is tuned, one of `traincast.job.levels.LEVELS`; None: as its file says."""
    held: Settings | None = None
    """Settings of software that all layouts have; None: what `tuned` says is tried."""

    @cached_property
    def software(self) -> Software:
        """What of the framework's software is tried."""
        offloads = {} if self.allow_offload else {"offload_activations": 0, "offload_optimizer": 0.0}
        tried = self.tuned == BEST and self.held is None
        return software_of(self.request, self.framework, self.cluster, tried=tried, fixed=self.fixed, **offloads)

    def usual(self, degrees: Degrees | None = None, precision: str | None = None) -> Mapping[str, Any]:
        """Return what the level of effort sets of software, for some degrees, unless it is tried."""
        known = self.__dict__.setdefault("_usual", {})
        key = degrees and self._decisive(degrees), precision
        if key not in known:
            said = {} if degrees is None else asdict(degrees)
            said = {name: value for name, value in {**said, "precision": precision}.items() if name in JOB_FIELDS}
            request = replace(self.request, **{name: value for name, value in said.items() if value is not None})
            known[key] = {
                name: value
                for name, value in settings_of(self.tuned, self.framework, request, self.cluster).items()
                if name not in self.fixed and name not in self.software.tried
            }
        found: Mapping[str, Any] = known[key]
        return found

    def _decisive(self, degrees: Degrees) -> tuple[int, ...]:
        """Return what of some degrees makes a difference to what a level of effort sets."""
        return tuple(getattr(degrees, name) for name in self._deciding)

    @cached_property
    def _deciding(self) -> tuple[str, ...]:
        asked, every = facts_asked(self.framework), Degrees.__struct_fields__
        derived = layout_facts(cp=1, dp=1, ep=1, etp=1, domain=1)
        return every if asked & derived.keys() else tuple(name for name in every if name in asked)

    def among(self, name: str, usual: Iterable[Any]) -> tuple[Any, ...]:
        """Return the values of an axis: those that are fixed, else the usual ones within the limits."""
        said = getattr(self.request, name, None)
        if name in self.fixed:
            return tuple(self.fixed[name])
        if said is not None:
            return (said,)
        limit = self.most.get(name)
        return tuple(value for value in usual if limit is None or value <= limit)

    def degrees(self) -> Iterator[Degrees]:
        """Yield every set of degrees that divides the GPUs and the model."""
        gpus, model = self.request.gpus, self.request.model
        for tp in self.among("tp", self._tensor()):
            for cp in self.among("cp", self._context(tp)):
                for pp in self.among("pp", _divisors(gpus // (tp * cp)) if gpus % (tp * cp) == 0 else ()):
                    if gpus % (tp * cp * pp) or pp > model.layers:
                        continue
                    dp = gpus // (tp * cp * pp)
                    if self.request.global_batch % dp:
                        continue
                    for ep, etp in self._experts(tp, cp * dp):
                        if self._allowed(tp, ep, etp):
                            yield Degrees(tp, pp, cp, dp, ep, etp)

    def _tensor(self) -> list[int]:
        gpus, heads = self.request.gpus, self.request.model.attention.heads
        domain = self.cluster.gpus_per_node
        most = heads if self.full else min(heads, domain)
        found = [tp for tp in _divisors(gpus) if tp <= most and heads % tp == 0]
        return found if self.full else [tp for tp in found if tp & (tp - 1) == 0]

    def _context(self, tp: int) -> list[int]:
        gpus, tokens = self.request.gpus, self.request.seq_length
        found = [cp for cp in _divisors(gpus // tp) if tokens % (2 * cp) == 0 or cp == 1]
        if self.full:
            return [cp for cp in found if cp <= 64]
        return [cp for cp in found if cp == 1 or (tokens // cp >= LEAST_CONTEXT and cp & (cp - 1) == 0)]

    def _experts(self, tp: int, replicas: int) -> Iterator[tuple[int, int]]:
        experts = self.request.model.experts
        if experts is None:
            yield 1, tp
            return
        domain = self.cluster.gpus_per_node
        usual = [tp if self.framework.expert_tp else 1]
        for etp in self.among("etp", sorted({*usual, 1, *(_divisors(tp) if self.full else ())})):
            most = tp * replicas // etp
            choices = [ep for ep in _divisors(experts.experts) if most % ep == 0]
            if not self.full:
                choices = [ep for ep in choices if ep * etp <= domain or self._crosses_domains(ep)]
            for ep in self.among("ep", choices):
                if tp * replicas % (etp * ep) == 0:
                    yield ep, etp

    def dispatchers(self, ep: int, switched: str | None = None) -> tuple[str | None, ...]:
        """Return the kinds of dispatchers that may send tokens to their experts; `switched` is what software has."""
        if self.request.model.experts is None:
            return (None,)
        if self.request.moe_dispatcher is None and self.request.deduplicated_dispatch is not None:
            return self.among("moe_dispatcher", (dispatcher_of(self.request.deduplicated_dispatch),))
        usual = (switched or self.framework.moe_dispatcher,)
        return self.among("moe_dispatcher", DISPATCHERS if self.full and ep > 1 else usual)

    def _crosses_domains(self, ep: int) -> bool:
        """Return whether a dispatcher may be used that sends a token once to each node of its experts."""
        switched = self.software.values("moe_dispatcher")
        kinds = {kind for each in (None, *switched) for kind in self.dispatchers(ep, each)}
        return any(DISPATCHERS[kind].sends == "once" for kind in kinds if kind is not None)

    def _allowed(self, tp: int, ep: int, etp: int) -> bool:
        try:
            check_model(self.request.model, tp=tp, ep=ep, etp=etp)
        except InfeasibleError:
            return False
        return True

    def micro_batches(self, dp: int) -> tuple[int, ...]:
        """Return the sequences that a microbatch may have."""
        each = self.request.global_batch // dp
        found = _divisors(each)
        if not self.full:
            found = [mbs for mbs in found if mbs <= MOST_MICRO_BATCH and mbs & (mbs - 1) == 0]
        parts = each if self.request.local_batch is None else math.gcd(each, self.request.local_batch)
        return tuple(mbs for mbs in self.among("micro_batch", found) if parts % mbs == 0)

    def sequence_parallel(self, tp: int, cp: int) -> tuple[bool, ...]:
        """Return whether norms may be split along the sequence."""
        if tp == 1:
            return (False,)
        divides = self.request.seq_length % (tp * cp) == 0
        usual = (True, False) if self.full else (self.framework.sequence_parallel,)
        return tuple(dict.fromkeys(each and divides for each in self.among("sequence_parallel", usual)))

    def pipelines(self, pp: int) -> list[tuple[str, int, tuple[int, ...]]]:
        """Return schedule, virtual stages and layers of each virtual stage of every pipeline of that length."""
        if pp == 1:
            layers = self._split(1, 1)
            return [(usual_schedule(), 1, layers)] if layers else []
        found = []
        for schedule in self.among("schedule", SCHEDULES.names() if self.full else self.framework.pipeline_schedules):
            virtual = fixed_virtual_stages(schedule)
            usual = range(2, self.request.model.layers // pp + 2) if virtual is None else (virtual,)
            for vpp in self.among("vpp", usual):
                if (virtual is not None and vpp != virtual) or (virtual is None and vpp < 2):
                    continue
                layers = self._split(pp, vpp)
                said = "vpp" in self.fixed or self.request.vpp is not None
                if layers and (min(layers) > 0 or self.full) and (vpp == 1 or virtual or said or self._even(layers)):
                    found.append((schedule, vpp, layers))
        return found

    def _even(self, layers: tuple[int, ...]) -> bool:
        """Return whether virtual stages are as long as each other, the ends aside: others are not interleaved.

        Those who tune a pipeline leave the last one shorter, which has the LM head in addition.
        """
        if self.tuned == BEST and len(set(layers[:-1])) == 1 and layers[-1] < layers[0]:
            return True
        return len(set(layers[1:-1])) <= 1 and abs(layers[0] - layers[1]) <= 1 and abs(layers[-1] - layers[-2]) <= 1

    def _split(self, pp: int, vpp: int) -> tuple[int, ...] | None:
        request, framework = self.request, self.framework
        given = (request.first_stage_layers, request.last_stage_layers) if pp > 1 else (None, None)
        split = Split(
            layers=request.model.layers,
            pp=pp,
            vpp=vpp,
            uneven=framework.uneven_split,
            counts_embedding=framework.counts_embedding
            and request.embedding_as_layer is None
            and request.head_as_layer is None,
            first=given[0],
            last=given[1],
            embedding=bool(request.embedding_as_layer),
            head=bool(request.head_as_layer),
        )
        try:
            return split_layers(split)[0]
        except (InfeasibleError, ConfigError):
            return None

    def runs(self, schedule: str, pp: int, vpp: int, microbatches: int) -> bool:
        """Return whether a pipeline takes so many microbatches; Megatron-LM refuses to interleave others."""
        known = SCHEDULES.get(schedule)
        if known.length is None:
            # Its order is run, so there must be one.
            try:
                planned(known.name, pp, vpp, microbatches)
            except InfeasibleError:
                return False
        return not known.groups_of_stages or vpp == 1 or microbatches % pp == 0

    def allows(self, job: Job, variant: Variant) -> bool:
        """Say whether the framework lets a pipeline run with the settings of a way of execution."""
        return variant.ideal or self.software.allows(_settings_of(variant), self._known(job))

    def recomputes(self, job: Job, variant: Variant) -> tuple[Recompute, ...]:
        """Return what the backward pass of jobs with this pipeline may recompute with a way of execution."""
        settings, known, every = _settings_of(variant), self._known(job), self._every_recompute(job)
        allowed = self.__dict__.setdefault("_known_allowed", {})
        key = settings, self.software.held(known), every
        if key not in allowed:
            facts = ((each, {**asdict(each), "recompute_modules": each.recomputed_modules}) for each in every)
            allowed[key] = tuple(each for each, own in facts if self.software.allows(settings, {**known, **own}))
        found: tuple[Recompute, ...] = allowed[key]
        return found

    def _known(self, job: Job) -> dict[str, Any]:
        """Return the facts of a pipeline that its layouts share."""
        known = {name: value for name, value in job_facts(job, self.cluster).items() if name not in _DECIDED_LATER}
        return known | self._zero(job.parallel.replicas)

    def _every_recompute(self, job: Job) -> tuple[Recompute, ...]:
        """Return what the backward pass of jobs with this pipeline may recompute."""
        known = self.__dict__.setdefault("_known_recomputes", {})
        key = job.pipeline.most_layers, job.parallel.pp, _refused(job)
        if key not in known:
            known[key] = self._recomputes_of(job)
        found: tuple[Recompute, ...] = known[key]
        return found

    def _recomputes_of(self, job: Job) -> tuple[Recompute, ...]:
        most_layers = job.pipeline.most_layers
        kinds = self.among("recompute", ("none", "selective", "full"))
        found = [Recompute()] if "none" in kinds else []
        if "selective" in kinds:
            found += [Recompute("selective", recompute_modules=each) for each in self._module_sets(job)]
        if "full" in kinds:
            found += self._full_recomputes(most_layers)
        usual = self._offloaded_counts(most_layers, job.parallel.pp)
        offloaded = [
            replace(each, offload_activations=min(count, most_layers))
            for each in found
            for count in self.among("offload_activations", usual if self.full or each.recompute == "none" else [0])
        ]
        return tuple(dict.fromkeys(offloaded))

    def _offloaded_shares(self) -> tuple[float, ...]:
        """Return which shares of the optimizer's states may be offloaded; offloaded parameters take all along."""
        if self.request.offload_parameters:
            return (1.0,)
        return (0.0, 1.0) if self._offloads("optimizer") else (0.0,)

    def _offloaded_counts(self, most: int, pp: int) -> list[int]:
        """Return of how many layers of a virtual stage activations may be offloaded.

        Megatron-LM refuses it in a pipeline, and together with recomputation:
        megatron/core/transformer/transformer_config.py.
        """
        able = self._offloads("activations") and (self.full or pp == 1)
        return sorted({0, most // 2, most}) if able else [0]

    def _offloads(self, what: str) -> bool:
        return self.allow_offload and (self.full or what in self.framework.offloads)

    def _full_recomputes(self, most: int) -> list[Recompute]:
        """Return how many layers may be recomputed whole, each by itself or in groups; None stands for all."""
        held, limit = self.among("recompute_layers", ()), self.most.get("recompute_layers")
        whole = () if limit is not None and limit < most else (None,)
        counts = held or (*self.among("recompute_layers", self._layer_counts(most)), *whole)
        found = []
        if self.request.recompute_method != "uniform":
            found = [Recompute("full", None if each is None or each >= most else each) for each in counts]
        if self.request.recompute_method == "uniform" or (self.full and self.request.recompute_method is None):
            groups = held or [each for each in _divisors(most) if each > 1]
            found += [Recompute("full", each, "uniform") for each in groups if each is not None]
        return found

    def _layer_counts(self, most: int) -> list[int]:
        if not (self.full or self.framework.recomputes_some_layers):
            return []
        if self.full or most <= 4:
            return list(range(1, most))
        return sorted({max(1, round(most * share)) for share in (0.25, 0.5, 0.75)})

    def _module_sets(self, job: Job) -> list[tuple[str, ...]]:
        if "recompute_modules" in self.fixed or self.request.recompute_modules is not None:
            return [*self.among("recompute_modules", ())]
        known = [each for each in available_modules(self.request.model) if self.full or each not in _refused(job)]
        if self.framework.selective_share > 0:
            return []
        if self.full:
            sizes = range(1, len(known) + 1)
            return [each for size in sizes for each in combinations(known, size) if not {"moe", "moe_act"} <= set(each)]
        if not self.framework.recomputes_modules:
            return [("core_attn",)]
        cheap = tuple(name for name in known if name in DISCARDING_MODULES)
        alone = [(name,) for name in known if name != "core_attn"]
        return [each for each in dict.fromkeys([*alone, cheap]) if each]

    def shardings(self, replicas: int) -> list[tuple[int, int]]:
        """Return the stages of ZeRO, each with the ranks that share one copy of the state."""
        whole = not self.request.offload_parameters
        if replicas == 1:
            return [(0, 1)] if whole else []
        framework = self.framework
        usual = 3 if framework.fsdp else 1 if framework.distributed_optimizer else 0
        found = []
        for zero in self.among("zero", ((0, 1, 2, 3) if self.full else (usual,)) if whole else (3,)):
            domain = self.cluster.gpus_per_node
            splits = [replicas]
            if self.full:
                splits = [each for each in _divisors(replicas) if each > 1]
            elif zero == 3 and replicas % domain == 0 and replicas > domain:
                splits = [replicas, domain]
            if zero == 0:
                found.append((0, 1))
                continue
            found += [(zero, each) for each in self.among("shard", splits) if replicas % each == 0 and each > 1]
        return found

    def _zero(self, replicas: int) -> dict[str, int]:
        """Return the stage of ZeRO as a fact, where only one is tried."""
        zeros = {zero for zero, _ in self.shardings(replicas)}
        return {"zero": next(iter(zeros))} if len(zeros) == 1 else {}

    def reshards(self, zero: int, pp: int) -> tuple[bool, ...]:
        """Return whether gathered parameters may be freed after the forward pass, and gathered again.

        Where stages of a pipeline keep them whole over all microbatches, freeing them spares no memory.
        """
        if zero < 3:
            return (True,)
        framework = self.framework
        if framework.pipelined_fsdp and pp > 1:
            return self.among("reshard_after_forward", (False,))
        chooses = self.full or (framework.fsdp and framework.reshard_choice)
        return self.among("reshard_after_forward", (True, False) if chooses else (True,))

    def switches(self, name: str, *, able: bool, degrees: Degrees | None = None) -> tuple[bool, ...]:
        """Return whether something is on, where it can be: both in the full space, else as the framework has it."""
        if not able:
            return (False,)
        tried = (True, False) if self.full else self.software.overlaps.get(name)
        if tried is None:
            tried = (bool(self.usual(degrees).get(name, getattr(self.framework, name, False))),)
        return self.among(name, tried)

    def variants(self, degrees: Degrees) -> tuple[Variant, ...]:
        """Return the ways of execution of some degrees."""
        kinds = self._context_kinds(degrees)
        choices = tuple((each, self._choices(degrees, each)) for each in self.precisions())
        matters = tuple(each.matters(degrees) for each in _WAYS)
        known = self.__dict__.setdefault("_known_variants", {})
        key = kinds, choices, matters, degrees.ep > 1, self._decisive(degrees)
        if key not in known:
            known[key] = tuple(
                dict.fromkeys(
                    Variant(precision, kind, dispatch, share, on, software)
                    for share in self.among("offload_optimizer", self._offloaded_shares())
                    for precision, of_software in choices
                    for kind in kinds
                    for axes, software in self._settings(degrees, precision, of_software)
                    for dispatch in self.dispatchers(degrees.ep, axes.get("moe_dispatcher"))
                    for on in self._ways(degrees, axes)
                )
            )
        found: tuple[Variant, ...] = known[key]
        return found

    def is_usual(self, variant: Variant) -> bool:
        """Say whether tokens get to their experts as recipes have it, where there are several ranks for them."""
        of_experts = {"ep": 2, "pp": 2, "vpp": 2} if self.request.model.experts else {}
        usual = self._habits(replace(self.request, **of_experts, precision=variant.precision))
        said = {**dict(variant.ways), "moe_dispatcher": variant.moe_dispatcher}
        return all(said[name] == value for name, value in usual.items() if name in said)

    def _habits(self, request: JobRequest) -> Mapping[str, Any]:
        known = self.__dict__.setdefault("_known_habits", {})
        if request.precision not in known:
            known[request.precision] = settings_of(USUAL, self.framework, request, self.cluster)
        found: Mapping[str, Any] = known[request.precision]
        return found

    def ideal(self, variant: Variant) -> tuple[Variant, ...]:
        """Return the ways of execution of which one is never slower than any choice of software.

        Switched off, ways take nothing of the GPU and the host; two passes at once hide what the host does.
        """
        off = tuple((name, False) for name, _ in variant.ways)
        dispatcher = None if variant.moe_dispatcher is None else _LEAST_DISPATCHER
        software = self.software.ideal(precision_facts(variant.precision))
        best = replace(variant, ways=off, moe_dispatcher=dispatcher, software=software, ideal=True)
        return tuple(dict.fromkeys((best, replace(best, ways=variant.ways))))

    def _choices(self, degrees: Degrees, precision: str) -> tuple[Settings, ...]:
        """Return the choices of software that are tried with some degrees."""
        if self.held is not None:
            return ()
        domain = self.cluster.gpus_per_node
        of = asdict(degrees)
        known = of | layout_facts(cp=degrees.cp, dp=degrees.dp, ep=degrees.ep, etp=degrees.etp, domain=domain)
        known |= precision_facts(precision)
        return self.software.choices(known | self._zero(degrees.replicas))

    def _settings(
        self, degrees: Degrees, precision: str, choices: Iterable[Settings]
    ) -> Iterator[tuple[dict[str, Any], Settings]]:
        """Yield the settings of software with some choices, axes of a layout apart from the others."""
        if self.held is not None:
            yield {}, self.held
            return
        usual = {name: value for name, value in self.usual(degrees, precision).items() if is_of_way(name)}
        for each in choices:
            yield routed(tuple(sorted({**usual, **dict(each)}.items())))

    def _ways(self, degrees: Degrees, axes: Mapping[str, Any]) -> Iterator[tuple[tuple[str, bool], ...]]:
        """Yield every choice of switches that are axes of a layout: as some settings say, else as `switches` does."""
        choices = [
            self.among(each.name, (axes[each.name],))
            if each.name in axes and each.matters(degrees)
            else self.switches(each.name, able=each.matters(degrees), degrees=degrees)
            for each in _WAYS
        ]
        names = [each.name for each in _WAYS]
        yield from (tuple(zip(names, on, strict=True)) for on in product(*choices))

    def precisions(self) -> tuple[str, ...]:
        """Return the types of the GEMMs."""
        gpu = self.cluster.gpu
        default = "bf16" if gpu.generation.bf16 else "fp16"
        found = []
        for name in self.among("precision", PRECISIONS if self.full else (default,)):
            try:
                known = precision_on(name, gpu)
                check_gpu(known, gpu)
            except InfeasibleError:
                continue
            found.append(known)
        return tuple(found)

    def _context_kinds(self, degrees: Degrees) -> tuple[str, ...]:
        cp, tp = degrees.cp, degrees.tp
        if cp == 1:
            return (self.request.cp_kind or self.framework.cp_kind,)
        usual = CP_KINDS if self.full else (self.framework.cp_kind,)
        heads, causal = self.request.model.attention.heads, self.request.model.attention.causal
        able = {
            "all_to_all": heads % (cp * tp) == 0 and self.request.seq_length % cp == 0,
            "ring": self.request.seq_length % (2 * cp if causal else cp) == 0,
        }
        able["all_gather"] = able["ring"]
        return tuple(kind for kind in self.among("cp_kind", usual) if able[kind])


def _settings_of(variant: Variant) -> Settings:
    return (*variant.ways, *variant.software, ("moe_dispatcher", variant.moe_dispatcher))


def _refused(job: Job) -> tuple[str, ...]:
    """Return the modules that Megatron-LM refuses to recompute (megatron/core/transformer/transformer_config.py)."""
    delayed = ("moe_act", "layernorm") if job.precision.fp8_recipe == "delayed" else ()
    return (*delayed, *(("shared_experts",) if job.experts.shared_expert_overlap else ()))


def _divisors(number: int) -> list[int]:
    low = [each for each in range(1, int(number**0.5) + 1) if number % each == 0]
    return sorted({*low, *(number // each for each in low)})
