"""How many weights a rank holds of a layer: those of its matrix products."""

from dataclasses import dataclass

from traincast.workload.build.kernels import Counted
from traincast.workload.build.layer import LayerWork, trains_weights
from traincast.workload.build.slice import Slice


@dataclass(frozen=True, slots=True)
class Weights:
    """Elements that one rank holds."""

    dense: int
    """Replicated over dp (and cp)."""
    expert: int
    """Replicated over edp."""
    trained_dense: int
    trained_expert: int

    def __add__(self, other: "Weights") -> "Weights":
        """Return the sum of two."""
        return Weights(
            self.dense + other.dense,
            self.expert + other.expert,
            self.trained_dense + other.trained_dense,
            self.trained_expert + other.trained_expert,
        )

    def __mul__(self, count: int) -> "Weights":
        """Return so many of them."""
        return Weights(self.dense * count, self.expert * count, self.trained_dense * count, self.trained_expert * count)


NONE = Weights(0, 0, 0, 0)


def layer_weights(part: Slice, work: LayerWork) -> Weights:
    """Return the weights of a layer on one rank; the few of norms and biases are its two norms alone."""
    kernels = work.kernels
    dense, expert = _elements(kernels.forward, "gemm"), _elements(kernels.forward, "grouped_gemm")
    norms = 2 * part.job.model.hidden
    if trains_weights(part):
        return Weights(dense + norms, expert, dense + norms, expert)
    trained = _elements(kernels.weight, "gemm")
    return Weights(dense + norms, expert, trained, 0)


def table_weights(part: Slice, tables: int) -> Weights:
    """Return the weights of so many vocabulary tables (embedding, head) on one rank."""
    elements = tables * (-(-part.job.padded_vocab // part.job.parallel.tp)) * part.job.model.hidden
    return Weights(elements, 0, elements if trains_weights(part) else 0, 0)


def _elements(calls: list[Counted], family: str) -> int:
    """Return the elements of the weights of products: outputs times inputs, for each expert."""
    total = 0.0
    for call, count in calls:
        if call.family == family:
            _, outputs, inputs, groups = (*call.shape, 1) if family == "gemm" else call.shape
            total += count * groups * outputs * inputs
    return round(total)
