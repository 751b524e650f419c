"""Operators: what each is (one module per kind) and what it costs on a GPU."""

from traincast.estimate.operators.constants import FamilyConstants, OperatorConstants, shipped_constants
from traincast.estimate.operators.contract import FAMILIES, OperatorCall, OperatorTime
from traincast.estimate.operators.price import price_calls, price_operator, work_of

__all__ = [
    "FAMILIES",
    "FamilyConstants",
    "OperatorCall",
    "OperatorConstants",
    "OperatorTime",
    "price_calls",
    "price_operator",
    "shipped_constants",
    "work_of",
]
