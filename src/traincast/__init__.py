"""Forecast one step of distributed LLM training before anyone rents the GPUs."""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from traincast import api
    from traincast.api import (
        calibrate,
        calibrate_operators,
        calibrate_runs,
        clusters,
        collective,
        compare,
        convert,
        explain,
        inspect,
        load_result,
        measure,
        models,
        operator,
        operator_sizes,
        plan,
        plans,
        predict,
        read,
        run_again,
        save_result,
        simulate,
        validate,
    )
    from traincast.api.explorer import explore
    from traincast.api.ranking import rank
    from traincast.api.sweep import sweep
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
    from traincast.job.draft import Draft
    from traincast.job.job import JobRequest
    from traincast.job.options import (
        LayoutOptions,
        SimulateOptions,
        StageRoles,
        StepOptions,
    )
    from traincast.simulation.result import Result

__version__ = "0.1.0"

__all__ = [
    "CalibrationError",
    "ConfigError",
    "DeadlockError",
    "Draft",
    "FormatError",
    "InfeasibleError",
    "JobRequest",
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
    "api",
    "calibrate",
    "calibrate_operators",
    "calibrate_runs",
    "clusters",
    "collective",
    "compare",
    "convert",
    "explain",
    "explore",
    "inspect",
    "load_result",
    "measure",
    "models",
    "operator",
    "operator_sizes",
    "plan",
    "plans",
    "predict",
    "rank",
    "read",
    "run_again",
    "save_result",
    "simulate",
    "sweep",
    "validate",
]

_HOMES = ("errors", "job.draft", "job.job", "job.options", "simulation.result", "api")
_APART = ("api.explorer", "api.ranking", "api.sweep")
"""Modules of the public names, the lightest first; those that few need are looked into last."""

_ROOMS = ("calibrate", "measure", "plan", "sweep")
"""Packages of this one that a function of the facade has the name of."""


class _Package(ModuleType):
    """The package, in which importing something below leaves the functions of the facade in their place."""

    def __setattr__(self, name: str, value: object) -> None:
        """Set an attribute; where Python binds a room that it has imported, the function keeps the name."""
        if name not in _ROOMS or not isinstance(value, ModuleType):
            super().__setattr__(name, value)


# https://docs.python.org/3/reference/datamodel.html#customizing-module-attribute-access
sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> object:
    """Import a public name when it is first used (PEP 562)."""
    if name == "api":
        return import_module("traincast.api")
    for home in (*_HOMES, *_APART) if name in __all__ else ():
        found = vars(import_module(f"traincast.{home}")).get(name)
        if found is not None and not isinstance(found, ModuleType):
            globals()[name] = found
            return found
    raise AttributeError(f"module 'traincast' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
