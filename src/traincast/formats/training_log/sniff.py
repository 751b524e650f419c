"""Tell a training log by its beginning."""

import re

from traincast.formats.contract import Sniff
from traincast.formats.training_log.table import TABLE

COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def looks_like(head: str) -> Sniff:
    """Tell a log by the lines of its steps, or by what frameworks print before the first of them."""
    plain = COLOURS.sub("", head)
    for framework in TABLE.framework:
        if framework.mark in plain and re.search(framework.head, plain):
            return Sniff(0.95, f"lines of steps as {framework.title} prints them")
    if re.search(TABLE.run.preamble, plain):
        return Sniff(0.6, "what a training framework prints before the first step")
    return Sniff(0.0, "no line of a step as a training framework prints it")
