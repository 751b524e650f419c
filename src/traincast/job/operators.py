"""What the sizes of each operator are called, for those who ask for one by name."""

from collections.abc import Mapping
from typing import NamedTuple

from traincast.errors import ConfigError
from traincast.registry import known_name


class Size(NamedTuple):
    """One size of an operator.

    Parameters
    ----------
    name : str
        What it is called.
    like : str or int or None
        The size that it is equal to, or its value, where it is not given; None: it must be.
    """

    name: str
    like: str | int | None = None


def _sizes(*names: str) -> tuple[Size, ...]:
    return tuple(Size(name) for name in names)


_ATTENTION = (
    Size("batch", 1),
    Size("queries"),
    Size("keys", "queries"),
    Size("heads"),
    Size("kv_heads", "heads"),
    Size("qk_dim"),
    Size("v_dim", "qk_dim"),
)

OPERATOR_SIZES: Mapping[str, tuple[Size, ...]] = {
    "gemm": (Size("batch", 1), *_sizes("m", "n", "k")),
    "grouped_gemm": _sizes("rows", "n", "k", "groups"),
    "attention": _ATTENTION,
    "unfused_attention": _ATTENTION,
    "norm": _sizes("rows", "width"),
    "softmax": _sizes("rows", "width"),
    "elementwise": _sizes("rows", "width"),
    "activation": _sizes("tokens", "width"),
    "rotary": _sizes("tokens", "heads", "head_dim"),
    "accumulate": _sizes("elements"),
    "cast": _sizes("elements"),
    "copy": _sizes("elements"),
    "embedding": _sizes("tokens", "hidden", "vocabulary"),
    "cross_entropy": _sizes("tokens", "vocabulary"),
    "route": _sizes("tokens", "hidden", "experts", "topk"),
    "permute": _sizes("tokens", "hidden", "topk"),
    "optimizer": _sizes("parameters"),
}
"""Family to its sizes, in the order of a call's shape."""

SIZE_NAMES = tuple(dict.fromkeys(size.name for sizes in OPERATOR_SIZES.values() for size in sizes))
"""Every size there is."""


def operator_shape(family: str, given: Mapping[str, int]) -> tuple[int, ...]:
    """Return the shape of an operator from its named sizes.

    Parameters
    ----------
    family : str
        Name of the family, with ``-`` or ``_``.
    given : mapping
        Size by name.

    Returns
    -------
    tuple of int
        In the order of `OPERATOR_SIZES`; a gemm of one batch has three.

    Raises
    ------
    UnknownNameError
        If there is no such family.
    ConfigError
        If a size is missing or has no meaning for the family.
    """
    family = known_name("operator family", family, OPERATOR_SIZES)
    sizes = OPERATOR_SIZES[family]
    names = [size.name for size in sizes]
    foreign = next((name for name in given if name not in names), None)
    if foreign is not None:
        raise ConfigError(f"has no meaning for {family}; its sizes are {', '.join(names)}", foreign)
    found: dict[str, int] = {}
    for size in sizes:
        default = found[size.like] if isinstance(size.like, str) else size.like
        value = given.get(size.name, default)
        if value is None:
            raise ConfigError(f"is missing; {family} needs {', '.join(names)}", size.name)
        found[size.name] = value
    shape = tuple(found.values())
    return shape[1:] if family == "gemm" and found["batch"] == 1 else shape
