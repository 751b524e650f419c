"""Tell what a file is that no format knows, and which command takes it.

Rooms further down know files of their own, such as tables of measurements: they hand their tellers in.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from traincast.errors import FormatError
from traincast.files import chunks_of, parse_json, parse_toml, read_head, read_text, unpacked_head
from traincast.formats.busbw import looks_like_busbw, read_busbw
from traincast.formats.contract import Format, Inspection
from traincast.formats.open import identify, identify_run
from traincast.job.job_file import SECTIONS

_MOST_BYTES = 1 << 16
_MOST_JSON_BYTES = 1 << 26
_RESULT = "traincast report and traincast compare take it, traincast predict or simulate runs it again"
_NS3_KEYS = {"ENABLE_QCN", "CC_MODE", "PACKET_PAYLOAD_SIZE"}
_NEUSIGHT_SUMS = ("num_layer", "e2e_latency", "fw_latency", "acc_latency")
_AIOB = re.compile(r"\s*train_iter\s*:\s*\d+\s")


class Known(NamedTuple):
    """A file that is not a workload."""

    name: str
    """Short name of its kind."""
    what: str
    """What it is, for people, without an article: ``"log of nccl-tests"``."""
    taken_by: str
    """Which command takes it, as a clause, or what to do where none does."""


Teller = Callable[[Path, str], Known | None]
"""Tells what a file is by its name and its beginning; None where it does not know it."""

_MODEL_TAKEN_BY = "predict takes it as --model FILE, traincast models shows it"
_TRACE = Known("trace", "timeline in Chrome's trace format", "ui.perfetto.dev shows it; no command takes it")


def _is_ratio(head: str) -> bool:
    first = head.partition("\n")[0].lower()
    return first.startswith("size,") and "node" in first


def _is_ns3(head: str) -> bool:
    return len({line.split()[0] for line in head.splitlines() if line.strip()} & _NS3_KEYS) >= 2


_TOLD: tuple[tuple[Callable[[str], object], Known], ...] = (
    (
        looks_like_busbw,
        Known("busbw", "SimAI's bus bandwidths by group and operation", "simulate and predict take it as --busbw FILE"),
    ),
    (
        _is_ratio,
        Known(
            "simai-ratio",
            "SimAI's shares of the bus bandwidth by size and number of nodes",
            "no command takes it: simulate --pricing simai has SimAI's own tables, and a cluster is described in a "
            "TOML file or fitted by traincast calibrate",
        ),
    ),
    (
        _is_ns3,
        Known(
            "simai-ns3",
            "settings of SimAI's NS3 back end",
            "no command takes it: a network is described in the [fabric] of a cluster file",
        ),
    ),
    (
        lambda head: _AIOB.match(head) and "time_gpu_" in head,
        Known(
            "aicb-times",
            "kernel times that AICB measured (AIOB)",
            "traincast convert JOB OUT --to aicb --option times=FILE writes a workload with them",
        ),
    ),
    (
        lambda head: head.startswith("rank,stage,virtual_stage,microbatch,phase,kind,name,"),
        Known("ops", "operations of a simulated step (ops.csv)", "open it in a spreadsheet; no command takes it"),
    ),
    (
        lambda head: head.startswith("op,target,_input_nodes,"),
        Known(
            "neusight-raw",
            "table of torch.fx nodes that NeuSight makes its operator graphs from",
            "no command takes it: simulate takes the graph of the same name in NeuSight's folder opgraph",
        ),
    ),
    (
        lambda head: head.lstrip().startswith("{") and all(f'"{key}"' in head for key in _NEUSIGHT_SUMS),
        Known(
            "neusight-sums",
            "sums of a prediction of NeuSight",
            "no command takes it: simulate takes the prediction itself, the .csv of the same name",
        ),
    ),
)
"""What the beginning of a file tells, asked in this order."""


def recognise(path: Path, further: Sequence[Teller] = ()) -> Known | None:
    """Tell what a file is by its content; None where it is of no kind that is known, or cannot be read.

    Workloads, traces, topologies and cluster files are the business of the formats and of `traincast.fabric`;
    ask those first. Tellers of other rooms are asked last.

    Raises
    ------
    FormatError
        If a file that a teller knows, or a file named ``.toml``, cannot be read as such, with the line; or if a trace
        ends in its middle.
    """
    try:
        data = unpacked_head(read_head(path, _MOST_BYTES), _MOST_BYTES)
    except FormatError:
        return None
    head = data.decode("utf-8-sig", errors="replace")
    if path.suffix == ".toml":
        return _job_of_another(path) or _toml(path)
    if '"traceEvents"' in head and head.lstrip().startswith("{"):
        _check_end(path)
        return _TRACE
    if head.lstrip().startswith("{") and (document := _document(path)) is not None:
        return document
    told = next((known for fits, known in _TOLD if fits(head)), None) or _job_of_another(path)
    return told or next((known for tell in further if (known := tell(path, head)) is not None), None)


def _check_end(path: Path) -> None:
    """Refuse a trace that ends in the middle: what writes one may be stopped, or its disk full."""
    end = b""
    for chunk in chunks_of(path, _MOST_BYTES):
        end = chunk.rstrip()[-1:] or end
    if end not in (b"}", b"]"):
        raise FormatError("ends in the middle of a trace: write or copy it again", str(path))


def _job_of_another(path: Path) -> Known | None:
    """Tell a launch script, recipe or configuration file of another framework."""
    # A workload needs none of the dialects, and this module is loaded with the formats.
    from traincast.dialects.recognise import HUGGING_FACE, WHAT, told_as

    like = told_as(path)
    if like is None or like == HUGGING_FACE:
        return None
    return Known(like, WHAT[like], "traincast predict takes it")


def described(path: Path, further: Sequence[Teller] = ()) -> Inspection | None:
    """Describe a file that no format reads (see `recognise`)."""
    known = recognise(path, further)
    if known is None:
        return None
    return Inspection(path=str(path), format=known.name, generation=known.what, confidence=0.9, taken_by=known.taken_by)


def workload_format(paths: Sequence[Path], given: Sequence[Path], further: Sequence[Teller] = ()) -> Format:
    """Return the format of a run's files (`identify_run`); the error says what a file is that is not a workload."""
    try:
        return identify_run(paths, given)
    except FormatError:
        known = None if len(paths) > 1 else recognise(paths[0], further)
        if known is None:
            raise
    raise FormatError(f"is not a workload: {known.what}; {known.taken_by}", str(paths[0]))


def bus_bandwidths(path: Path, further: Sequence[Teller] = ()) -> dict[str, float]:
    """Return the bus bandwidths of a file (`read_busbw`); of another file the error says what it is."""
    try:
        return read_busbw(path)
    except FormatError:
        known = known_as(path, further)
        if known is None or known.name == "busbw":
            raise
    raise FormatError(f"holds no bus bandwidths: {known.what}; {known.taken_by}", str(path))


def known_as(path: Path, further: Sequence[Teller] = ()) -> Known | None:
    """Tell what a file is, a workload or not; None where nothing knows it."""
    try:
        kind = identify(path)
        command = "simulate" if isinstance(kind, Format) else "inspect"
        return Known(kind.name, kind.title, f"traincast {command} takes it")
    except FormatError:
        try:
            return recognise(path, further)
        except FormatError:
            return None


def _toml(path: Path) -> Known | None:
    """Tell a job from a model; a cluster file is known to `traincast.fabric`."""
    document = parse_toml(read_text(path, encoding="utf-8-sig"), str(path))
    if isinstance(document.get("model"), Mapping) or set(document) & set(SECTIONS):
        return Known("job", "description of a job", "traincast predict takes it")
    if {"layers", "hidden"} <= set(document) or "attention" in document:
        return Known("model", "description of a model", _MODEL_TAKEN_BY)
    return None


def _document(path: Path) -> Known | None:
    """Tell what a JSON object is by its keys."""
    try:
        document = parse_json(read_text(path, _MOST_JSON_BYTES), str(path))
    except FormatError:
        return None
    if not isinstance(document, dict):
        return None
    schema = document.get("schema")
    if isinstance(schema, str) and schema.startswith("traincast."):
        if schema.partition("/")[0] == "traincast.result":
            return Known(schema, "result of a simulated step", _RESULT)
        return Known(schema, f"document {schema} of traincast", "no command takes it again")
    if "hidden_size" in document and {"model_type", "architectures"} & set(document):
        return Known("hugging-face", "config.json of a model of Hugging Face", _MODEL_TAKEN_BY)
    return None
