"""What is computed once a step to be logged: the norm of all parameters, and how many gradients are zero.

The host waits for both; what it launches for them grows with the tensors of parameters
(`traincast.lowering.launches.update_launches`). Source: Megatron-LM, megatron/training/utils.py
(calc_params_l2_norm: parameters in 16 bits are copied in fp32 and read again) and megatron/core/optimizer/clip_grads.py
(count_zeros_fp32: gradients of the rank's share are read).
"""

from msgspec.structs import replace

from traincast.job.job import Job
from traincast.mechanisms.mechanism import Mechanism, Run, Update
from traincast.model.blocks.part import Kernel
from traincast.model.numbers import Number

_COPIED = (("inputs", "3"), ("outputs", "2"))
"""Of a parameter in 16 bits: it is read, written in fp32, and read again."""
_READ = (("inputs", "2"), ("outputs", "0"))
"""Of a gradient: it is read in fp32."""


class StepChecks(Mechanism):
    """The checks that a job asks for."""

    def update(self, job: Job, update: Update) -> Update:
        """Return the update with what reads all parameters of a rank, and its share of their gradients."""
        checks, weights = job.kernels.step_checks, update.weights
        read: dict[str, tuple[Number, tuple[tuple[str, str], ...]]] = {
            "params_norm": (weights.dense + weights.experts, _COPIED),
            "zeros_in_grad": (update.parameters, _READ),
        }
        runs = (Run(_kernel(*of)) for name, of in read.items() if name in checks)
        return replace(update, runs=(*update.runs, *runs))


def _kernel(elements: Number, moved: tuple[tuple[str, str], ...]) -> Kernel:
    return Kernel(family="elementwise", shape=(elements, 1), dtype="bf16", options=moved)
