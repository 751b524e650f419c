"""What the messages between stages took, without the waiting for the other end.

Letters: D directions (0 forward, 1 backward), Q stages, M microbatches.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

import numpy as np

from traincast.formats.echo.clocks import fused_pairs
from traincast.formats.echo.layout import Layouts, Traced
from traincast.formats.echo.lines import TraceOp
from traincast.formats.echo.vocabulary import MESSAGES
from traincast.workload.ops import FloatArray

_End = tuple[int, bool, int, int]
"""Pipeline, forward, boundary, microbatch: what both ends of a message share."""


@dataclass(slots=True)
class Messages:
    """Both ends of every traced message."""

    traced: Traced
    layouts: Layouts
    _spans: dict[_End, list[float]] = field(init=False, default_factory=dict)
    _sends: list[float] = field(init=False, default_factory=list)
    """Durations of sends that were posted alone: nearly all transfer, for the other end waits."""

    def __post_init__(self) -> None:
        for rank, trace in self.traced.traces.items():
            fused = {index for pair in fused_pairs(trace.ops) for index in pair}
            for index, op in enumerate(trace.ops):
                if op.op in MESSAGES and not op.is_placeholder and op.duration_s is not None:
                    self._spans.setdefault(self._end(op, rank), []).append(op.duration_s)
                    if op.op.startswith("send") and index not in fused:
                        self._sends.append(op.duration_s)

    def transfer_s_DQM(self, rank: int) -> FloatArray:
        """Return the transfers of a rank's pipeline, in seconds; NaN where the trace does not tell.

        The end that came last did not wait, so the shorter of both spans is the transfer. Where only
        one end was traced it is the usual send, where none was it is left to be priced.
        """
        original, target = self.layouts.traced, self.layouts.target
        transfer_s = np.full((2, target.pp, target.microbatches), self._usual_s)
        pipeline = rank % original.ranks_per_stage
        for direction, boundary, microbatch in np.ndindex(transfer_s.shape):
            # Boundaries of a longer pipeline are like the last one that was traced.
            like = min(boundary, max(0, original.pp - 2)), min(microbatch, self.traced.microbatches - 1)
            ends = self._spans.get((pipeline, direction == 0, *like), [])
            if len(ends) == 2:
                transfer_s[direction, boundary, microbatch] = min(ends)
        return transfer_s

    def wait_s(self, ops: Sequence[TraceOp], rank: int) -> float:
        """Return what a rank waited in a message, or in two that were one exchange, in seconds.

        Unknown, and 0, where no send tells what a transfer takes.
        """
        known = [self._spans.get(self._end(op, rank), []) for op in ops]
        transfers_s = [min(ends) if len(ends) == 2 else self._usual_s for ends in known]
        waits_s = [(op.duration_s or 0.0) - transfer_s for op, transfer_s in zip(ops, transfers_s, strict=True)]
        return max(0.0, min(waits_s)) if not np.isnan(waits_s).any() else 0.0

    @property
    def _usual_s(self) -> float:
        return median(self._sends) if self._sends else float("nan")

    def _end(self, op: TraceOp, rank: int) -> _End:
        stage = rank // self.layouts.traced.ranks_per_stage
        forward = op.op.endswith("forward")
        comes = op.op.startswith("recv")
        boundary = stage - 1 if comes == forward else stage
        return rank % self.layouts.traced.ranks_per_stage, forward, boundary, op.batch_id or 0
