"""Operators: what each is (`families`) and what it costs on a GPU (`cost`)."""

from traincast.estimate.operators.constants import FamilyConstants, OperatorConstants, shipped_constants
from traincast.estimate.operators.cost import OperatorTime, estimate_calls, estimate_operator, estimate_operators
from traincast.estimate.operators.families import FAMILIES, work_of
from traincast.workload.ops import OperatorCall

__all__ = [
    "FAMILIES",
    "FamilyConstants",
    "OperatorCall",
    "OperatorConstants",
    "OperatorTime",
    "estimate_calls",
    "estimate_operator",
    "estimate_operators",
    "shipped_constants",
    "work_of",
]
