"""The whole space of layouts on arrays: a step time and a memory peak for every one, of which the best are kept.

Layouts of one pipeline, one tensor parallel degree and one way of execution are a block: an array over the shares of
the work, what is recomputed, how state is sharded, and what is overlapped. Nothing is left out of it and nothing is
sampled. The blocks of a model, the operators, the communications and the memory are those of a forecast
(`traincast.planning.screen.chunks`); the length of the pipeline is the closed form of its schedule
(`traincast.schedules.length`), or, without one, its order run on the same arrays.

Letters: K shares, R recomputations, Z ways to shard, P stages, S kinds of stages.
"""

import dataclasses
import time
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import chain, product
from typing import Any

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from traincast.errors import ConfigError, InfeasibleError
from traincast.estimate.factors import TRANSFER_CLASS, CostFactors, host_class, with_factors
from traincast.estimate.measured import in_pass
from traincast.estimate.offload import rate_of
from traincast.fabric.placement import place_job
from traincast.hardware.cluster import Cluster
from traincast.hardware.host import Host, host_of
from traincast.job.job import Job
from traincast.job.packing import packing_of
from traincast.job.parallel import MAX_SLOTS, Parallel
from traincast.job.resolve import resolve_job
from traincast.job.share import blocks_of_layer, rank_share
from traincast.lowering.held import table_stages
from traincast.lowering.offload import STREAMS, updated_rows
from traincast.lowering.stage import stages_of
from traincast.lowering.step import NORM_BYTES
from traincast.mechanisms.all import outside
from traincast.model.blocks.part import Elements
from traincast.model.dispatch import DISPATCHERS
from traincast.model.numbers import ceil_div
from traincast.planning.layout import Layout
from traincast.planning.options import Variant
from traincast.planning.screen.block import Block
from traincast.planning.screen.chunks import Chunk, ChunkTable
from traincast.planning.screen.costs import CostTable, Operators
from traincast.planning.screen.flights import plan_for_memory
from traincast.planning.screen.frontier import Frontier
from traincast.planning.screen.members import Member, Members, ShareKey
from traincast.planning.screen.moments import Busy, MomentEmitter, ShareRates
from traincast.planning.screen.shape import Shape, few_microbatches, shape_of
from traincast.planning.screen.state_times import Sharding, StateSeconds, StateTable
from traincast.planning.screen.transfers import Links, Places
from traincast.planning.space import Degrees, Space
from traincast.schedules.schedule import usual_schedule
from traincast.simulation.job_step import factors_of, operator_seconds
from traincast.simulation.step import Setting
from traincast.workload.ops import FloatArray
from traincast.workload.words import CostClass, Group, Operation, Phase, Stream

_OF_SHARE = tuple(name for name in ShareKey._fields if name != "overlap_tp")
"""Fields of a share that change what it runs."""


class Family(Struct):
    """All layouts of one way of execution with so many ranks on a node."""

    variant: Variant
    cluster: Cluster
    shares: dict[ShareKey, int] = field(default_factory=dict)
    members: dict[tuple[int, int], list[Member]] = field(default_factory=dict)
    """By pipeline stages and tensor parallel degree."""


class Screened(Struct, frozen=True):
    """What a screen found."""

    evaluated: int
    """Layouts whose step and memory were worked out."""
    feasible: int
    """Those of them that fit into memory."""
    seconds: float
    layouts: tuple[Layout, ...]
    """The best, and the best for less memory, the fastest first."""
    step_s: tuple[float, ...]
    peak_bytes: tuple[float, ...]


@dataclasses.dataclass(slots=True)
class Screen:
    """One space on one cluster."""

    space: Space
    setting: Setting
    limit_bytes: float
    """Memory of a GPU that a layout may need."""
    factors: CostFactors = dataclasses.field(init=False)
    places: Places = dataclasses.field(init=False)
    states: dict[int, StateTable] = dataclasses.field(default_factory=dict)
    """What exchanging the state takes, by ranks on a node; the same for all ways of execution."""
    chunk_numbers: dict[Chunk, int] = dataclasses.field(default_factory=dict)
    """Kinds of virtual stages, told by numbers."""
    operators: Operators | None = None
    """Times of operators, the same for all ways of execution: their types are part of a call."""

    def run(self, keep: int = 400) -> Screened:
        """Work out every layout, and keep the best ones.

        Raises
        ------
        InfeasibleError
            If no layout divides the GPUs, the batch and the model.
        """
        begin = time.perf_counter()
        frontier = Frontier(self.limit_bytes, keep)
        for block in self.blocks():
            frontier.add(block)
        if not frontier.evaluated:
            raise InfeasibleError(self._empty())
        step_s, peak_bytes, layouts = frontier.best()
        seconds = time.perf_counter() - begin
        return Screened(frontier.evaluated, frontier.feasible, seconds, layouts, step_s, peak_bytes)

    def lightest(self, count: int) -> list[tuple[float, Layout]]:
        """Return the layouts that need least memory, with their bytes, of each set of degrees one."""
        found = []
        for block in self.blocks():
            for part in block.parts():
                place = int(part.peak_bytes.argmin())
                found.append((float(part.peak_bytes.min()), block.layout(part.light(), place)))
        least: dict[tuple[int, ...], tuple[float, Layout]] = {}
        for each in sorted(found, key=lambda each: each[0]):
            layout = each[1]
            least.setdefault((layout.tp, layout.cp, layout.pp, layout.ep, layout.etp), each)
        return list(least.values())[:count]

    def blocks(self) -> Iterator[Block]:
        """Yield the space block by block."""
        self.places = Places(self.setting.network)
        for family in self._families():
            yield from Filled(self, family).blocks()

    def _empty(self) -> str:
        request = self.space.request
        return (
            f"no layout of {request.model.name} divides {request.gpus} GPUs and a global batch of "
            f"{request.global_batch}; fix less, or change the GPUs or the batch"
        )

    def _families(self) -> list[Family]:
        """Return the layouts by way of execution and ranks on a node."""
        space, found = self.space, dict[tuple[Variant, int | None], Family]()
        for degrees in space.degrees():
            parallel = parallel_of(degrees)
            cluster = self._placed(parallel)
            micro_batches = space.micro_batches(degrees.dp)
            for variant in space.variants(degrees):
                key = (variant, cluster.ranks_per_node)
                splits = space.sequence_parallel(degrees.tp, degrees.cp)
                overlaps = _overlaps_tp(space, parallel, cluster.ranks_per_node)
                for split, micro_batch, overlap in product(splits, micro_batches, overlaps):
                    work = self._packed_work(degrees, micro_batch, splits_heads=variant.cp_kind == "all_to_all")
                    family = found.setdefault(key, Family(variant, cluster))
                    members = family.members.setdefault((degrees.pp, degrees.tp), [])
                    share = ShareKey(degrees.tp, degrees.cp, degrees.ep, degrees.etp, split, micro_batch, work, overlap)
                    number = family.shares.setdefault(share, len(family.shares))
                    members.append(Member(number, degrees))
        return list(found.values())

    def _packed_work(self, degrees: Degrees, micro_batch: int, *, splits_heads: bool) -> float:
        """Return the attention of packs of several lengths that a layout waits for (`Share.packed_work`)."""
        space = self.space
        if space.request.packed_lengths is None:
            return 0.0
        count = space.request.global_batch // (degrees.dp * micro_batch)
        # One way to shard is as good as another here, unless some share parameters and others do not.
        zero = min((zero for zero, _ in space.shardings(degrees.replicas)), default=0)
        return packing_of(
            space.request,
            space.framework,
            replace(parallel_of(degrees), microbatches=count),
            micro_batch,
            zero=zero,
            splits_heads=splits_heads,
        ).work

    def _placed(self, parallel: Parallel) -> Cluster:
        asked = self.space.request.gpus_used_per_node
        if self.setting.gpus_used_per_node is not None:
            asked = self.setting.gpus_used_per_node
        return place_job(self.setting.cluster, parallel, asked)[0]


def _overlaps_tp(space: Space, parallel: Parallel, ranks_per_node: int) -> tuple[bool, ...]:
    """Return whether tensor parallel exchanges may be overlapped; over nodes nothing of them is, whatever is asked."""
    found = space.switches("overlap_tp", able=parallel.tp > 1)
    inside = parallel.world_size <= ranks_per_node or ranks_per_node % parallel.tp == 0
    return found if inside else found[-1:]


def parallel_of(degrees: Degrees) -> Parallel:
    """Return degrees as a layout of one microbatch."""
    each = degrees
    return Parallel(tp=each.tp, cp=each.cp, dp=each.dp, pp=each.pp, ep=each.ep, etp=each.etp)


class Filled:
    """A family with its tables."""

    def __init__(self, screen: Screen, family: Family) -> None:
        self.screen, self.family, self.space = screen, family, screen.space
        self.job = self._job(next(iter(family.members.values()))[0].degrees, usual_schedule(), 1)
        factors = factors_of(self.job, screen.setting)
        self.job = with_factors(self.job, factors)
        self.factors = factors
        self.operators = screen.operators or Operators(operator_seconds(self.job, screen.setting.cluster.gpu, factors))
        screen.operators = self.operators
        self.costs = self._costs(gathers=False)
        self.chunks = self._table(self.costs)
        ranks_per_node = family.cluster.ranks_per_node
        self.states = screen.states.setdefault(ranks_per_node, StateTable(self.links, self.operators.seconds.of))
        self._once_s: dict[tuple[Degrees, bool], float] = {}
        self._messages_s: dict[int, FloatArray] = {}
        self.layers = tuple(blocks_of_layer(self.job, layer) for layer in range(self.job.model.layers))

    def _table(self, costs: CostTable) -> ChunkTable:
        overlap_tp = np.array([share.overlap_tp for share in self.family.shares])
        return ChunkTable(costs, MomentEmitter(self.job, costs.share, self._rates, overlap_tp, {}))

    @property
    def _held_share(self) -> float:
        held, sms = DISPATCHERS[self.job.experts.dispatcher].sms, self.screen.setting.cluster.gpu.sms
        return held / (sms - held) if sms and sms > held else 0.0

    @property
    def casts_gathered(self) -> bool:
        """Whether weights are cast in every pass that ranks gather them for."""
        return self.costs.share.execution.scaling is not None

    @cached_property
    def gathering(self) -> ChunkTable:
        """Virtual stages whose weights are gathered, and cast, in every pass."""
        return self._table(self._costs(gathers=True))

    def blocks(self) -> Iterator[Block]:
        """Yield the blocks of the family."""
        shares, batch = list(self.family.shares), self.space.request.global_batch
        for pp in sorted({pp for pp, _ in self.family.members}):
            every = [each for (count, _), found in self.family.members.items() if count == pp for each in found]
            every.sort(key=lambda member: member.degrees.replicas)
            shardings = {each: self.space.shardings(each) for each in {m.degrees.replicas for m in every}}
            sharded = tuple(each for each in every if shardings[each.degrees.replicas])
            members = Members(sharded, shares, batch, shardings)
            counts = set(members.microbatches_K.tolist())
            for shape in self._shapes(pp):
                vpp, schedule = shape.job.parallel.vpp, shape.job.pipeline.schedule
                able = frozenset(
                    count
                    for count in counts
                    if pp * vpp * count <= MAX_SLOTS and self.space.runs(schedule, pp, vpp, count)
                )
                recomputes = self.space.recomputes(shape.job)
                if recomputes and able:
                    yield Block(self, shape, members.with_counts(able), recomputes)

    def links(self, parallel: Parallel) -> Links:
        """Return the communications of a layout."""
        exchanging = set() if self.job.experts.dispatcher == "allgather" else {Group.EP}
        if self.family.variant.cp_kind == "all_to_all":
            exchanging.add(Group.CP)
        factor = {group: self.factors.of(name) for group, name in TRANSFER_CLASS.items()}
        return Links(self.screen.places, parallel, self.family.cluster, frozenset(exchanging), factor)

    def host_s(self, cost_class: CostClass, time_s: float) -> float:
        """Return the seconds of what the host does once in a while."""
        return time_s * self.host_factor(cost_class, Phase.STEP)

    def host_factor(self, cost_class: CostClass, phase: Phase) -> float:
        """Return the factor on what the host does in a pass, with that of its processor on its launches."""
        name = host_class(cost_class)
        slowdown = self.screen.setting.cluster.gpu.host_slowdown if cost_class is CostClass.HOST_LAYERS else 1.0
        return slowdown * self.factors.of(name) * self.factors.of(in_pass(name, phase))

    def links_of(self, degrees: Degrees) -> Links:
        """Return the communications of a layout with some degrees."""
        return self.links(parallel_of(degrees))

    def number_of(self, chunk: Chunk) -> int:
        """Return the number of a kind of virtual stage."""
        numbers = self.screen.chunk_numbers
        return numbers.setdefault(chunk, len(numbers))

    @cached_property
    def host(self) -> Host:
        """What a GPU has of its host."""
        ranks = min(self.family.cluster.ranks_per_node, self.space.request.gpus)
        return host_of(self.screen.setting.cluster.gpu, ranks)

    def update_s(self, job: Job, held: Sequence[Elements], updated: float, layers: int) -> float:
        """Return the seconds of the update of so many parameters, a share of virtual stages of so many layers."""
        gpu_s = self.states.update_s(job, held, updated)
        if not job.offload.optimizer:
            return gpu_s
        emit = self.chunks.emit.on(job, None)
        return float(emit.seconds(updated_rows(emit, int(updated), max(1, layers), [Busy(Stream.COMPUTE, gpu_s)])))

    def outside_s(self, job: Job, updated: FloatArray, *, hidden: bool) -> FloatArray:
        """Return the seconds of what ranks that update so many parameters exchange outside the job."""
        return sum((each.duration_s for each in outside(job, updated) if each.hidden == hidden), 0.0 * updated)

    def state_of(self, job: Job, degrees: Degrees, weights: Elements, shardings: Sequence[Sharding]) -> StateSeconds:
        """Return what the state of a virtual stage takes."""
        return self.states.of(job, self.alike(degrees), weights, shardings)

    def alike(self, degrees: Degrees) -> Parallel:
        """Return degrees by which ranks share state alike: which of them split sequences does not count."""
        return replace(parallel_of(degrees), cp=1, dp=degrees.replicas)

    @cached_property
    def handover_s(self) -> float:
        """What the host adds to a message that holds its stage back."""
        return self.host_s(CostClass.HANDOVER, self.job.framework.p2p_handover_s)

    def fixed_s(self, members: Members, shape: Shape) -> FloatArray:
        """Return the seconds of what every step has once, whatever it does, [K]."""
        tables = bool(table_stages(shape.job, shape.plan)) if self.job.finetuning.task != "lora" else False

        def found() -> FloatArray:
            for member in members.members:
                key = (member.degrees, tables)
                if key not in self._once_s:
                    self._once_s[key] = self._fixed_s(member, tables=tables)
            return np.array([self._once_s[degrees, tables] for degrees in members.degrees])

        return members.once(("fixed", tables), found)

    def _fixed_s(self, member: Member, *, tables: bool) -> float:
        links, time_s = self.links_of(member.degrees), self.host_s(CostClass.FIXED, self.job.framework.step_fixed_s)
        if links.parallel.world_size > 1:
            time_s += float(links.seconds(Group.WORLD, Operation.ALL_REDUCE, [NORM_BYTES])[0])
        if tables:
            size = ceil_div(self.costs.share.vocab[member.share], member.degrees.tp) * self.job.model.hidden
            size_bytes = int(size) * self.job.framework.grad_reduce_bytes
            time_s += float(links.seconds(Group.EMB, Operation.ALL_REDUCE, [size_bytes])[0])
        return time_s

    def messages_s(self, pp: int) -> FloatArray:
        """Return the seconds of a message between so many stages, of every share of the family that has so many."""
        if pp in self._messages_s:
            return self._messages_s[pp]
        share = self.costs.share
        split = np.where(share.splits_sequence | np.bool_(self.job.framework.splits_messages), share.tp, 1)
        size = np.broadcast_to(share.activation_bytes * self.job.model.residual_streams // split, self.costs.shares)
        places: dict[Degrees, list[int]] = {}
        for (count, _), members in self.family.members.items():
            for member in members if count == pp else ():
                places.setdefault(member.degrees, []).append(member.share)
        found = np.zeros(self.costs.shares)
        for degrees, at in places.items():
            found[at] = self.links_of(degrees).seconds(Group.PP, Operation.SEND_RECV, size[at])
        return self._messages_s.setdefault(pp, found)

    def _shapes(self, pp: int) -> Iterator[Shape]:
        """Yield every pipeline of that many stages."""
        degrees = next(each for (stages, _), each in self.family.members.items() if stages == pp)[0].degrees
        for schedule, vpp, _ in self.space.pipelines(pp):
            try:
                job = few_microbatches(self._job(degrees, schedule, vpp))
                parallel, pairs = job.parallel, job.experts.pairs_passes
                if pairs != dict(self.family.variant.ways)["moe_a2a_overlap"]:
                    continue  # the schedule has no passes to pair
                plan = plan_for_memory(job.pipeline.schedule, pp, parallel.vpp, parallel.microbatches, pairs)
                stages = stages_of(job, self.family.cluster.ranks_per_node, self.costs.parts, plan)
                yield shape_of(
                    with_factors(job, self.factors), plan, tuple(Chunk.of(each, self.layers) for each in stages)
                )
            except (InfeasibleError, ConfigError):
                continue

    def _job(self, degrees: Degrees, schedule: str, vpp: int) -> Job:
        """Return a job of the family with one sequence in a microbatch and nothing recomputed."""
        variant, each = self.family.variant, degrees
        request = self.space.request
        experts = request.model.experts is not None
        request = replace(
            request,
            tp=each.tp,
            pp=each.pp,
            cp=each.cp,
            ep=each.ep if experts else None,
            etp=each.etp if experts else None,
            vpp=vpp,
            schedule=schedule if each.pp > 1 else None,
            micro_batch=1,
            precision=variant.precision,
            cp_kind=variant.cp_kind if each.cp > 1 else None,
            moe_dispatcher=variant.moe_dispatcher if experts else None,
            deduplicated_dispatch=None,
            offload_optimizer=variant.offload_optimizer or None,
            offload_activations=None,
            offload_parameters=self._offloads_parameters(each) or None,
            overlap_tp=None,
            recompute="none",
            recompute_layers=None,
            recompute_modules=None,
            recompute_method=None,
            zero=3 if self._offloads_parameters(each) else None,
            shard=None,
            sequence_parallel=None,
            **dict(variant.ways),
        )
        return resolve_job(request, self.screen.setting.cluster)

    def _offloads_parameters(self, degrees: Degrees) -> bool:
        return bool(self.space.request.offload_parameters) and degrees.replicas > 1

    def _costs(self, *, gathers: bool) -> CostTable:
        keys = list(self.family.shares)
        columns: dict[str, Any] = {name: np.array([getattr(key, name) for key in keys]) for name in _OF_SHARE}
        multiple = self.space.request.vocab_multiple or self.job.framework.vocab_multiple
        vocab = -(-self.job.model.vocab // (multiple * columns["tp"])) * multiple * columns["tp"]
        share = replace(rank_share(self.job, self.family.cluster.ranks_per_node), vocab=vocab, **columns)
        gathered_bytes = self.job.sharding.param_gather_bytes if gathers else 0
        share = replace(share, execution=replace(share.execution, gathered_weight_bytes=gathered_bytes))
        return CostTable(share, len(keys), self.operators)

    @cached_property
    def _rates(self) -> ShareRates:
        shares = list(self.family.shares)
        degrees = {shares[found.share][:4]: found.degrees for found in chain(*self.family.members.values())}
        sets = {each: number for number, each in enumerate(degrees)}
        which_K = [sets[key[:4]] for key in shares]
        links = tuple(self.links(parallel_of(each)) for each in degrees.values())
        copies = {stream: rate_of(self.host, stream) for stream in STREAMS}
        return ShareRates(self.operators, links, np.array(which_K), self.host_factor, copies, self._held_share)
