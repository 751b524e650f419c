"""Tell AICB workload text from other files, and which generation of it a file is."""

from typing import NamedTuple

from traincast.formats.aicb.grammar import FIELDS
from traincast.formats.aicb.header import POLICIES
from traincast.formats.aicb.rows import AicbFile, Header
from traincast.formats.contract import Sniff
from traincast.formats.values import shown
from traincast.workload.words import Operation

_TRANSFORMER = ("HYBRID_TRANSFORMER_FWD_IN_BCKWD", "HYBRID_TRANSFORMER")
_INFERENCE_ROWS = ("moe_route", "moe_expert")
_V1_0 = "AICB v1.0 (2024-07 to 2024-08)"
_UNKNOWN_WRITER = "SimAI workload of an unknown writer"


class Generation(NamedTuple):
    """Which generation of the format a file is, how sure that is (0 to 1), and why."""

    text: str
    confidence: float
    evidence: tuple[str, ...]


class _Clue(NamedTuple):
    generation: str
    reason: str


def looks_like(head: str) -> Sniff:
    """Tell from the beginning of a file how sure it is AICB workload text.

    Parameters
    ----------
    head : str
        First part of the file; its last line may be cut.

    Returns
    -------
    Sniff
        Near 1 with a known policy, a number of rows and a row of 12 or 13 fields.
    """
    lines = [line.split() for line in head[: 1 << 16].removeprefix("\ufeff").splitlines() if line.strip()][:3]
    if not lines:
        return Sniff(0.0, "the file is empty")
    first, rest = lines[0], lines[1:]
    if first[0] not in POLICIES:
        if "model_parallel_NPU_group:" in first:
            return Sniff(0.3, f"the header has model_parallel_NPU_group, but {shown(first[0])} is no policy of SimAI")
        return Sniff(0.0, "the first word is no policy of SimAI")
    counted = bool(rest) and len(rest[0]) == 1 and _is_whole(rest[0][0])
    if any(len(fields) in (FIELDS, FIELDS + 1) and _is_whole(fields[1]) for fields in rest):
        return Sniff(0.98 if counted else 0.9, f"policy {first[0]} and rows of 12 or 13 fields")
    if counted or "model_parallel_NPU_group:" in first:
        return Sniff(0.7, f"policy {first[0]} and the number of rows or the TP size")
    return Sniff(0.2, f"the first word is the policy {first[0]}")


def _is_whole(word: str) -> bool:
    return word.removeprefix("-").isdecimal()


def generation(file: AicbFile) -> Generation:
    """Tell which generation of the format a file is.

    Parameters
    ----------
    file : AicbFile
        What the file says.

    Returns
    -------
    Generation
        A text, the confidence, and the sentences that speak for it.

    Notes
    -----
    Source: AICB, ``workload_generator/`` at its dated commits, and ``workload/simAI/``; SimAI,
    ``example/``. Header and rows changed independently, so each is dated by itself.
    """
    header = file.header
    if header.policy == "MICRO":
        evidence = ("the policy is MICRO: a communication micro-benchmark, not a training step",)
        return Generation("SimAI micro test", 0.95, evidence)
    if header.policy not in _TRANSFORMER:
        evidence = (f"the policy is {header.policy}; AICB writes HYBRID_TRANSFORMER_FWD_IN_BCKWD",)
        return Generation("SimAI workload that AICB did not write", 0.8, evidence)
    return _combine(_header_clue(header), *_row_clues(file))


def _header_clue(header: Header) -> _Clue:
    """Date the header by its keys and their order; the first test that holds decides."""
    keys = [key.lower() for key in header.keys]
    bare = [key.lower() for key in header.bare_keys]
    early = "pp_comm" in keys and "checkpoints" in keys and keys.index("pp_comm") < keys.index("checkpoints")
    tests = (
        ("mode" in keys, "AICB inference (2025-11 or later)", "the header has mode"),
        (
            "expert_parallel_npu_group" in keys,
            "AICB micro test",
            "the header has expert_parallel_npu_group in place of ep",
        ),
        ("pp_comm" in bare, "SimAI example (2024-12 or later)", "pp_comm has no colon, as in SimAI's own example"),
        (early, _UNKNOWN_WRITER, "pp_comm stands before checkpoints, where no AICB version writes it"),
        ("pp_comm" in keys, "AICB with pp_comm (2024-12 or later)", "the header has pp_comm"),
        ("vpp" in keys, "AICB with vpp (2024-11)", "the header has vpp and no pp_comm"),
        (
            not {"ep", "pp", "ga", "all_gpus"}.isdisjoint(keys),
            "AICB v1.1 (2024-09 to 2024-11)",
            "the header has ep, pp, ga or all_gpus, and neither vpp nor pp_comm",
        ),
        (True, _V1_0, "the header has no ep, pp, vpp, ga and all_gpus"),
    )
    return next(_Clue(text, reason) for holds, text, reason in tests if holds)


def _row_clues(file: AicbFile) -> tuple[bool | None, list[str], str]:
    """Return whether the rows are of v1.0 (None: they do not tell), why, and what they add."""
    names = {row.name for row in file.rows}
    old = _old_rows(file, names)
    new = sorted(names & {"attention_column", "attention_row", "mlp_column", "mlp_row", "grad_param_compute"})
    reasons = []
    if old:
        reasons.append(f"v1.0 rows: {old}")
    elif new:
        reasons.append(f"rows of v1.1 or later: {', '.join(new)}")
    moe = _moe_rows(file)
    details = []
    if "attention_linear_q_lora" in names or "attention_linear_kv_lora" in names:
        reasons.append("DeepSeek attention rows (attention_linear_q_lora and the like)")
        details.append("DeepSeek")
    if moe:
        since = "since 2025-09-24" if moe == 5 else "before 2025-09-24"
        reasons.append(f"{moe} mlp_moelayer rows per layer, as AICB writes {since}")
        details.append(f"{moe}-row MoE, {since}")
    inference = sorted(names.intersection(_INFERENCE_ROWS))
    if inference:
        reasons.append(f"rows that only the inference generator writes: {', '.join(inference)}")
    if names == {"micro_test"}:
        reasons.append("every row is a micro_test")
        details.append("micro test")
    is_old = True if old else False if new or moe or inference else None
    return is_old, reasons, ", ".join(details)


def _old_rows(file: AicbFile, names: set[str]) -> str:
    """Return what only v1.0 files have, or nothing."""
    marks: list[str] = [name for name in ("norm", "grad_param", "attention_norm") if name in names]
    marks += sorted(name for name in names if name.endswith(("_column_layer", "_row_layer")))
    if file.header.inference:
        marks = [name for name in marks if name != "attention_norm"]
    if any(row.forward.operation is Operation.BROADCAST for row in file.rows):
        marks.append("BROADCAST")
    return ", ".join(marks)


def _moe_rows(file: AicbFile) -> int:
    """Return how many ``mlp_moelayer`` rows a layer has, where it is 5 or 7 throughout; else 0."""
    runs: set[int] = set()
    length = 0
    for row in (*file.rows, None):
        if row is not None and row.name == "mlp_moelayer":
            length += 1
        elif length:
            runs.add(length)
            length = 0
    return runs.pop() if len(runs) == 1 and runs <= {5, 7} else 0


def _combine(clue: _Clue, old: bool | None, reasons: list[str], details: str) -> Generation:
    """Set what the header says against what the rows say."""
    evidence = (clue.reason, *reasons)
    suffix = f" ({details})" if details else ""
    old_header = clue.generation == _V1_0
    if old and not old_header:
        text = f"mixed: AICB v1.0 rows under a newer header{suffix}"
        return Generation(text, 0.5, (*evidence, "header and rows are of different generations"))
    if old is False and old_header:
        text = f"mixed: rows of AICB v1.1 or later under a v1.0 header{suffix}"
        return Generation(text, 0.5, (*evidence, "header and rows are of different generations"))
    dated = old is not None and clue.generation != _UNKNOWN_WRITER
    return Generation(clue.generation + suffix, 0.9 if dated else 0.5, evidence)
