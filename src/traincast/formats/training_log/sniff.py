"""Tell a training log by its beginning."""

import re

from traincast.formats.contract import Sniff

LONGEST_LINE = 20_000
"""Characters of a line; no framework prints so many of a step."""
COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def looks_like(head: str) -> Sniff:
    """Tell a log by the lines of its steps, or by what frameworks print before the first of them."""
    # Files of other kinds are told without the expressions of any dialect.
    from traincast.formats.training_log.contract import CutError, RunsError, WrongError
    from traincast.formats.training_log.dialects import DIALECTS
    from traincast.formats.training_log.dialects.hugging_face import is_document
    from traincast.formats.training_log.dialects.tables import is_header
    from traincast.formats.training_log.facts import PREAMBLE

    plain = COLOURS.sub("", head)
    if "brain.Event:" in plain[:100]:
        return Sniff(0.95, "an event file of TensorBoard")
    if is_document(plain):
        return Sniff(0.95, "a document with a list of steps")
    if is_header(plain.lstrip("\ufeff\r\n").partition("\n")[0].rstrip("\r")):
        return Sniff(0.95, "a table of steps")
    for dialect in DIALECTS:
        if not any(mark in plain for mark in dialect.marks):
            continue
        read = dialect.opened()
        for line in re.split(r"[\r\n]+", plain):
            if len(line) <= LONGEST_LINE and any(mark in line for mark in dialect.marks):
                try:
                    known = read(line) is not None
                except WrongError:
                    known = True
                except (CutError, RunsError):
                    known = False
                if known:
                    return Sniff(0.95, f"lines of steps as {dialect.title} prints them")
    if re.search(PREAMBLE, plain):
        return Sniff(0.6, "what a training framework prints before the first step")
    return Sniff(0.0, "no line of a step as a training framework prints it")
