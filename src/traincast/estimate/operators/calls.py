"""Read what a call says: its sizes, its options, and the bytes of its elements."""

from collections.abc import Mapping, Sequence

from traincast.errors import ConfigError, UnknownNameError
from traincast.estimate.operators.contract import OperatorCall
from traincast.registry import known_name

BYTES_OF_DTYPE: Mapping[str, float] = {
    "fp64": 8.0,
    "fp32": 4.0,
    "tf32": 4.0,
    "bf16": 2.0,
    "fp16": 2.0,
    "fp8": 1.0,
    "int8": 1.0,
    "fp8_block": 1.0 + 4 / (128 * 128),
    "mxfp8": 1.0 + 1 / 32,
    "nvfp4": 0.5 + 1 / 16,
    "mxfp4": 0.5 + 1 / 32,
    "fp4": 0.5,
}
"""Bytes per element with its share of the scales: one fp32 per 128 x 128 block (fp8_block, as in DeepSeek-V3,
arXiv 2412.19437), one byte per 32 (mx formats, OCP Microscaling specification 1.0) or 16 values (nvfp4)."""

GRAD_BYTES = 4.0
"""Gradients are kept and accumulated in fp32."""


def element_bytes(dtype: str) -> float:
    """Return the bytes of an element with its share of the scales.

    Raises
    ------
    UnknownNameError
        If there is no such type; the message lists the known ones.
    """
    if dtype not in BYTES_OF_DTYPE:
        raise UnknownNameError("dtype", dtype, BYTES_OF_DTYPE)
    return BYTES_OF_DTYPE[dtype]


def result_bytes(dtype: str) -> float:
    """Return the bytes of an element that a kernel writes: 16 bits where the inputs are narrower."""
    return max(2.0, element_bytes(dtype))


def sizes(call: OperatorCall, *names: str) -> tuple[int, ...]:
    """Return the sizes of a call after checking them.

    Parameters
    ----------
    call : OperatorCall
        The call.
    *names : str
        What its family calls each size.

    Raises
    ------
    ConfigError
        If there are more or fewer sizes, or one is not positive.
    """
    if len(call.shape) != len(names):
        raise ConfigError(f"is {_shown(call.shape)}; {call.family} takes {' x '.join(names)}", "shape")
    for name, size in zip(names, call.shape, strict=True):
        if size < 1:
            raise ConfigError(f"{name} of {call.family} is {size}; it must be at least 1", "shape")
    return call.shape


def direction(call: OperatorCall, *known: str) -> str:
    """Return the direction of a call.

    Raises
    ------
    UnknownNameError
        If its family has no such direction.
    """
    return known_name(f"direction of {call.family}", call.direction, known)


def option(call: OperatorCall, name: str, default: str, known: Sequence[str] = ()) -> str:
    """Return an option of a call.

    Raises
    ------
    UnknownNameError
        If its value is none of the known ones.
    """
    value = dict(call.options).get(name, default)
    return known_name(f"{name} of {call.family}", value, known) if known else value


def number(call: OperatorCall, name: str, default: float) -> float:
    """Return an option of a call as a number that is not negative.

    Raises
    ------
    ConfigError
        If it is none.
    """
    text = dict(call.options).get(name)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise ConfigError(f"is {text!r}; it must be a number, not negative", f"options.{name}")
    return value


def only_options(call: OperatorCall, *names: str) -> None:
    """Refuse an option that the family does not have, lest it is ignored in silence.

    Raises
    ------
    UnknownNameError
        If there is one.
    """
    for name, _ in call.options:
        if name not in names:
            raise UnknownNameError(f"option of {call.family}", name, names)
    if call.causal and "causal" not in names:
        raise ConfigError(f"has no meaning for {call.family}", "causal")
    if call.window and "window" not in names:
        raise ConfigError(f"has no meaning for {call.family}", "window")


def _shown(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape)) or "empty"
