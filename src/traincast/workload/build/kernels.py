"""The operator calls of the parts of a layer, forward and backward.

The backward pass of a matrix product is two products of its own: dgrad turns the gradient of the
output into that of the input, wgrad into that of the weight, which it adds to the gradient buffer.
"""

from dataclasses import dataclass, field, replace

from traincast.workload.calls import OperatorCall

Counted = tuple[OperatorCall, float]
"""A call and how often it runs."""


@dataclass(slots=True)
class Kernels:
    """Collects the calls of both passes; a backward pass lists its calls in no particular order."""

    forward: list[Counted] = field(default_factory=list)
    backward: list[Counted] = field(default_factory=list)
    weight: list[Counted] = field(default_factory=list)
    """Weight gradients."""
    dense_elements: int = 0
    """Elements of the weights that every replica holds."""
    expert_elements: int = 0
    """Elements of the weights of experts."""
    trained_elements: int = 0
    """Of the dense ones, those that are trained."""

    def linear(self, m: int, n: int, k: int, dtype: str, *, trained: bool = True) -> None:
        """Add a product of m tokens with a weight of k inputs and n outputs."""
        self._product(OperatorCall(family="gemm", shape=(m, n, k), dtype=dtype), trained)
        self.dense_elements += n * k
        self.trained_elements += n * k if trained else 0

    def grouped(self, groups: int, m: int, n: int, k: int, dtype: str, *, trained: bool = True) -> None:
        """Add one product for each of several experts; m tokens for all of them together.

        One expert alone is a plain product.
        """
        grouped = OperatorCall(family="grouped_gemm", shape=(m, n, k, groups), dtype=dtype)
        self._product(grouped if groups > 1 else replace(grouped, family="gemm", shape=(m, n, k)), trained)
        self.expert_elements += groups * n * k

    def _product(self, call: OperatorCall, trained: bool) -> None:
        if min(call.shape) <= 0:
            return
        self.forward.append((call, 1))
        self.backward.append((replace(call, direction="dgrad"), 1))
        if trained:
            self.weight.append((replace(call, direction="wgrad"), 1))

    def simple(self, family: str, shape: tuple[int, ...], dtype: str, count: float = 1, **options: str) -> None:
        """Add an operator that has a backward pass of its own and no weight to speak of."""
        self.both(OperatorCall(family=family, shape=shape, dtype=dtype, options=tuple(options.items())), count)

    def both(self, call: OperatorCall, count: float = 1) -> None:
        """Add a call and its backward pass; nothing for an empty shape."""
        if min(call.shape) > 0:
            self.forward.append((call, count))
            self.backward.append((replace(call, direction="backward"), count))

    def alike(self, family: str, shape: tuple[int, ...], dtype: str, count: float = 1) -> None:
        """Add an operator whose backward pass costs what its forward pass does."""
        if min(shape) > 0:
            for calls in (self.forward, self.backward):
                calls.append((OperatorCall(family=family, shape=shape, dtype=dtype), count))
