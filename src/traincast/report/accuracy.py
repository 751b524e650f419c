"""Validations, collective tables and calibrations as documents and files."""

import csv
import io
from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING

from traincast.report.plain import Plain, encodable, plain, spreadsheet_cell

if TYPE_CHECKING:
    from traincast.calibrate.calibrate import Calibration
    from traincast.calibrate.validate import GroupFigures, HeldOut, Validation
    from traincast.estimate.collective_table import CollectiveTable

VALIDATION_SCHEMA = "traincast.validation/1"
COLLECTIVE_SCHEMA = "traincast.collective/1"
CALIBRATION_SCHEMA = "traincast.calibration/1"


def validation_to_dict(validation: "Validation") -> dict[str, Plain]:
    """Return a validation as the document ``traincast.validation/1``.

    Raises
    ------
    TraincastError
        If a number is NaN or infinite; the message names the key path.
    """
    held_out = validation.held_out
    document = {
        "schema": VALIDATION_SCHEMA,
        **asdict(validation.total),
        "skipped": [row._asdict() for row in validation.skipped],
        "groups": [_group(group) for group in validation.groups],
        "worst": validation.worst,
        "file": validation.path,
        "kind": validation.kind,
        "quantity": validation.quantity,
        "notes": validation.notes,
        "held_out": None if held_out is None else _held_out(held_out),
    }
    return _object(plain(document))


def collective_to_dict(table: "CollectiveTable") -> dict[str, Plain]:
    """Return a collective over sizes as the document ``traincast.collective/1``."""
    return _object(plain({"schema": COLLECTIVE_SCHEMA, **asdict(table)}))


def calibration_to_dict(calibration: "Calibration") -> dict[str, Plain]:
    """Return a calibration as the document ``traincast.calibration/1``."""
    document = {
        "schema": CALIBRATION_SCHEMA,
        "files": calibration.files,
        "base": calibration.base.name,
        "fitted": calibration.fitted,
        "residuals": calibration.residuals,
        "skipped": [row._asdict() for row in calibration.skipped],
        "notes": calibration.notes,
        "cluster": calibration.cluster,
    }
    return _object(plain(document))


def predictions_csv(validation: "Validation") -> bytes:
    """Return every row with its prediction as CSV.

    The columns are ``id``, ``measured_`` and ``predicted_`` with the quantity, ``error``, and
    what the row is. A row without a prediction has empty cells there; one that could not be
    used at all is left out.
    """
    found = validation.predictions
    stream = io.StringIO(newline="")
    writer = csv.writer(stream, lineterminator="\n")
    quantity = validation.quantity
    writer.writerow(["id", f"measured_{quantity}", f"predicted_{quantity}", "error", *_cells(found.details)])
    values = zip(found.ids, found.measured.tolist(), found.predicted.tolist(), strict=True)
    for position, (name, measured, predicted) in enumerate(values):
        # NaN is the only number that differs from itself.
        forecast = ["", ""] if predicted != predicted else [predicted, predicted / measured - 1.0]  # noqa: PLR0124
        writer.writerow(_cells([name, measured, *forecast, *(column[position] for column in found.details.values())]))
    return encodable(stream.getvalue()).encode()


def _cells(values: Iterable[object]) -> list[object]:
    """Return the values of a line, with text that is no formula in a spreadsheet."""
    return [spreadsheet_cell(value) if isinstance(value, str) else value for value in values]


def _held_out(held_out: "HeldOut") -> dict[str, object]:
    return {
        "by": held_out.by,
        **asdict(held_out.total),
        "skipped": [row._asdict() for row in held_out.skipped],
        "groups": [_group(group) for group in held_out.groups],
    }


def _group(group: "GroupFigures") -> dict[str, object]:
    return {"by": group.by, "name": group.name, **asdict(group.figures)}


def _object(value: Plain) -> dict[str, Plain]:
    """Narrow the plain form of a mapping, which is always an object."""
    return value if isinstance(value, dict) else {}
