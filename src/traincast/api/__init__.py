"""The facade: what a Python user calls, and all that the command line calls.

Whatever cannot be read, is not known or cannot run raises a `traincast.errors.TraincastError` with one message that
says what, where and what to do; a function names the errors that it raises beyond that. A cluster is a preset, a GPU,
the path of a TOML file, or a `Cluster`. Engines are ``auto``, ``reference`` and ``kernel``, which agree bit for bit.
"""

from typing import TYPE_CHECKING

from traincast.lazy import names_on_demand

if TYPE_CHECKING:
    from traincast.api.calibrations import calibrate as calibrate
    from traincast.api.calibrations import calibrate_operators as calibrate_operators
    from traincast.api.calibrations import calibrate_runs as calibrate_runs
    from traincast.api.checking import check as check
    from traincast.api.checking import check_change as check_change
    from traincast.api.comparison import compare as compare
    from traincast.api.conversion import convert as convert
    from traincast.api.estimates import collective as collective
    from traincast.api.estimates import operator as operator
    from traincast.api.estimates import operator_sizes as operator_sizes
    from traincast.api.explanations import explain as explain
    from traincast.api.explanations import run_again as run_again
    from traincast.api.explanations import with_operations as with_operations
    from traincast.api.files import Files as Files
    from traincast.api.files import JobLike as JobLike
    from traincast.api.files import StrPath as StrPath
    from traincast.api.files import expand as expand
    from traincast.api.files import read as read
    from traincast.api.inspection import bus_bandwidths as bus_bandwidths
    from traincast.api.inspection import inspect as inspect
    from traincast.api.inspection import inspect_all as inspect_all
    from traincast.api.measurements import compare_collectives as compare_collectives
    from traincast.api.measurements import kind_of_measurements as kind_of_measurements
    from traincast.api.measurements import validate as validate
    from traincast.api.measuring import measure as measure
    from traincast.api.measuring import measuring_script as measuring_script
    from traincast.api.named import clusters as clusters
    from traincast.api.named import described as described
    from traincast.api.named import models as models
    from traincast.api.named import recipes as recipes
    from traincast.api.planning import plan as plan
    from traincast.api.planning import plans as plans
    from traincast.api.prediction import predict as predict
    from traincast.api.results import is_result as is_result
    from traincast.api.results import load_record as load_record
    from traincast.api.results import load_result as load_result
    from traincast.api.results import save_result as save_result
    from traincast.api.simai_sum import simai as simai
    from traincast.api.simulation import simulate as simulate
    from traincast.api.simulation import simulate_record as simulate_record
    from traincast.api.watching import watch as watch
    from traincast.job.draft import Draft as Draft
    from traincast.job.job_file import read_job_file as read_job_file
    from traincast.job.options import LayoutOptions as LayoutOptions
    from traincast.job.options import SimaiOverlap as SimaiOverlap
    from traincast.job.options import SimulateOptions as SimulateOptions
    from traincast.job.options import StepOptions as StepOptions
    from traincast.job.options import make_options as make_options

__getattr__, __dir__ = names_on_demand(
    __name__,
    {
        "traincast.api.calibrations": "calibrate calibrate_operators calibrate_runs",
        "traincast.api.checking": "check check_change",
        "traincast.api.comparison": "compare",
        "traincast.api.conversion": "convert",
        "traincast.api.estimates": "collective operator operator_sizes",
        "traincast.api.explanations": "explain run_again with_operations",
        "traincast.api.explorer": "",
        "traincast.api.files": "Files JobLike StrPath expand read",
        "traincast.api.inspection": "bus_bandwidths inspect inspect_all",
        "traincast.api.measurements": "compare_collectives kind_of_measurements validate",
        "traincast.api.measuring": "measure measuring_script",
        "traincast.api.named": "clusters described models recipes",
        "traincast.api.planning": "plan plans",
        "traincast.api.prediction": "predict",
        "traincast.api.ranking": "",
        "traincast.api.results": "is_result load_record load_result save_result",
        "traincast.api.simai_sum": "simai",
        "traincast.api.simulation": "simulate simulate_record",
        "traincast.api.sweep": "",
        "traincast.api.watching": "watch",
        "traincast.job.draft": "Draft",
        "traincast.job.job_file": "read_job_file",
        "traincast.job.options": "LayoutOptions SimaiOverlap SimulateOptions StepOptions make_options",
    },
)
