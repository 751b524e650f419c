"""Run a result again, and explain it."""

from msgspec.structs import replace

from traincast.analysis.explanation import Explanation
from traincast.api.files import StrPath
from traincast.api.given import record_and_options
from traincast.api.results import load_result
from traincast.api.simulation import simulate_record
from traincast.errors import TraincastError
from traincast.simulation.reproducible import choose, explained_in_full, reproducible_forecast
from traincast.simulation.result import Result


def run_again(result: StrPath | Result, *, engine: str = "fast") -> Result:
    """Run a result again from what it holds; with the same version the bytes of its ``result.json`` are the same.

    It is given itself, as its ``result.json``, or as the folder that it was written to.

    Examples
    --------
    >>> import traincast
    >>> result = traincast.simulate("examples/megatron_pp4_tp2")
    >>> traincast.run_again(result).iteration_time_s == result.iteration_time_s
    True
    """
    known = result if isinstance(result, Result) else load_result(result)
    record, options = record_and_options(known, result)
    if record.command == "predict":
        chosen = choose(options, record.cluster, engine, cluster_assumed=record.cluster_assumed)
        return reproducible_forecast(record.draft(), chosen, allow_oom=record.allow_oom)
    return simulate_record(record, options, engine=engine)


def explain(result: StrPath | Result, *, engine: str = "fast") -> Explanation:
    """Explain a step: critical path, slack, who waits for whom, communication with skew, roofline, memory over time.

    A result that holds no single operations, as one read from a file, is run again for them; the memory of a forecast
    is told in bytes.

    Examples
    --------
    >>> import traincast
    >>> told = traincast.explain(traincast.simulate("examples/megatron_pp4_tp2"))
    >>> int(told.waiting.root.other_K[0])
    7
    """
    known = result if isinstance(result, Result) else load_result(result)
    if known.program is None:
        known = run_again(known, engine=engine)
    return explained_in_full(known, engine)


def with_operations(result: Result, *, engine: str = "fast") -> tuple[Result, str | None]:
    """Return a result with its single operations, for which it is run again, and why they are left out where they are.

    They are left out where it cannot be run again, or gives another step, as another version may.

    Examples
    --------
    >>> import traincast
    >>> result, why_not = traincast.api.with_operations(traincast.simulate("examples/megatron_pp4_tp2"))
    >>> len(result.columns()["start_s"]), why_not
    (1157, None)
    """
    try:
        again = run_again(result, engine=engine)
    except TraincastError as error:
        return result, str(error)
    if again.iteration_time_s != result.iteration_time_s:
        return result, f"run again it takes {again.iteration_time_s:.6g} s, not {result.iteration_time_s:.6g} s"
    return replace(result, timed=again.timed), None
