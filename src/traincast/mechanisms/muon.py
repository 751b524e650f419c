"""Muon: one moment, and Newton-Schulz steps that make the update of every hidden matrix orthogonal.

A step on an m x n matrix X, m <= n, is ``A = X X'``, ``B = b A + c A A``, ``X = a X + B X``: 4 m^2 n + 2 m^3 FLOP in
bf16. Adam updates what is not such a matrix: embedding, head, norms, biases. Sources: Jordan et al. 2024, "Muon: an
optimizer for hidden layers in neural networks"; Megatron-LM, megatron/core/optimizer/emerging_optimizers.py
(TensorParallelMuon), layer_sharded_muon.py and layer_wise_optimizer.py; Liu et al. 2025, arXiv 2502.16982, section 2.3
(matrices that shards cut are gathered whole, in bf16); microsoft/dion, dion/muon.py (matrices of sharded parameters go
to one rank each and back, in bf16).
"""

from collections.abc import Iterator
from typing import NamedTuple

from msgspec.structs import replace

from traincast.job.job import Job
from traincast.job.optimizer import MOMENT_TYPES, Muon
from traincast.mechanisms.layers import most
from traincast.mechanisms.mechanism import OPTIMIZER, Lasting, Mechanism, Run, Update
from traincast.mechanisms.rank import RankState, Where
from traincast.model.blocks.part import Elements, Exchange, Gemm, Kernel, Matrix
from traincast.model.numbers import Number, added, anywhere, ceil_div, choose, larger, rounded, smaller

MOMENTUM_BYTES, SENT_BYTES, WORKING_BYTES = 4, 2, 2
"""Of an element: its momentum, what shards of parameters exchange of it, and the type of Newton-Schulz steps. Tensor
parallel ranks exchange it as it is kept (Megatron-LM, megatron/core/optimizer/layer_sharded_a2a.py)."""

MOVED_BYTES = 46
"""For each parameter apart from the steps. The gradient is read (4), momentum read and written (8), normalized into
bf16 (4 for the norm, 4 read, 2 written), the update cast back (2 and 4), applied to the main parameter (4, and 4 read
and written), and that cast to what GEMMs read (4 and 2)."""


class SharedMatrices(NamedTuple):
    """Matrices whose state the same number of ranks share."""

    matrices: tuple[Matrix, ...]
    shards: Number
    tp: Number
    """Ranks that have a part of each of them that is split."""
    share_group: str
    """Who shares their state, as exchanges name it."""
    tp_group: str

    @property
    def elements(self) -> Number:
        """Elements of all on one tensor parallel rank."""
        return added(_size(each) * each.count for each in self.matrices)

    @property
    def busiest(self) -> Number:
        """Elements of the rank that owns most, whole matrices dealt out by size, the largest first.

        That is no less than the mean, and than what one owner has at least of the matrices of one size.
        """
        most: Number = self.elements / self.shards
        for each in self.matrices:
            most = larger(most, ceil_div(each.count, self.shards) * _size(each))
        return most


class NewtonSchulz(Mechanism):
    """Muon, as far as it is not Adam."""

    def lasting(self, rank: RankState) -> Iterator[Lasting]:
        """Return the second moment that is spared, what the rank with most has more, and what the steps take."""
        job, muon = rank.job, rank.job.optimizer.muon
        if muon is None:
            return
        groups = _groups(job, rank.held.total, rank.dense_shards, rank.expert_shards, rank.tp, rank.expert_tp)
        main = job.optimizer.main_parameter_bytes(job.precision.dtype, job.sharding.param_gather_bytes)
        for each in groups:
            mean = each.elements / each.shards
            yield Lasting(OPTIMIZER, -MOMENT_TYPES[job.optimizer.exp_avg_sq] * mean)
            if muon.owned and not rank.shards_parameters:
                yield Lasting(OPTIMIZER, (MOMENTUM_BYTES + main) * (each.busiest - mean))
            passing = most(_passing(muon, each, matrix) for matrix in each.matrices)
            yield Lasting("Newton-Schulz steps", passing, Where.UPDATE)

    def update(self, job: Job, update: Update) -> Update:
        """Return the update with that of all hidden matrices."""
        muon, parallel = job.optimizer.muon, job.parallel
        if muon is None:
            return update
        shards: tuple[Number, Number] = (1, 1)
        if job.sharding.zero:
            shards = job.sharing, larger(1, parallel.edp * job.sharing // parallel.replicas)
        runs, exchanges, own = list(update.runs), list(update.exchanges), 0 * update.parameters
        for each in _groups(job, update.weights, *shards, parallel.tp, parallel.expert_tp):
            found = _GroupUpdate(job, muon, each)
            runs += found.runs()
            exchanges += found.exchanges()
            own = own + each.elements / each.shards
        left = rounded(larger(0, update.parameters - own))
        return replace(update, parameters=left, runs=tuple(runs), exchanges=tuple(exchanges))


class _GroupUpdate:
    """The update of a group of matrices on one rank."""

    def __init__(self, job: Job, muon: Muon, group: SharedMatrices) -> None:
        self.muon, self.group = muon, group
        self.elements, self.busiest = group.elements, group.busiest
        self.gathers = job.sharding.zero == 3
        """Whether ranks have a part of each matrix, not of all of them."""

    def count(self, matrix: Matrix) -> Number:
        """Return how many matrices of a kind a rank works on, on average over the kinds."""
        group, all_of_them = self.group, matrix.count
        if self.muon.owned:
            return all_of_them * self.busiest / larger(1, self.elements)
        if self.gathers:
            return all_of_them
        # One more than its share, as shards begin and end inside of matrices.
        matrices = larger(1, added(each.count for each in group.matrices))
        return smaller(all_of_them, all_of_them / group.shards + choose(group.shards > 1, all_of_them / matrices, 0))

    def runs(self) -> Iterator[Run]:
        """Yield the GEMMs of all steps, and what moves memory alone."""
        group, muon = self.group, self.muon
        for each in group.matrices:
            m, n = _work(muon, group, each)
            # What the ranks of a tensor parallel group work on together is dealt out to them.
            homes = group.tp if muon.tp_mode == "layer_sharded" and each.split else 1
            count = muon.steps * self.count(each) / homes
            for rows, columns, inner in ((m, m, n), (m, m, m), (m, n, m)):
                yield Run(Gemm(m=rows, n=columns, k=inner, dtype="bf16"), count)
        moved = (("bytes_per_parameter", str(MOVED_BYTES)),)
        own = self.busiest if muon.owned and not self.gathers else self.elements / group.shards
        yield Run(Kernel(family="optimizer", shape=(rounded(own),), dtype="bf16", options=moved))

    def exchanges(self) -> Iterator[Exchange]:
        """Yield what brings matrices together, and their updates back."""
        group, muon = self.group, self.muon
        if muon.owned and self.gathers:
            own_bytes = rounded(SENT_BYTES * self.elements / group.shards)
            yield Exchange(group=group.share_group, operation="all_to_all", size_bytes=own_bytes, count=2)
        elif not muon.owned:
            gathered = added(self.count(each) * _size(each) for each in group.matrices)
            cut = choose(group.shards > 1, gathered, 0)
            yield Exchange(
                group=group.share_group, operation="all_gather", size_bytes=rounded(SENT_BYTES * cut), count=1
            )
        for each in group.matrices:
            if each.split:
                yield from self._over_tp(each)

    def _over_tp(self, matrix: Matrix) -> Iterator[Exchange]:
        """Yield what tensor parallel ranks exchange of the matrices of a kind; nothing where there is one."""
        group, mode, count = self.group, self.muon.tp_mode, self.count(matrix)
        several, own_bytes = group.tp > 1, MOMENTUM_BYTES * _size(matrix)
        if mode == "duplicated":
            size = rounded(choose(several, own_bytes * group.tp, 0))
            yield Exchange(group=group.tp_group, operation="all_gather", size_bytes=size, count=count)
        elif mode == "layer_sharded":
            size = rounded(choose(several, own_bytes, 0))
            yield Exchange(group=group.tp_group, operation="all_to_all", size_bytes=size, count=2 * count)
        elif mode == "distributed":
            m, _ = _work(self.muon, group, matrix)
            size = rounded(choose(several, WORKING_BYTES * m * m, 0))
            yield Exchange(group=group.tp_group, operation="all_reduce", size_bytes=size, count=self.muon.steps * count)


def _groups(
    job: Job, weights: Elements, dense_shards: Number, expert_shards: Number, tp: Number, expert_tp: Number
) -> tuple[SharedMatrices, ...]:
    """Return the hidden matrices that are trained, dense ones and experts', where there are any."""
    matrices = [each for each in weights.shapes if each.trained and each.part != "head"]
    dense, experts = (tuple(each for each in matrices if each.expert is kind) for kind in (False, True))
    hybrid = job.sharding.zero > 0 and anywhere(job.parallel.replicas - job.sharing)
    found = (
        SharedMatrices(dense, dense_shards, tp, "shard" if hybrid else "dp", "tp"),
        SharedMatrices(experts, expert_shards, expert_tp, "edp", "etp"),
    )
    return tuple(each for each in found if each.matrices)


def _size(matrix: Matrix) -> Number:
    return matrix.rows * matrix.columns


def _work(muon: Muon, group: SharedMatrices, matrix: Matrix) -> tuple[Number, Number]:
    """Return the sides m and n of what Newton-Schulz steps work on, of which they multiply m x m.

    Where tensor parallel ranks multiply their parts of one matrix, m is the side that is not split.
    """
    rows, columns = matrix.rows, matrix.columns
    if muon.tp_mode == "distributed" and matrix.split:
        sides = (columns, rows) if matrix.split == "outputs" else (rows, columns)
        alone = group.tp == 1
        return choose(alone, smaller(*sides), sides[0]), choose(alone, larger(*sides), sides[1])
    if muon.tp_mode in ("duplicated", "layer_sharded") and matrix.split:
        rows = rows * (group.tp if matrix.split == "outputs" else 1)
        columns = columns * (group.tp if matrix.split == "inputs" else 1)
    return smaller(rows, columns), larger(rows, columns)


def _passing(muon: Muon, group: SharedMatrices, matrix: Matrix) -> Number:
    """Return the bytes of one matrix while it is worked on: X twice and A twice in bf16, and the update in fp32."""
    m, n = _work(muon, group, matrix)
    return WORKING_BYTES * 2 * (m * n + m * m) + MOMENTUM_BYTES * m * n
