"""What follows what on a rank of a straggler trace, and which of its operations meet those of other ranks.

* Computations run in the order in which they began; messages of a type, and the data parallel collectives, run in
  order on queues of their own.
* A computation waits for the receive of its own; a send follows its computation.
* What begins when another operation of its rank has just ended waited for that one: messages are launched after
  whatever the framework let them wait for (in 1F1B a receive of the forward pass after a backward computation), and the
  time until then is not a pause of the host, because it passes sooner where a peer is faster. The study instead lets a
  receive be launched by the computation of its pass before its own, and what is left becomes a pause.
* The first forward computation of a model chunk waits for its parameters. Where gradients are reduced alongside the
  backward pass, each reduce-scatter follows the last backward computation of its chunk; else it follows that pass.
* After the last computation: garbage collection, gradients of layernorms, of the embeddings (first and last stage),
  gradients that are not reduced before, the norm of all gradients (all ranks meet there), the optimizer.

Source: the dependency model of the study, analyzer/dependency_model.py of ByteDance-Seed/StragglerAnalysis; what a
send or receive without a partner is (the ends of the model, with virtual stages): there too.

Letters: L operations of a rank in a step, E edges.
"""

import numpy as np
from msgspec import Struct

from traincast.errors import FormatError
from traincast.formats.straggler_st.grammar import AFTER, COMPUTE, MESSAGES, SHARDED, TYPES, Table
from traincast.workload.ops import FloatArray, IntArray

_TYPE = {name: index for index, name in enumerate(TYPES)}
_CLOCKS_S = 5e-5
"""What the clocks of ranks may differ by where times are compared."""
_QUEUE_OF_COMPUTE, _QUEUE_AFTER, _QUEUE_SHARDED, _QUEUE_MESSAGES = 0, 1, 2, 3


class RankOrder(Struct, frozen=True):
    """A rank's operations in order, with what each follows and meets; times as the trace has them."""

    rows: Table
    queue_L: IntArray
    edge_src_E: IntArray
    edge_dst_E: IntArray
    start_s_L: FloatArray
    end_s_L: FloatArray
    partner_L: IntArray
    """Number of a message among those of its type that have a partner; -1 for none."""


def order_of(rows: Table, stages: int, chunks: int) -> RankOrder:
    """Return the order of one rank's operations of one step.

    Raises
    ------
    FormatError
        If there is no forward or backward computation, or messages do not fit the computations.
    """
    place_of = np.array([AFTER.index(name) + 1 if name in AFTER else 0 for name in TYPES])
    after_N = place_of[rows.optype_N]
    begins_N = np.where(after_N > 0, 0.0, rows.start_s_N)
    rows = rows.where(np.lexsort((rows.optype_N, rows.columns["seq_id"], begins_N, after_N)))
    stage = int(rows.columns["stage"][0])
    found = _Rank(rows, stage, stages, chunks)
    found.queue_by_type()
    found.messages()
    found.parameters()
    found.ending()
    found.launches(*found.ordered_times())
    start_s_L, end_s_L = found.ordered_times()
    return RankOrder(
        rows,
        found.queue_L,
        np.array(found.source, dtype=np.int64),
        np.array(found.target, dtype=np.int64),
        start_s_L,
        end_s_L,
        found.partner_L,
    )


class _Rank:
    """The order of a rank while it is found."""

    def __init__(self, rows: Table, stage: int, stages: int, chunks: int) -> None:
        self.rows, self.stage, self.stages, self.chunks = rows, stage, stages, chunks
        self.queue_L = np.full(len(rows), -1, dtype=np.int64)
        self.partner_L = np.full(len(rows), -1, dtype=np.int64)
        self.source: list[int] = []
        self.target: list[int] = []
        self.end_s_L = rows.start_s_N + rows.duration_s_N
        self.passes = {word: self.operations(f"{word}-compute") for word in COMPUTE.values()}
        for word, at in self.passes.items():
            if not len(at):
                text = f"rank {rows.columns['rank'][0]} has no {word}-compute in step {rows.columns['step'][0]}"
                raise FormatError(text, rows.path, int(rows.line_N[0]))

    def operations(self, *types: str) -> IntArray:
        """Return the operations of some types, in order."""
        return np.flatnonzero(np.isin(self.rows.optype_N, [_TYPE[each] for each in types]))

    def edge(self, source: int, target: int) -> None:
        self.source.append(int(source))
        self.target.append(int(target))

    def queue_by_type(self) -> None:
        self.queue_L[self.operations(*COMPUTE)] = _QUEUE_OF_COMPUTE
        self.queue_L[self.operations(*AFTER)] = _QUEUE_AFTER
        self.queue_L[self.operations(*SHARDED)] = _QUEUE_SHARDED
        for number, name in enumerate(MESSAGES):
            self.queue_L[self.operations(name)] = _QUEUE_MESSAGES + number

    def messages(self) -> None:
        """Match each message with the computation that makes or needs it, and count those with a partner."""
        for name in MESSAGES:
            word, way = name.split("-")
            computed, at = self.passes[word], self.operations(name)
            at, computation = self._matched(at, computed, way)
            for op, index in zip(at.tolist(), computation.tolist(), strict=True):
                if way == "send":
                    self.edge(computed[index], op)
                else:
                    self.edge(op, computed[index])
            held = np.array([self._has_partner(word, way, int(computed[index])) for index in computation.tolist()])
            partners = at[held.astype(bool)] if len(at) else at
            self.partner_L[partners] = np.arange(len(partners))

    def _matched(self, at: IntArray, computed: IntArray, way: str) -> tuple[IntArray, IntArray]:
        """Return the messages that belong to a computation, and the number of theirs among those of their pass."""
        if not len(at):
            return at, at
        if way == "recv":
            at = at[self.rows.start_s_N[at] <= self.rows.start_s_N[computed].max() + _CLOCKS_S]
        else:
            at = at[self.end_s_L[at] >= self.end_s_L[computed].min() - _CLOCKS_S]
        lacking = len(computed) - len(at)
        if lacking not in (0, 1) or (lacking and self.stage not in (0, self.stages - 1)):
            name = TYPES[int(self.rows.optype_N[at[0]])] if len(at) else way
            text = (
                f"rank {self.rows.columns['rank'][0]} has {len(at)} {name} for {len(computed)} computations in step "
                f"{self.rows.columns['step'][0]}"
            )
            raise FormatError(text, self.rows.path, int(self.rows.line_N[0]))
        # At the ends of the model the first receive, or the last send, may not have been recorded.
        return at, np.arange(len(at)) + (lacking if way == "recv" else 0)

    def _has_partner(self, word: str, way: str, computation: int) -> bool:
        """Say whether a message of a computation goes over the end of a stage, and not of the model."""
        chunk = max(int(self.rows.columns["mc"][computation]), 0) * self.stages + self.stage
        peer = chunk + (1 if (word == "forward") == (way == "send") else -1)
        return 0 <= peer < self.stages * self.chunks

    def parameters(self) -> None:
        """Let the first forward computation of a chunk wait for its parameters."""
        chunk_L = self.rows.columns["mc"]
        for chunk, op in {int(chunk_L[op]): op for op in self.operations("params-all-gather").tolist()}.items():
            needing = [each for each in self.passes["forward"].tolist() if chunk_L[each] == chunk]
            if needing:
                self.edge(op, needing[0])

    def ending(self) -> None:
        """Let what ends the step follow its last computation."""
        compute = self.operations(*COMPUTE)
        last = int(compute[np.argmax(self.end_s_L[compute])])
        reduced, after = self.operations("grads-reduce-scatter").tolist(), self.operations(*AFTER)
        overlapped = len(self.operations("separate-grads-all-reduce")) > 0
        chain = after.tolist()
        if overlapped:
            chunk_L = self.rows.columns["mc"]
            for op in reduced:
                own = [each for each in self.passes["backward"].tolist() if chunk_L[each] == chunk_L[op]]
                self.edge(own[-1] if own else last, op)
        else:
            norm = TYPES.index("optimizer-clip-main-grad")
            first = [op for op in chain if self.rows.optype_N[op] < norm]
            chain = first + reduced + chain[len(first) :]
        before = last
        waits = TYPES.index("layernorm-grads-all-reduce")
        for op in chain:
            self.edge(before, op)
            if overlapped and reduced and self.rows.optype_N[op] == waits:
                self.edge(reduced[-1], op)
            before = op

    def launches(self, start_s_L: FloatArray, end_s_L: FloatArray) -> None:
        """Let what has nothing to wait for until it begins wait for the operation of its rank that ended last before.

        Takes begins and ends in the order that is known so far, [L].
        """
        known_s_L = np.full(len(start_s_L), -np.inf)
        source, target = self._all_edges()
        np.maximum.at(known_s_L, target, end_s_L[source])
        # What takes no longer than clocks differ does not come before anything for sure.
        lasting = np.flatnonzero(end_s_L - start_s_L > 2 * _CLOCKS_S)
        by_end = lasting[np.argsort(end_s_L[lasting], kind="stable")]
        before_L = np.searchsorted(end_s_L[by_end], start_s_L + _CLOCKS_S, side="right") - 1
        for op in np.flatnonzero((start_s_L > known_s_L + _CLOCKS_S) & (before_L >= 0)).tolist():
            last = int(by_end[before_L[op]])
            if last != op and end_s_L[last] > known_s_L[op]:
                self.edge(last, op)

    def _all_edges(self) -> tuple[IntArray, IntArray]:
        """Return what follows what, by edges and by queues."""
        pairs = [(np.array(self.source, dtype=np.int64), np.array(self.target, dtype=np.int64))]
        for queue in np.unique(self.queue_L).tolist():
            of_queue = np.flatnonzero(self.queue_L == queue)
            pairs.append((of_queue[:-1], of_queue[1:]))
        return np.concatenate([each for each, _ in pairs]), np.concatenate([each for _, each in pairs])

    def ordered_times(self) -> tuple[FloatArray, FloatArray]:
        """Return begins and ends in which nothing begins before what it follows has ended, [L].

        Clocks and the rounding of times to 32 bits make some begin a little earlier than that; they begin then.
        """
        start_s_L, end_s_L = self.rows.start_s_N.copy(), self.end_s_L.copy()
        followers: list[list[int]] = [[] for _ in range(len(self.rows))]
        waits = [0] * len(self.rows)
        for source, target in zip(*(each.tolist() for each in self._all_edges()), strict=True):
            followers[source].append(target)
            waits[target] += 1
        free = [op for op in range(len(self.rows)) if not waits[op]]
        done = 0
        while free:
            op = free.pop()
            done += 1
            end_s_L[op] = max(end_s_L[op], start_s_L[op])
            for follower in followers[op]:
                start_s_L[follower] = max(start_s_L[follower], end_s_L[op])
                waits[follower] -= 1
                if not waits[follower]:
                    free.append(follower)
        if done < len(self.rows):
            text = f"operations of rank {self.rows.columns['rank'][0]} follow each other in a circle"
            raise FormatError(text, self.rows.path, int(self.rows.line_N[0]))
        return start_s_L, end_s_L
