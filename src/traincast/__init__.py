"""Forecast one step of distributed LLM training before anyone rents the GPUs."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from traincast.api import clusters, collective, compare, inspect, operator, predict, read, simulate, validate
    from traincast.errors import (
        CalibrationError,
        ConfigError,
        DeadlockError,
        FormatError,
        InfeasibleError,
        ProgramError,
        TraincastError,
        UnknownNameError,
    )
    from traincast.job.options import LayoutOptions, SimulateOptions, StageRoles
    from traincast.recorded import run_again
    from traincast.simulation.result import Result

__version__ = "0.1.0"

# `api.calibrate` is not among them: `traincast.calibrate` is the package that it stands on.
_HOME = {
    **dict.fromkeys(
        ("clusters", "collective", "compare", "inspect", "operator", "predict", "read", "simulate", "validate"),
        "traincast.api",
    ),
    **dict.fromkeys(
        (
            "CalibrationError",
            "ConfigError",
            "DeadlockError",
            "FormatError",
            "InfeasibleError",
            "ProgramError",
            "TraincastError",
            "UnknownNameError",
        ),
        "traincast.errors",
    ),
    "Result": "traincast.simulation.result",
    "run_again": "traincast.recorded",
    **dict.fromkeys(("LayoutOptions", "SimulateOptions", "StageRoles"), "traincast.job.options"),
}

__all__ = [
    "CalibrationError",
    "ConfigError",
    "DeadlockError",
    "FormatError",
    "InfeasibleError",
    "LayoutOptions",
    "ProgramError",
    "Result",
    "SimulateOptions",
    "StageRoles",
    "TraincastError",
    "UnknownNameError",
    "__version__",
    "clusters",
    "collective",
    "compare",
    "inspect",
    "operator",
    "predict",
    "read",
    "run_again",
    "simulate",
    "validate",
]


def __getattr__(name: str) -> object:
    """Import a public name when it is first used, so that the command line starts fast."""
    if name not in _HOME:
        raise AttributeError(f"module 'traincast' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
