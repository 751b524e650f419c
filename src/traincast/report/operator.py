"""The price of one operator, and a fit of operators' constants, as documents."""

from dataclasses import asdict
from typing import TYPE_CHECKING, cast

from traincast.report.plain import Plain, plain

if TYPE_CHECKING:
    from traincast.calibrate.operator_calibration import OperatorCalibration
    from traincast.estimate.operator_price import OperatorPrice

OPERATOR_SCHEMA = "traincast.operator/1"
OPERATOR_CALIBRATION_SCHEMA = "traincast.operator_calibration/1"


def operator_to_dict(price: "OperatorPrice") -> dict[str, Plain]:
    """Return the price of an operator as the document ``traincast.operator/1``.

    Raises
    ------
    TraincastError
        If a number is NaN or infinite; the message names the key path.
    """
    call, time = price.call, price.price
    document = {
        "schema": OPERATOR_SCHEMA,
        "family": call.family,
        "shape": call.shape,
        "dtype": call.dtype,
        "direction": call.direction,
        "causal": call.causal,
        "window": call.window,
        "options": dict(call.options),
        "gpu": price.gpu,
        "time_s": time.time_s,
        "flops": time.flops,
        "bytes": time.bytes_moved,
        "bound": time.bound,
        "utilisation": time.utilisation,
        "source": time.source,
        "confidence": time.confidence,
        "terms": dict(time.terms),
        "assumptions": price.assumptions,
    }
    return cast("dict[str, Plain]", plain(document))


def operator_calibration_to_dict(calibration: "OperatorCalibration") -> dict[str, Plain]:
    """Return a fit of operators' constants as the document ``traincast.operator_calibration/1``."""
    document = {
        "schema": OPERATOR_CALIBRATION_SCHEMA,
        "files": calibration.files,
        "gpu": calibration.gpu.name,
        "constants": [asdict(row) for row in calibration.constants],
        "residuals": calibration.residuals,
        "skipped": [row._asdict() for row in calibration.skipped],
    }
    return cast("dict[str, Plain]", plain(document))
