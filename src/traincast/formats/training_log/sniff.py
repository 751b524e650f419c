"""Tell a training log by its beginning."""

import re

from traincast.formats.contract import Sniff

COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def looks_like(head: str) -> Sniff:
    """Tell a log by the lines of its steps, or by what frameworks print before the first of them."""
    # Files of other kinds are told without the expressions of any dialect.
    from traincast.formats.training_log.contract import CutError, WrongError
    from traincast.formats.training_log.dialects import DIALECTS
    from traincast.formats.training_log.facts import PREAMBLE

    plain = COLOURS.sub("", head)
    for dialect in DIALECTS:
        if not any(mark in plain for mark in dialect.marks):
            continue
        read = dialect.opened()
        for line in re.split(r"[\r\n]+", plain):
            if any(mark in line for mark in dialect.marks):
                try:
                    known = read(line) is not None
                except WrongError:
                    known = True
                except CutError:
                    known = False
                if known:
                    return Sniff(0.95, f"lines of steps as {dialect.title} prints them")
    if re.search(PREAMBLE, plain):
        return Sniff(0.6, "what a training framework prints before the first step")
    return Sniff(0.0, "no line of a step as a training framework prints it")
