"""Tell a profiler trace by its beginning; what reads one is loaded when there is one to read."""

import re

from traincast.formats.contract import Sniff

_KEYS = re.compile(
    r'"(?:schemaVersion|deviceProperties|distributedInfo|baseTimeNanoseconds|record_shapes|with_stack)"\s*:'
)
_OWN = re.compile(
    r'"(?:cat)"\s*:\s*"(?:cpu_op|kernel|cuda_runtime|cuda_driver|user_annotation|python_function|gpu_mem\w+)"'
)


def looks_like(head: str) -> Sniff:
    """Tell how sure it is that a text begins a profiler trace."""
    text = head.removeprefix("\ufeff").lstrip()
    if not text.startswith("{"):
        return Sniff(0.0, "does not begin with {")
    if '"producer":"traincast"' in text or ('"traceEvents"' in text and not (_KEYS.search(text) or _OWN.search(text))):
        return Sniff(0.1, "has events of Chrome's trace format, but none of a profiler")
    if '"traceEvents"' in text:
        return Sniff(0.95, "has a list traceEvents, and keys or events of PyTorch's profiler")
    if re.search(r'"(?:deviceProperties|distributedInfo)"\s*:', text) and '"schemaVersion"' in text:
        return Sniff(0.8, "begins with schemaVersion and the devices or ranks of PyTorch's profiler")
    return Sniff(0.0, "has no list traceEvents")
