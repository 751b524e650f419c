"""Tell a Chakra trace, or its comm groups, by the beginning; what reads one is loaded when there is one to read."""

import re

from traincast.formats.contract import Sniff

_METADATA = re.compile(r".{1,4}(?:\r?\n.\d+\.\d+\.\d+|\x12.\r?\n.schema|\r?\n.\r?\n.schema)", re.DOTALL)
"""Length of the metadata, then the version, or the attribute that says the schema (0.0.4 and 0.0.3)."""
_NODE = re.compile(r"\0?.{1,3}(?:\x08.{1,5})?\x12.{1,2}[\x20-\x7e]{3}", re.DOTALL)
"""Length of a node where there is no metadata, or an empty one, its id, and its name."""


def looks_like(head: str) -> Sniff:
    """Tell whether the beginning of a file is that of an execution trace, or of its comm-group file."""
    if looks_like_groups(head):
        return Sniff(0.8, "an object of lists by number, as ASTRA-sim's comm groups are")
    if _METADATA.match(head):
        return Sniff(0.9, "begins with the metadata of a Chakra trace after its length")
    if _NODE.match(head) and not head[:64].isprintable():
        return Sniff(0.5, "begins like a node of a Chakra trace after its length")
    return Sniff(0.0, "no length, metadata and version of a Chakra trace at the beginning")


def looks_like_groups(text: str) -> bool:
    """Tell whether a text begins like a comm-group file."""
    start = "".join(text[:200].split())
    name, quote, rest = start[2:].partition('"')
    return start.startswith('{"') and name.isdigit() and bool(quote) and rest.startswith(":[")
