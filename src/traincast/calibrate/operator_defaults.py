"""Constants for GPUs that were not measured: the medians over those that were."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from traincast.estimate.operators.constants import ANY, FamilyConstants, OperatorConstants
from traincast.estimate.operators.corrections import Correction
from traincast.hardware.gpu import Gpu

_NUMBERS = ("compute", "memory", "floor_s", "k_fill", "wave", "edge", "unhidden", "unaligned", "event_s")


def defaults(rows: Sequence[FamilyConstants]) -> Iterator[FamilyConstants]:
    """Yield constants for all GPUs, per family and element type.

    Parameters
    ----------
    rows : sequence of FamilyConstants
        Those of the measured GPUs.

    Yields
    ------
    FamilyConstants
        Of bf16 once more for every other element type.
    """
    for family, dtype in sorted({(row.family, row.dtype) for row in rows}):
        of = [row for row in rows if (row.family, row.dtype) == (family, dtype)]
        medians: dict[str, Any] = {name: float(np.median([getattr(row, name) for row in of])) for name in _NUMBERS}
        source = f"median of {', '.join(row.gpu for row in of)}"
        yield FamilyConstants(gpu=ANY, family=family, dtype=dtype, source=source, **medians)
        if dtype == "bf16":
            yield FamilyConstants(gpu=ANY, family=family, dtype=ANY, source=source, **medians)


def without_gpu(constants: OperatorConstants, gpu: Gpu) -> OperatorConstants:
    """Return constants as they would be had a GPU never been measured.

    Its rows and corrections are gone, and the medians are taken over the others.
    """
    others = [row for row in constants.rows if row.gpu not in (gpu.name, ANY)]
    return OperatorConstants((*others, *defaults(others)), tuple(_of_others(constants, gpu)))


def _of_others(constants: OperatorConstants, gpu: Gpu) -> Iterator[Correction]:
    return (grid for grid in constants.corrections if grid.gpu != gpu.name)
