"""Values of a configuration that refer to others, as OmegaConf writes them: ``${model.seq_length}``, ``${.layers}``.

A name with dots before it is sought from the place of its setting: one dot next to it, each further one a section
above. ``${multiply:a,b}`` and others like it are the functions that NeMo and its launcher register.
Source: omegaconf.readthedocs.io (Variable interpolation); NVIDIA/NeMo, nemo/core/classes/modelPT.py (multiply).
"""

import re
from collections.abc import Callable, Mapping

from traincast.units import count_of

_INNERMOST = re.compile(r"\$\{([^${}]*)\}")
_MOST_ROUNDS, _MOST_TEXT = 16, 4096
_FUNCTIONS: dict[str, Callable[[int, int], int]] = {
    "multiply": lambda one, other: one * other,
    "sum": lambda one, other: one + other,
    "add": lambda one, other: one + other,
    "int_div": lambda one, other: one // other,
    "divide_floor": lambda one, other: one // other,
    "divide_ceil": lambda one, other: -(-one // other),
}


def resolved(settings: Mapping[str, str]) -> dict[str, str]:
    """Return settings with what they refer to in place of references; one that leads nowhere stays as it is.

    Parameters
    ----------
    settings : mapping of str to str
        Dotted name to value.
    """
    return {name: _resolved(name, value, settings) for name, value in settings.items()}


def refers(value: str) -> bool:
    """Say whether a value refers to what is not there."""
    return "${" in value


def _resolved(name: str, value: str, settings: Mapping[str, str]) -> str:
    for _ in range(_MOST_ROUNDS):
        found = _INNERMOST.sub(lambda reference: _meant(name, reference, settings), value)
        if found == value or len(found) > _MOST_TEXT:
            break
        value = found
    return value


def _meant(name: str, reference: re.Match[str], settings: Mapping[str, str]) -> str:
    """Return what one reference stands for; itself where nothing is known of it."""
    function, colon, arguments = reference[1].partition(":")
    if colon:
        numbers = [_whole(each.strip()) for each in arguments.split(",")]
        of_two = _FUNCTIONS.get(function.strip())
        if of_two is None or len(numbers) != 2 or numbers[0] is None or numbers[1] is None:
            return reference[0]
        return str(of_two(numbers[0], numbers[1]))
    path = reference[1].lstrip(".")
    dots = len(reference[1]) - len(path)
    above = name.split(".")[: -dots or None] if dots else []
    return settings.get(".".join((*above, path)), reference[0])


def _whole(text: str) -> int | None:
    """Return the whole number but zero that a text is; None where it is not one."""
    found = count_of(text.removeprefix("-"))
    return -found if found is not None and text.startswith("-") else found
