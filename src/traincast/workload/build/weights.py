"""How many weights a rank holds of a layer: those of its matrix products."""

from dataclasses import dataclass

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
    matrices: int = 0
    """Of the dense ones, those of layers' GEMMs: without embedding, head and norms."""

    def __add__(self, other: "Weights") -> "Weights":
        """Return the sum of two."""
        return Weights(
            self.dense + other.dense,
            self.expert + other.expert,
            self.trained_dense + other.trained_dense,
            self.trained_expert + other.trained_expert,
            self.matrices + other.matrices,
        )

    def __mul__(self, count: int) -> "Weights":
        """Return so many of them."""
        return Weights(
            self.dense * count,
            self.expert * count,
            self.trained_dense * count,
            self.trained_expert * count,
            self.matrices * count,
        )


NONE = Weights(0, 0, 0, 0)


def layer_weights(part: Slice, work: LayerWork) -> Weights:
    """Return the weights of a layer on one rank; the few of norms and biases are its two norms alone."""
    kernels, norms = work.kernels, 2 * part.job.model.hidden
    dense = kernels.dense_elements + norms
    if trains_weights(part):
        return Weights(dense, kernels.expert_elements, dense, kernels.expert_elements, kernels.dense_elements)
    return Weights(dense, kernels.expert_elements, kernels.trained_elements, 0, kernels.dense_elements)


def table_weights(part: Slice, tables: int) -> Weights:
    """Return the weights of so many vocabulary tables (embedding, head) on one rank."""
    elements = tables * (-(-part.job.padded_vocab // part.job.parallel.tp)) * part.job.model.hidden
    return Weights(elements, 0, elements if trains_weights(part) else 0, 0)


def projection_weights(part: Slice, count: int) -> Weights:
    """Return the weights that join so many layers that predict further tokens to the model, on one rank."""
    hidden = part.job.model.hidden
    elements = count * (-(-hidden // part.job.parallel.tp) * 2 * hidden + 3 * hidden)
    return Weights(elements, 0, elements if trains_weights(part) else 0, 0)
