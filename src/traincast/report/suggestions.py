"""What-ifs in words, for the terminal and the explorer alike."""

from traincast.errors import ConfigError
from traincast.job.changes import OPERATION, FieldEdit, WorkEdit, parse_change
from traincast.units import format_share

_ON_OFF = {"true": "on", "false": "off"}


def change_of(text: str) -> WorkEdit | FieldEdit | None:
    """Return what a line of a result's what-ifs changes; None of one that has a name of its own, as all together."""
    try:
        return parse_change(text)
    except ConfigError:
        return None


def meaning(change: str) -> str:
    """Return a change, as ``--what-if`` takes it, in words, without the rank or stage that it is of."""
    edit = change_of(change)
    if edit is None:
        return change
    if isinstance(edit, FieldEdit):
        return f"{_spaced(edit.name)} {_ON_OFF.get(edit.value.lower(), _spaced(edit.value))}"
    if edit.factor is None:
        return "as fast as its peers"
    group, _, comm = edit.work.rpartition("_")
    of_group = comm == "comm" and bool(group)
    work = f"{group} communication" if of_group else _spaced(edit.work.removeprefix(OPERATION))
    if of_group and edit.factor == 0.5:
        return f"{work} half as long"
    by = format_share(abs(1 - edit.factor), 0)
    return f"{work} takes {by} {'less' if edit.factor <= 1 else 'more'}"


def placed_meaning(change: str) -> str:
    """Return a change in words, with the rank or stage that it is of before them."""
    edit = change_of(change)
    if isinstance(edit, WorkEdit) and edit.rank is not None:
        return f"rank {edit.rank}: {meaning(change)}"
    if isinstance(edit, WorkEdit) and edit.stage is not None:
        return f"stage {edit.stage}: {meaning(change)}"
    return meaning(change)


def _spaced(name: str) -> str:
    return name.replace("_", " ")
