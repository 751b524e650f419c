"""JSON documents, ``traincast.result/1`` and the like for comparisons, inspections, clusters, models and SimAI.

A document's keys keep their meaning within a major version; new keys may come, so a reader
ignores those it does not know. Source: docs of the command line, "Every --json has a schema".
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec

from traincast.diagnostics import Note
from traincast.errors import FormatError
from traincast.job.inputs import InputFile
from traincast.report.checks import check_numbers, check_whole
from traincast.report.contract import file_report
from traincast.report.plain import Plain, plain
from traincast.simulation.result import (
    CollectiveResult,
    JobFacts,
    PartResult,
    Peak,
    RankResult,
    Result,
)

if TYPE_CHECKING:
    from traincast.analysis.comparison import Comparison, Difference, Side, Unmatched
    from traincast.estimate.simai.total import SimaiReport
    from traincast.formats.contract import Inspection
    from traincast.hardware.cluster import Cluster
    from traincast.model.model import Model

RESULT_SCHEMA = "traincast.result/1"
COMPARISON_SCHEMA = "traincast.comparison/1"
INSPECTION_SCHEMA = "traincast.inspection/1"
CLUSTERS_SCHEMA = "traincast.clusters/1"
MODELS_SCHEMA = "traincast.models/1"
SIMAI_SCHEMA = "traincast.simai/1"

# Counts stay integers in dicts that hold counts and seconds, so that a document read and
# written again has the same bytes.
_Numbers = dict[str, int | float]


class _Document(msgspec.Struct, kw_only=True):
    """The keys of ``traincast.result/1`` in their order; those with a default may be absent."""

    schema: str
    iteration_time_s: float
    breakdown_s: dict[str, float]
    ranks: tuple[RankResult, ...]
    job: JobFacts | None = None
    parallel: dict[str, int | str]
    interval: dict[str, float] | None = None
    tokens_per_s_per_gpu: float | None = None
    tflops_per_gpu: float | None = None
    mfu: float | None = None
    hfu: float | None = None
    mfu_peak: Peak | None = None
    mfu_16_bit: float | None = None
    hfu_16_bit: float | None = None
    memory_bytes: tuple[_Numbers, ...] | None = None
    collectives: tuple[CollectiveResult, ...]
    stragglers: tuple[_Numbers, ...] = ()
    what_if: tuple[dict[str, Any], ...] = ()
    measured_s: float | None = None
    parts: tuple[PartResult, ...] = ()
    inputs: tuple[InputFile, ...]
    cluster: dict[str, Any]
    assumptions: tuple[Note, ...] = ()
    warnings: tuple[Note, ...] = ()
    run: dict[str, Any] | None = None
    version: str = ""


RESULT_KEYS = _Document.__struct_fields__
"""Every key of ``traincast.result/1``, in order."""


def result_to_dict(result: Result) -> dict[str, Plain]:
    """Return a result as the document ``traincast.result/1``.

    Parameters
    ----------
    result : Result
        The result; its program and timeline are left out.

    Returns
    -------
    dict
        Plain values, ``schema`` first; SI units as in the names.

    Raises
    ------
    TraincastError
        If a number is NaN or infinite; the message names the key path.
    """
    values = {key: plain(getattr(result, key), f"$.{key}") for key in RESULT_KEYS[1:]}
    return {"schema": RESULT_SCHEMA, **values}


def comparison_to_dict(comparison: "Comparison") -> dict[str, Plain]:
    """Return two steps side by side as the document ``traincast.comparison/1``.

    Parameters
    ----------
    comparison : Comparison
        The two steps.

    Returns
    -------
    dict
        Plain values, ``schema`` first; a relative difference to zero is null.

    Raises
    ------
    TraincastError
        If a number is NaN or infinite; the message names the key path.
    """
    ranks = [
        {"rank": rank, "end_s": _difference(end), "parts_s": _differences(comparison.rank_parts[rank])}
        for rank, end in comparison.ends.items()
    ]
    document = {
        "schema": COMPARISON_SCHEMA,
        "a": _side(comparison.a),
        "b": _side(comparison.b),
        "step_s": _difference(comparison.step),
        "breakdown_s": None if comparison.breakdown is None else _differences(comparison.breakdown),
        "parts_s": _differences(comparison.parts),
        "waits_s": _differences(comparison.waits),
        "ranks": ranks,
        "only_a": _unmatched(comparison.only_a),
        "only_b": _unmatched(comparison.only_b),
    }
    return _object(plain(document))


def inspection_to_dict(inspection: "Inspection") -> dict[str, Plain]:
    """Return what a file is as the document ``traincast.inspection/1``."""
    document = {"schema": INSPECTION_SCHEMA}
    return {**document, **_object(plain(inspection))}


def clusters_to_dict(clusters: Iterable["Cluster"]) -> dict[str, Plain]:
    """Return known clusters as the document ``traincast.clusters/1``."""
    described: list[Plain] = []
    for index, cluster in enumerate(clusters):
        fields = _object(plain(cluster, f"$.clusters[{index}]"))
        sources = [{"number": number, "source": source} for number, source in cluster.sources]
        described.append({**fields, "sources": plain(sources)})
    return {"schema": CLUSTERS_SCHEMA, "clusters": described}


def models_to_dict(models: Iterable["Model"], seq_length: int) -> dict[str, Plain]:
    """Return models with their counts as the document ``traincast.models/1``.

    Parameters
    ----------
    models : iterable of Model
        The models.
    seq_length : int
        Tokens of a sequence, for the FLOPs.
    """
    from traincast.model.counts import model_flops_per_token, parameters, token_flops

    described: list[Plain] = []
    for index, model in enumerate(models):
        place, counts = f"$.models[{index}]", parameters(model)
        totals = {name: getattr(counts, name) for name in ("total", "active", "computed", "trained")}
        counted = {**_object(plain(counts, place)), **totals}
        flops = {
            "seq_length": seq_length,
            "training_per_token": model_flops_per_token(model, seq_length),
            "lora_per_token": model_flops_per_token(model, seq_length, "lora"),
            "forward_per_token": plain(token_flops(model, seq_length), place),
        }
        described.append({**_object(plain(model, place)), "parameters": counted, "flops": plain(flops, place)})
    return {"schema": MODELS_SCHEMA, "models": described}


def simai_to_dict(report: "SimaiReport", result: Result) -> dict[str, Plain]:
    """Return SimAI's own sum and the simulated step as the document ``traincast.simai/1``.

    Parameters
    ----------
    report : SimaiReport
        SimAI's numbers.
    result : Result
        The simulated step of the same file and options; of its values those that compare.

    Returns
    -------
    dict
        Plain values, ``schema`` first.
    """
    simulated = {key: getattr(result, key) for key in ("iteration_time_s", "breakdown_s", "parallel")}
    simulated["cluster"] = result.cluster.get("name")
    own = _object(plain(report))
    rows = own.pop("rows")
    layout = {**_object(own["layout"]), "dp": report.layout.dp}
    document = {**own, "layout": layout, "simulated": simulated, "inputs": result.inputs, "version": result.version}
    return {"schema": SIMAI_SCHEMA, **_object(plain(document)), "rows": rows}


def encode(document: Mapping[str, Plain]) -> bytes:
    """Return a document as indented JSON with a newline at its end.

    Parameters
    ----------
    document : mapping
        Plain values, as the ``..._to_dict`` functions return them.

    Returns
    -------
    bytes
        UTF-8; keys in the order of the document, floats as short as they can be read back exactly.
    """
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


def to_json(result: Result) -> bytes:
    """Return a result as the bytes of ``result.json``; the same result gives the same bytes.

    Raises
    ------
    TraincastError
        If a number is NaN or infinite; the message names the key path.
    """
    return encode(result_to_dict(result))


def result_from_json(data: bytes, path: str) -> Result:
    """Read a result from ``result.json``.

    Parameters
    ----------
    data : bytes
        The document; keys that are not known are ignored.
    path : str
        The file, for messages.

    Returns
    -------
    Result
        Without program and timeline, which the document does not hold.

    Raises
    ------
    FormatError
        If it is no ``traincast.result`` of this major version, or a value is missing, of another kind or
        out of range, or parts do not sum to the step; the message names the field path.
    """
    try:
        head = msgspec.json.decode(data)
        schema = head.get("schema") if isinstance(head, dict) else None
        if not isinstance(schema, str) or schema.partition(".result/")[2].partition(".")[0] != "1":
            raise FormatError(f"is not a {RESULT_SCHEMA} document: its schema is {schema!r}", path)
        check_numbers(head, path)
        document = msgspec.convert(head, _Document)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise FormatError(f"cannot be read as {RESULT_SCHEMA}: {error}", path) from None
    result = Result(**{key: getattr(document, key) for key in RESULT_KEYS[1:]})
    check_whole(result, path)
    return result


def _side(side: "Side") -> dict[str, object]:
    return {name: getattr(side, name) for name in ("name", "what", "mfu", "mfu_peak", "mfu_16_bit")}


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
    """Narrow the plain form of a dataclass, which is always an object."""
    return value if isinstance(value, dict) else {}


@file_report("json", "result.json")
def write_json(result: Result, stream: BinaryIO) -> None:
    """Write ``result.json``."""
    stream.write(to_json(result))
