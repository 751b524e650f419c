"""One operator with its price, for those who ask for it by name."""

from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike

from traincast.diagnostics import Note
from traincast.estimate.operators import (
    OperatorCall,
    OperatorConstants,
    OperatorTime,
    price_operator,
    shipped_constants,
)
from traincast.estimate.operators.calls import BYTES_OF_DTYPE
from traincast.estimate.operators.constants import load_constants
from traincast.hardware.clusters import gpu_named
from traincast.hardware.gpu import Gpu
from traincast.job.operators import OPERATOR_SIZES, operator_shape
from traincast.names import find_name
from traincast.registry import known_name

DEFAULT_GPU = "h100"


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorPrice:
    """An operator on a GPU with its price.

    Parameters
    ----------
    call : OperatorCall
        The operator.
    gpu : str
        Name of the accelerator.
    price : OperatorTime
        Time, bound and explanation.
    assumptions : tuple of Note
        What was not said.
    """

    call: OperatorCall
    gpu: str
    price: OperatorTime
    assumptions: tuple[Note, ...] = ()


def operator_price(
    family: str,
    sizes: Mapping[str, int],
    *,
    gpu: str | PathLike[str] | Gpu | None = None,
    dtype: str = "bf16",
    direction: str = "forward",
    causal: bool = False,
    window: int = 0,
    options: Mapping[str, str] | None = None,
    constants: str | None = None,
) -> OperatorPrice:
    """Return the price of an operator that is described by names.

    Parameters
    ----------
    family : str
        ``gemm``, ``attention``, ``norm``, ...
    sizes : mapping
        Its sizes by name (`traincast.job.operators`).
    gpu : str, path or Gpu, optional
        The accelerator: its name, a cluster file with its ``[gpu]``, or itself; h100, as an assumption, where it is
        not given.
    dtype, direction, causal, window, options
        As of `OperatorCall`.
    constants : str, optional
        File of ``traincast calibrate --gpu``; its constants go before the shipped ones.

    Returns
    -------
    OperatorPrice

    Raises
    ------
    TraincastError
        If a name is unknown, a size is missing or wrong, or the file cannot be read.
    """
    family = known_name("operator family", family, OPERATOR_SIZES)
    call = OperatorCall(
        family=family,
        shape=operator_shape(family, sizes),
        dtype=find_name(dtype, BYTES_OF_DTYPE) or dtype,
        direction=direction,
        causal=causal,
        window=window,
        options=tuple(sorted((options or {}).items())),
    )
    spec = gpu_named(gpu or DEFAULT_GPU)
    known: OperatorConstants = shipped_constants()
    if constants is not None:
        known = known.with_rows(tuple(load_constants(constants)))
    note = Note("gpu-default", f"no GPU was given; taken as {spec.name}")
    return OperatorPrice(
        call=call, gpu=spec.name, price=price_operator(call, spec, known), assumptions=() if gpu else (note,)
    )
