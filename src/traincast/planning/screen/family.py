"""The layouts of one way of execution: what blocks, operators, communications and their host cost all of them.

Letters: K shares.
"""

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
from msgspec import Struct, field
from msgspec.structs import asdict, replace

from traincast.errors import ConfigError, InfeasibleError
from traincast.estimate.contention import NetworkAnswers
from traincast.estimate.factors import host_class, transfer_classes, with_factors
from traincast.estimate.measured import in_pass, processor_factor
from traincast.estimate.offload import rate_of
from traincast.hardware.cluster import Cluster
from traincast.hardware.host import Host, host_of
from traincast.job.experts import busiest_by_routing, spreads_tokens, tokens_exchanged
from traincast.job.fields import axes
from traincast.job.frameworks import Framework
from traincast.job.job import Job
from traincast.job.parallel import MAX_SLOTS, Parallel
from traincast.job.request import JOB_FIELDS
from traincast.job.resolve import resolve_job
from traincast.job.share import blocks_of_layer, rank_share
from traincast.lowering.offload import STREAMS
from traincast.lowering.stage import stages_of
from traincast.model.blocks.part import Elements
from traincast.model.blocks.share import Share
from traincast.model.dispatch import DISPATCHERS, Dispatch
from traincast.planning.degrees import Degrees
from traincast.planning.execution import Variant
from traincast.planning.pipelines import pipelines_of
from traincast.planning.screen.array_stage import Chunk
from traincast.planning.screen.chunks import ChunkTable, TimedChunk
from traincast.planning.screen.costs import CostTable, Operators
from traincast.planning.screen.flights import Flights
from traincast.planning.screen.members import Member, ShareKey
from traincast.planning.screen.moments import MomentEmitter
from traincast.planning.screen.rates import ShareRates
from traincast.planning.screen.shape import Shape, few_microbatches, shape_of
from traincast.planning.screen.state_times import Sharding, StateSeconds, StateTable
from traincast.planning.screen.transfers import Links, Places
from traincast.planning.space import Space
from traincast.schedules.schedule import usual_schedule
from traincast.simulation.job_step import factors_of, operator_seconds
from traincast.simulation.step import Setting
from traincast.workload.ops import FloatArray
from traincast.workload.words import CostClass, Group, Operation, Phase


class LayoutFamily(Struct):
    """All layouts of one way of execution with so many ranks on a node."""

    variant: Variant
    cluster: Cluster
    shares: dict[ShareKey, int] = field(default_factory=dict)
    members: dict[tuple[int, int], list[Member]] = field(default_factory=dict)
    """By pipeline stages and tensor parallel degree."""
    _taken: list[tuple[dict[ShareKey, int], dict[tuple[int, int], list[Member]]]] = field(default_factory=list)
    """What others have that it has, too."""

    def take(self, other: "LayoutFamily") -> None:
        """Take over the layouts of another one, each once."""
        has = other.shares, other.members
        if has in self._taken:
            return
        self._taken.append(has)
        keys = list(other.shares)
        for place, members in other.members.items():
            kept = dict.fromkeys(self.members.get(place, ()))
            kept |= dict.fromkeys(
                Member(self.shares.setdefault(keys[each.share], len(self.shares)), each.degrees) for each in members
            )
            self.members[place] = list(kept)


def parallel_of(degrees: Degrees, framework: Framework) -> Parallel:
    """Return degrees as a layout of one microbatch, as a framework groups its ranks."""
    values = {name: getattr(degrees, name) for name in Degrees.__struct_fields__}
    return Parallel(**values, folded_experts=framework.folded_experts)


class SpaceTables(Struct):
    """What families of a space have in common."""

    states: dict[tuple[object, ...], StateTable] = field(default_factory=dict)
    """What exchanging the state takes, by ranks on a node and types of the state: else ways of execution are alike."""
    weights: dict[int, dict[tuple[int, int, int, int, int], Elements]] = field(default_factory=dict)
    """Parameters of kinds of virtual stages, by their number and the degrees that split them."""
    numbers: dict[Hashable, int] = field(default_factory=dict)
    """Kinds of virtual stages and what else pipelines consist of, told by numbers."""
    operators: Operators | None = None
    """Times of operators, the same for all ways of execution: their types are part of a call."""
    flights: Flights = field(default_factory=Flights)
    """What pipelines have in flight."""
    networks: NetworkAnswers = field(default_factory=NetworkAnswers)
    """What is known of the links that groups share; simulations of layouts ask the same."""
    alike: dict[Degrees, Parallel] = field(default_factory=dict)
    """Degrees by which ranks share state alike."""
    places: Places | None = None
    """Where groups sit."""
    links: dict[tuple[object, ...], dict[Parallel, Links]] = field(default_factory=dict)
    """Communications of layouts, by ranks on a node and what decides their times."""


class FamilyTables:
    """A family with its tables."""

    def __init__(self, space: Space, setting: Setting, family: LayoutFamily, common: SpaceTables) -> None:
        self.space, self.setting, self.family, self.common = space, setting, family, common
        self.places = common.places = common.places or Places(setting.network, answers=common.networks)
        self.job = self._job(family.members[min(family.members)][0].degrees, usual_schedule(), 1)
        factors = factors_of(self.job, setting)
        self.job = with_factors(self.job, factors)
        self.factors = factors
        self.operators = common.operators or Operators(operator_seconds(self.job, setting.cluster.gpu, factors))
        common.operators = self.operators
        self.expected: dict[TimedChunk, None] = {}
        self.costs = self._costs(gathers=False)
        self.chunks = self._table(self.costs)
        ranks_per_node = family.cluster.ranks_per_node
        of_state = (ranks_per_node, self.job.framework.grad_reduce_bytes, self.job.optimizer)
        self.states = common.states.setdefault(of_state, StateTable(self.links))
        self._messages_s: dict[int, FloatArray] = {}
        self.layers = tuple(blocks_of_layer(self.job, layer) for layer in range(self.job.model.layers))

    def _table(self, costs: CostTable) -> ChunkTable:
        overlap_tp = np.array([share.overlap_tp for share in self.family.shares])
        return ChunkTable(costs, MomentEmitter(self.job, costs.share, self.rates, overlap_tp, {}), self.expected)

    @property
    def _held_share(self) -> float:
        held, sms = DISPATCHERS[self.job.experts.dispatcher].sms, self.setting.cluster.gpu.sms
        return held / (sms - held) if sms and sms > held else 0.0

    @property
    def casts_gathered(self) -> bool:
        """Whether weights are cast in every pass that ranks gather them for."""
        return self.costs.share.execution.scaling is not None

    @cached_property
    def gathering(self) -> ChunkTable:
        """Virtual stages whose weights are gathered, and cast, in every pass."""
        return self._table(self._costs(gathers=True))

    def links(self, parallel: Parallel) -> Links:
        """Return the communications of a layout."""
        if parallel not in self._links:
            factor = self._transfer_factor(parallel.expert_ranks)
            self._links[parallel] = Links(self.places, parallel, self.family.cluster, self._exchanging, factor)
        return self._links[parallel]

    @cached_property
    def _exchanging(self) -> frozenset[Group]:
        """The kinds of groups that do all-to-alls."""
        exchanging = set() if self.job.experts.dispatcher == "allgather" else {Group.EP}
        if self.family.variant.cp_kind == "all_to_all":
            exchanging.add(Group.CP)
        return frozenset(exchanging)

    def _transfer_factor(self, expert_ranks: int) -> Mapping[Group, float]:
        """Return what runs taught of the times of each kind of communication, by how many ranks have all experts."""
        classes = transfer_classes(self.job.experts.dispatcher, expert_ranks, self.family.cluster.ranks_per_node)
        factor = {group: self.factors.factor(name) for group, name in classes.items()}
        return factor | {Group.EP: 0.0} if self.family.variant.ideal else factor

    @cached_property
    def _links(self) -> dict[Parallel, Links]:
        """The communications of layouts that were asked for before, perhaps for other families."""
        ranks_per_node = self.family.cluster.ranks_per_node
        # Of some layouts the experts are in a node, of others across nodes.
        inside, across = (self._transfer_factor(ranks) for ranks in (ranks_per_node, ranks_per_node + 1))
        factors = (*inside.values(), *across.values())
        return self.common.links.setdefault((ranks_per_node, self._exchanging, factors), {})

    def host_s(self, cost_class: CostClass, time_s: float) -> float:
        """Return the seconds of what the host does once in a while."""
        return time_s * self.host_factor(cost_class, Phase.STEP)

    def host_factor(self, cost_class: CostClass, phase: Phase) -> float:
        """Return the factor on what the host does in a pass, with that of its processor on its launches."""
        name = host_class(cost_class)
        slowdown = processor_factor(self.job.framework, self.setting.cluster.gpu, cost_class)
        return slowdown * self.factors.factor(name) * self.factors.factor(in_pass(name, phase))

    def links_of(self, degrees: Degrees) -> Links:
        """Return the communications of a layout with some degrees."""
        return self.links(parallel_of(degrees, self.job.framework))

    def number_of(self, part: Hashable) -> int:
        """Return the number of a kind of virtual stage, or of something else that pipelines consist of."""
        numbers = self.common.numbers
        return numbers.setdefault(part, len(numbers))

    @cached_property
    def host(self) -> Host:
        """What a GPU has of its host."""
        ranks = min(self.family.cluster.ranks_per_node, self.space.request.gpus)
        return host_of(self.setting.cluster.gpu, ranks)

    def state_of(
        self, job: Job, degrees: Degrees, weights_C: Sequence[Elements], shardings: Sequence[Sharding]
    ) -> list[StateSeconds]:
        """Return what the state of virtual stages takes, [C]."""
        return self.states.seconds_of(job, self.alike(degrees), weights_C, shardings)

    def alike(self, degrees: Degrees) -> Parallel:
        """Return degrees by which ranks share state alike: which of them split sequences does not count."""
        known = self.common.alike
        if degrees not in known:
            parallel = parallel_of(degrees, self.job.framework)
            # Where groups of experts are not folded, it does count.
            known[degrees] = replace(parallel, cp=1, dp=degrees.replicas) if parallel.folded_experts else parallel
        return known[degrees]

    @cached_property
    def handover_s(self) -> float:
        """What the host adds to a message that holds its stage back."""
        return self.host_s(CostClass.HANDOVER, self.job.framework.p2p_handover_s)

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

    def shapes(self, pp: int, wanted: Collection[tuple[str, int]] | None = None) -> Iterator[Shape]:
        """Yield every pipeline of that many stages, or those with a schedule and virtual stages that are wanted."""
        members = next((each for (stages, _), each in self.family.members.items() if stages == pp), None)
        if members is None:
            return  # nothing of this family has so many stages
        degrees = members[0].degrees
        for schedule, vpp in pipelines_of(self.space, pp):
            if wanted is not None and (schedule, vpp) not in wanted:
                continue
            try:
                job = few_microbatches(self._job(degrees, schedule, vpp))
                parallel, pairs = job.parallel, job.experts.pairs_passes
                if any(job.decided(name) != on for name, on in self.family.variant.ways):
                    continue  # it has no effect on this pipeline: not with this schedule, say
                if not self.space.recomputation.allows(job, self.family.variant):
                    continue  # the framework refuses it with this schedule
                plan = self.common.flights.plan(job.pipeline.schedule, pp, parallel.vpp, parallel.microbatches, pairs)
                stages = stages_of(job, self.family.cluster.ranks_per_node, self.costs.parts, plan)
                yield shape_of(
                    with_factors(job, self.factors), plan, tuple(Chunk.from_stage(each, self.layers) for each in stages)
                )
            except (InfeasibleError, ConfigError):
                continue

    def _job(self, degrees: Degrees, schedule: str, vpp: int) -> Job:
        """Return a job of the family with one sequence in a microbatch and nothing recomputed.

        Of more microbatches than can be scheduled it has as many as can be: others of its pipeline have fewer.
        """
        request, said = self.space.request, dict.fromkeys((*axes(), "recompute_method", "deduplicated_dispatch"))
        said |= {**self.family.variant.fields(), **asdict(degrees), "micro_batch": 1, "recompute": "none"}
        said |= {"vpp": vpp, "schedule": schedule if degrees.pp > 1 else None}
        if request.model.experts is None:
            said |= dict.fromkeys(("ep", "etp", "moe_dispatcher"))
        if degrees.cp == 1:
            said["cp_kind"] = None
        if self._offloads_parameters(degrees):
            said["zero"] = 3
        else:
            said["offload_parameters"] = None
        if degrees.pp * vpp * (request.global_batch // degrees.dp) > MAX_SLOTS:
            said["global_batch"] = degrees.dp * degrees.pp * max(1, MAX_SLOTS // (degrees.pp**2 * vpp))
        request = replace(request, **{name: value for name, value in said.items() if name in JOB_FIELDS})
        return resolve_job(request, self.setting.cluster)

    def _offloads_parameters(self, degrees: Degrees) -> bool:
        return bool(self.space.request.offload_parameters) and degrees.replicas > 1

    def _costs(self, *, gathers: bool) -> CostTable:
        keys = list(self.family.shares)
        columns: dict[str, Any] = {name: np.array([getattr(key, name) for key in keys]) for name in ShareKey._fields}
        multiple = self.space.request.vocab_multiple or self.job.framework.vocab_multiple
        vocab = -(-self.job.model.vocab // (multiple * columns["tp"])) * multiple * columns["tp"]
        share = rank_share(self.job, self.family.cluster.ranks_per_node)
        gathered_bytes = self.job.sharding.param_gather_bytes if gathers else 0
        dispatch = self._dispatch(share.execution.dispatch, keys)
        # Some dispatcher needs no copies of what arrives.
        padded = share.execution.padded_experts and not self.family.variant.ideal
        share = replace(
            share,
            vocab=vocab,
            sequences=replace(share.sequences, count=columns["micro_batch"], packed_work=columns["packed_work"]),
            execution=replace(
                share.execution,
                gathered_weight_bytes=gathered_bytes,
                dispatch=dispatch,
                padded_experts=padded,
                folded_experts=self.job.framework.folded_experts,
            ),
            **{name: of for name, of in columns.items() if name in Share.__struct_fields__},
        )
        return CostTable(share, len(keys), self.operators)

    def _dispatch(self, dispatch: Dispatch, keys: Sequence[ShareKey]) -> Dispatch:
        """Return how tokens get to their experts: what the busiest ranks take of them differs among shares."""
        request = self.space.request
        if not spreads_tokens(request):
            return dispatch
        tokens = (tokens_exchanged(request, key.tp, key.cp, key.ep, key.etp, key.micro_batch) for key in keys)
        busiest = [busiest_by_routing(request, key.ep, of) for key, of in zip(keys, tokens, strict=True)]
        return replace(dispatch, imbalance=np.array(busiest))

    @cached_property
    def rates(self) -> ShareRates:
        """The seconds of what emitters of the family write."""
        shares = list(self.family.shares)
        degrees = {shares[found.share][:4]: found.degrees for found in chain(*self.family.members.values())}
        sets = {each: number for number, each in enumerate(degrees)}
        which_K = [sets[key[:4]] for key in shares]
        links = tuple(self.links(parallel_of(each, self.job.framework)) for each in degrees.values())
        copies = {stream: rate_of(self.host, stream) for stream in STREAMS}
        return ShareRates(self.operators, links, np.array(which_K), self.host_factor, copies, self._held_share)
