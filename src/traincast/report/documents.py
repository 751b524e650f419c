"""The documents of ``--json`` by name, as types: their JSON Schemas are made from them (``traincast schema``)."""

from collections.abc import Callable, Mapping

from traincast.analysis.comparison import Side
from traincast.analysis.gpu_time import GpuTime
from traincast.analysis.summary import Advice, Ratio
from traincast.calibration.cluster_calibration import Calibration
from traincast.calibration.collective_comparison import CollectiveComparison, MeasuredPair
from traincast.calibration.operator_calibration import OperatorCalibration
from traincast.calibration.ranking import RankedGroup, Ranking
from traincast.calibration.run_calibration import RunCalibration
from traincast.calibration.validate import GroupFigures, HeldOut, Statistics, Validation
from traincast.checking.alarm import Alarm
from traincast.checking.check import Check
from traincast.diagnostics import Note
from traincast.errors import UnknownNameError
from traincast.estimate.collective_table import CollectiveTable
from traincast.estimate.operators.cost import OperatorTime
from traincast.estimate.simai.cost import SimaiLayout
from traincast.estimate.simai.total import SimaiReport
from traincast.files import InputFile
from traincast.formats.contract import Inspection
from traincast.formats.writer import Conversion
from traincast.hardware.cluster import Cluster, RunFactor
from traincast.model.counts import Parameters, TokenFlops
from traincast.model.model import Model
from traincast.planning.answer import Choice, Plan
from traincast.planning.changes import Start
from traincast.planning.goals import Goal
from traincast.planning.order import RankedCase
from traincast.planning.several import Refusal
from traincast.report.failure import Failure
from traincast.report.json_schema import DocumentShape, fields_of, schema_of
from traincast.report.plain import Plain
from traincast.simulation.result import UNWRITTEN, Result
from traincast.simulation.result_records import ParallelFacts
from traincast.workload.ops import OperatorCall

_EITHER = float | None
_DIFFERENCE = DocumentShape(more=dict.fromkeys(("a", "b", "difference", "relative"), _EITHER))


def _result() -> DocumentShape:
    return DocumentShape((Result,), UNWRITTEN)


def _plan() -> DocumentShape:
    """Return the shape of a plan; of several, keys that differ are null and each plan is its own document."""
    lists, result = ("best", "pareto"), _result()
    choice = DocumentShape(
        (Choice,),
        ("result", "doubts"),
        {
            "text": str,
            "step_s": float,
            "tokens_per_s": float,
            "limits": [DocumentShape(more={"part": str, "share": float})],
            "result": DocumentShape(result.of, result.without, {"schema": str}),
        },
    )
    start = fields_of(Start)
    had = {
        "had_step_s": _EITHER,
        "had_peak_bytes": _EITHER,
        "had_layout": (start["layout"], None),
        "changes": start["changes"],
        "together": start["together"],
        "advice": tuple[Advice, ...],
    }
    own = {
        name: each for name, each in fields_of(Plan).items() if name not in (*lists, "start", "asked", "estimated")
    } | had
    either = {name: (each, None) for name, each in own.items()}
    shared = {"best": [choice], "pareto": [choice], "refused": tuple[Refusal, ...], "version": str}
    shared |= {"rank_by": str | None, "goal": Goal | None, "ranked": tuple[RankedCase, ...]}
    notes = {"assumptions": tuple[Note, ...], "warnings": tuple[Note, ...]}
    one = DocumentShape(more={"schema": str, **own, **shared, "plans": [DocumentShape()]})
    return DocumentShape(more={**either, **shared, **notes, "plans": [one]})


def _comparison() -> DocumentShape:
    unwritten = ("step_s", "end_s", "part_s", "wait_s", "breakdown_s", "gpu_tdp_w", "doubts")
    side, by_name = DocumentShape((Side,), unwritten), DocumentShape(values=_DIFFERENCE)
    parts = [DocumentShape(more={"rank": int, "part": str, "time_s": _EITHER})]
    only = DocumentShape(more={"ranks": tuple[int, ...], "parts": parts})
    return DocumentShape(
        more={
            "a": side,
            "b": side,
            "step_s": _DIFFERENCE,
            "ratio": (DocumentShape((Ratio,)), None),
            "breakdown_s": (by_name, None),
            "parts_s": by_name,
            "waits_s": by_name,
            "ranks": [DocumentShape(more={"rank": int, "end_s": _DIFFERENCE, "parts_s": by_name})],
            "only_a": only,
            "only_b": only,
        }
    )


def _collective_comparison() -> DocumentShape:
    both = DocumentShape(more={"a": float, "b": float})
    pair = DocumentShape((MeasuredPair,), ("a_s", "b_s"), {"time_s": _DIFFERENCE, "busbw_bytes_per_s": both})
    return DocumentShape((CollectiveComparison,), more={"median_relative": float, "pairs": [pair]})


def _alarm() -> DocumentShape:
    return DocumentShape((Alarm,))


def _inspection() -> DocumentShape:
    return DocumentShape((Inspection,), ("recorded",), {"gpu_time": tuple[GpuTime, ...]})


def _inspections() -> DocumentShape:
    one = _inspection()
    return DocumentShape(more={"files": [DocumentShape(one.of, one.without, {"schema": str, **one.more})]})


def _conversion() -> DocumentShape:
    return DocumentShape((Conversion,))


def _clusters() -> DocumentShape:
    source = DocumentShape(more={"number": str, "source": str})
    return DocumentShape(more={"clusters": [DocumentShape((Cluster,), more={"sources": [source]})]})


def _models() -> DocumentShape:
    totals = DocumentShape((Parameters,), more=dict.fromkeys(("total", "active", "computed", "trained"), int))
    training = dict.fromkeys(("training_per_token", "lora_per_token"), float)
    flops = DocumentShape(more={"seq_length": int, **training, "forward_per_token": TokenFlops})
    return DocumentShape(more={"models": [DocumentShape((Model,), more={"parameters": totals, "flops": flops})]})


def _simai() -> DocumentShape:
    step = {"iteration_time_s": float, "breakdown_s": dict[str, float], "parallel": ParallelFacts}
    simulated = DocumentShape(more={**step, "cluster": str | None})
    layout = DocumentShape((SimaiLayout,), more={"dp": int})
    return DocumentShape(
        (SimaiReport,),
        more={"layout": layout, "simulated": simulated, "inputs": tuple[InputFile, ...], "version": str},
    )


def _collective() -> DocumentShape:
    return DocumentShape((CollectiveTable,))


def _operator() -> DocumentShape:
    more = {"options": dict[str, object], "terms": dict[str, float], "bytes": float}
    return DocumentShape(
        (OperatorCall, OperatorTime), ("bytes_moved",), {**more, "gpu": str, "assumptions": tuple[Note, ...]}
    )


def _validation() -> DocumentShape:
    figures, own = fields_of(HeldOut), fields_of(Validation)
    group = DocumentShape((GroupFigures, Statistics), ("figures",))
    totals = {"skipped": figures["skipped"], "groups": [group], "counted_once": figures["counted_once"]}
    held_out = DocumentShape((Statistics,), more={"by": str, **totals})
    kept = {name: own[name] for name in ("worst", "worst_groups", "kind", "quantity", "notes")}
    return DocumentShape((Statistics,), more={**totals, **kept, "file": str, "held_out": (held_out, None)})


def _ranking() -> DocumentShape:
    return DocumentShape(
        (Ranking,), ("path",), {"file": str, "groups": [DocumentShape((RankedGroup,), more={"regret": float})]}
    )


def _check() -> DocumentShape:
    return DocumentShape((Check,), more={"exit_code": int, "version": str})


def _calibration() -> DocumentShape:
    return DocumentShape((Calibration,), more={"base": str})


def _run_calibration() -> DocumentShape:
    return DocumentShape((RunCalibration,), ("of_passes",), {"base": str, "factors": tuple[RunFactor, ...]})


def _operator_calibration() -> DocumentShape:
    return DocumentShape((OperatorCalibration,), more={"gpu": str})


def _error() -> DocumentShape:
    return DocumentShape((Failure,))


DOCUMENTS: Mapping[str, tuple[str, Callable[[], DocumentShape]]] = {
    "result": ("predict, simulate, report: a step; result.json", _result),
    "plan": ("plan: layouts with their results; plan.json", _plan),
    "comparison": ("compare: two steps", _comparison),
    "collective_comparison": ("compare: measured collectives of two files", _collective_comparison),
    "inspection": ("inspect: what a file is", _inspection),
    "inspections": ("inspect: what several files are", _inspections),
    "conversion": ("convert: what was written", _conversion),
    "simai": ("simulate --pricing simai: SimAI's own sum", _simai),
    "collective": ("collective: its cost over sizes", _collective),
    "operator": ("operator: its cost", _operator),
    "validation": ("validate: error statistics", _validation),
    "ranking": ("validate --ranking: how well forecasts choose", _ranking),
    "check": ("check: is a run as fast as it should be", _check),
    "calibration": ("calibrate: constants of collectives", _calibration),
    "operator_calibration": ("calibrate: constants of operators", _operator_calibration),
    "run_calibration": ("calibrate: what whole runs taught", _run_calibration),
    "clusters": ("clusters: what is known", _clusters),
    "models": ("models: what is known", _models),
    "alarm": ("watch: a change of a running job, one a line", _alarm),
    "error": ("every command: why it failed", _error),
}
"""Name of a document, ``traincast.NAME/1``, to what prints it and its type."""


def schema(name: str) -> dict[str, Plain]:
    """Return the JSON Schema of a document by its name, with ``traincast.`` and version or without.

    Raises
    ------
    UnknownNameError
        If there is no such document.
    """
    found = name.removeprefix("traincast.").partition("/")[0].replace("-", "_")
    if found not in DOCUMENTS:
        raise UnknownNameError("document", name, DOCUMENTS)
    return schema_of(DOCUMENTS[found][1](), found)
