"""The peak of memory of the layouts of a block: of each kind of stage what lasts, and the activations in flight.

Letters: K shares, R recomputations, Z ways to shard, J pairs of a share and a way, S kinds of stages, C kinds of
virtual stages, E moments.
"""

from functools import partial

import numpy as np
from msgspec.structs import replace

from traincast.estimate.memory.stage import outside_bytes, workspace_bytes
from traincast.estimate.memory.states import rank_parameters, states
from traincast.job.job import Job
from traincast.mechanisms.gradients import made_as_activations_go
from traincast.mechanisms.rank import RankParameters, RankState
from traincast.model.numbers import Number, added
from traincast.planning.screen.costs import at
from traincast.planning.screen.flights import Moments
from traincast.planning.screen.shape import StageKind
from traincast.planning.screen.tables import BlockTables
from traincast.planning.screen.ways import Rows, Ways
from traincast.workload.ops import FloatArray, distinct

_COLUMNS = 2**12
"""Layouts whose activations are summed together: so few that their arrays stay in a core's cache, and that a library
for matrices gives the product to no further threads."""


class StageBytes:
    """What the kinds of stages of a block keep, whatever shards it."""

    def __init__(self, block: BlockTables) -> None:
        self.block = block
        self.shares = block.filled.costs.shares
        job = block.job
        degrees = [block.of_degrees(each) for each in ("tp", "cp", "dp", "ep")]
        policy = job.memory_policy
        self.outside_K = outside_bytes(policy, *degrees, job.parallel.pp)
        sent: Number = self._column(block.filled.costs.share.residual_bytes) if job.parallel.pp > 1 else 0.0
        kept = policy.buffer_bytes + workspace_bytes(job)
        self.other_K = kept + 4 * sent + np.zeros(len(block.members))
        self.activations = [each * (1 + policy.slack) for each in _activations(block)]
        self.host = _on_host(block)
        """Activations in the memory of the host, of each kind of stage, [S] of [K, R]; None: there are none."""

    def parameters(self, kind: StageKind) -> RankParameters:
        """Return the parameters of a kind of stage, of arrays [K]."""

        def made() -> RankParameters:
            job = self.block.job
            held = (self.block.shape.chunks[each].stage.held for each in kind.held)
            return rank_parameters(job, held, self.block.filled.costs.parts).changed(self._column)

        return self.block.kept("parameters", kind.held, made)

    def _column(self, value: Number) -> FloatArray:
        return at(value, self.block.rows_K, self.shares)


class Peaks:
    """The peaks of a block with one stage of ZeRO."""

    def __init__(self, held: StageBytes, ways: Ways, *, reshard: bool) -> None:
        self.held, block = held, held.block
        self.lasting: list[FloatArray] = []
        """What each kind of stage keeps for the whole step, [J]."""
        self.ended: FloatArray | None = None
        """The most that one has when its step ends, [J], where that adds anything."""
        self.host: list[FloatArray] = []
        """What each kind of stage keeps in the memory of the host for the whole step, [J]; empty: nothing."""
        self.host_bytes = block.filled.host.memory_bytes
        for kind in block.shape.stages:
            made = partial(self._lasting, ways, kind, reshard=reshard)
            lasts, ended, host = block.kept("lasting", kind.held, made, ways.zero, reshard)
            self.lasting.append(lasts)
            self.host.append(host)
            if ended is not None:
                self.ended = ended if self.ended is None else np.maximum(self.ended, ended)
        if not any(each.any() for each in self.host):
            self.host = []

    def _lasting(
        self, ways: Ways, kind: StageKind, *, reshard: bool
    ) -> tuple[FloatArray, FloatArray | None, FloatArray]:
        """Return what a kind of stage keeps, what it has when its step ends, and what the host keeps, each [J]."""
        block = self.held.block
        job = block.job.with_values(zero=ways.zero, reshard_after_forward=reshard)
        several = self._lasting_of(job, ways, kind)
        single = replace(job, parallel=replace(job.parallel, microbatches=1))
        if not made_as_activations_go(single):
            return several
        one_J = block.microbatches_K[ways.share_J] == 1
        whole, ended, host = self._lasting_of(single, ways, kind)
        ends = (several[0] if several[1] is None else several[1], whole if ended is None else ended)
        return np.where(one_J, whole, several[0]), np.where(one_J, ends[1], ends[0]), host

    def _lasting_of(self, job: Job, ways: Ways, kind: StageKind) -> tuple[FloatArray, FloatArray | None, FloatArray]:
        """Return the same of a job with so many microbatches."""
        held, block = self.held, self.held.block
        at_J, shard_J = ways.share_J, ways.shard_J
        ranks_K = block.of_degrees("etp") * block.of_degrees("ep")
        edp_K = block.of_degrees("tp") * block.of_degrees("cp") * block.of_degrees("dp") // ranks_K
        expert_J = np.maximum(1, edp_K[at_J] * shard_J // block.members.replicas_K[at_J])
        shards = (shard_J, expert_J) if ways.zero else (np.ones(1, dtype=np.int64), np.ones(1, dtype=np.int64))
        parts = (block.of_degrees(each)[at_J] for each in ("tp", "etp"))
        found = states(RankState(job, held.parameters(kind).changed(lambda each: each[at_J]), *shards, *parts))
        lasts = added(found.gpu.values()) + held.other_K[at_J]
        whole = np.broadcast_to(lasts + held.outside_K[at_J], at_J.shape)
        update = added(found.update.values())
        ended = whole + update if np.any(update) else None
        return whole, ended, np.broadcast_to(np.float64(found.host), at_J.shape)

    def peak_bytes(self, rows: Rows) -> FloatArray:
        """Return the memory of the stage that needs most, [K, Z, R]."""
        found: FloatArray | None = None
        passing = [each[rows.shares, None, :] for each in self.held.activations]
        lasting = [rows.of_pairs(each) for each in self.lasting]
        for number in _deciding(passing, lasting):
            one = passing[number] + lasting[number]
            found = one if found is None else np.maximum(found, one, out=found)
        if found is None:
            raise ValueError("a pipeline has no stages")
        if self.ended is not None:
            np.maximum(found, rows.of_pairs(self.ended), out=found)
        return found if self.held.host is None and not self.host else self._in_host(found, rows)

    def _in_host(self, peak_bytes: FloatArray, rows: Rows) -> FloatArray:
        """Return the peaks, without end where the memory of the host has no room for what is offloaded."""
        room = np.ones(peak_bytes.shape, dtype=np.bool_)
        for number in range(len(self.lasting)):
            kept: FloatArray | float = 0.0 if self.held.host is None else self.held.host[number][rows.shares, None, :]
            lasts = rows.of_pairs(self.host[number]) if self.host else 0.0
            room &= kept + lasts <= self.host_bytes
        found: FloatArray = np.where(room, peak_bytes, np.inf)
        return found


def _deciding(passing: list[FloatArray], lasting: list[FloatArray]) -> list[int]:
    """Return the kinds of stages of which one needs most in every layout."""
    kept: list[int] = []
    order = sorted(range(len(passing)), key=lambda each: -float(passing[each].sum()))
    for each in order:
        if not any(
            (passing[each] <= passing[other]).all() and (lasting[each] <= lasting[other]).all() for other in kept
        ):
            kept.append(each)
    return kept


def _activations(block: BlockTables) -> list[FloatArray]:
    """Return the activations of each kind of stage at their peak, [S] of [K, R]."""
    chunks = block.sizes_C
    saved_CKR = np.stack([each.saved_bytes for each in chunks])
    none = np.zeros_like(saved_CKR[0])
    # What passes in each pass of each kind of virtual stage: nothing with weight gradients.
    passing = [kind for each in chunks for kind in (none, each.backward_bytes, each.forward_bytes)]
    return _in_flight(block, saved_CKR, np.stack(passing))


def _on_host(block: BlockTables) -> list[FloatArray] | None:
    """Return the activations of each kind of stage in the memory of the host at their peak, likewise; None: none."""
    saved_CKR = np.stack([each.host_bytes for each in block.sizes_C])
    if not saved_CKR.any():
        return None
    return _in_flight(block, saved_CKR, np.zeros((3 * len(saved_CKR), *saved_CKR.shape[1:])))


def _in_flight(block: BlockTables, saved_CKR: FloatArray, passing_XKR: FloatArray) -> list[FloatArray]:
    """Return the most of each kind of stage that microbatches save, with what passes, [S] of [K, R]."""
    parallel, schedule, pairs = block.job.parallel, block.job.pipeline.schedule, block.job.experts.pairs_passes
    flights = block.filled.common.flights
    found = [np.zeros(saved_CKR.shape[1:]) for _ in block.shape.stages]
    alike: dict[tuple[Moments, ...], list[int]] = {}
    counts_K = block.in_pipeline_K
    for count in distinct(counts_K).tolist():
        kind_Q, kind_P = block.shape.kind_Q, block.shape.kind_P
        kinds = flights.moments(schedule, parallel.pp, parallel.vpp, count, kind_Q, kind_P, pairs)
        # The same moments stand for all numbers of microbatches from a few on.
        alike.setdefault(kinds, []).append(count)
    for kinds, counts in alike.items():
        at_K = np.flatnonzero(np.isin(counts_K, counts))
        for number, moments in enumerate(kinds):
            found[number][at_K] = _most(moments, saved_CKR[:, at_K], passing_XKR[:, at_K])
    return found


def _most(moments: Moments, saved_CKR: FloatArray, passing_XKR: FloatArray) -> FloatArray:
    """Return the largest sum of activations over some moments."""
    saved, passing = saved_CKR.reshape(len(saved_CKR), -1), passing_XKR.reshape(len(passing_XKR), -1)
    rows_E, most = 3 * moments.kind_E + moments.forward_E + 1, np.empty(saved.shape[1])
    for begin in range(0, len(most), _COLUMNS):
        columns = slice(begin, begin + _COLUMNS)
        sums = moments.count_EA @ saved[:, columns]
        sums += passing[rows_E, columns]
        sums.max(axis=0, out=most[columns])
    return most.reshape(saved_CKR.shape[1:])
