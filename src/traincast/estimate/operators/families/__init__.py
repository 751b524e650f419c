"""Families of operators, a file or a few siblings in a file, and what each must say of itself.

A family (GEMM, attention, norm, ...) says its sizes, directions and options, and turns a call into the `Work` it is:
bytes moved, FLOP, and how the FLOP fall into tiles and waves. It knows nothing of measured efficiencies: the roofline
puts the same few constants per (GPU, family, dtype) on the work of every family. What a call asks for is checked here,
against what its family says, before the family sees it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from traincast.errors import ConfigError, UnknownNameError
from traincast.hardware.dtypes import ELEMENT_TYPES
from traincast.hardware.gpu import Gpu
from traincast.registry import Registry, known_name
from traincast.workload.ops import OperatorCall

FP32_BYTES = 4.0
"""Gradients are kept and accumulated in fp32, and so are the partial results of a split reduction."""

BOTH_WAYS = ("forward", "backward")


class Size(NamedTuple):
    """One size of an operator: its name, and the size it is equal to, or its value, where it is not given."""

    name: str
    like: str | int | None = None
    """None: it must be given."""


class Tiling(Struct, frozen=True, kw_only=True):
    """How a GEMM falls into tiles: `batch` independent ones of m x k by k x n; k is the reduction."""

    batch: float
    m: float
    n: float
    k: float
    rounds: float = 1.0
    """Kernels that follow each other, each with the whole of it."""
    whole_n: bool = False
    """A block computes whole rows of the result, as attention kernels do."""
    depths: tuple[tuple[float, int], ...] = ()
    """Of attention the sizes of heads that make up `n`, each with the GEMMs of a score that it is a side of."""
    ragged: str = ""
    """Side, ``m`` or ``k``, whose size differs from one of the batch to the next, all of which lie in one matrix."""


class Work(Struct, frozen=True, kw_only=True):
    """What an operator does, apart from any GPU."""

    constants: tuple[str, ...]
    """Names that its constants may have, the most special first."""
    flops: float
    bytes_moved: float
    """Bytes read and written once."""
    tiling: Tiling | None = None
    """The GEMM behind the FLOP; None where there is none."""
    compute_dtype: str | None = None
    """Type whose peak the rate is a share of; that of the call by default."""
    bound_dtype: str | None = None
    """Type whose peak no kernel beats, of which the utilisation is said; `compute_dtype` by default."""
    kernels: int = 1
    """Launches that follow each other."""
    efficiency: float = 1.0
    """Factor on the compute rate that the shape alone explains (head sizes that kernels dislike)."""
    aligned: bool = True
    """Rows of all matrices begin at multiples of 16 bytes, so that kernels load whole vectors."""
    coordinates: tuple[float, ...] = ()
    """Where the work stands in a table of measured corrections; empty: in none."""
    terms: tuple[tuple[str, float], ...] = ()
    """More for the explanation: name with its unit, value."""
    parts: tuple[OperatorCall, ...] = ()
    """Operators that it is made of and that follow each other; the other fields then mean nothing."""


def memory_bound(
    *names: str,
    flops: float,
    bytes_moved: float,
    kernels: int = 1,
    coordinates: tuple[float, ...] = (),
) -> Work:
    """Return the work of an operator without a GEMM, which computes in fp32."""
    return Work(
        constants=names,
        flops=flops,
        bytes_moved=bytes_moved,
        compute_dtype="fp32",
        kernels=kernels,
        coordinates=coordinates,
    )


class Family(Struct, frozen=True, kw_only=True):
    """The plug-in: what calls of a family may say, and the work that they are."""

    work: Callable[..., Work]
    """Returns the work of a call; the value of every option is a keyword."""
    sizes: tuple[Size, ...]
    """In the order of a call's shape."""
    drops_batch: bool = False
    """The first size is left out of the shape where it is 1."""
    directions: tuple[str, ...] = ("forward",)
    options: Mapping[str, str | float | tuple[str, ...] | None] = field(default_factory=dict)
    """Name to its choices, the first of them the default; or to its default, any text, or a number that is not
    negative, None where the family works it out."""
    masked: bool = False
    """`OperatorCall.causal` and `OperatorCall.window` mean something."""
    cost_class: Callable[[OperatorCall], str] = lambda _: "memory"
    """The class of work whose factor scales it (`traincast.estimate.factors`)."""
    check: Callable[[OperatorCall, Gpu], None] = lambda *_: None
    """Refuses what a GPU cannot run with a `ConfigError`."""


FAMILIES: Registry[Family] = Registry("operator family", "traincast.estimate.operators.families")


def family(
    name: str,
    *sizes: str | Size,
    **said: Any,  # noqa: ANN401 - the other fields of `Family`
) -> Callable[[Callable[..., Work]], Callable[..., Work]]:
    """Register the family whose work a function returns; `said` are the other fields of `Family`."""

    def enter(work: Callable[..., Work]) -> Callable[..., Work]:
        named = tuple(size if isinstance(size, Size) else Size(size) for size in sizes)
        FAMILIES.register(name)(Family(work=work, sizes=named, **said))
        return work

    return enter


def work_of(call: OperatorCall) -> Work:
    """Return what an operator does, apart from any GPU.

    Raises
    ------
    UnknownNameError
        If the family, its direction, an option or the dtype is unknown; the message lists the known ones.
    ConfigError
        If a size is wrong.
    """
    element_bytes(call.dtype)
    kind = FAMILIES.get(call.family)
    _check_sizes(call, kind)
    _check_options(call, kind)
    way = known_name(f"direction of {call.family}", call.direction, kind.directions)
    if way != call.direction:
        call = replace(call, direction=way)
    return kind.work(call, **{name: _option(call, name, known) for name, known in kind.options.items()})


def operator_shape(name: str, given: Mapping[str, int]) -> tuple[int, ...]:
    """Return the shape of an operator of a family from its named sizes.

    Raises
    ------
    UnknownNameError
        If there is no such family.
    ConfigError
        If a size is missing or has no meaning for the family.
    """
    kind, name = FAMILIES.get(name), known_name(FAMILIES.kind, name, FAMILIES.names())
    names = [size.name for size in kind.sizes]
    foreign = next((each for each in given if each not in names), None)
    if foreign is not None:
        raise ConfigError(f"has no meaning for {name}; its sizes are {', '.join(names)}", foreign)
    found: dict[str, int] = {}
    for size in kind.sizes:
        value = given.get(size.name, found[size.like] if isinstance(size.like, str) else size.like)
        if value is None:
            raise ConfigError(f"is missing; {name} needs {', '.join(names)}", size.name)
        found[size.name] = value
    shape = tuple(found.values())
    return shape[1:] if kind.drops_batch and shape[0] == 1 else shape


def element_bytes(dtype: str) -> float:
    """Return the bytes of an element with its share of the scales.

    Raises
    ------
    UnknownNameError
        If there is no such type; the message lists the known ones.
    """
    if dtype not in ELEMENT_TYPES:
        raise UnknownNameError("dtype", dtype, ELEMENT_TYPES)
    return ELEMENT_TYPES[dtype].bytes


def result_bytes(dtype: str) -> float:
    """Return the bytes of an element that a kernel writes: 16 bits where the inputs are narrower."""
    return max(2.0, element_bytes(dtype))


def _check_sizes(call: OperatorCall, kind: Family) -> None:
    names = [size.name for size in kind.sizes]
    if kind.drops_batch and len(call.shape) != len(names):
        names = names[1:]
    if len(call.shape) != len(names):
        raise ConfigError(f"is {_shown(call.shape)}; {call.family} takes {' x '.join(names)}", "shape")
    for name, size in zip(names, call.shape, strict=True):
        if size < 1:
            raise ConfigError(f"{name} of {call.family} is {size}; it must be at least 1", "shape")


def _check_options(call: OperatorCall, kind: Family) -> None:
    """Refuse what the family does not have, lest it is ignored in silence."""
    for name, _ in call.options:
        if name not in kind.options:
            raise UnknownNameError(f"option of {call.family}", name, kind.options)
    for mask in ("causal", "window"):
        if getattr(call, mask) and not kind.masked:
            raise ConfigError(f"has no meaning for {call.family}", mask)


def _option(call: OperatorCall, name: str, known: str | float | tuple[str, ...] | None) -> str | float | None:
    said = dict(call.options).get(name)
    if isinstance(known, tuple):
        return known[0] if said is None else known_name(f"{name} of {call.family}", said, known)
    if said is None or isinstance(known, str):
        return known if said is None else said
    try:
        value = float(said)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise ConfigError(f"is {said!r}; it must be a number, not negative", f"options.{name}")
    return value


def _shown(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape)) or "empty"
