"""Messages on standard error."""

import sys

from traincast.report.plain import shown

_LONGEST_MESSAGE = 6000
"""Characters; the longest sound messages list some hundred known names."""


def complain(message: str) -> None:
    """Write a message to stderr: long values cut short, control characters made visible."""
    text = shown(message)
    if len(text) > _LONGEST_MESSAGE:
        half = _LONGEST_MESSAGE // 2
        text = f"{text[:half]} [... {len(text) - _LONGEST_MESSAGE:,} characters ...] {text[-half:]}"
    if sys.stderr is None:
        return
    try:
        print(text, file=sys.stderr, flush=True)
    except (OSError, ValueError):
        # Nobody can be told; the exit code says it.
        return
