"""Local steps: what an island keeps of the outer optimizer, exchanges with the others, and updates after that.

All ranks of an island exchange what they update, at the same time, each over an equal part of the island's link, with
the rank of every other island that holds the same. Every parameter is exchanged once in H steps: a step has the H-th
part of that on average, be it one exchange or several of fragments of the model.

Sources: PyTorch torchft, torchft/local_sgd.py: what is kept (`original_parameters`, in the memory of the host unless
`backup_device` says otherwise), and that the difference is made of them and fp32 parameters; PrimeIntellect OpenDiLoCo
(arXiv 2407.07852), whose outer optimizer runs on the host.
"""

from collections.abc import Iterator

from msgspec.structs import replace

from traincast.job.job import Job
from traincast.job.optimizer import LocalSteps
from traincast.mechanisms.mechanism import OPTIMIZER, Lasting, Mechanism, Outside, Run, Update
from traincast.mechanisms.rank import RankState, Where
from traincast.model.blocks.part import Kernel
from traincast.model.numbers import Number, rounded

STATE_BYTES = 8
"""Of a parameter: what it was after the last exchange, and the outer momentum, both in fp32."""

GRADIENT_BYTES = 4
"""Of an outer gradient, the difference of two fp32 parameters, from when it is made until it is applied."""

UPDATE_BYTES = 36
"""Moved for each parameter: for the difference it and the one of the last exchange are read and their difference is
written (12); for the update the gradient is read (4), momentum and last parameter are read and written (16), and the
parameter is written (4)."""

COPY_BYTES = 4
"""Of a parameter on its way to the host, and back."""


class LocalTraining(Mechanism):
    """Steps of an island by itself."""

    def lasting(self, rank: RankState) -> Iterator[Lasting]:
        """Return the state of the outer optimizer, and the outer gradients of a fragment."""
        local = rank.job.optimizer.local
        if local is None:
            return
        where = Where.HOST if local.on_host else Where.GPU
        yield Lasting(OPTIMIZER, STATE_BYTES * rank.trained_share, where)
        passing = where if local.on_host or local.overlap else Where.UPDATE
        yield Lasting("outer gradients", GRADIENT_BYTES / local.fragments * rank.trained_share, passing)

    def update(self, job: Job, update: Update) -> Update:
        """Return the update with that of the outer optimizer, on average over the steps, where the GPU does it."""
        local = job.optimizer.local
        if local is None or local.on_host:
            return update
        options = (("bytes_per_parameter", str(UPDATE_BYTES + _cast_bytes(local))),)
        share = rounded(update.parameters / local.steps)
        kernel = Kernel(family="optimizer", shape=(share,), dtype="bf16", options=options)
        return replace(update, runs=(*update.runs, Run(kernel)))

    def outside(self, job: Job, parameters: Number) -> Iterator[Outside]:
        """Return the exchange of outer gradients with the other islands, and what the host does for it."""
        local = job.optimizer.local
        if local is not None:
            # With its part of the link a rank takes as long as an island whose ranks all update as much.
            seconds = local.exchange_s(parameters * job.parallel.world_size) + host_s(local, parameters)
            yield Outside("outer gradients", seconds / local.steps, hidden=local.overlap)


def host_s(local: LocalSteps, parameters: Number) -> Number:
    """Return what it takes the host to get so many parameters, update them and send them back; 0 where the GPU does."""
    link, memory = local.host_link_bytes_per_s, local.host_update_bytes_per_s
    if not local.on_host or link is None or memory is None:
        return 0.0
    return (2 * COPY_BYTES / link + (UPDATE_BYTES + _cast_bytes(local)) / memory) * parameters


def _cast_bytes(local: LocalSteps) -> float:
    """Return what is moved for each parameter to bring a gradient to fewer bits, and back."""
    return 0.0 if local.bits == 32 else 2 * (GRADIENT_BYTES + local.bits / 8)
