"""Put two steps side by side."""

from typing import Any

from msgspec.structs import replace

from traincast.analysis.comparison import Comparison
from traincast.analysis.comparison import compare as compare_sides
from traincast.analysis.training_run import with_training_runs
from traincast.api.files import StrPath, read
from traincast.api.prediction import predict
from traincast.hardware.cluster import Cluster
from traincast.job.draft import Draft
from traincast.job.training_run import run_terms
from traincast.job.words import RUN_WORDS, sorted_out, takes
from traincast.report.sides import sides_of
from traincast.simulation.result import Result
from traincast.simulation.sides import ratio_of_sides
from traincast.workload.workload import Workload


@takes(RUN_WORDS)
def compare(
    a: StrPath | Result | Workload | Draft,
    b: StrPath | Result | Workload | Draft,
    cluster: StrPath | Cluster | None = None,
    **terms: Any,  # noqa: ANN401
) -> Comparison:
    """Put two steps side by side; differences are those of `b` to `a`.

    With `terms`, the fields of `RunTerms` (``tokens="15T"``, ``gpu_hour_price=2.5``), each side says what a whole run
    takes, where it says the tokens of its steps.

    A side is a result, its ``result.json`` or the folder that holds one, or a job or its file, which is forecast, on
    `cluster` if one is given: the simulated step. Or it is a measured trace, the folder of a run's rank traces, a
    workload read from them, or a training log: the measured step, which is not simulated.

    Of two forecasts the `ratio` of their steps has an interval of its own, much narrower than theirs: what both are off
    by cancels. A result that is read from a file does not say what it may be off by, and is forecast again for it.

    Examples
    --------
    >>> import traincast
    >>> replay = traincast.simulate("examples/megatron_pp4_tp2")
    >>> f"{traincast.compare('examples/megatron_pp4_tp2', replay).step.relative:.1%}"
    '-0.1%'
    """
    (said,) = sorted_out(terms, RUN_WORDS)

    def forecast(job: Draft | Result) -> Result:
        return predict(job, None if isinstance(job, Result) else cluster, engine="auto")

    sides = sides_of((a, b), read, forecast)
    found = compare_sides(*with_training_runs(sides[0], sides[1], run_terms(said)))
    return replace(found, ratio=ratio_of_sides(found.a, found.b))
