"""Element types and how many bytes an element takes."""

from traincast.registry import known_name

DTYPE_BYTES: dict[str, int] = {
    "fp64": 8,
    "fp32": 4,
    "tf32": 4,
    "bf16": 2,
    "fp16": 2,
    "fp8": 1,
    "int8": 1,
}
"""Bytes in memory; tf32 is a way to compute and is kept as fp32."""


def bytes_per_element(dtype: str) -> int:
    """Return the bytes of one element.

    Parameters
    ----------
    dtype : str
        Name of an element type: ``fp32``, ``bf16``.

    Returns
    -------
    int
        Bytes.

    Raises
    ------
    UnknownNameError
        If there is no such type; the message lists the known ones.
    """
    return DTYPE_BYTES[known_name("dtype", dtype, DTYPE_BYTES)]
