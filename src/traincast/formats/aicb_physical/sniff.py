"""Tell a physical AICB workload by its header."""

from traincast.formats.contract import Sniff

HEADER = "comm_type,comm_group,"
_HEADER_WITHIN = 4
"""Lines among which the first header is."""


def looks_like(head: str) -> Sniff:
    """Tell from the header, which may follow a title."""
    lines = [line.strip() for line in head.lstrip("\ufeff").splitlines() if line.strip()][:_HEADER_WITHIN]
    if not any(line.startswith(HEADER) for line in lines):
        return Sniff(0.0, f"no header begins with {HEADER}")
    return Sniff(0.95, "a header of AICB's columns")
