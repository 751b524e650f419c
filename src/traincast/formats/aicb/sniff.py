"""Tell an AICB workload by its beginning."""

from traincast.formats.aicb.policies import POLICIES
from traincast.formats.contract import Sniff
from traincast.formats.values import shown

FIELDS = 12
"""Fields of a row; files of ``HYBRID_CUSTOMIZED`` have a policy as one more."""


def looks_like(head: str) -> Sniff:
    """Tell from the beginning of a file, whose last line may be cut.

    It is near 1 with a known policy, a number of rows and a row of 12 or 13 fields.
    """
    lines = [line.split() for line in head[: 1 << 16].removeprefix("\ufeff").splitlines() if line.strip()][:3]
    if not lines:
        return Sniff(0.0, "the file is empty")
    first, rest = lines[0], lines[1:]
    if first[0] not in POLICIES:
        if "model_parallel_NPU_group:" in first:
            return Sniff(
                0.3, f"the header has model_parallel_NPU_group, but {shown(first[0])} is not a policy of SimAI"
            )
        return Sniff(0.0, "the first word is not a policy of SimAI")
    has_count = bool(rest) and len(rest[0]) == 1 and _is_whole(rest[0][0])
    if any(len(fields) in (FIELDS, FIELDS + 1) and _is_whole(fields[1]) for fields in rest):
        return Sniff(0.98 if has_count else 0.9, f"policy {first[0]} and rows of 12 or 13 fields")
    if has_count or "model_parallel_NPU_group:" in first:
        return Sniff(0.7, f"policy {first[0]} and the number of rows or the TP size")
    return Sniff(0.2, f"the first word is the policy {first[0]}")


def _is_whole(word: str) -> bool:
    return word.removeprefix("-").isdecimal()
