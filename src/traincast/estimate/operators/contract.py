"""What is asked of an operator's price, and what the answer says.

A family (GEMM, attention, norm, ...) is a function from a call to the `Work` it is: bytes
moved, FLOP, and how the FLOP fall into tiles and waves. It knows nothing of measured
efficiencies: `roofline` puts the same few constants per (GPU, family, dtype) on the work of
every family. That is level 1, which explains itself; level 0 corrects it where the same GPU
and dtype were measured near the shape (see `corrections`).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from traincast.registry import Registry
from traincast.workload.calls import OperatorCall

__all__ = ["FAMILIES", "Family", "FloatArray", "OperatorCall", "OperatorTime", "Tiling", "Work"]

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorTime:
    """The price of an operator and why.

    Parameters
    ----------
    time_s : float
        Seconds on the device; what the host needs to launch it is not in it.
    flops : float
        FLOP that the result needs (causal attention: half).
    bytes_moved : float
        Least traffic with the GPU's memory.
    bound : str
        ``compute``, ``memory`` or ``latency``: which term is the largest.
    utilisation : float
        Share of the binding peak (FLOP/s or bytes/s) that is reached.
    source : str
        Where the constants come from.
    confidence : str
        ``high``, ``medium`` or ``low``.
    terms : tuple of (str, float)
        The explanation: name with its unit, value.
    """

    time_s: float
    flops: float
    bytes_moved: float
    bound: str
    utilisation: float
    source: str
    confidence: str
    terms: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiling:
    """How a matrix product falls into tiles.

    Parameters
    ----------
    batch, m, n, k : float
        ``batch`` independent products of ``m x k`` by ``k x n``; k is the reduction.
    whole_n : bool
        A block computes whole rows of the result, as attention kernels do.
    """

    batch: float
    m: float
    n: float
    k: float
    whole_n: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What an operator does, apart from any GPU.

    Parameters
    ----------
    constants : tuple of str
        Names that its constants may have, the most special first.
    flops : float
        FLOP.
    bytes_moved : float
        Bytes read and written once.
    tiling : Tiling, optional
        The product behind the FLOP; None where there is none.
    compute_dtype : str, optional
        Whose peak applies; that of the call by default.
    kernels : int
        Launches that follow each other.
    efficiency : float
        Factor on the compute rate that the shape alone explains (head sizes kernels dislike).
    aligned : bool
        Rows of all matrices begin at multiples of 16 bytes, so that kernels load whole vectors.
    coordinates : tuple of float
        Where the work stands in a table of measured corrections; empty: in none.
    terms : tuple of (str, float)
        More for the explanation.
    parts : tuple of OperatorCall
        Operators that it is made of and that follow each other; the other fields then mean nothing.
    """

    constants: tuple[str, ...]
    flops: float
    bytes_moved: float
    tiling: Tiling | None = None
    compute_dtype: str | None = None
    kernels: int = 1
    efficiency: float = 1.0
    aligned: bool = True
    coordinates: tuple[float, ...] = ()
    terms: tuple[tuple[str, float], ...] = ()
    parts: tuple[OperatorCall, ...] = ()


Family = Callable[[OperatorCall], Work]
"""The plug-in: the work of a call."""

FAMILIES: Registry[Family] = Registry("operator family", "traincast.estimate.operators")
