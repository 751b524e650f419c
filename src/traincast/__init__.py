"""Forecast one step of distributed LLM training before anyone rents the GPUs."""

from typing import TYPE_CHECKING

from traincast.lazy import names_on_demand

if TYPE_CHECKING:
    from traincast import api
    from traincast.api import (
        calibrate,
        calibrate_operators,
        calibrate_runs,
        check,
        check_change,
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
        recipes,
        run_again,
        save_result,
        simulate,
        validate,
        watch,
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
    from traincast.job.options import (
        LayoutOptions,
        SimulateOptions,
        StageRoles,
        StepOptions,
    )
    from traincast.job.request import JobRequest
    from traincast.simulation.result import Result
    from traincast.simulation.study import Study

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
    "Study",
    "TraincastError",
    "UnknownNameError",
    "__version__",
    "api",
    "calibrate",
    "calibrate_operators",
    "calibrate_runs",
    "check",
    "check_change",
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
    "recipes",
    "run_again",
    "save_result",
    "simulate",
    "sweep",
    "validate",
    "watch",
]

__getattr__, __dir__ = names_on_demand(
    __name__,
    {
        "traincast.api": (
            "calibrate calibrate_operators calibrate_runs check check_change clusters collective compare convert "
            "explain inspect load_result measure models operator operator_sizes plan plans predict read recipes "
            "run_again save_result simulate validate watch"
        ),
        "traincast.api.explorer": "explore",
        "traincast.api.ranking": "rank",
        "traincast.api.sweep": "sweep",
        "traincast.errors": (
            "CalibrationError ConfigError DeadlockError FormatError InfeasibleError MeasurementError ProgramError "
            "TraincastError UnknownNameError"
        ),
        "traincast.job.draft": "Draft",
        "traincast.job.options": "LayoutOptions SimulateOptions StageRoles StepOptions",
        "traincast.job.request": "JobRequest",
        "traincast.simulation.result": "Result",
        "traincast.simulation.study": "Study",
    },
)
