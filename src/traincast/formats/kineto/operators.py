"""Find the operators of the host that say what kernels without arguments communicate.

A kernel has the arguments of the ``record_param_comms`` that launched it. Where it has none (pytorch/pytorch issue
131462), it is that of its number (``External id``) or the one around its launch. Messages that were batched
(torch.distributed.batch_isend_irecv) are launched as one kernel when all of them have been recorded, so that it is the
sends and receives recorded on its thread since the last communication; each is then a piece of work of its own, over
the same time.
"""

import numpy as np
from msgspec.structs import replace

from traincast.formats.kineto.communication import operation_of
from traincast.formats.kineto.grammar import PARAM_COMMS
from traincast.formats.kineto.step import RankStep, Task
from traincast.workload.words import Operation


def with_operators(step: RankStep) -> RankStep:
    """Return a step whose communication knows its operators; kernels of several messages are there once for each."""
    known = _Operators(step)
    places, operators = [], []
    for at, found in enumerate(known.of_work()):
        places += [at] * max(len(found), 1)
        operators += found or [-1]
    again = np.array(places, dtype=np.int64)
    return replace(
        step,
        at_G=step.at_G[again],
        task_G=tuple(step.task_G[at] for at in places),
        phase_G=step.phase_G[again],
        call_G=step.call_G[again],
        launch_us_G=step.launch_us_G[again],
        operator_G=np.array(operators, dtype=np.int64),
    )


class _Operators:
    """The operators of a rank's host that record communication."""

    def __init__(self, step: RankStep) -> None:
        self.step, host = step, step.trace.host
        names = [at for at, name in enumerate(step.trace.names) if name == PARAM_COMMS]
        rows = np.flatnonzero(np.isin(host.name_H, names) & (host.communicated_H >= 0))
        self.rows = rows[np.argsort(host.start_us_H[rows], kind="stable")]
        self.start_us, self.stop_us = host.start_us_H[self.rows], host.start_us_H[self.rows] + host.time_us_H[self.rows]
        self.thread = host.thread_H[self.rows]
        self.of_number = {int(host.external_H[row]): int(row) for row in self.rows if host.external_H[row] > 0}
        said = [step.trace.communicated[each] for each in host.communicated_H[self.rows].tolist()]
        self.is_message = np.array(
            [operation_of(str(each.collective)) is Operation.SEND_RECV for each in said], np.bool_
        )

    def of_work(self) -> list[list[int]]:
        """Return the operators of each piece of work; none where it says itself what it does, or nobody does."""
        step, gpu = self.step, self.step.trace.gpu
        found: list[list[int]] = [[] for _ in step.task_G]
        communicates = [at for at, task in enumerate(step.task_G) if task is Task.COMMUNICATION]
        before_us: dict[int, float] = {}
        thread_G = step.thread_G
        for at in sorted(communicates, key=lambda each: (step.launch_us_G[each], each)):
            thread, launch_us = int(thread_G[at]), float(step.launch_us_G[at])
            if gpu.communicated_G[step.at_G[at]] < 0:
                number = int(gpu.external_G[step.at_G[at]])
                found[at] = (
                    [self.of_number[number]]
                    if number in self.of_number
                    else self._near(thread, launch_us, before_us.get(thread, -np.inf))
                )
            before_us[thread] = launch_us
        return found

    def _near(self, thread: int, launch_us: float, before_us: float) -> list[int]:
        """Return the operator around a launch, else the messages recorded since the last one on its thread."""
        own = self.thread == thread
        around = np.flatnonzero(own & (self.start_us <= launch_us) & (launch_us < self.stop_us))
        if len(around):
            return [int(self.rows[around[-1]])]
        batched = own & self.is_message & (self.start_us >= before_us) & (self.stop_us <= launch_us)
        return list(map(int, self.rows[batched]))
