"""Forecast one step of distributed LLM training before anyone rents the GPUs."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from traincast.api import (
        clusters,
        collective,
        compare,
        convert,
        explain,
        inspect,
        operator,
        predict,
        read,
        run_again,
        simulate,
        validate,
    )
    from traincast.errors import (
        CalibrationError,
        ConfigError,
        DeadlockError,
        FormatError,
        InfeasibleError,
        MeasurementError,
        ProgramError,
        TraincastError,
        UnknownNameError,
    )
    from traincast.job.options import LayoutOptions, SimulateOptions, StageRoles, StepOptions
    from traincast.simulation.result import Result

__version__ = "0.1.0"

__all__ = [
    "CalibrationError",
    "ConfigError",
    "DeadlockError",
    "FormatError",
    "InfeasibleError",
    "LayoutOptions",
    "MeasurementError",
    "ProgramError",
    "Result",
    "SimulateOptions",
    "StageRoles",
    "StepOptions",
    "TraincastError",
    "UnknownNameError",
    "__version__",
    "clusters",
    "collective",
    "compare",
    "convert",
    "explain",
    "inspect",
    "operator",
    "predict",
    "read",
    "run_again",
    "simulate",
    "validate",
]

# `api.calibrate` is not among them: `traincast.calibrate` is the package that it stands on.
_HOMES = ("errors", "job.options", "simulation.result", "api")
"""Modules of the public names, the lightest first."""


def __getattr__(name: str) -> object:
    """Import a public name when it is first used, so that the command line starts fast."""
    if name in __all__:
        for home in _HOMES:
            found = vars(import_module(f"traincast.{home}")).get(name)
            if found is not None:
                return found
    raise AttributeError(f"module 'traincast' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
