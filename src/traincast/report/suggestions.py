"""What-ifs in words, for the terminal and the explorer alike."""

from traincast.errors import ConfigError
from traincast.job.changes import BALANCED, EVEN, OPERATION, PEERS, USUAL, FieldEdit, WorkEdit, parse_change
from traincast.units import format_share

_ON_OFF = {"true": "on", "false": "off"}
_LIKE = {
    EVEN: "as long in every microbatch",
    BALANCED: "as long on every rank of a stage",
    USUAL: "never above its median",
}


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
    if edit.like == PEERS:
        return f"as fast as {'its' if len(edit.ranks or edit.stages) == 1 else 'their'} peers"
    group, _, comm = edit.work.rpartition("_")
    of_group = comm == "comm" and bool(group)
    work = f"{group} communication" if of_group else _spaced(edit.work.removeprefix(OPERATION))
    return f"{work} {_LIKE[edit.like] if edit.like else _times(edit.factor, of_group)}"


def _times(factor: float, of_group: bool) -> str:
    """Say how much longer or shorter something takes."""
    if factor == 0:
        return "takes no time"
    if of_group and factor == 0.5:
        return "half as long"
    return f"takes {format_share(abs(1 - factor), 0)} {'less' if factor <= 1 else 'more'}"


def placed_meaning(change: str) -> str:
    """Return a change in words, with the rank or stage that it is of before them."""
    edit = change_of(change)
    if isinstance(edit, WorkEdit):
        for what, numbers in (("rank", edit.ranks), ("stage", edit.stages)):
            if numbers:
                return f"{what if len(numbers) == 1 else f'{what}s'} {', '.join(map(str, numbers))}: {meaning(change)}"
    return meaning(change)


def _spaced(name: str) -> str:
    return name.replace("_", " ")
