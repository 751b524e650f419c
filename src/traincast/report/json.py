"""JSON documents: ``traincast.result/1`` and those of every other command, each written in this one place.

A document's keys keep their meaning within a major version; new keys may come, so a reader
ignores those it does not know. Source: docs of the command line, "Every --json has a schema".
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec
from msgspec.structs import asdict, replace

from traincast import __version__
from traincast.errors import FormatError
from traincast.report.checks import check_numbers, check_whole
from traincast.report.files import file_report
from traincast.report.plain import Plain, plain
from traincast.simulation.result import UNWRITTEN, Result

if TYPE_CHECKING:
    from traincast.analysis.comparison import Comparison, Difference, Side, Unmatched
    from traincast.calibration.cluster_calibration import Calibration
    from traincast.calibration.collective_comparison import CollectiveComparison
    from traincast.calibration.operator_calibration import OperatorCalibration
    from traincast.calibration.ranking import Ranking
    from traincast.calibration.run_calibration import RunCalibration
    from traincast.calibration.validate import HeldOut, Validation
    from traincast.checking.alarm import Alarm
    from traincast.checking.check import Check
    from traincast.estimate.collective_table import CollectiveTable
    from traincast.estimate.operators.cost import OperatorCost
    from traincast.estimate.simai.total import SimaiReport
    from traincast.formats.contract import Inspection
    from traincast.formats.writer import Conversion
    from traincast.hardware.cluster import Cluster
    from traincast.model.model import Model
    from traincast.planning.answer import Choice, Plan
    from traincast.planning.several import Plans
    from traincast.report.failure import Failure


RESULT_KEYS = ("schema", *(name for name in Result.__struct_fields__ if name not in UNWRITTEN))
"""Every key of ``traincast.result/1``, in order."""


def _document(kind: str, fields: object) -> dict[str, Plain]:
    """Return the document ``traincast.KIND/1`` with the fields of a mapping or record as plain values."""
    return {"schema": f"traincast.{kind}/1", **_object(plain(fields))}


def _fields(source: object, names: Sequence[str] | None = None, *, without: Sequence[str] = ()) -> dict[str, Any]:
    """Return some fields of a record or what else has them by their names, in that order; without names all."""
    kept = type(source).__struct_fields__ if isinstance(source, msgspec.Struct) and names is None else names or ()
    return {name: getattr(source, name) for name in kept if name not in without}


def result_to_dict(result: Result, *, without: Sequence[str] = ()) -> dict[str, Plain]:
    """Return a result, without its program and timeline, as the document ``traincast.result/1``.

    What it is `without` is not in it, nor worked out, as what is worked out late takes as long as the step itself.

    Raises
    ------
    TraincastError
        If a number is NaN or infinite; the message names the key path.
    """
    return _document("result", _fields(result, RESULT_KEYS[1:], without=without))


def plan_to_dict(plan: "Plan | Plans") -> dict[str, Plain]:
    """Return a plan as the document ``traincast.plan/1``: its layouts with their results.

    Of several plans ``best`` has the layout to run of each, ``pareto`` is of them all, counts and seconds are sums,
    what differs is null, and ``plans`` has each as a document of its own.
    """
    from traincast.planning.advice import advice_of_plan
    from traincast.planning.answer import Plan

    lists = {name: list(map(_choice, getattr(plan, name))) for name in ("best", "pareto")}
    if not isinstance(plan, Plan):
        each_one = [plan_to_dict(replace(one, advice=())) for one in plan.plans]
        own = (*lists, *_OF_SEVERAL)
        joined = {name: _joined(name, [one[name] for one in each_one]) for name in each_one[0] if name not in own}
        of_several = {**_fields(plan, ("rank_by", "goal")), "ranked": plan.places}
        return _document("plan", {**joined, **lists, "plans": each_one, "refused": plan.refused, **of_several})
    same = _fields(plan, without=(*lists, "start", "asked", "estimated"))
    start = plan.start
    same |= {
        "had_step_s": None if start is None else start.step_s,
        "had_peak_bytes": None if start is None else start.peak_bytes,
        "had_layout": None if start is None else start.layout,
        "changes": () if start is None else start.changes,
        "together": () if start is None else start.together,
        "advice": advice_of_plan(plan),
    }
    return _document("plan", {**same, **lists, "plans": [], "refused": [], **_OF_SEVERAL, "version": __version__})


_OF_SEVERAL: Mapping[str, object] = {"rank_by": None, "goal": None, "ranked": ()}
_SUMS = ("evaluated", "feasible", "screen_s", "simulated")
_NOTES = ("assumptions", "warnings")


def _joined(name: str, values: Sequence[Any]) -> object:
    """Return what several plans have of one key."""
    if name in _SUMS:
        return sum(values)
    if name == "screen_error_most":
        return max(values)
    if name in _NOTES:
        return list({msgspec.json.encode(each): each for value in values for each in value}.values())
    return values[0] if all(value == values[0] for value in values) else None


def _choice(choice: "Choice") -> dict[str, object]:
    same = _fields(choice, without=("result", "doubts"))
    limits = [{"part": part, "share": share} for part, share in choice.limits]
    more = {"text": choice.layout.text, "step_s": choice.step_s, "tokens_per_s": choice.tokens_per_s, "limits": limits}
    return {**same, **more, "result": result_to_dict(choice.result)}


def alarm_to_dict(alarm: "Alarm") -> dict[str, Plain]:
    """Return an alarm of a watched run as ``traincast.alarm/1``."""
    return _document("alarm", alarm)


def comparison_to_dict(comparison: "Comparison") -> dict[str, Plain]:
    """Return two steps side by side as ``traincast.comparison/1``; a relative difference to zero is null."""
    ranks = [
        {"rank": rank, "end_s": _difference(end), "parts_s": _differences(comparison.rank_parts[rank])}
        for rank, end in comparison.ends.items()
    ]
    document = {
        "a": _side(comparison.a),
        "b": _side(comparison.b),
        "step_s": _difference(comparison.step),
        "ratio": None if comparison.ratio is None else _fields(comparison.ratio),
        "breakdown_s": None if comparison.breakdown is None else _differences(comparison.breakdown),
        "parts_s": _differences(comparison.parts),
        "waits_s": _differences(comparison.waits),
        "ranks": ranks,
        "only_a": _unmatched(comparison.only_a),
        "only_b": _unmatched(comparison.only_b),
    }
    return _document("comparison", document)


def collective_comparison_to_dict(comparison: "CollectiveComparison") -> dict[str, Plain]:
    """Return measured collectives of two files as the document ``traincast.collective_comparison/1``."""
    pairs = [
        {
            **_fields(pair, ("op", "ranks", "nodes", "size_bytes")),
            "time_s": {"a": pair.a_s, "b": pair.b_s, "difference": pair.b_s - pair.a_s, "relative": pair.relative},
            "busbw_bytes_per_s": {"a": pair.busbw_bytes_per_s(pair.a_s), "b": pair.busbw_bytes_per_s(pair.b_s)},
        }
        for pair in comparison.pairs
    ]
    document = {
        "a": comparison.a,
        "b": comparison.b,
        "median_relative": comparison.median_relative,
        "pairs": pairs,
        "only_a": comparison.only_a,
        "only_b": comparison.only_b,
        "skipped": comparison.skipped,
    }
    return _document("collective_comparison", document)


def inspection_to_dict(inspection: "Inspection") -> dict[str, Plain]:
    """Return what a file is as the document ``traincast.inspection/1``."""
    from traincast.analysis.gpu_intervals import recorded_gpu_time

    gpu_time = recorded_gpu_time(inspection.recorded)
    return _document("inspection", {**_fields(inspection, without=("recorded",)), "gpu_time": gpu_time})


def inspections_to_dict(inspections: Iterable["Inspection"]) -> dict[str, Plain]:
    """Return what several files are as the document ``traincast.inspections/1``."""
    return _document("inspections", {"files": [inspection_to_dict(each) for each in inspections]})


def conversion_to_dict(conversion: "Conversion") -> dict[str, Plain]:
    """Return what was written as the document ``traincast.conversion/1``."""
    return _document("conversion", conversion)


def clusters_to_dict(clusters: Iterable["Cluster"]) -> dict[str, Plain]:
    """Return known clusters as the document ``traincast.clusters/1``."""
    described = []
    for index, cluster in enumerate(clusters):
        sources = [{"number": number, "source": source} for number, source in cluster.sources]
        described.append({**_object(plain(cluster, f"$.clusters[{index}]")), "sources": sources})
    return _document("clusters", {"clusters": described})


def models_to_dict(models: Iterable["Model"], seq_length: int) -> dict[str, Plain]:
    """Return models with their counts as the document ``traincast.models/1``; FLOPs at that sequence length."""
    from traincast.model.counts import model_flops_per_token, parameters, token_flops

    described = []
    for index, model in enumerate(models):
        place, counts = f"$.models[{index}]", parameters(model)
        totals = _fields(counts, ("total", "active", "computed", "trained"))
        flops = {
            "seq_length": seq_length,
            "training_per_token": model_flops_per_token(model, seq_length),
            "lora_per_token": model_flops_per_token(model, seq_length, "lora"),
            "forward_per_token": token_flops(model, seq_length),
        }
        described.append(
            {**_object(plain(model, place)), "parameters": {**_object(plain(counts, place)), **totals}, "flops": flops}
        )
    return _document("models", {"models": described})


def simai_to_dict(report: "SimaiReport", result: Result) -> dict[str, Plain]:
    """Return SimAI's own sum and what compares of the simulated step of the same file as ``traincast.simai/1``."""
    simulated = _fields(result, ("iteration_time_s", "breakdown_s", "parallel"))
    simulated["cluster"] = result.cluster.name
    own = _object(plain(report))
    rows = own.pop("rows")
    layout = {**_object(own["layout"]), "dp": report.layout.dp}
    further = {"simulated": simulated, "inputs": result.inputs, "version": result.version, "rows": rows}
    return _document("simai", {**own, "layout": layout, **further})


def collective_to_dict(table: "CollectiveTable") -> dict[str, Plain]:
    """Return a collective over sizes as the document ``traincast.collective/1``."""
    return _document("collective", table)


def operator_to_dict(estimated: "OperatorCost") -> dict[str, Plain]:
    """Return what an operator takes as the document ``traincast.operator/1``."""
    call, time = asdict(estimated.call), asdict(estimated.cost)
    call["options"], time["terms"] = dict(estimated.call.options), dict(estimated.cost.terms)
    time = {"bytes" if name == "bytes_moved" else name: value for name, value in time.items()}
    document = {**call, "gpu": estimated.gpu, **time, "assumptions": estimated.assumptions}
    return _document("operator", document)


def validation_to_dict(validation: "Validation") -> dict[str, Plain]:
    """Return a validation as the document ``traincast.validation/1``."""
    held_out = validation.held_out
    document = {
        **_figures(validation),
        "worst": validation.worst,
        "worst_groups": validation.worst_groups,
        "file": validation.path,
        **_fields(validation, ("kind", "quantity", "notes")),
        "held_out": None if held_out is None else {"by": held_out.by, **_figures(held_out)},
    }
    return _document("validation", document)


def _figures(of: "Validation | HeldOut") -> dict[str, object]:
    groups = [{"by": group.by, "name": group.name, **asdict(group.figures)} for group in of.groups]
    return {**asdict(of.total), "skipped": of.skipped, "groups": groups, "counted_once": of.counted_once}


def ranking_to_dict(ranking: "Ranking") -> dict[str, Plain]:
    """Return how well forecasts choose a layout as the document ``traincast.ranking/1``."""
    groups = [{**asdict(each), "regret": each.regret} for each in ranking.groups]
    document = {
        "file": ranking.path,
        **_fields(ranking, ("total", "sources")),
        "groups": groups,
        **_fields(ranking, ("skipped", "left_out", "sessions")),
    }
    return _document("ranking", document)


def check_to_dict(check: "Check") -> dict[str, Plain]:
    """Return whether a run is as fast as it should be as ``traincast.check/1``."""
    return _document("check", {**_fields(check), "exit_code": check.exit_code, "version": __version__})


def calibration_to_dict(calibration: "Calibration") -> dict[str, Plain]:
    """Return a calibration of collectives as the document ``traincast.calibration/1``."""
    document = {
        "files": calibration.files,
        "base": calibration.base.name,
        **_fields(calibration, ("fitted", "residuals", "skipped", "notes", "cluster")),
    }
    return _document("calibration", document)


def run_calibration_to_dict(calibration: "RunCalibration") -> dict[str, Plain]:
    """Return what runs on a cluster taught as the document ``traincast.run_calibration/1``."""
    document = {
        "files": calibration.files,
        "base": calibration.base.name,
        **_fields(calibration, ("framework", "runs")),
        "factors": calibration.cluster.run_factors,
        **_fields(calibration, ("skipped", "notes", "cluster")),
    }
    return _document("run_calibration", document)


def operator_calibration_to_dict(calibration: "OperatorCalibration") -> dict[str, Plain]:
    """Return a fit of operators' constants as the document ``traincast.operator_calibration/1``."""
    document = {
        "files": calibration.files,
        "gpu": calibration.gpu.name,
        **_fields(calibration, ("constants", "residuals", "skipped", "host")),
    }
    return _document("operator_calibration", document)


def failure_to_dict(failure: "Failure") -> dict[str, Plain]:
    """Return why a command failed as the document ``traincast.error/1``."""
    return _document("error", failure)


def encode(document: Mapping[str, Plain]) -> bytes:
    """Return a document as indented JSON with a newline at its end.

    UTF-8; keys in the order of the document, floats as short as they can be read back exactly.
    """
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


def encode_line(document: Mapping[str, Plain]) -> str:
    """Return a document as one line of JSON, without its end."""
    return msgspec.json.encode(document).decode("utf-8")


def to_json(result: Result) -> bytes:
    """Return a result as the bytes of ``result.json``; the same result gives the same bytes.

    Raises
    ------
    TraincastError
        If a number is NaN or infinite; the message names the key path.
    """
    return encode(result_to_dict(result))


def result_from_json(data: bytes, path: str) -> Result:
    """Read a result, without program and timeline, from ``result.json``; keys that are not known are ignored.

    Raises
    ------
    FormatError
        If it is not a ``traincast.result`` of this major version, or a value is missing, of another kind or
        out of range, or parts do not sum to the step; the message names the field path.
    """
    try:
        head = msgspec.json.decode(data)
        schema = head.get("schema") if isinstance(head, dict) else None
        if not isinstance(schema, str) or schema.partition(".result/")[2].partition(".")[0] != "1":
            raise FormatError(f"is not a traincast.result/1 document: its schema is {schema!r}", path)
        check_numbers(head, path)
        said = {name: value for name, value in head.items() if name not in UNWRITTEN}
        result = msgspec.convert(said, Result)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise FormatError(f"cannot be read as traincast.result/1: {error}", path) from None
    check_whole(result, path)
    return result


def _side(side: "Side") -> dict[str, object]:
    names = (
        *("name", "what", "how", "mfu", "mfu_peak", "mfu_16_bit"),
        *("interval", "tokens_per_s_per_gpu", "gpus", "training_run", "notes", "warnings"),
    )
    return _fields(side, names)


def _difference(each: "Difference") -> dict[str, float | None]:
    return {"a": each.a_s, "b": each.b_s, "difference": each.difference_s, "relative": each.relative}


def _differences(by_name: "Mapping[str, Difference]") -> dict[str, dict[str, float | None]]:
    return {name: _difference(each) for name, each in by_name.items()}


def _unmatched(only: "Unmatched") -> dict[str, object]:
    parts = [
        {"rank": rank, "part": part, "time_s": time_s}
        for rank, known in only.part_s.items()
        for part, time_s in known.items()
    ]
    return {"ranks": only.ranks, "parts": parts}


def _object(value: Plain) -> dict[str, Plain]:
    """Narrow the plain form of a record, which is always an object."""
    return value if isinstance(value, dict) else {}


@file_report("json", "result.json")
def write_json(result: Result, stream: BinaryIO) -> None:
    """Write ``result.json``."""
    stream.write(to_json(result))
