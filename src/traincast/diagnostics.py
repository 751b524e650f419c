"""What is said to the user beside the numbers: an assumption, a warning, an oddity."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Note:
    """One remark with a stable code.

    Parameters
    ----------
    code : str
        Short, stable, kebab-case: ``"microbatches-from-blocks"``.
    text : str
        The remark with its arithmetic.
    place : str, optional
        ``file:line`` or a field path, where the remark belongs to one.
    """

    code: str
    text: str
    place: str | None = None
